"""The speeds of GPU types that were assumed for traces without throughputs, as table and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hadar_slurm.lab.study.summary import Note
from hadar_slurm.lab.traces.speeds import TypeSpeed

_HEAD = ("GPU type", "model", "relative speed", "+/- x", "origin")
_WORDS = (
    "The trace does not say how fast its jobs are on other GPU types than those that they held. "
    "Two thirds of the true ratios are within the factor '+/- x' of the one assumed. --gpu-speeds "
    "sets your own."
)


def speeds_note(speeds: Sequence[TypeSpeed], trace: str = "") -> Note | None:
    """Return a table of the speeds assumed for a trace; None if there are none."""
    if not speeds:
        return None
    name = f"{trace}: " if trace else ""
    rows = (
        (
            each.gpu_type,
            each.model or "all others",
            f"{each.ratio:.3g}",
            f"{each.spread:.2f}",
            each.source,
        )
        for each in speeds
    )
    heading = f"{name}speed of GPU types relative to {speeds[0].relative_to}"
    return Note(heading, (_WORDS,), (_HEAD, *rows), is_folded=True)


def speeds_tree(by_trace: Mapping[str, Sequence[TypeSpeed]]) -> list[dict[str, object]]:
    """Return the speeds assumed for traces as JSON."""
    return [{"trace": trace, **each.tree} for trace, speeds in by_trace.items() for each in speeds]
