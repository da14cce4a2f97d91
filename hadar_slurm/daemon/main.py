"""hadard: the daemon. Reads Slurm each round, decides, enforces, writes the journal."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hadar_slurm import __version__
from hadar_slurm.config import DEFAULT_PATH, Config, read_config
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.core.throughput import parse_table
from hadar_slurm.daemon.signs_of_life import SignsOfLife, good_for_s
from hadar_slurm.daemon.supervisor import notify
from hadar_slurm.engine.actions import Action, Outcome, Status
from hadar_slurm.engine.backend import Wake
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.errors import ConfigError, HadarError, UsageError
from hadar_slurm.journal import Journal, as_line
from hadar_slurm.policies.policy import Policy, SolverLimits
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.resources import data_file
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.protocol import Site, SlurmAdapter
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.select import make_adapter
from hadar_slurm.slurm.control.ledger import FILE_NAME as LEDGER_FILE
from hadar_slurm.slurm.control.ledger import Ledger
from hadar_slurm.slurm.control.modes import Mode, Modes
from hadar_slurm.slurm.observe.throughput_store import FILE_NAME as PROFILE_FILE
from hadar_slurm.slurm.observe.throughput_store import Profile
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.slurm.wakeup import FILE_NAME as WAKE_FILE
from hadar_slurm.slurm.wakeup import make_wake_file
from hadar_slurm.state.heartbeat import remove_heartbeat
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.locks import RELEASE, lock, only_daemon
from hadar_slurm.state.problems import Problem, Problems
from hadar_slurm.state.reaper_count import read_expired
from hadar_slurm.state.spool import make_spool

log = logging.getLogger("hadard")

_LOOK_EVERY_S = 0.1


def policy_of(config: Config) -> Policy:
    """Return the policy that a configuration names."""
    limits = SolverLimits(config.solver.time_limit_s, config.solver.gap)
    return make_policy(config.policy, utility=config.utility, limits=limits)


# New objects before Python looks for garbage in circles: a look at thousands of jobs makes many at
# once, none of them garbage, and looking every 700 of them took a sixth of its time.
COLLECT_AFTER = 5_000


@dataclass(slots=True)
class Life:
    """How the daemon shows that it lives: `sign` is called often, and before each command.

    `answers` counts what came of Slurm's commands, by program and answer.
    """

    sign: Callable[[], None] = lambda: None
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)

    def take_answers(self) -> dict[str, dict[str, int]]:
        """Return the answers since the last time, by program, as the journal has them."""
        tree: dict[str, dict[str, int]] = {}
        for (program, answer), number in sorted(self.answers.items()):
            tree.setdefault(program, {})[answer] = number
        self.answers.clear()
        return tree


@dataclass(frozen=True, slots=True)
class World:
    """What the daemon lives in: its clock (seconds since the epoch), Slurm, its policy."""

    now_s: Callable[[], float] = time.time
    make_adapter: Callable[[str, Runner], SlurmAdapter] = make_adapter
    make_policy: Callable[[Config], Policy] = policy_of
    life: Life = field(default_factory=Life)


def main(words: Sequence[str] | None = None, world: World | None = None) -> int:
    """Run the daemon until it is told to end; return the exit status."""
    world = world or World()
    options = _parser().parse_args(words)
    gc.set_threshold(COLLECT_AFTER)
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    try:
        return _dry_run(_config(options), world) if options.dry_run else _run(options, world)
    except UsageError as error:
        print(f"hadard: {error}", file=sys.stderr)
        return 2
    except HadarError as error:
        print(f"hadard: {error}", file=sys.stderr)
        return 1


class _OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every fault of ours is told."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog="hadard",
        description="Places the jobs of hadar-sbatch on the GPUs of a Slurm cluster.",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"configuration, YAML (default {DEFAULT_PATH} where it exists)",
    )
    parser.add_argument("--once", action="store_true", help="run a single round and end")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the plan and the exact commands of one round; touch nothing",
    )
    parser.add_argument(
        "--disable-file",
        type=Path,
        metavar="FILE",
        help="while it exists, nothing is held, pinned or moved (default: the configuration's)",
    )
    parser.add_argument("--round-seconds", type=float, metavar="S", help="length of a round")
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        metavar="LEVEL",
        help="log what is at least so severe: %(choices)s (default %(default)s)",
    )
    parser.add_argument("--version", action="version", version=f"hadard {__version__}")
    return parser


def _config(options: argparse.Namespace) -> Config:
    config = read_config(options.config)
    if options.disable_file is not None:
        config = config.model_copy(update={"disable_file": options.disable_file})
    seconds: float | None = options.round_seconds
    if seconds is None:
        return config
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--round-seconds {seconds:g}: expected a number of seconds above 0")
    poll_s = min(config.poll_seconds, seconds)
    return config.model_copy(update={"round_seconds": seconds, "poll_seconds": poll_s})


def modes(config: Config) -> Modes:
    """Return what may be done in which partition."""
    return Modes(Mode(config.mode), {name: Mode(m) for name, m in config.partitions.items()})


def _backend(
    config: Config, slurm: SlurmAdapter, world: World, mode: Mode | None = None
) -> SlurmBackend:
    """Return the backend for one mode, by default the one that goes furthest."""
    table_path = config.throughputs or data_file("throughputs.json")
    try:
        table = parse_table(table_path.read_text(encoding="utf-8"), str(table_path))
    except OSError as error:
        raise ConfigError(f"throughputs: {table_path}: {error.strerror}") from error
    settings = BackendSettings(
        spool=config.reports,
        modes=modes(config),
        restart_cost_s=config.restart_cost_seconds,
        grace_s=config.grace_seconds,
        pin_timeout_s=config.pin_timeout_seconds,
        poll_s=config.poll_seconds,
        wake_file=config.run_dir / WAKE_FILE,
        assignments=config.assignments,
        slot_s=config.round_seconds,
    )
    ledger = Ledger(config.state_dir / LEDGER_FILE)
    mode = mode or modes(config).all[0]
    # Whoever may only look has no place to keep what was measured.
    keeps = mode is Mode.ENFORCE or os.access(config.state_dir, os.W_OK | os.X_OK)
    profile = Profile(config.state_dir / PROFILE_FILE, world.now_s) if keeps else None
    return SlurmBackend(slurm, table, settings, ledger, mode, profile, now_s=world.now_s)


def _slurm(config: Config, world: World) -> SlurmAdapter:
    runner = Runner(
        config.slurm_conf,
        config.command_timeout_seconds,
        on_run=lambda: world.life.sign(),
        on_answer=lambda program, answer: world.life.answers.update([(program, answer)]),
    )
    return world.make_adapter(config.adapter, runner)


def _run(options: argparse.Namespace, world: World) -> int:
    """Run rounds until told to end, with a new configuration whenever told to read it again."""
    config = _config(options)
    slurm = _slurm(config, world)
    _backend(config, slurm, world)  # what is wrong with its files is told first
    cluster = slurm.site()
    enforces = modes(config).all[0] is Mode.ENFORCE
    if enforces:
        _make_directory(config.state_dir, "state_dir")
    with (
        only_daemon(cluster.name, cluster.address, config.state_dir, is_required=enforces),
        _signals() as asked,
        _leased(config, cluster, asked) as lease,
    ):
        with suppress(OSError):
            # The last sign of one that died would have us taken for hung.
            remove_heartbeat(config.run_dir)
        _wait_for_release(config.state_dir, asked)
        signed_in = config.run_dir
        try:
            while not asked.to_end:
                faults = _run_with(config, slurm, world, lease, cluster, asked, once=options.once)
                if not asked.to_reload or asked.to_end:
                    notify("STOPPING=1")
                    return 1 if options.once and faults else 0
                asked.to_reload = False
                try:
                    fresh = _config(options)
                    _backend(fresh, slurm, world)
                    _check_journal(fresh)
                    config, slurm = fresh, _slurm(fresh, world)
                    log.info("the configuration was read again")
                except HadarError as error:
                    log.error("the configuration stays as it was: %s", error)
                if config.run_dir != signed_in:
                    remove_heartbeat(signed_in)
                    signed_in = config.run_dir
            return 0
        finally:
            with suppress(OSError):
                remove_heartbeat(signed_in)


@contextmanager
def _leased(config: Config, cluster: Site, asked: Asked) -> Iterator[Lease]:
    """Hold the cluster's lease; raises DaemonError where another hadard does.

    A spool_dir that cannot be written to is a problem of every round, and no reason to leave jobs
    alone.
    """
    lease = Lease(config.spool_dir, cluster.name, good_for_s(config))
    make_spool(config.spool_dir, config.reports, config.assignments)
    try:
        lease.take(lambda: asked.to_end)
    except OSError as error:
        log.error("there is no lease in %s: %s", config.spool_dir, error.strerror)
    try:
        yield lease
    finally:
        lease.give_up()


def _wait_for_release(state_dir: Path, asked: Asked) -> None:
    """Wait while `hadar release` is at work: both would write one ledger."""
    is_told = False
    while not asked.to_end:
        try:
            with lock(state_dir, RELEASE) as is_over:
                if is_over:
                    return
        except OSError:
            return  # a hadard that only observes may have no state_dir
        if not is_told:
            log.info("waiting for hadar release to end")
            is_told = True
        time.sleep(_LOOK_EVERY_S)


def _run_with(
    config: Config,
    slurm: SlurmAdapter,
    world: World,
    lease: Lease,
    cluster: Site,
    asked: Asked,
    *,
    once: bool,
) -> tuple[str, ...]:
    """Run rounds with one configuration; return what was wrong in the last."""
    furthest, *others = modes(config).all
    if furthest is Mode.ENFORCE:
        _make_directory(config.state_dir, "state_dir")
    backend = _backend(config, slurm, world, furthest)
    # All share one ledger: what two of them wrote would undo each other.
    beside = [replace(backend, mode=mode) for mode in others]
    policy = world.make_policy(config)

    def is_off() -> bool:
        # What cannot be written down must not be done, so no job may wait for it.
        return config.disable_file.exists() or bool(backend.ledger.fault)

    for each in (backend, *beside):
        each.is_stopping = lambda: asked.to_end or asked.to_reload
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
    """Note what keeps hadard from doing all of its work, and try again what may be possible now."""
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


def _check_journal(config: Config) -> None:
    """Raise ConfigError for a journal that cannot be opened now, so probably never."""
    journal = Journal(config.journal)
    try:
        journal.open()
    except OSError as error:
        raise ConfigError(f"journal: {config.journal}: {error.strerror}") from error
    finally:
        journal.close()


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


def _dry_run(config: Config, world: World) -> int:
    lines: list[RoundRecord] = []
    backend = _backend(config, _slurm(config, world), world)
    run_rounds(
        DryRun(backend),
        world.make_policy(config),
        lines.append,
        length_s=config.round_seconds,
        now_s=world.now_s,
        clock=time.perf_counter,
        max_rounds=1,
    )
    print(json.dumps(as_line(lines[0]), indent=2))
    return 1 if lines[0].errors else 0


@dataclass
class DryRun:
    """A backend that looks at Slurm and only tells what it would do."""

    real: SlurmBackend

    def observe(self) -> Snapshot:
        """Return what Slurm shows."""
        return self.real.observe()

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Return the commands of every action, none of them run."""
        return [
            Outcome(action, Status.SKIPPED, "; ".join(map(" ".join, self.real.commands(action))))
            for action in actions
        ]

    def wait(self, until_s: float) -> Wake:
        """End at once."""
        return Wake.STOP


@dataclass
class Asked:
    """What signals have asked of the daemon."""

    to_end: bool = False
    to_reload: bool = False


@contextmanager
def _signals() -> Iterator[Asked]:
    """Note SIGTERM, SIGINT and SIGHUP; the step at hand is finished before they are heeded."""
    asked = Asked()

    def end(_number: int, _frame: FrameType | None) -> None:
        asked.to_end = True

    def reload(_number: int, _frame: FrameType | None) -> None:
        asked.to_reload = True

    handlers = {signal.SIGTERM: end, signal.SIGINT: end, signal.SIGHUP: reload}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signs_of_life(
    make: Callable[[], SignsOfLife], backend: SlurmBackend, life: Life, *, is_daemon: bool
) -> Iterator[None]:
    """Keep the heartbeat fresh while the daemon lives; a single round leaves none.

    The last sign stays: a daemon that only reads its configuration again is not gone, and jobs that
    come in that moment are held for it. `_run` removes it at the end.
    """
    if not is_daemon:
        yield
        return
    signs = make()
    run_dir = signs.config.run_dir
    _make_directory(run_dir, "run_dir")
    make_wake_file(run_dir / WAKE_FILE)
    signs.sign()
    notify("READY=1")
    backend.on_wait = life.sign = signs.sign
    try:
        yield
    finally:
        life.sign = lambda: None


def _make_directory(path: Path, key: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
