"""The section on lists that were played twice on a real Slurm: what a simulation can reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean
from textwrap import wrap

from slurm_fidelity.compare import Difference
from slurm_fidelity.judging import Judged

_TEXT = """\
## What two real plays agree on

Each of these lists was played more than once on the same real Slurm. *Real* compares two real plays
with each other, *simulated* the simulated plays with the real ones; *of it* is how much of the
agreement of two real plays the simulation has. Least agreement of real plays comes first.
"""


def twice_section(judged: Sequence[Judged], least_types: float) -> str:
    """Return the section, "" where no list has two plays; `least_types` is what is asked for."""
    pairs = [(each, each.between_real, each.off) for each in judged if each.between_real]
    if not pairs:
        return ""
    pairs.sort(key=lambda pair: pair[1].same_types)
    lines = [
        _TEXT,
        "| list | Slurm | plays | types: real | simulated | of it | order: real | simulated | "
        "\\|ln JCT\\|: real | simulated |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each, real, ours in pairs:
        head = [each.jobs.name, each.slurm, str(len(each.real))]
        lines.append(_row(head, [real], [ours]))
    real, ours = [real for _, real, _ in pairs], [ours for _, _, ours in pairs]
    lines.append(_row(["mean", "", ""], real, ours))
    below = sum(each.same_types < least_types for each in real)
    ahead = sum(b.same_types >= a.same_types for a, b in zip(real, ours, strict=True))
    text = (
        f"So {least_types:.0%} of the jobs on the same types cannot be asked of a simulation: on "
        f"{below} of {len(pairs)} lists two real plays do not reach it, and in the mean they have "
        f"{_types(real):.0%}. The simulation agrees with a real play in {_types(ours):.0%}, that "
        f"is {_types(ours) / _types(real):.2f} of what a second real play does, and on {ahead} of "
        f"{len(pairs)} lists it is at least as near."
    )
    lines += ["", *wrap(text, 100), ""]
    return "\n".join(lines)


def _row(head: Sequence[str], real: Sequence[Difference], ours: Sequence[Difference]) -> str:
    cells = [
        *head,
        f"{_types(real):.0%}", f"{_types(ours):.0%}", f"{_types(ours) / _types(real):.2f}",
        *(f"{mean(d.tau for d in each):.2f}" for each in (real, ours)),
        *(f"{mean(abs(math.log(d.jct)) for d in each):.3f}" for each in (real, ours)),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _types(each: Sequence[Difference]) -> float:
    return mean(d.same_types for d in each)
