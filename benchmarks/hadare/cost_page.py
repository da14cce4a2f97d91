"""Writes transport.md: what an averaging costs by the runs of cost.py, and how that scales."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
TARGET_CPU_S = 2.0  # per GB of parameters and copy
INTERVAL_S, PART = 60.0, 0.05
LARGE, BYTES_PER_S = 1e9, 1e9  # parameters, and what a file system gives each copy


def size_gb(record: Record) -> float:
    """Return the size of a model's parameters in GB, in float32."""
    return float(record["parameters"]) * 4 / 1e9


def cpu_s(record: Record) -> dict[str, float]:
    """Return the CPU seconds per GB of parameters and copy; the merger's are shared by all."""
    parts, gb = record["parts"], size_gb(record)
    found = {part: parts[part]["cpu_s"] / gb for part in parts}
    found["merge"] /= record["copies"]
    return {**found, "all": sum(found.values())}


def scaled(record: Record, copies: int) -> dict[str, float]:
    """Return the seconds of an averaging of `LARGE` parameters on a file system of `BYTES_PER_S`.

    Each copy saves, one merges, each loads. Time is that of the bytes and of the CPU, as nothing
    overlaps; both grow with the parameters. The merger reads one contribution for each copy.
    """
    scale = LARGE / record["parameters"]
    parts = record["parts"]
    found = {
        part: scale * (parts[part]["cpu_s"] + _bytes(parts[part]) / BYTES_PER_S)
        for part in ("save", "load")
    }
    # Of the merger's work, a part is for the base and the mean, the rest for each contribution.
    given = parts["save"]["written"] * record["copies"]
    share = given / _bytes(parts["merge"])
    whole_s = scale * (parts["merge"]["cpu_s"] + _bytes(parts["merge"]) / BYTES_PER_S)
    found["merge"] = whole_s * (1 - share + share * copies / record["copies"])
    return {**found, "all": sum(found.values())}


def _bytes(part: Mapping[str, float]) -> float:
    return part["read"] + part["written"]


def text(records: Sequence[Record]) -> str:
    """Return the page."""
    first = records[0]
    directories = ",".join(dict.fromkeys(record["directory"] for record in records))
    millions = ",".join(dict.fromkeys(f"{round(r['parameters'] / 1e6)}" for r in records))
    most = max(cpu_s(record)["all"] for record in records)
    holds = "holds" if most <= TARGET_CPU_S else "does not hold"
    lines = [
        "# What an averaging costs\n",
        "Written by `cost.py`; change [cost_page.py](cost_page.py), not this.\n",
        "```",
        f"nice -n 12 python benchmarks/hadare/cost.py --millions {millions} "
        f"--directories {directories}",
        "```\n",
        _wrapped(
            f"{first['date']}, {first['cpus']} cores with much other work (load "
            f"{min(r['load'] for r in records):g} to {max(r['load'] for r in records):g}), no GPU, "
            f"PyTorch {first['torch']}, {first['copies']} copies, each a process with one thread. "
            "Medians of three averagings. GB are those of the parameters in float32; CPU seconds "
            "are user and system time of the processes, the merger's divided by the copies. "
            "Bytes are those of the calls, from a disk or from memory."
        ),
        "",
        "| directory | parameters | save | merge | load | CPU s per GB and copy | "
        "bytes per parameter: written | read | merged | resident memory of a copy, GB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for record in records:
        found, parts, count = cpu_s(record), record["parts"], record["parameters"]
        read = parts["save"]["read"] + parts["load"]["read"]
        lines.append(
            f"| {record['directory']} | {count / 1e6:.0f} M | {found['save']:.2f} | "
            f"{found['merge']:.2f} | {found['load']:.2f} | {found['all']:.2f} | "
            f"{parts['save']['written'] / count:.1f} | {read / count:.1f} | "
            f"{_bytes(parts['merge']) / count:.1f} | {record['rss'] / 1e9:.1f} |"
        )
    lines += [
        "",
        _wrapped(
            f"The aim of at most {TARGET_CPU_S:g} CPU s per GB and copy **{holds}**: the most is "
            f"{most:.2f}. A copy reads the start of the interval once more to make its "
            "differences, mostly from memory."
        ),
        "",
        "## Scaled to 1,000 M parameters\n",
        _wrapped(
            "Time of the bytes at 1 GB/s for each copy and of the CPU, one after the other, from "
            "each row; the merger reads a contribution of each copy. An averaging takes at most "
            f"{PART:.0%} of the time in intervals of the last column."
        ),
        "",
        "| from | copies | save, s | merge, s | load, s | all, s | part of 60 s | "
        "interval for 5 % |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for record in records:
        for copies in (2, 4):
            found = scaled(record, copies)
            lines.append(
                f"| {record['directory']}, {record['parameters'] / 1e6:.0f} M | {copies} | "
                f"{found['save']:.1f} | {found['merge']:.1f} | {found['load']:.1f} | "
                f"{found['all']:.1f} | {found['all'] / INTERVAL_S:.0%} | "
                f"{found['all'] / PART:.0f} s |"
            )
    worst = min(scaled(record, 2)["all"] for record in records) / INTERVAL_S
    is_held = "holds" if worst <= PART else "does **not** hold"
    lines += [
        "",
        _wrapped(
            f"That 1,000 M parameters take at most {PART:.0%} at intervals of {INTERVAL_S:g} s "
            f"{is_held}: at 1 GB/s the bytes alone take longer. Intervals are as long as the last "
            "column then, by themselves. The merging by one copy is the largest part, and grows "
            "with the copies."
        ),
        "",
    ]
    return "\n".join(lines)


def _wrapped(words: str) -> str:
    return textwrap.fill(words, 100, break_long_words=False, break_on_hyphens=False)
