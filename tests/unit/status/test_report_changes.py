"""The report of a journal of differences, beside one that looks at every row of every line."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from builders import whole_journal

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.journal import Line
from hadar_slurm.journal.chain import Encoder
from hadar_slurm.journal.reader import read_period
from hadar_slurm.status.report import GpuHours, Reporter

NODES = {"n1": {"V100": 2}, "n2": {"K80": 4, "V100": 1}, "n3": {"K80": 2}}
HOLDS = [{}, {"0": {"n1": {"V100": 1}}}, {"0": {"n2": {"K80": 2}}, "1": {"n3": {"K80": 1}}}]
OCCUPIED = [{}, {"n1": {"V100": 1}}, {"n2": {"K80": 1, "V100": 1}}]
NAMES = [*map(str, range(1, 9)), "20_1", "20_2", "20_3"]
PHASES = ("queued", "starting", "running")
MODES = ("", "hold", "observe")
# Jobs that only wait, so that a line is long beside what changes in it.
WAITING = [str(1000 + number) for number in range(45)]


def a_job(phase: str = "queued", holds: int = 0, steps: float = 0.0, share: float = 0.5) -> Line:
    return {
        "phase": phase,
        "user": "alice",
        "workload": "w",
        "gpus": 1,
        "submitted_s": 10.0,
        "steps": 1000,
        "steps_done": steps,
        "restarts": 0,
        "holds": HOLDS[holds],
        "throughputs": {"V100": 2.0},
        "fair_share": share,
    }


def change(line: Line, random: Random) -> None:
    """Change one thing in a line."""
    jobs, name = line["jobs"], random.choice(NAMES)
    match random.randint(0, 9):
        case 0 | 1:
            jobs.pop(name, None)
            jobs[name] = a_job(random.choice(PHASES), random.randint(0, 2))
        case 2:
            holds = HOLDS[random.randint(0, 2)]
            for other in random.sample(NAMES, 5):
                if other in jobs:
                    jobs[other]["holds"] = holds
        case 3 if name in jobs:
            jobs[name] |= {"phase": random.choice(PHASES)}
        case 4:
            for job in jobs.values():
                job["steps_done"] += random.choice([0, 0.125, 7]) * (job["phase"] != "queued")
        case 5:
            share = random.choice([0.25, 0.5, 0.75])
            for job in jobs.values():
                job["fair_share"] = share
            for other in NAMES:
                if other in jobs:
                    jobs[other]["throughputs"] = {"V100": random.choice([2.0, 4.0, 8.0])}
        case 6 if jobs.pop(name, None):
            line["ended"][name] = {
                "phase": random.choice(["done", "failed"]),
                "end_s": random.choice([0.0, 200.0, 300.5]),
            }
        case 7:
            for other in random.choice([WAITING[:20], WAITING[5:9], NAMES]):
                jobs.pop(other, None)
        case 8:
            node = random.choice(list(NODES))
            line["nodes"].pop(node, None)
            if random.randint(0, 2):
                line["nodes"][node] = {"gpus": NODES[node], "open": random.random() < 0.5}
        case 9:
            line["occupied"] = random.choice(OCCUPIED)
            line["ended"].pop(name, None)


def a_line(time_s: float = 100.0) -> Line:
    """Return a line in which jobs wait."""
    return {
        "version": 2,
        "round": 0,
        "time_s": time_s,
        "length_s": 60.0,
        "policy": "p",
        "nodes": {name: {"gpus": gpus, "open": True} for name, gpus in NODES.items()},
        "occupied": {},
        "jobs": {name: a_job() for name in WAITING},
        "ended": {},
        "plan": None,
        "waiting": {},
        "actions": [],
        "durations_s": {"plan": 0.5},
        "errors": [],
    }


def a_journal(random: Random) -> list[Line]:
    """Return lines of some modes, each with a few changes to the line before."""
    states = {mode: a_line() for mode in MODES}
    modes = random.choice([("",), ("hold",), ("hold", "observe"), MODES])
    found, time_s = [], 100.0
    for number in range(random.randint(1, 30)):
        mode = random.choice(modes)
        state = states[mode]
        for _ in range(random.randint(0, 3)):
            change(state, random)
        time_s += random.choice([60.0, 60.0, 0.0, -90.0, 500.0])
        written = {"version": 2, **({"mode": mode} if mode else {}), **copy.deepcopy(state)}
        written |= {"round": number, "time_s": time_s}
        if not random.randint(0, 5):
            for table in ("nodes", "occupied", "jobs", "ended"):
                del written[table]
            written["errors"] = ["no squeue"]
        found.append(written)
    return found


def plain_hours(lines: Sequence[Line]) -> dict[str, GpuHours]:
    """Return the GPU hours from all rows of all lines."""
    rounds: list[list[Line]] = []
    for line in lines:
        modes = (
            {other.get("mode", "") for other in rounds[-1]} if rounds else {line.get("mode", "")}
        )
        if line.get("mode", "") in modes:
            rounds.append([])
        rounds[-1].append(line)
    found: dict[str, GpuHours] = {}
    ends_s = [round_[0]["time_s"] for round_ in rounds[1:]] + [lines[-1]["time_s"]]
    for round_, end_s in zip(rounds, ends_s, strict=True):
        hours = max(0.0, min(end_s - round_[0]["time_s"], 120.0)) / 3600
        seen = [line for line in round_ if "jobs" in line]
        for name, sums in plain_use(seen).items() if seen else ():
            old = found.get(name, GpuHours())
            managed, others, idle = (number * hours for number in sums)
            found[name] = GpuHours(old.managed + managed, old.others + others, old.idle + idle)
    return dict(sorted(found.items()))


def plain_use(seen: Sequence[Line]) -> dict[str, list[int]]:
    """Return the GPUs of managed jobs, of others, and idle, by type."""
    held = [
        Counter(
            {(name, copy_, node, gpu_type): count
             for name, job in line["jobs"].items()
             for copy_, gang in job["holds"].items()
             for node, gpus in gang.items()
             for gpu_type, count in gpus.items()}
        )
        for line in seen
    ]  # fmt: skip

    def on(counts: Counter[tuple[str, str, str, str]], node: str, gpu_type: str) -> int:
        return sum(n for (_, _, *slot), n in counts.items() if slot == [node, gpu_type])

    found: dict[str, list[int]] = {}
    for name, node in seen[0]["nodes"].items():
        for gpu_type, total in node["gpus"].items():
            managed = sum(on(counts, name, gpu_type) for counts in held)
            busy = on(held[0], name, gpu_type)
            busy += seen[0]["occupied"].get(name, {}).get(gpu_type, 0)
            sums = found.setdefault(gpu_type, [0, 0, 0])
            new = (managed, busy - managed, (total - busy) * node["open"])
            sums[:] = [a + b for a, b in zip(sums, new, strict=True)]
    return found


def write(path: Path, lines: Sequence[Line]) -> None:
    path.write_bytes(b"".join(map(Encoder(plain_bytes=0).text_of, lines)))


@pytest.mark.parametrize("seed", range(60))
def test_changes_give_the_same_report_as_whole_lines(tmp_path: Path, seed: int) -> None:
    """What is read of a period is what was written, and its report that of whole lines."""
    random, path = Random(seed), tmp_path / "j"
    written = a_journal(random)
    in_older = random.choice([0, 3, 15])
    for file, part in ((path.with_name("j.1"), written[:in_older]), (path, written[in_older:])):
        write(file, part)
    first_s, last_s = random.choice([(0.0, 1e9), (0.0, 1e9), (300.0, 1e9), (200.0, 700.0)])
    right = [line for line in whole_journal(path) if first_s <= line["time_s"] <= last_s]
    assert right == [line for line in written if first_s <= line["time_s"] <= last_s]
    quick, plain = Reporter(), Reporter()
    damage: list[str] = []
    lines = read_period(path, damage.append, first_s=first_s, last_s=last_s)
    for line, (found, changed) in zip(right, lines, strict=True):
        assert found == line
        quick.add(found, changed)
        plain.add(line)
    report = quick.report()
    assert (report, quick.workload(), damage) == (plain.report(), plain.workload(), [])
    assert report is None or report.gpu_hours == plain_hours(right)


def test_a_clock_set_back_shows_nothing_from_after_the_period(tmp_path: Path) -> None:
    """A job keeps the throughput of the period, although a later line changes it and is needed."""
    lines = [a_line(100.0), a_line(200.0), a_line(120.0)]
    lines[0]["jobs"]["1"] = a_job()
    lines[1]["jobs"]["1"] = a_job() | {"throughputs": {"V100": 4.0}}
    write(tmp_path / "j", lines)
    reporter = Reporter()
    for line, changed in read_period(tmp_path / "j", print, last_s=150.0):
        reporter.add(line, changed)
    past = reporter.workload()
    assert past is not None
    last = past.jobs[-1]
    assert (last.job_id, last.throughputs.on(GpuType("V100"), 1)) == ("1", 2.0)
