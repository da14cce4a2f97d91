"""Histories of a modern site as `sacct -P` prints them, drawn from a seed."""

from __future__ import annotations

from random import Random

HEADING = "JobID|User|Submit|Start|ElapsedRaw|Timelimit|AllocTRES|ReqTRES|State"
MODERN = ("nvidia_h100_80gb_hbm3", "a100", "l40s", "tesla_t4")
# GPUs of each type, and the jobs of 20 that ran on it.
MODERN_CLUSTER = ",".join(f"8x{name}" for name in MODERN)
_SHARES = (6, 6, 5, 3)


def modern_history(num_jobs: int, *, seed: int = 0, users: int = 12, gap_s: float = 600.0) -> str:
    """Return jobs of several users on H100, A100, L40S and T4, with arrivals and time limits."""
    draw = Random(f"history {seed}")
    lines, at_s = [HEADING], 1_700_000_000.0
    for number in range(1, num_jobs + 1):
        at_s += draw.expovariate(1 / gap_s)
        (gpu_type,) = draw.choices(MODERN, _SHARES)
        (gpus,) = draw.choices((1, 2, 4), (14, 3, 3))
        elapsed_s = max(60, round(draw.lognormvariate(8.4, 1.2)))
        limit_min = -(-round(elapsed_s * draw.choice((1.5, 3, 8))) // 60)
        lines.append(
            f"{number}|user{draw.randrange(users)}|{at_s:.0f}|{at_s + 30:.0f}|{elapsed_s}|"
            f"{limit_min}|"
            f"cpu=8,gres/gpu={gpus},gres/gpu:{gpu_type}={gpus},node=1|gres/gpu={gpus}|COMPLETED"
        )
    return "\n".join(lines) + "\n"
