"""What moves of running jobs cost and gained, from the lines of a journal. Pure.

A move is a stop that was carried out of a job that trains again. Its cost is the time in which it
did not train and the work that it lost; its gain, how much sooner it ends than on its former GPUs,
the cost included. What other jobs gained, which had these GPUs meanwhile, is no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal.line import Line
from hadar_slurm.journal.values import gang_from_tree, job_of


@dataclass(slots=True)
class Move:
    """One move; times in seconds. `had_s` changes while the job trains on."""

    job: JobId
    user: str
    workload: str
    # When the round began that stopped it.
    stopped_s: float
    from_types: tuple[str, ...]
    to_types: tuple[str, ...] = ()
    # From then until it was seen to run again, to the next round.
    away_s: float = 0.0
    lost_s: float = 0.0
    # Else it made room for other jobs, and has other GPUs by that.
    is_faster: bool = False
    # How much sooner it ends: by the throughputs known as it ran again, if it stays to its end, and
    # by what it has trained so far, until it is stopped again.
    foreseen_s: float = 0.0
    had_s: float = 0.0


@dataclass(slots=True)
class _Trace:
    """A job that was stopped, with its GPUs, restarts and steps then."""

    move: Move
    gang: Line
    restarts: int
    steps: float
    # Steps/s on the former GPUs.
    former: float = 0.0


@dataclass
class Moves:
    """Collects moves from lines in order."""

    found: list[Move] = field(default_factory=list)
    _away: dict[str, _Trace] = field(default_factory=dict)
    _back: dict[str, _Trace] = field(default_factory=dict)

    def add(self, line: Line) -> None:
        """Read the next line; its actions come after what it shows of jobs."""
        jobs, time_s = line.get("jobs"), float(line["time_s"])
        if jobs is None:
            return
        for name in [*self._away.keys() & jobs.keys()]:
            self._see_away(name, jobs[name], time_s)
        for name in [*self._back.keys() & jobs.keys()]:
            self._see_back(self._back[name], jobs[name], time_s)
        for action in line["actions"]:
            name = action["job"]
            if (action["do"], action["status"]) == ("stop", "done") and name in jobs:
                self._stop(name, jobs[name], action["gang"], time_s)

    def _stop(self, name: str, row: Line, gang: Line, time_s: float) -> None:
        self._back.pop(name, None)
        # Of a forked job others train on.
        if row["phase"] == "running" and "copies" not in row:
            types = _types({"0": gang})
            user, workload = str(row["user"]), str(row["workload"])
            move = Move(JobId(name), user, workload, stopped_s=time_s, from_types=types)
            self._away[name] = _Trace(move, gang, row["restarts"], row["steps_done"])

    def _see_away(self, name: str, row: Line, time_s: float) -> None:
        """Note that a job trains again, if it does."""
        trace = self._away[name]
        if row["phase"] != "running" or row["restarts"] <= trace.restarts:
            return
        job, move = job_of(name, row), trace.move
        trace.former = former = gang_from_tree(trace.gang).throughput(job.spec.throughputs)
        now = job.allocation.throughput(job.spec.throughputs)
        del self._away[name]
        if not (former > 0 and now > 0):
            return
        move.to_types, move.away_s = _types(row["holds"]), time_s - move.stopped_s
        move.lost_s = max(0.0, trace.steps - row["steps_done"]) / former
        move.is_faster = now > former
        self._see_back(trace, row, time_s)
        move.foreseen_s = move.had_s + job.steps_left * (1 / former - 1 / now)
        self._back[name] = trace
        self.found.append(move)

    def _see_back(self, trace: _Trace, row: Line, time_s: float) -> None:
        """Count what a job has trained since."""
        if row["phase"] == "running":
            in_steps_s = (row["steps_done"] - trace.steps) / trace.former
            trace.move.had_s = in_steps_s - (time_s - trace.move.stopped_s)


def _types(copies: Mapping[str, Line]) -> tuple[str, ...]:
    """Return the GPU types of gangs, each once."""
    return tuple(
        sorted({kind for gang in copies.values() for node in gang.values() for kind in node})
    )
