"""The rounds of hadard under one configuration: run, record, report problems."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from hadar_slurm import __version__
from hadar_slurm.config import Config
from hadar_slurm.daemon.signals import Requests
from hadar_slurm.daemon.signs_of_life import SignsOfLife
from hadar_slurm.daemon.supervisor import notify
from hadar_slurm.daemon.world import Life, World, backend_of, make_directory, modes
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.journal import Journal
from hadar_slurm.policies.policy import Policy
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.protocol import Site, SlurmAdapter
from hadar_slurm.slurm.control.modes import Mode
from hadar_slurm.slurm.wakeup import FILE_NAME as WAKE_FILE
from hadar_slurm.slurm.wakeup import make_wake_file
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.problems import Problem, Problems
from hadar_slurm.state.reaper_count import read_expired
from hadar_slurm.state.spool import make_spool

log = logging.getLogger("hadard")


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
    furthest, *others = modes(config).all
    if furthest is Mode.ENFORCE:
        make_directory(config.state_dir, "state_dir")
    backend = backend_of(config, slurm, world, furthest)
    # All share one ledger: separate ones would overwrite each other.
    beside = [replace(backend, mode=mode) for mode in others]
    policy = world.make_policy(config)

    def is_off() -> bool:
        # hadard changes nothing that it cannot record, so no job may be held for it.
        return config.disable_file.exists() or bool(backend.ledger.fault)

    for each in (backend, *beside):
        each.is_stopping = lambda: requests.to_end or requests.to_reload
        each.is_off = is_off
    journal = Journal(
        config.journal, max_bytes=config.journal_megabytes * 1e6, keep=config.journal_files
    )
    problems = Problems()
    _log_start(config, slurm, cluster, policy)
    faults: tuple[str, ...] = ()

    def record(line: RoundRecord, mode: Mode = furthest) -> None:
        nonlocal faults
        faults = line.errors or faults if mode is not furthest else line.errors
        more: dict[str, object] = {
            "held": backend.ledger.num_held,
            "commands": world.life.take_answers(),
            "averages": backend.take_averages(),
        }
        facts = next(each for each in (backend, *beside) if each.mode is mode).copy_facts()
        if facts and line.snapshot is not None:
            more["forked"] = facts
        expired = read_expired(config.state_dir)
        if expired is not None:
            more["expired"] = expired
        try:
            journal.write(line, mode=str(mode), more=more)
        except OSError as error:
            text = f"{config.journal}: rounds are not recorded: {error.strerror or error}"
            problems.set(Problem.JOURNAL, text)
        else:
            problems.set(Problem.JOURNAL, "")

    def record_all(line: RoundRecord) -> None:
        record(line)
        for each in beside:
            run_rounds(
                each,
                policy,
                partial(record, mode=each.mode),
                length_s=config.round_seconds,
                now_s=world.now_s,
                clock=time.perf_counter,
                max_rounds=1,
            )
        _gather(problems, config, [backend, *beside])

    def signs_of_life() -> SignsOfLife:
        enforced = modes(config).enforced(backend.slurm.partitions())
        return SignsOfLife(config, cluster.name, lease, problems, enforced, is_off)

    try:
        with _signs_of_life(signs_of_life, backend, world.life, is_daemon=not once):
            run_rounds(
                backend,
                policy,
                record_all,
                length_s=config.round_seconds,
                now_s=world.now_s,
                clock=time.perf_counter,
                max_rounds=1 if once else None,
            )
    finally:
        journal.close()
    return faults


def _gather(problems: Problems, config: Config, backends: Sequence[SlurmBackend]) -> None:
    """Record the current problems, and retry what failed before."""
    spool, reports, assignments = make_spool(config.spool_dir, config.reports, config.assignments)
    problems.set(Problem.SPOOL, spool)
    squatted = sorted(text for each in backends for text in each.squatted)
    problems.set(Problem.REPORTS, "; ".join([*([reports] if reports else []), *squatted]))
    shares = next((each.assignments_fault for each in backends if each.assignments_fault), "")
    problems.set(Problem.ASSIGNMENTS, assignments or shares)
    first = backends[0]
    first.ledger.retry()
    problems.set(Problem.LEDGER, first.ledger.fault)
    problems.set(Problem.PROFILE, first.profile.fault if first.profile else "")


def _log_start(config: Config, slurm: SlurmAdapter, cluster: Site, policy: Policy) -> None:
    places = [f"{name}: {mode}" for name, mode in config.partitions.items()]
    log.info(
        "hadard %s on cluster %s, policy %s, %s, through %s",
        __version__,
        cluster.name,
        policy.name,
        ", ".join([config.mode, *places]),
        slurm.name,
    )


@contextmanager
def _signs_of_life(
    make: Callable[[], SignsOfLife], backend: SlurmBackend, life: Life, *, is_daemon: bool
) -> Iterator[None]:
    """Keep the heartbeat fresh while the daemon runs; a single round writes none.

    The last heartbeat stays: during a reload, newly submitted jobs are still held. `main` removes
    it at the end.
    """
    if not is_daemon:
        yield
        return
    signs = make()
    run_dir = signs.config.run_dir
    make_directory(run_dir, "run_dir")
    make_wake_file(run_dir / WAKE_FILE)
    signs.sign()
    notify("READY=1")
    backend.on_wait = life.sign = signs.sign
    try:
        yield
    finally:
        life.sign = lambda: None
