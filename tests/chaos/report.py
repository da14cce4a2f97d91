"""The report of a run: every fault with its outcome, the findings, and a summary line."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chaos.case import Case
from chaos.invariants import INVARIANTS, Finding
from rich.box import SIMPLE_HEAD
from rich.table import Table


def outcome(case: Case) -> str:
    """Return the outcome of a fault."""
    if case.is_skipped:
        return "left out"
    if case.well_s is None or case.ended_s is None:
        return "not recovered"
    return f"recovered in {max(0.0, case.well_s - case.ended_s):.1f} s"


def fault_table(cases: Sequence[Case], begun_s: float) -> Table:
    """Return the faults as a table."""
    table = Table("#", "at s", "fault", "what was done", "outcome", box=SIMPLE_HEAD)
    for case in cases:
        at_s = f"{case.begun_s - begun_s:.1f}"
        table.add_row(str(case.number), at_s, str(case.fault.kind), case.done, outcome(case))
    return table


def finding_lines(findings: Sequence[Finding], begun_s: float) -> list[str]:
    """Return the findings as lines, broken invariants first."""
    ordered = sorted(findings, key=lambda finding: (bool(finding.apart), finding.time_s))
    return [
        f"{'counted apart' if f.apart else 'BROKEN'}: {f.invariant}: "
        + (f"job {f.job}: " if f.job else "")
        + f"{f.what}, at {f.time_s - begun_s:.1f} s"
        + (f" ({f.apart})" if f.apart else "")
        for f in ordered
    ]


def as_tree(
    settings: Mapping[str, Any],
    cases: Sequence[Case],
    findings: Sequence[Finding],
    figures: Mapping[str, Any],
    begun_s: float,
) -> dict[str, Any]:
    """Return the report for programs."""
    broken = [finding for finding in findings if not finding.apart]
    return {
        "version": 1,
        **settings,
        "faults": [
            {
                "number": case.number,
                "at_s": round(case.begun_s - begun_s, 2),
                "fault": str(case.fault.kind),
                "done": case.done,
                "outcome": outcome(case),
            }
            for case in cases
        ],
        "invariants": {
            name: {
                "broken": sum(f.invariant == name for f in broken),
                "apart": dict(
                    Counter(f.apart for f in findings if f.apart and f.invariant == name)
                ),
            }
            for name in INVARIANTS
        },
        "findings": finding_lines(findings, begun_s),
        "figures": dict(figures),
    }


def last_line(
    cases: Sequence[Case], findings: Sequence[Finding], figures: Mapping[str, Any]
) -> str:
    """Return the summary in one line."""
    carried = [case for case in cases if not case.is_skipped]
    times = [
        c.well_s - c.ended_s for c in carried if c.well_s is not None and c.ended_s is not None
    ]
    median_s = statistics.median(max(0.0, time_s) for time_s in times) if times else 0.0
    broken = [finding for finding in findings if not finding.apart]
    kinds = Counter(finding.invariant for finding in broken)
    verdict = (
        "every invariant held"
        if not broken
        else "BROKEN: " + ", ".join(f"{name} ({count})" for name, count in kinds.items())
    )
    return (
        f"{len(carried)} faults ({len(cases) - len(carried)} left out), {figures['jobs']} jobs, "
        f"{figures['hadard_starts']} starts of hadard, median recovery {median_s:.1f} s, "
        f"{len(findings) - len(broken)} counted apart, {figures['wall_s']:.0f} s: {verdict}"
    )
