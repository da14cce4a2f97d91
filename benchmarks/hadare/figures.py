"""What the runs of quality.py came to: means and spreads over seeds, and differences by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import mean, stdev
from typing import Any

Record = Mapping[str, Any]
STOPPED = ", stopped early"  # after the name of a variant
# What is compared with what, seed by seed.
AT_EQUAL_STEPS, AT_EQUAL_TIME = ("HadarE", "single"), ("HadarE", "single, same time")
OTHERS = (
    ("single, half the steps", "single"),
    ("HadarE", "single, steps / copies"),
    ("averaged ends", "single"),
    ("HadarE, constant rate", "single, constant rate"),
    ("averaged ends, constant rate", "single, constant rate"),
    ("HadarE, rate x 2", "HadarE"),
    ("HadarE, rate by copies", "HadarE"),
    ("single, rate x 2", "single"),
    ("HadarE, rate x 2", "single, same time"),
    ("HadarE, 4 x the steps", "single, 4 x the steps"),
    ("HadarE, 4 x the steps", "single, same time, 4 x the steps"),
    ("keep", "HadarE"),
    ("reset", "HadarE"),
    ("outer momentum", "HadarE"),
    *((f"{x}x", "HadarE") for x in (1, 4, 8, 16)),
    *((f"{n} copies", "HadarE") for n in (2, 8)),
)


def cells(records: Iterable[Record]) -> dict[str, dict[str, dict[int, Record]]]:
    """Return records by task and optimiser, then by name, then by seed."""
    found: dict[str, dict[str, dict[int, Record]]] = {}
    for record in records:
        run, name = record["run"], record["name"]
        cell = found.setdefault(f"{run['task']}, {run['optimiser']}", {})
        cell.setdefault(name, {})[run["seed"]] = record
        if "averaged" in record and name in ("single", "single, constant rate"):
            loss, accuracy = record["averaged"]
            averaged = {**record, "loss": loss, "accuracy": accuracy}
            cell.setdefault(name.replace("single", "averaged ends"), {})[run["seed"]] = averaged
        if "stopped" in record:
            _, loss, accuracy = record["stopped"]
            stopped = {**record, "loss": loss, "accuracy": accuracy}
            cell.setdefault(f"{name}{STOPPED}", {})[run["seed"]] = stopped
    return {cell: found[cell] for cell in sorted(found)}


def compared(
    records: Sequence[Record],
    comparisons: Sequence[tuple[str, str]] = (AT_EQUAL_STEPS, AT_EQUAL_TIME, *OTHERS),
) -> dict[str, Any]:
    """Return what the page shows: losses in nats, spreads as standard deviations over seeds.

    `comparisons` are names of variants, each less another.
    """
    by_cell = cells(records)
    return {
        "runs": len(records),
        "cpu_s": round(sum(record["cpu_s"] for record in records), 1),
        "means": {
            cell: {name: _means(list(runs.values())) for name, runs in names.items()}
            for cell, names in by_cell.items()
        },
        "pairs": [
            {"cell": cell, "name": name, "against": against, **pair}
            for name, against in comparisons
            for cell, names in by_cell.items()
            if (pair := _pair(names.get(name, {}), names.get(against, {})))
        ],
    }


def _means(runs: Sequence[Record]) -> dict[str, Any]:
    return {
        "seeds": len(runs),
        "time_s": round(runs[0]["time_s"], 1),
        **{key: _spread([run[key] for run in runs]) for key in ("loss", "accuracy")},
    }


def _pair(ours: Mapping[int, Record], theirs: Mapping[int, Record]) -> dict[str, Any] | None:
    """Return differences ours - theirs over the seeds of both, None where there is none."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    loss = [ours[seed]["loss"] - theirs[seed]["loss"] for seed in seeds]
    accuracy = [ours[seed]["accuracy"] - theirs[seed]["accuracy"] for seed in seeds]
    return {
        "seeds": len(seeds),
        "better": sum(each < 0 for each in loss),
        "loss": _spread(loss),
        "accuracy": _spread(accuracy),
        "finding": _finding(loss),
        "accuracy_finding": _finding([-each for each in accuracy]),
    }


def _spread(values: Sequence[float]) -> list[float]:
    """Return mean and standard deviation."""
    return [round(mean(values), 4), round(stdev(values) if len(values) > 1 else 0.0, 4)]


def _finding(by_seed: Sequence[float]) -> str:
    """Return whether differences, of which lower is better, are over two standard errors from 0."""
    if len(by_seed) < 3:
        return "too few seeds"
    error = stdev(by_seed) / sqrt(len(by_seed))
    if abs(mean(by_seed)) <= 2 * error:
        return "no different"
    return "better" if mean(by_seed) < 0 else "worse"


def differences(found: Mapping[str, Any], name: str, against: str) -> list[Mapping[str, Any]]:
    """Return the pairs of one variant less another, one for each task and optimiser."""
    return [p for p in found["pairs"] if (p["name"], p["against"]) == (name, against)]
