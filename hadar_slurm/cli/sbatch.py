"""hadar-sbatch: sbatch for jobs that Hadar may place. Standard library only; starts quickly."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hadar_slurm.core.cluster import Cluster, Node
from hadar_slurm.core.throughput import ThroughputTable, parse_table
from hadar_slurm.errors import SlurmError, UsageError
from hadar_slurm.handoff import SPOOL_VARIABLE
from hadar_slurm.resources import data_file
from hadar_slurm.slurm.gres import parse_gpus
from hadar_slurm.slurm.heartbeat import read_heartbeat, run_dir
from hadar_slurm.slurm.runner import Runner
from hadar_slurm.submit.submission import (
    PREFIX,
    USAGE,
    Request,
    check_fits,
    compose,
    describe,
    parse_request,
    without_hadar,
)

# sbatch says the same on wrong usage with 1; ours is the field's usual 2.
_USAGE_STATUS = 2


def main(words: Sequence[str] | None = None) -> int:
    """Submit a job; replaces itself by sbatch, so output and exit status are sbatch's."""
    words = sys.argv[1:] if words is None else words
    if f"{PREFIX}help" in words:
        print(USAGE)
        return 0
    try:
        argv, notes, environment = prepare(words)
    except UsageError as error:
        print(f"hadar-sbatch: {error}", file=sys.stderr)
        return _USAGE_STATUS
    for note in notes:
        print(f"hadar-sbatch: {note}", file=sys.stderr)
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        print(f"hadar-sbatch: cannot run {argv[0]}: {error.strerror}", file=sys.stderr)
        return 127


def prepare(words: Sequence[str]) -> tuple[tuple[str, ...], list[str], dict[str, str]]:
    """Return the command to execute, notes for the user, and the environment to run it in."""
    request = parse_request(words, _script_text)
    environment = dict(os.environ)
    if not request.own:
        return without_hadar(request), [], environment
    description = describe(request, _table())
    cluster = _cluster()
    if cluster is not None and cluster.nodes:
        check_fits(description, cluster)
    chosen = _own_choice(request)
    if chosen:
        return (
            without_hadar(request),
            [f"{chosen}: left to Slurm, not placed by Hadar"],
            environment,
        )
    beat = read_heartbeat(run_dir(os.environ))
    is_held = beat is not None and beat.covers(_partition(request), time.time())
    if beat is not None:
        environment.setdefault(SPOOL_VARIABLE, beat.spool)
    notes = [] if is_held else ["hadard is not at work here: submitted to plain Slurm, unheld"]
    return compose(request, description, is_held=is_held), notes, environment


def _partition(request: Request) -> str | None:
    """Return the partition that sbatch will take: command line, environment, script."""
    on_command_line = [option.value for option in request.options if option.name == "partition"]
    if on_command_line:
        return on_command_line[-1]
    return os.environ.get("SBATCH_PARTITION") or request.last("partition")


def _own_choice(request: Request) -> str:
    """Return the option by which the user chose the place, or nothing."""
    for name in ("nodelist", "exclude", "constraint", "reservation", "nodefile", "clusters"):
        if request.last(name) is not None:
            return f"--{name} is given"
    return ""


def _script_text(path: str) -> str:
    file = Path(path)
    try:
        # What comes through a pipe can be read only once, and by sbatch.
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    except OSError:
        return ""  # sbatch will say what is wrong with it


def _table() -> ThroughputTable:
    path = data_file("throughputs.json")
    return parse_table(path.read_text(encoding="utf-8"), str(path))


def _cluster() -> Cluster | None:
    """Return the cluster's GPUs, or None where Slurm does not answer: sbatch will say why."""
    try:
        text = Runner(timeout_s=10).run(["sinfo", "-h", "-N", "-o", "%N|%G"])
    except SlurmError:
        return None
    found = {}
    for line in text.splitlines():
        name, _, gres = line.partition("|")
        found[name] = Node.of(name, parse_gpus(gres))
    return Cluster.of(node for node in found.values() if node.gpus)


if __name__ == "__main__":
    sys.exit(main())
