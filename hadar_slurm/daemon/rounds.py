"""The rounds of hadard under one configuration: run, record, report problems."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from hadar_slurm.config import Config
from hadar_slurm.core.moves import MovedBy, parse_level
from hadar_slurm.daemon.signals import Requests
from hadar_slurm.daemon.signs_of_life import Places, SignsOfLife
from hadar_slurm.daemon.supervisor import notify
from hadar_slurm.daemon.world import (
    Life,
    Remembering,
    World,
    backend_of,
    make_directory,
    modes,
    policy_of,
)
from hadar_slurm.engine.breakers import Breakers
from hadar_slurm.engine.loop import Carried, RoundRecord, run_rounds
from hadar_slurm.engine.modes import Mode
from hadar_slurm.engine.rate_limit import consequences
from hadar_slurm.journal import Journal, claim_facts
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.protocol import Site, SlurmAdapter
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.problems import Problem, Problems
from hadar_slurm.state.reaper_count import read_expired
from hadar_slurm.state.spool import make_spool
from hadar_slurm.state.wakeup import FILE_NAME as WAKE_FILE
from hadar_slurm.state.wakeup import make_wake_file

log = logging.getLogger("hadard")

# A round that has failed is run again after this time.
_RETRY_S = 10.0


@dataclass
class _Rounds:
    """The rounds of all modes under one configuration; the first backend has the furthest mode."""

    config: Config
    life: Life
    backends: Sequence[SlurmBackend]
    journal: Journal
    # `run_rounds` with all that does not depend on the mode.
    run: Callable[..., int]
    places: Places
    hides_jobs: bool
    problems: Problems = field(default_factory=Problems)
    # The errors of the last round, and in what the first mode with a fault has failed, and why.
    faults: tuple[str, ...] = ()
    failed: tuple[str, str] = ("", "")
    # By mode, each with a run of its own.
    carried: dict[Mode, Carried] = field(
        default_factory=lambda: defaultdict(lambda: Carried(breakers=Breakers()))
    )

    def is_off(self) -> bool:
        # hadard changes nothing that it cannot record, so no job may be held for it.
        return self.config.disable_file.exists() or bool(self.backends[0].ledger.fault)

    def run_first(self, max_rounds: int | None) -> None:
        """Run the rounds of the first mode, each of which is followed by one of each other."""
        first = self.backends[0]
        carried, record = self.carried[first.mode], self.record_all
        self.run(first, record=record, max_rounds=max_rounds, carried=carried)

    def record_all(self, record: RoundRecord) -> None:
        """Record a round of the first mode, and run and record one of each other mode."""
        self.faults, self.failed = (), ("", "")
        self._record(record, self.backends[0])
        for each in self.backends[1:]:
            record_it = partial(self._record, source=each)
            self.run(each, record=record_it, max_rounds=1, carried=self.carried[each.mode])
        if not self.failed[0]:
            self.places.refresh()
        self.life.rounds = self.life.rounds.after(time.time(), *self.failed)
        self._gather_problems()

    def _record(self, record: RoundRecord, source: SlurmBackend) -> None:
        self.faults = record.errors or self.faults
        first = self.backends[0]
        # No job waits for a mode that places none.
        counts = source.mode.places or source is first
        if counts and record.failed_in and not self.failed[0]:
            self.failed = record.failed_in, record.fault
        more: dict[str, object] = {"held": first.ledger.num_held}
        averages = first.observer.forked.averages.take() if first.observer.forked else 0
        more |= {"commands": self.life.take_answers(), "averages": averages}
        more |= claim_facts(*source.take_judged())
        profile = first.profile if first.settings.learns_sizes else None
        if profile and (beliefs := profile.ended.take_coverage()):
            more["beliefs"] = beliefs
        if (forked := source.observer.forked) and record.snapshot and (copies := forked.facts()):
            more["forked"] = copies
        if (expired := read_expired(self.config.state_dir)) is not None:
            more["expired"] = expired
        text = ""
        try:
            self.journal.write(record, mode=str(source.mode), more=more)
        except OSError as error:
            text = f"{self.config.journal}: rounds are not recorded: {error.strerror or error}"
        self.problems.set(Problem.JOURNAL, text)

    def _gather_problems(self) -> None:
        """Record the current problems, and retry what failed before."""
        config, problems, first = self.config, self.problems, self.backends[0]
        places = config.spool_dir, config.reports, config.assignments
        spool, reports, assignments = make_spool(*places, hides_jobs=self.hides_jobs)
        problems.set(Problem.SPOOL, spool)
        observers = [each.observer for each in self.backends]
        squatted = sorted(text for each in observers for text in each.reports.squatted)
        problems.set(Problem.REPORTS, "; ".join([*([reports] if reports else []), *squatted]))
        forked = (each.forked.assignments for each in observers if each.forked)
        shares = (each.fault for each in forked if each and each.fault)
        problems.set(Problem.ASSIGNMENTS, assignments or next(shares, ""))
        first.ledger.retry()
        problems.set(Problem.LEDGER, first.ledger.fault)
        problems.set(Problem.PROFILE, first.profile.fault if first.profile else "")


def _backends(config: Config, slurm: SlurmAdapter, world: World) -> list[SlurmBackend]:
    """Return the backend of each mode, the most invasive first."""
    furthest, *others = modes(config, slurm.rpcs_per_s).all
    if furthest.changes:
        make_directory(config.state_dir, "state_dir")
    backend = backend_of(config, slurm, world, furthest)
    # One ledger for all modes: separate ones would overwrite each other.
    return [backend, *(replace(backend, mode=mode) for mode in others)]


def run_with(
    config: Config,
    slurm: SlurmAdapter,
    world: World,
    lease: Lease,
    cluster: Site,
    requests: Requests,
    *,
    once: bool,
) -> tuple[str, ...]:
    """Run rounds with one configuration; return the errors of the last round.

    Raises ConfigError for a directory that cannot be made.
    """
    if text := consequences(slurm.rpcs_per_s):
        log.warning("%s", text)
    backends = _backends(config, slurm, world)
    policy = Remembering(world.make_policy(config), policy_of(config), life=world.life)
    length_s, clock = config.round_seconds, time.perf_counter
    run = partial(run_rounds, policy=policy, length_s=length_s, now_s=world.now_s, clock=clock)
    run = partial(run, retry_s=min(_RETRY_S, length_s))
    max_bytes, keep = config.journal_megabytes * 1e6, config.journal_files
    journal = Journal(config.journal, max_bytes=max_bytes, keep=keep)
    places = Places(modes(config, slurm.rpcs_per_s), slurm.partitions)
    if any(parse_level(text).by is MovedBy.PREEMPTIBLE for text in config.moves.values()):
        places.read_preemptible = slurm.preemptible
    hides_jobs = cluster.hides_jobs
    rounds = _Rounds(config, world.life, backends, journal, run, places, hides_jobs)
    for each in backends:
        each.is_stopping = lambda: requests.to_end or requests.to_reload
        each.is_off = rounds.is_off
        if breakers := rounds.carried[each.mode].breakers:
            each.given_up = breakers.given_up
        each.foresee = partial(policy.foresee, round_s=length_s)
    words = ", ".join([config.mode, *(f"{name}: {m}" for name, m in config.partitions.items())])
    from hadar_slurm.built_from import version

    text = "hadard %s on cluster %s, policy %s, %s, through %s"
    log.info(text, version(), cluster.name, policy.name, words, slurm.name)
    signs = SignsOfLife(
        config=config,
        cluster=cluster.name,
        lease=lease,
        problems=rounds.problems,
        places=places,
        is_off=rounds.is_off,
        rounds=lambda: world.life.rounds,
    )
    with closing(journal), _signs_of_life(signs, backends[0], world.life, is_daemon=not once):
        rounds.run_first(1 if once else None)
    return rounds.faults


@contextmanager
def _signs_of_life(
    signs: SignsOfLife, backend: SlurmBackend, life: Life, *, is_daemon: bool
) -> Iterator[None]:
    """Keep the heartbeat fresh while the daemon runs; a single round writes none.

    The last heartbeat stays: during a reload, newly submitted jobs are still held. `main` removes
    it at the end.
    """
    if not is_daemon:
        yield
        return
    run_dir = signs.config.run_dir
    make_directory(run_dir, "run_dir")
    make_wake_file(run_dir / WAKE_FILE)
    signs.places.refresh()
    signs.sign()
    notify("READY=1")
    backend.on_wait = life.sign = signs.sign
    try:
        yield
    finally:
        life.sign = lambda: None
