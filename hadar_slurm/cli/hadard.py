"""hadard: the daemon. Reads Slurm each round, decides, enforces, writes the journal."""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hadar_slurm import __version__
from hadar_slurm.config import DEFAULT_PATH, Config, load_config
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.core.throughput import parse_table
from hadar_slurm.engine.actions import Action, Outcome, Status
from hadar_slurm.engine.backend import Wake
from hadar_slurm.engine.rounds import RoundRecord, run_rounds
from hadar_slurm.errors import ConfigError, HadarError, UsageError
from hadar_slurm.journal import Journal, as_line
from hadar_slurm.policies.base import Policy
from hadar_slurm.policies.lp import SolverLimits
from hadar_slurm.policies.table import make_policy
from hadar_slurm.resources import data_file
from hadar_slurm.slurm.backend import Settings, SlurmBackend
from hadar_slurm.slurm.heartbeat import Heartbeat, remove_heartbeat, write_heartbeat
from hadar_slurm.slurm.runner import Runner

log = logging.getLogger("hadard")

# How long a sign of life is good for, in polls, and at least this many seconds: a round's own
# work may keep the daemon from waiting for a while.
_BEAT_POLLS = 4
_BEAT_LEAST_S = 30.0


def main(words: Sequence[str] | None = None) -> int:
    """Run the daemon until it is told to end; return the exit status."""
    options = _parser().parse_args(words)
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    try:
        config = _config(options)
        if options.dry_run:
            return _dry_run(config)
        return _run(config, once=options.once)
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
    parser.add_argument("--round-seconds", type=float, metavar="S", help="length of a round")
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    parser.add_argument("--version", action="version", version=f"hadard {__version__}")
    return parser


def _config(options: argparse.Namespace) -> Config:
    path: Path | None = options.config
    if path is None and DEFAULT_PATH.exists():
        path = DEFAULT_PATH
    config = Config() if path is None else load_config(path)
    seconds: float | None = options.round_seconds
    if seconds is None:
        return config
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--round-seconds {seconds:g}: expected a number of seconds above 0")
    return config.model_copy(update={"round_seconds": seconds})


def _policy(config: Config) -> Policy:
    limits = SolverLimits(config.solver.time_limit_s, config.solver.gap)
    return make_policy(config.policy, utility=config.utility, limits=limits)


def _backend(config: Config) -> SlurmBackend:
    table_path = config.throughputs or data_file("throughputs.json")
    try:
        table = parse_table(table_path.read_text(encoding="utf-8"), str(table_path))
    except OSError as error:
        raise ConfigError(f"throughputs: {table_path}: {error.strerror}") from error
    partitions = None if config.partitions is None else frozenset(config.partitions)
    settings = Settings(
        spool=config.spool_dir,
        partitions=partitions,
        restart_cost_s=config.restart_cost_seconds,
        grace_s=config.grace_seconds,
        pin_timeout_s=config.pin_timeout_seconds,
        poll_s=config.poll_seconds,
    )
    runner = Runner(config.slurm_conf, config.command_timeout_seconds)
    return SlurmBackend(runner, table, settings)


def _run(config: Config, *, once: bool) -> int:
    backend = _backend(config)
    policy = _policy(config)
    cluster = site(backend.runner)
    with only_daemon(cluster), _asked_to_end() as ending:
        backend.is_stopping = lambda: bool(ending)
        try:
            journal = Journal(config.journal)
        except OSError as error:
            raise ConfigError(f"journal: {config.journal}: {error.strerror}") from error
        log.info("hadard %s on cluster %s, policy %s", __version__, cluster.name, policy.name)
        faults: tuple[str, ...] = ()

        def record(line: RoundRecord) -> None:
            nonlocal faults
            faults = line.errors
            journal.write(line)

        try:
            with _signs_of_life(config, cluster, backend, is_daemon=not once):
                run_rounds(
                    backend,
                    policy,
                    record,
                    length_s=config.round_seconds,
                    now_s=time.time,
                    clock=time.perf_counter,
                    max_rounds=1 if once else None,
                )
        finally:
            journal.close()
    return 1 if once and faults else 0


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
            Outcome(action, Status.SKIPPED, "; ".join(map(" ".join, self.real.describe(action))))
            for action in actions
        ]

    def wait(self, until_s: float) -> Wake:
        """End at once."""
        return Wake.STOP


def _dry_run(config: Config) -> int:
    lines: list[RoundRecord] = []
    run_rounds(
        DryRun(_backend(config)),
        _policy(config),
        lines.append,
        length_s=config.round_seconds,
        now_s=time.time,
        clock=time.perf_counter,
        max_rounds=1,
    )
    print(json.dumps(as_line(lines[0]), indent=2))
    return 1 if lines[0].errors else 0


@dataclass(frozen=True, slots=True)
class Site:
    """Which Slurm this is: its name, and where its controller listens."""

    name: str
    address: str


def site(runner: Runner) -> Site:
    """Return which Slurm a runner's commands reach."""
    lines = runner.run(["scontrol", "show", "config"]).splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (s.partition("=") for s in lines)}
    host, port = facts.get("SlurmctldHost[0]", ""), facts.get("SlurmctldPort", "")
    return Site(facts.get("ClusterName", ""), f"{host}:{port}")


@contextmanager
def only_daemon(cluster: Site) -> Iterator[None]:
    """Hold a name of the cluster that this machine gives out once: one daemon a cluster.

    It is that of a unix socket without a file. It goes with the process, however it ends, and
    needs no directory of ours; a lock on slurm.conf would be lost when that file is replaced.
    """
    digest = hashlib.sha256(f"{cluster.name} {cluster.address}".encode()).hexdigest()
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0hadard-{digest[:32]}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise HadarError(
                f"another hadard is at work on cluster {cluster.name} ({cluster.address}); "
                "stop it first"
            ) from None
        yield


@contextmanager
def _asked_to_end() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT; the step at hand is finished before they are heeded."""
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signs_of_life(
    config: Config, cluster: Site, backend: SlurmBackend, *, is_daemon: bool
) -> Iterator[None]:
    """Keep the heartbeat fresh while the daemon lives; a single round leaves none."""
    if not is_daemon:
        yield
        return
    good_for_s = max(_BEAT_LEAST_S, _BEAT_POLLS * config.poll_seconds)
    partitions = _vouched_for(config, backend.runner)

    def beat() -> None:
        sign = Heartbeat(
            os.getpid(),
            cluster.name,
            time.time() + good_for_s,
            str(config.spool_dir),
            partitions,
        )
        try:
            write_heartbeat(config.run_dir, sign)
        except OSError as error:
            log.error("cannot write the heartbeat to %s: %s", config.run_dir, error)

    _make_directories(config)
    beat()
    backend.on_wait = beat
    try:
        yield
    finally:
        remove_heartbeat(config.run_dir)


def _vouched_for(config: Config, runner: Runner) -> tuple[str, ...] | None:
    """Return the partitions whose jobs are placed; "" is that of jobs which name none."""
    if config.partitions is None:
        return None
    # sinfo marks the default partition.
    marked = runner.run(["sinfo", "-h", "-o", "%P"]).split()
    has_default = any(f"{name}*" in marked for name in config.partitions)
    return (*config.partitions, *([""] if has_default else []))


def _make_directories(config: Config) -> None:
    try:
        config.run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run_dir: {config.run_dir}: {error.strerror}") from error
    if config.spool_dir.is_dir():
        return
    try:
        config.spool_dir.mkdir(parents=True)
        # Every user's jobs report here, and none may touch another's report.
        config.spool_dir.chmod(0o1777)
    except OSError as error:
        raise ConfigError(f"spool_dir: {config.spool_dir}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
