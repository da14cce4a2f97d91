"""How the learning rate follows the number of copies that average.

The mean of n equal copies moves as far as one copy does, by steps of less noise; so it bears a
higher rate. As with larger batches of adaptive optimisers, the rate grows with the root of n
(the square-root rule: arXiv 1404.5997, section 5, and 2205.10287). Unequal copies count as the
number of fastest ones that would train as many steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import SlotEnd

# In this part of all steps, and in this number at most, the factor grows by 1.
_WARM_UP, _LONGEST = 0.05, 1000


def effective_copies(dealt: Mapping[int, Ranges]) -> float:
    """Return as how many of the fastest the copies count that share an interval's steps."""
    most = max(map(len, dealt.values()), default=0)
    return sum(map(len, dealt.values())) / most if most else 1.0


def aim(end: SlotEnd, by_copies: bool | float) -> float:
    """Return the factor of the learning rate that the interval after `end` approaches.

    `by_copies` is the root of the effective number of copies if True, 1 if False, or a factor for
    any number of copies above one.
    """
    copies = effective_copies(end.dealt)
    if end.together or by_copies is False or copies <= 1:
        return 1.0
    return math.sqrt(copies) if by_copies is True else float(by_copies)


def warm_up_steps(total_steps: int) -> int:
    """Return in how many steps of the whole job the factor grows by 1."""
    return max(1, min(_LONGEST, round(_WARM_UP * total_steps)))


def factor(end: SlotEnd, done: int, by_copies: bool | float) -> float:
    """Return the factor in the interval after `end` when `done` steps of the job are trained.

    It grows from that at `end` to its aim in a warm-up, and falls at once.
    """
    grown = (done - len(end.done)) / warm_up_steps(end.total_steps)
    return min(aim(end, by_copies), end.rate_factor + max(0.0, grown))
