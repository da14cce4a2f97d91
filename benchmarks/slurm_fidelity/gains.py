"""What hadard in mode `steer` gains over plain Slurm, on a real slurmctld and in the simulator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from slurm_fidelity.compare import figures
from slurm_fidelity.jobs import JobList, Play
from slurm_fidelity.steered import as_asked, in_real_time, simulate_steered

# Simulations of each list: how long Slurm takes to start a job decides which job gets which node.
SEEDS = range(3)
# What is asked for: how far the simulated gain may be from the real one, in points, in the mean.
MOST_POINTS = 5.0

_KEPT = (
    "plain_s", "steered_s", "simulated_plain_s", "simulated_steered_s", "simulated_alone_s",
    "real", "simulated", "off", "alone", "late_s", "load",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gain:
    """Mean completion times of one list, in real seconds: plain and steered, real and simulated."""

    jobs: JobList
    plain_s: tuple[float, ...]
    steered_s: tuple[float, ...]
    simulated_plain_s: tuple[float, ...]
    simulated_steered_s: tuple[float, ...]
    # Simulated with hadard placing all jobs itself.
    simulated_alone_s: tuple[float, ...]
    # Of the steered plays: the most a job was submitted late, in real seconds, and the load.
    late_s: float
    load: float

    @property
    def real(self) -> float:
        """The gain in the real plays, as a share of the plain mean completion time."""
        return 1.0 - mean(self.steered_s) / mean(self.plain_s)

    @property
    def simulated(self) -> float:
        """The gain in the simulated plays."""
        return 1.0 - mean(self.simulated_steered_s) / mean(self.simulated_plain_s)

    @property
    def alone(self) -> float:
        """The simulated gain of hadard that places all jobs itself."""
        return 1.0 - mean(self.simulated_alone_s) / mean(self.simulated_plain_s)

    @property
    def off(self) -> float:
        """The simulated gain over the real one, in points."""
        return 100.0 * (self.simulated - self.real)


def gains(
    lists: Mapping[str, JobList],
    plain: Iterable[Play],
    steered: Iterable[Play],
    simulated_plain_s: Mapping[tuple[str, str], Sequence[float]],
) -> list[Gain]:
    """Return the gain on each list that was played steered, losses first.

    `simulated_plain_s` has the mean completion times of plain simulations, in seconds of the list.
    """
    plain, played = list(plain), defaultdict[tuple[str, str], list[Play]](list)
    for play in steered:
        played[play.list, play.slurm].append(play)
    found = [
        _gain(
            lists[name],
            [each for each in plain if (each.list, each.slurm) == (name, slurm)],
            plays,
            simulated_plain_s[name, slurm],
        )
        for (name, slurm), plays in played.items()
    ]
    return sorted(found, key=lambda gain: gain.real)


def _gain(
    jobs: JobList, plain: Sequence[Play], steered: Sequence[Play], simulated_s: Sequence[float]
) -> Gain:
    times, scaled = float(jobs.compression), in_real_time(as_asked(jobs))

    def simulated(*, is_alone: bool) -> tuple[float, ...]:
        plays = (simulate_steered(jobs, seed=seed, is_alone=is_alone) for seed in SEEDS)
        return tuple(figures(scaled, each).mean_jct_s for each in plays)

    return Gain(
        jobs,
        tuple(figures(jobs, play).mean_jct_s / times for play in plain),
        tuple(figures(jobs, play).mean_jct_s / times for play in steered),
        tuple(value / times for value in simulated_s),
        simulated(is_alone=False),
        simulated(is_alone=True),
        max(play.late_s for play in steered),
        max(play.load for play in steered),
    )


def with_plain(
    tree: Mapping[str, Any], simulated_plain_s: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Return a record with other simulations of plain Slurm, by list, in seconds of real plays."""
    lists = []
    for each in tree["lists"]:
        plain_s = simulated_plain_s[each["list"]]
        simulated, alone = (
            1.0 - mean(each[f"simulated_{kind}_s"]) / mean(plain_s) for kind in ("steered", "alone")
        )
        off = 100.0 * (simulated - each["real"])
        changed = {"simulated": simulated, "alone": alone, "off": off}
        lists.append({**each, "simulated_plain_s": list(plain_s), **changed})
    return _tree(lists)


def record(found: Sequence[Gain]) -> dict[str, Any]:
    """Return what the section says, for programs."""
    lists = [
        {
            "list": gain.jobs.name,
            "jobs": len(gain.jobs.jobs),
            **{key: getattr(gain, key) for key in _KEPT},
        }
        for gain in found
    ]
    return _tree(lists)


def _tree(lists: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the record of lists, with the mean absolute differences of their gains, in points."""
    return {
        "mean_off": mean(abs(each["off"]) for each in lists),
        "mean_alone_off": mean(100.0 * abs(each["alone"] - each["real"]) for each in lists),
        "lists": lists,
    }
