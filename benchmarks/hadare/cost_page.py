"""Writes transport.md: what an averaging costs by the runs of cost.py, and how that scales."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from hadar_slurm.runtime.dealing import DELAY
from hadar_slurm.runtime.dealing import ROOM as AHEAD_ROOM

Record = Mapping[str, Any]
_PARTS = ("keep", "save", "merge", "load", "take")
TARGET_CPU_S = 2.0  # per GB of parameters and copy
INTERVAL_S, PART = 60.0, 0.05
ROOM = AHEAD_ROOM / DELAY
COPIES = (2, 4)
LARGE, BYTES_PER_S = 1e9, 1e9  # parameters, and what a file system gives each copy


def size_gb(record: Record) -> float:
    """Return the size of a model's parameters in GB, in float32."""
    return float(record["parameters"]) * 4 / 1e9


def cpu_s(record: Record, which: str = "cpu_s") -> dict[str, float]:
    """Return the CPU seconds per GB of parameters and copy; the merger's are shared by all."""
    parts, gb = record["parts"], size_gb(record)
    found = {part: parts[part][which] / gb for part in parts}
    found["merge"] /= record["copies"]
    return {**found, "all": sum(found.values())}


def scaled(record: Record, copies: int) -> dict[str, float]:
    """Return the seconds of an averaging of `LARGE` parameters on a file system of `BYTES_PER_S`.

    Each copy saves, one merges, each loads. Time is that of the bytes and of the CPU, one after the
    other; both grow with the parameters. The merger reads one contribution for each copy. What all
    have read at the start of the interval, they read again from memory: that is CPU time. `blocked`
    is what stops training: all of it, but for copies that train meanwhile.
    """
    scale = LARGE / record["parameters"]
    parts, again = record["parts"], record["parts"]["load"]["read"]
    found = {
        part: scale * (parts[part]["cpu_s"] + (_bytes(parts[part]) - known) / BYTES_PER_S)
        for part, known in {**dict.fromkeys(parts, 0.0), "save": again}.items()
        if part != "merge"
    }
    # Of the merger's work, a part is for the base and the mean, the rest for each contribution.
    given = parts["save"]["written"] * record["copies"]
    moved = _bytes(parts["merge"]) - again
    share = given / moved
    whole_s = scale * (parts["merge"]["cpu_s"] + moved / BYTES_PER_S)
    found["merge"] = whole_s * (1 - share + share * copies / record["copies"])
    total_s = sum(found.values())
    blocked_s = found["keep"] + found["take"] if record["delays"] else total_s
    return {**found, "all": total_s, "blocked": blocked_s}


def interval_s(record: Record, copies: int) -> float:
    """Return the shortest interval in which training stops for `PART` of the time at most, in s.

    Where copies train meanwhile, they need as much as `ROOM` of an averaging for it.
    """
    found = scaled(record, copies)
    return max(found["blocked"] / PART, ROOM * found["all"] * record["delays"])


def _bytes(part: Mapping[str, float]) -> float:
    return part["read"] + part["written"]


def text(records: Sequence[Record]) -> str:
    """Return the page."""
    first = records[0]
    directories = ",".join(dict.fromkeys(record["directory"] for record in records))
    millions = ",".join(dict.fromkeys(f"{round(r['parameters'] / 1e6)}" for r in records))
    memory = ",".join(dict.fromkeys(record["memory"] for record in records))
    lines = [
        "# What an averaging costs\n",
        "Written by `cost.py`; change [cost_page.py](cost_page.py), not this.\n",
        "```",
        f"python benchmarks/hadare/cost.py --memory {memory} --millions {millions} "
        f"--directories {directories}",
        "```\n",
        _wrapped(
            f"{first['date']}, {first['cpus']} cores (load "
            f"{min(r['load'] for r in records):g} to {max(r['load'] for r in records):g}), no GPU, "
            f"PyTorch {first['torch']}, {first['copies']} copies, each a process. "
            f"Medians of {first['averagings']} averagings after {first['first']}, since the first "
            "take new memory: the files of the first three, and longer where the kernel gives "
            "freed memory again late; what these take is in a column of its own. One copy works "
            "at a time, as each has a node of its own, but not here. GB are those of the "
            "parameters in float32; CPU seconds are user and system time of the processes, the "
            "merger's divided by the copies. Bytes are those of the calls, from a disk or from "
            "memory. With a delay, copies train on but for `keep` and `take`; `save` has the "
            "rounding to differences in both. Memory is free, or full of cached files, as that of "
            "nodes that have run for a while. This virtual machine returns memory that becomes "
            "free to its host, and takes up to 2.4 CPU s to get 1 GB again: that is in the time of "
            "new files where memory is free."
        ),
        "",
        "| memory | directory | parameters | delay | keep | save | merge | load | take | "
        "CPU s per GB and copy | of these the kernel's | bytes per parameter: written | read | "
        "merged | resident memory of a copy, GB | CPU s per GB and copy at first |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for record in records:
        found, parts, count = cpu_s(record), record["parts"], record["parameters"]
        at_first = {**record, "parts": record["parts_at_first"]}
        read = parts["save"]["read"] + parts["load"]["read"]
        cells = [f"{found[part]:.2f}" if part in found else "" for part in _PARTS]
        lines.append(
            f"| {record['memory']} | {record['directory']} | {count / 1e6:.0f} M | "
            f"{_delay(record)} | "
            f"{' | '.join(cells)} | {found['all']:.2f} | {cpu_s(record, 'kernel_s')['all']:.2f} | "
            f"{parts['save']['written'] / count:.1f} | {read / count:.1f} | "
            f"{_bytes(parts['merge']) / count:.1f} | {record['rss'] / 1e9:.1f} | "
            f"{cpu_s(at_first)['all']:.2f} |"
        )
    lines += ["", _wrapped(_verdict_on_cpu(records)), ""]
    return "\n".join([*lines, *_scaled_rows(records), ""])


def _delay(record: Record) -> str:
    return "yes" if record["delays"] else "no"


def _verdict_on_cpu(records: Sequence[Record]) -> str:
    """Return whether the aim for CPU time holds, by memory, with a delay and without."""
    verdicts = []
    for memory in dict.fromkeys(record["memory"] for record in records):
        for delays, words in ((False, "without a delay"), (True, "with one")):
            rows = [r for r in records if r["delays"] == delays and r["memory"] == memory]
            found = [cpu_s(record)["all"] for record in rows]
            holds = "holds" if max(found) <= TARGET_CPU_S else "does not hold"
            verdicts.append(f"{memory}, {words}: **{holds}**, {min(found):.2f} to {max(found):.2f}")
    return (
        f"At most {TARGET_CPU_S:g} CPU s per GB and copy is the aim. Memory {'; '.join(verdicts)}. "
        "A copy reads the start of the interval once more to make its differences. With a delay it "
        "keeps its parameters (`keep`), and adds what an averaging changes (`load`, `take`)."
    )


def _scaled_rows(records: Sequence[Record]) -> list[str]:
    """Return the lines of the section that scales the records of the largest model."""
    largest = max(record["parameters"] for record in records)
    records = [record for record in records if record["parameters"] == largest]
    lines = [
        "## Scaled to 1,000 M parameters\n",
        _wrapped(
            "Time of the bytes at 1 GB/s for each copy and of the CPU, one after the other, from "
            "each row of the largest model; the merger reads a contribution of each copy. The "
            "parameters at the start "
            "of the interval are read again from memory, as CPU time. `stops` is how long training "
            "stops. The last column is the shortest interval in which that takes at most "
            f"{PART:.0%}; with a delay it is also {ROOM:.2f} times the whole averaging, during "
            "which copies train on from parameters that are not averaged yet."
        ),
        "",
        "| from | memory | delay | copies | save, s | merge, s | load, s | all, s | stops, s | "
        "part of 60 s | shortest interval |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for record in records:
        for copies in COPIES:
            found = scaled(record, copies)
            lines.append(
                f"| {record['directory']}, {largest / 1e6:.0f} M | {record['memory']} | "
                f"{_delay(record)} | {copies} | {found['save']:.1f} | {found['merge']:.1f} | "
                f"{found['load']:.1f} | "
                f"{found['all']:.1f} | {found['blocked']:.1f} | "
                f"{found['blocked'] / INTERVAL_S:.1%} | {interval_s(record, copies):.0f} s |"
            )
    told = []
    for delays, words in ((False, "without a delay"), (True, "with one")):
        rows = [record for record in records if record["delays"] == delays]
        found = [scaled(record, copies) for record in rows for copies in COPIES]
        stops, whole_s = (max(each[name] for each in found) for name in ("blocked", "all"))
        holds = stops <= PART * INTERVAL_S and whole_s <= INTERVAL_S
        told.append(
            f"{words} it {'**holds**' if holds else 'does **not** hold'}: at most "
            f"{stops / INTERVAL_S:.1%}, and an averaging ends after {whole_s:.0f} s"
        )
    lines += [
        "",
        _wrapped(
            f"From {largest / 1e6:.0f} M, averaging 1,000 M parameters once in {INTERVAL_S:g} s is "
            f"to stop training for at most {PART:.0%} of the time: {'; '.join(told)}. Copies delay "
            "by themselves where averaging takes more than that, in intervals of the last column. "
            "The merging by one copy is the largest part, and grows with the copies."
        ),
    ]
    return lines


def _wrapped(words: str) -> str:
    return textwrap.fill(words, 100, break_long_words=False, break_on_hyphens=False)
