"""Whether rounds go on succeeding, and jobs start beside idle GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos.invariants import MOVING, Finding, Sample, is_waiting_for_hadard
from chaos.records import Sighting
from chaos.workload import Task


@dataclass
class Spells:
    """The times at which no round need succeed: hadard is gone, or Slurm cannot be read."""

    ended: list[tuple[float, float]] = field(default_factory=list)
    _since_s: float | None = None

    def note(self, now_s: float, *, is_excused: bool) -> None:
        """Record whether it is so now."""
        if is_excused and self._since_s is None:
            self._since_s = now_s
        elif not is_excused and self._since_s is not None:
            self.ended.append((self._since_s, now_s))
            self._since_s = None

    def close(self, now_s: float) -> None:
        """End the last spell."""
        self.note(now_s, is_excused=False)

    def within(self, start_s: float, end_s: float) -> float:
        """Return how much of the time between two moments is excused."""
        return sum(max(0.0, min(end, end_s) - max(start, start_s)) for start, end in self.ended)


def stalls(
    rounds: Iterable[Mapping[str, Any]], spells: Spells, span: tuple[float, float], limit_s: float
) -> Iterator[Finding]:
    """Yield every time in `span` longer than `limit_s` in which no round succeeded.

    Excused times do not count. `rounds` are the driver's notes, each with the round's error.
    """
    at_s, end_s = span
    error, number = "", 0
    for note in (*rounds, {"time_s": end_s, "error": ""}):
        if note["error"]:
            error, number = note["error"], number + 1
            continue
        stalled_s = note["time_s"] - at_s - spells.within(at_s, note["time_s"])
        if stalled_s > limit_s:
            why = f"{number} failed, the last by {error}" if number else "none was made"
            yield Finding(MOVING, "", at_s, f"no round succeeded for {stalled_s:.0f} s: {why}")
        at_s, error, number = max(at_s, note["time_s"]), "", 0


@dataclass
class Idling:
    """Since when jobs have waited although one node has idle GPUs enough for them."""

    since_s: dict[str, float] = field(default_factory=dict)

    def add(
        self,
        sample: Sample,
        tasks: Mapping[str, Task],
        idle: Mapping[tuple[str, str], int],
        limit_s: float,
    ) -> Iterator[Finding]:
        """Add a sample; yield every job that has waited for `limit_s` beside idle GPUs.

        `idle` are the idle GPUs by node and type; none while hadard or Slurm is away.
        """
        most = max(idle.values(), default=0)
        waiting = [
            job
            for job in sample.jobs
            if job.key in tasks and _may_start(job, tasks[job.key]) and tasks[job.key].gpus <= most
        ]
        known = self.since_s
        self.since_s = {job.key: known.get(job.key, sample.after_s) for job in waiting}
        for job in waiting:
            waited_s = sample.before_s - self.since_s[job.key]
            if waited_s > limit_s:
                what = f"it has waited {waited_s:.0f} s beside {most} idle GPUs of a node: {job}"
                yield Finding(MOVING, job.key, sample.after_s, what)


def _may_start(job: Sighting, task: Task) -> bool:
    """Return whether only hadard keeps a job from starting; owners' wishes may keep it too."""
    return is_waiting_for_hadard(job, task) and not task.edits
