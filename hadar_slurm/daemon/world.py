"""Builds the adapter, the backends and the policy of a configuration."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hadar_slurm.config import Config
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.daemon.adapter import make_adapter
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.engine.rate_limit import is_slow
from hadar_slurm.errors import ConfigError, HadarError
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.policies.policy import Policy, SolverLimits, heeds_gangs
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.resources import data_file
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.enforce.ledger import FILE_NAME as LEDGER_FILE
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.state.heartbeat import LastRounds
from hadar_slurm.state.learned_file import FILE_NAME as PROFILE_FILE
from hadar_slurm.state.throughput_store import Profile
from hadar_slurm.state.wakeup import FILE_NAME as WAKE_FILE

log = logging.getLogger("hadard")

# Forecasts for mode `steer`: of how many starts, and in how many seconds at most.
_MOST_FORESEEN, _FORESIGHT_S = 32, 0.5


def policy_of(config: Config) -> Policy:
    """Return the policy that a configuration names."""
    limits = SolverLimits(config.solver.time_limit_s)
    return make_policy(config.policy, limits=limits, user_shares=config.user_shares)


@dataclass(slots=True)
class Life:
    """Liveness of the daemon, its last rounds, and the results of its commands since then."""

    # Renews the heartbeat; called often, and before each command.
    sign: Callable[[], None] = lambda: None
    # Results of Slurm's commands by (program, answer).
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    # They outlast a reload of the configuration.
    rounds: LastRounds = field(default_factory=LastRounds)

    def take_answers(self) -> dict[str, dict[str, int]]:
        """Return and reset the counts, by program, as the journal records them."""
        tree: dict[str, dict[str, int]] = {}
        for (program, answer), number in sorted(self.answers.items()):
            tree.setdefault(program, {})[answer] = number
        self.answers.clear()
        return tree


@dataclass(frozen=True, slots=True)
class World:
    """What hadard is built from: the clock, Slurm, the policy; tests pass others."""

    # Seconds since the epoch.
    now_s: Callable[[], float] = time.time
    make_adapter: Callable[[str, Runner], SlurmAdapter] = make_adapter
    make_policy: Callable[[Config], Policy] = policy_of
    life: Life = field(default_factory=Life)


@dataclass
class Remembering:
    """A policy whose last memory is kept, for forecasts by another of its kind."""

    policy: Policy
    forecaster: Policy
    memory: object = None
    # The jobs of the last plan: with others it may fail.
    planned: frozenset[JobId] = frozenset()
    # Signed before each plan: a round may make several before its next command.
    life: Life = field(default_factory=Life)

    @property
    def name(self) -> str:
        """Return the policy's name."""
        return self.policy.name

    @property
    def sizes_by_type(self) -> bool:
        """Return whether the policy heeds gangs by GPU type."""
        return heeds_gangs(self.policy)

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return the policy's plan."""
        self.life.sign()
        plan = self.policy.plan(snapshot, round_)
        self.memory, self.planned = plan.memory, frozenset(snapshot.by_id)
        return plan

    def foresee(self, snapshot: Snapshot, round_s: float) -> dict[JobId, Gang]:
        """Return the gangs of the jobs that are expected to start next, in order; {} in doubt."""
        # Loaded in mode `steer`, which alone foresees starts.
        from hadar_slurm.sim.onward import after, begins

        left_out = {job.job_id for job in snapshot.jobs if not job.left_out} - self.planned
        try:
            found = begins(
                snapshot.without(left_out),
                self.forecaster,
                is_enough=lambda begun: len(begun) >= _MOST_FORESEEN,
                round_s=round_s,
                is_late=after(time.perf_counter, _FORESIGHT_S),
                memory=self.memory,
            )
        except HadarError as error:
            log.warning("%s", error)
            return {}
        return {job: begin.gang for job, begin in found.items()}


def modes(config: Config, rpcs_per_s: float = math.inf) -> Modes:
    """Return the mode of every partition: not `hold` where held jobs are not released in time."""
    found = {name: Mode(m) for name, m in {"": config.mode, **config.partitions}.items()}
    most = Mode.STEER if is_slow(rpcs_per_s) else Mode.HOLD
    found = {name: most if mode is Mode.HOLD else mode for name, mode in found.items()}
    return Modes(found.pop(""), found)


def backend_of(
    config: Config, slurm: SlurmAdapter, world: World, mode: Mode | None = None
) -> SlurmBackend:
    """Return the backend for `mode` (None: the most invasive); raises ConfigError (bad table)."""
    table_path = config.throughputs or data_file("throughputs.json")
    try:
        table = parse_table(table_path.read_text(encoding="utf-8"), str(table_path))
    except OSError as error:
        raise ConfigError(f"throughputs: {table_path}: {error.strerror}") from error
    settings = BackendSettings(
        spool=config.reports,
        modes=modes(config, slurm.rpcs_per_s),
        moves=config.moves,
        restart_cost_s=config.restart_cost_seconds,
        grace_s=config.grace_seconds,
        pin_timeout_s=config.pin_timeout_seconds,
        poll_s=config.poll_seconds,
        wake_file=config.run_dir / WAKE_FILE,
        failures=config.run_dir,
        assignments=config.assignments,
        slot_s=config.round_seconds,
        own_types=config.own_gpu_types,
        enrol=config.enrol_lists,
        enrolled_of_account=config.enrol.account_jobs,
        learns_sizes=config.sizes == "learned",
    )
    ledger = Ledger(config.state_dir / LEDGER_FILE)
    mode = mode or settings.modes.all[0]
    # A hadard that only observes may have no writable state_dir for its measurements.
    keeps = mode.places or os.access(config.state_dir, os.W_OK | os.X_OK)
    profile = Profile(config.state_dir / PROFILE_FILE, world.now_s) if keeps else None
    return SlurmBackend(slurm, table, settings, ledger, mode, profile, now_s=world.now_s)


def adapter_of(config: Config, world: World) -> SlurmAdapter:
    """Return the adapter of a configuration; `world.life` counts and precedes its commands."""
    runner = Runner(
        config.slurm_conf,
        config.command_timeout_seconds,
        on_run=lambda: world.life.sign(),
        on_answer=lambda program, answer: world.life.answers.update([(program, answer)]),
    )
    return world.make_adapter(config.adapter, runner)


def make_directory(path: Path, key: str) -> None:
    """Make the directory that the configuration names under `key`; raises ConfigError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror}") from error
