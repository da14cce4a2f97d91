"""One simulated run: from a workload, a cluster, a policy and rules to figures.

Loop (`engine.loop.run_rounds`) and policies are those of hadard. This module adds the accounting
and checks that trained steps and held GPU-seconds balance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from hadar_slurm.core.cluster import Cluster, JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.engine.backend import Backend
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.errors import ConfigError, PolicyError
from hadar_slurm.lab.policies.slurm.fair_share import FairShareBackend
from hadar_slurm.lab.study.figures import Result, RunTally, check_accounts, cpu_s
from hadar_slurm.lab.traces.limits import have_limits
from hadar_slurm.lab.traces.speeds import shipped_gpu_types
from hadar_slurm.policies.policy import Policy
from hadar_slurm.sim.backend import GAVEL_RULES, Failure, SimBackend
from hadar_slurm.sim.cancelling import CancellingBackend
from hadar_slurm.sim.claims import ClaimsBackend, UserClaim
from hadar_slurm.sim.in_time import InTimeBackend
from hadar_slurm.sim.learning import LearningBackend
from hadar_slurm.sim.sizes import SizesBackend, learned_from
from hadar_slurm.sim.whole_rounds import WholeRounds

RULES = ("hadar", "gavel")
ORACLE = "oracle"
SPEEDS = (ORACLE, "learned", "prior", "none")
LIMIT, LEARNED = "limit", "learned"
SIZES = (ORACLE, LIMIT, LEARNED, "prior")


@dataclass(frozen=True, slots=True)
class ExperimentSettings:
    """The settings of a run. Raises ConfigError for invalid values."""

    round_s: float = 360.0
    # One of `RULES`.
    rules: str = "hadar"
    failures: tuple[Failure, ...] = ()
    # Throughputs known to policies: true (oracle), observed (learned), the GPU types' published
    # speeds only (prior), or none.
    speeds: str = ORACLE
    # Standard deviation of the logarithm of measurements, drawn from `seed`.
    noise: float = 0.05
    seed: int = 0
    # Sizes known to policies: true (oracle), as many steps as fit the time limit (limit), learned
    # from the jobs that end and that train (learned), or what would be known of the first of all
    # jobs (prior).
    sizes: str = ORACLE
    # Whether what users claim of their jobs is bounded before policies see it, as by hadard.
    bounds_claims: bool = True
    # Whether hadard adjusts time limits to the types that jobs get, as users name the type for
    # which they wrote theirs. Under a policy with `keeps_limits`, as plain Slurm's, it never does;
    # nor are types left out then on which jobs of known size would reach their limits.
    adjusts_limits: bool = False

    def __post_init__(self) -> None:
        if self.rules not in RULES:
            raise ConfigError(f"rules {self.rules!r}: expected one of {', '.join(RULES)}")
        if self.speeds not in SPEEDS:
            raise ConfigError(f"speeds {self.speeds!r}: expected one of {', '.join(SPEEDS)}")
        if self.sizes not in SIZES:
            raise ConfigError(f"sizes {self.sizes!r}: expected one of {', '.join(SIZES)}")
        if self.failures and self.rules != "hadar":
            raise ConfigError("Gavel's rules have no node failures; omit them")


class Told(NamedTuple):
    """What policies are told of jobs beside the workload."""

    # In place of the jobs' own specs, where there are any.
    claims: Mapping[JobId, UserClaim] = MappingProxyType({})
    # Jobs that have ended before, for learned sizes.
    history: Sequence[JobSpec] = ()


def telling_ended(tell: Callable[[int], None]) -> Callable[[RoundRecord], None]:
    """Return a reader of rounds that tells the number of jobs that have ended until then."""
    ended: set[JobId] = set()

    def read(record: RoundRecord) -> None:
        ended.update(end.job_id for end in (record.snapshot.ended if record.snapshot else ()))
        tell(len(ended))

    return read


def rules_for(policy: Policy) -> GangRules:
    """Return what a policy may do: plain Slurm splits --gpus=N as it likes, and may requeue."""
    return GangRules(
        is_uniform=not getattr(policy, "splits_unevenly", False),
        may_requeue=getattr(policy, "requeues", False),
    )


def run_experiment(
    specs: Sequence[JobSpec],
    cluster: Cluster,
    policy: Policy,
    settings: ExperimentSettings | None = None,
    *,
    told: Told | None = None,
    on_round: Callable[[RoundRecord], None] = lambda record: None,
) -> Result:
    """Simulate `specs` on `cluster` and return the figures.

    After each round `on_round` gets it. Raises HadarError when a round fails or the accounts do not
    balance at the end.
    """
    settings = settings or ExperimentSettings()
    is_gavels = settings.rules == "gavel"
    if is_gavels and getattr(policy, "requeues", False):
        raise PolicyError(
            f"{policy.name}: Gavel's rules stop no job for another; leave out the word preempt="
        )
    rules = GAVEL_RULES if is_gavels else rules_for(policy)
    keeps_limits = getattr(policy, "keeps_limits", False)
    ends_stopped = getattr(policy, "cancels", False)
    in_time = CancellingBackend if ends_stopped else SimBackend
    world = (WholeRounds if is_gavels else in_time)(
        cluster,
        specs,
        rules=rules,
        failures=settings.failures,
        adjusts_limits=settings.adjusts_limits and not keeps_limits,
    )
    tally = RunTally(cpu_s())

    def add(record: RoundRecord) -> None:
        tally.add(record)
        on_round(record)

    known = _as_known(world, settings, *(told or Told()), policy=policy)
    run_rounds(
        known, policy, add, length_s=settings.round_s, now_s=lambda: world.now_s, clock=perf_counter
    )
    segments = tally.book.all()
    check_accounts(world, segments)
    result = tally.result(policy.name, world, segments)
    return replace(result, **known.coverage()) if isinstance(known, SizesBackend) else result


def _as_known(
    world: SimBackend,
    settings: ExperimentSettings,
    claims: Mapping[JobId, UserClaim],
    history: Sequence[JobSpec],
    *,
    policy: Policy,
) -> Backend:
    """Return the world as policies may know it."""
    known = _with_speeds(world, settings, claims)
    is_slurms = getattr(policy, "keeps_limits", False)
    if settings.rules == "hadar" and not is_slurms and any(spec.user for spec in world.jobs):
        known = FairShareBackend(known, world.jobs)
    if settings.sizes == ORACLE:
        if is_slurms or not have_limits(world.jobs):
            return known
        is_plain = getattr(policy, "is_plain", lambda _: False)
        return InTimeBackend(known, world, is_plain) if world.has_limits else known
    if settings.sizes == LIMIT:
        return SizesBackend(known, world)
    learns = settings.sizes == LEARNED
    durations = learned_from(history if learns else (), world.cluster.gpus_by_type)
    return SizesBackend(known, world, durations, learns=learns)


def _with_speeds(
    world: SimBackend, settings: ExperimentSettings, claims: Mapping[JobId, UserClaim]
) -> Backend:
    if claims:
        return ClaimsBackend(world, claims, is_bounded=settings.bounds_claims)
    if settings.speeds == ORACLE:
        return world
    draw = np.random.default_rng(settings.seed).lognormal
    return LearningBackend(
        world,
        {} if settings.speeds == "none" else shipped_gpu_types(),
        measures=settings.speeds == "learned",
        noise=lambda: float(draw(0.0, settings.noise)),
    )


def forked(specs: Sequence[JobSpec], *, max_copies: int, aggregation_s: float) -> list[JobSpec]:
    """Return the jobs with up to `max_copies` copies each, for HadarE."""
    return [replace(s, max_copies=max_copies, aggregation_cost_s=aggregation_s) for s in specs]
