"""Time limits as users give them, for traces that have none: `5x,40%`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.job import JobSpec
from hadar_slurm.errors import UsageError

# The standard deviation of the logarithm of limit over duration.
_SPREAD = 0.8
_FORM = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)x(?:,([0-9]{1,3}(?:\.[0-9]{1,6})?)%)?")


@dataclass(frozen=True, slots=True)
class LimitHabits:
    """How users choose time limits: the median of limit over duration, and who takes the longest.

    The duration is that on the slowest GPU type where the job runs, within a node, and the limit is
    written for that type. The ratio is log-normal, and 1 at least, as no job ends at its limit
    there. The longest limit, a partition's, is the least under which all jobs end. A
    `share_at_longest` of the jobs have it, as where --time is left out.
    """

    median: float
    share_at_longest: float = 0.0

    def __str__(self) -> str:
        return f"{self.median:g}x,{100 * self.share_at_longest:g}%"

    def drawn(
        self, specs: Sequence[JobSpec], gpu_types: Iterable[GpuType], seed: int
    ) -> list[JobSpec]:
        """Return the jobs with limits drawn from `seed`; as they are if any has a limit."""
        if have_limits(specs):
            return list(specs)
        draw, types = Random(f"limits {seed}"), tuple(gpu_types)
        slowest = [_slowest(spec, types) for spec in specs]
        lasts_s = [spec.total_steps / by for spec, (by, _) in zip(specs, slowest, strict=True)]
        longest_s, limited = max(lasts_s, default=0.0), []
        for spec, (_, gpu_type), last_s in zip(specs, slowest, lasts_s, strict=True):
            ratio = max(1.0, draw.lognormvariate(math.log(self.median), _SPREAD))
            is_longest = draw.random() < self.share_at_longest
            limit_s = longest_s if is_longest else min(ratio * last_s, longest_s)
            limited.append(replace(spec, limit_s=limit_s, limit_type=gpu_type))
        return limited


def have_limits(specs: Iterable[JobSpec]) -> bool:
    """Return whether any job has a time limit."""
    return any(spec.limit_s < math.inf for spec in specs)


def parse_limits(text: str, option: str = "--limits") -> LimitHabits | None:
    """Return the limits of `5x` or `5x,40%`; None for an empty text."""
    if not text.strip():
        return None
    found = _FORM.fullmatch(text.replace(" ", "").lower())
    median, share = (float(found[1]), float(found[2] or 0.0)) if found else (0.0, 0.0)
    if not median or share > 100:
        raise UsageError(
            f"{option} {text!r}: expected the median of limit over duration, and the share of the "
            "jobs at the longest limit, such as 5x,40%"
        )
    return LimitHabits(median, share / 100.0)


def _slowest(spec: JobSpec, gpu_types: Iterable[GpuType]) -> tuple[float, str]:
    """Return the steps/s on the slowest of these types on which the job runs, and the type."""
    speeds = ((spec.throughput_on(gpu_type), str(gpu_type)) for gpu_type in gpu_types)
    return min((each for each in speeds if each[0] > 0), default=(1.0, ""))
