"""The figures of fault runs: a record of each for programs, and what all came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fault_record import Outcome

Record = Mapping[str, Any]


def as_record(each: Outcome) -> dict[str, Any]:
    """Return a run for programs."""
    return {
        "run": each.case.number,
        "speeds": each.case.speeds,
        "total_steps": each.case.total_steps,
        "slots": each.slots,
        "took_s": each.took_s,
        "repeated": each.repeated,
        "allowed": each.allowed,
        "faults": [
            {
                "kind": fault.kind,
                "at_s": fault.at_s,
                "lasts_s": fault.lasts_s,
                "came": fault.came,
                "hit": fault.has_hit,
            }
            for fault in each.case.faults
        ],
        "broken": each.broken,
    }


def hits(records: Sequence[Record]) -> dict[str, int]:
    """Return how many faults of each kind hit something."""
    found = Counter(
        str(fault["kind"]) for each in records for fault in each["faults"] if fault["hit"]
    )
    return dict(sorted(found.items()))


def summary(records: Sequence[Record]) -> str:
    """Return what all runs came to, in a sentence."""
    broken = [str(each["run"]) for each in records if each["broken"]]
    steps = sum(each["total_steps"] for each in records)
    repeated = sum(each["repeated"] for each in records)
    held = f"something broke in {', '.join(broken)}" if broken else "every invariant held"
    return (
        f"{len(records)} runs, {sum(hits(records).values())} faults that hit something: {held}; of "
        f"{steps:,} steps {repeated:,} were trained again ({100 * repeated / max(1, steps):.1f} %)."
    )
