"""The rounds of hadard under one configuration: run, record, report problems."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
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
    # One ledger for all modes: separate ones would overwrite each other.
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
    places = ", ".join([config.mode, *(f"{name}: {m}" for name, m in config.partitions.items())])
    text = "hadard %s on cluster %s, policy %s, %s, through %s"
    log.info(text, __version__, cluster.name, policy.name, places, slurm.name)
    rounds = partial(
        run_rounds, length_s=config.round_seconds, now_s=world.now_s, clock=time.perf_counter
    )
    faults: tuple[str, ...] = ()

    def record(line: RoundRecord, source: SlurmBackend = backend) -> None:
        nonlocal faults
        faults = line.errors or faults if source is not backend else line.errors
        copies = source.copy_facts() if line.snapshot is not None else {}
        more = _facts(config, world.life, backend, copies)
        text = ""
        try:
            journal.write(line, mode=str(source.mode), more=more)
        except OSError as error:
            text = f"{config.journal}: rounds are not recorded: {error.strerror or error}"
        problems.set(Problem.JOURNAL, text)

    def record_all(line: RoundRecord) -> None:
        record(line)
        for each in beside:
            rounds(each, policy, partial(record, source=each), max_rounds=1)
        _gather(problems, config, [backend, *beside])

    enforced = () if once else modes(config).enforced(backend.slurm.partitions())
    signs = SignsOfLife(config, cluster.name, lease, problems, enforced, is_off)
    with closing(journal), _signs_of_life(signs, backend, world.life, is_daemon=not once):
        rounds(backend, policy, record_all, max_rounds=1 if once else None)
    return faults


def _facts(
    config: Config, life: Life, backend: SlurmBackend, copies: dict[str, object]
) -> dict[str, object]:
    """Return what the journal records beside a round."""
    held, averages = backend.ledger.num_held, backend.take_averages()
    facts = {"held": held, "commands": life.take_answers(), "averages": averages}
    facts |= {"forked": copies} if copies else {}
    expired = read_expired(config.state_dir)
    return facts if expired is None else {**facts, "expired": expired}


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
    signs.sign()
    notify("READY=1")
    backend.on_wait = life.sign = signs.sign
    try:
        yield
    finally:
        life.sign = lambda: None
