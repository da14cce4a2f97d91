"""What hadard costs on a real Slurm: looking, changing, moving, doing nothing, and going on.

    python benchmarks/slurm_adapter.py [--only look,change,rounds,large,idle,move] [--json]
        [--jobs 10000] [--rounds 10000] [--seconds 60] [--moves 40] [--nodes 64]

look    seconds to observe `--jobs` pending jobs: the adapter's read, the backend's observe
change  updates per second in one batch, with holds of `--jobs` jobs
rounds  memory of hadard's loop after `--rounds` rounds with jobs that come, move and end, over the
        model of slurmctld in tests/fakes, and what becomes of the journal
large   CPU seconds of a round in mode steer with `--jobs` waiting jobs on 1,000 nodes in 20
        partitions, over the same model: the first round, which limits every job, and ten later ones
        in each of which 30 jobs come and some end. Without the time of the model, but with that of
        reading its output; `look` has what Slurm itself takes
idle    CPU and memory of a hadard without jobs, over `--seconds`
move    seconds from the decision to migrate `--moves` jobs until the last runs on its new node

Clusters are local ones (`hadar cluster`), started in a directory of their own and stopped again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.daemon.main import COLLECT_AFTER
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import parse_nodes
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.journal import Journal
from hadar_slurm.lab.demo.runs import Daemon, job_environment
from hadar_slurm.policies.registry import DEFAULT_POLICY, make_policy
from hadar_slurm.resources import data_file
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.updates import Hold, Prefer, Update
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.settings import BackendSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fakes.fake_slurm import Asked, FakeSlurm
from fakes.fake_tools import FakeRunner
from moving import measure_move, submit

Figures = dict[str, float | int | str]
TABLE = parse_table(data_file("throughputs.json").read_text(), "throughputs.json")
RATES = {"v100": 20.0, "p100": 10.0, "k80": 5.0}
SIX_NODES = "v100:4,v100:4,p100:4,p100:4,k80:4,v100:2+k80:2"
LONG = 10**6


@contextmanager
def a_cluster(nodes: str, timeout_s: float = 120.0) -> Iterator[LocalCluster]:
    """Run a local cluster in a short directory of its own."""
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as base:
        Path(base).chmod(0o755)
        with LocalCluster.up(Path(base) / "c", parse_nodes(nodes), timeout_s=timeout_s) as cluster:
            yield cluster


def a_backend(slurm: SlurmAdapter, directory: Path, spool: Path) -> SlurmBackend:
    """Return a backend with files in `directory`."""
    where = spool / "reports"
    settings = BackendSettings(spool=where, restart_cost_s=1.0, grace_s=30.0, poll_s=5.0)
    return SlurmBackend(slurm, TABLE, settings, Ledger(directory / FILE_NAME))


def described(gpus: int) -> str:
    """Return the comment of a described job."""
    job = Description(steps=LONG, gpus=gpus, throughputs=RATES, checkpoint=True, is_held=True)
    return encode(job)


def seconds(act: Callable[[], object]) -> Figures:
    """Return how long five calls took, and the least CPU time of this process for one."""
    taken, cpu = [], []
    for _ in range(5):
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        act()
        taken.append(time.perf_counter() - begun_s)
        cpu.append(time.process_time() - cpu_s)
    found = {"best_s": min(taken), "median_s": statistics.median(taken), "own_cpu_s": min(cpu)}
    return {name: round(value, 3) for name, value in found.items()}


def fill(cluster: LocalCluster, count: int) -> list[JobId]:
    """Submit `count` jobs that wait under a hold, each a record of its own in slurmctld."""
    runner = cluster.runner(timeout_s=300)
    words = ["sbatch", "--parsable", "--hold", "--gpus=2", f"--array=0-{count - 1}"]
    array = runner.run([*words, f"--comment={described(2)}", "--wrap=true"]).strip()
    # A task that is changed gets a record of its own.
    lines = [f"update JobId={array}_{n} Comment={described(2)}" for n in range(count)]
    runner.run(["scontrol"], stdin="\n".join([*lines, "quit", ""]))
    shown = runner.run(["scontrol", "show", "job", "-o"]).splitlines()
    records = sum(line.startswith("JobId=") for line in shown)
    if records < count:
        sys.exit(f"slurm_adapter: {records} records for {count} jobs")
    return [JobId(f"{array}_{number}") for number in range(count)]


def look(options: argparse.Namespace) -> Iterator[Figures]:
    """Measure seeing a long queue, and changing it."""
    with a_cluster(SIX_NODES) as cluster, tempfile.TemporaryDirectory() as directory:
        jobs = fill(cluster, options.jobs)
        slurm = CommandLine(cluster.runner(timeout_s=300))
        backend = a_backend(slurm, Path(directory), cluster.directory / "spool")
        snapshot = backend.observe()
        if len(snapshot.jobs) != options.jobs:
            sys.exit(f"slurm_adapter: {len(snapshot.jobs)} jobs seen of {options.jobs}")
        if "look" in options.only:
            for act in (slurm.queue, slurm.read, backend.observe):
                head: Figures = {"measure": f"look: {act.__name__}", "jobs": options.jobs}
                yield {**head, **seconds(act), "adapter": slurm.name}
        if "change" in options.only:
            yield from change(slurm, jobs[:1000])


def change(slurm: SlurmAdapter, jobs: list[JobId]) -> Iterator[Figures]:
    """Measure batches."""
    batches: dict[str, list[Update]] = {
        "holds": [Hold(job) for job in jobs],
        "updates": [Prefer(job, "v100") for job in jobs],
    }
    for name, batch in batches.items():
        begun_s = time.perf_counter()
        faults = slurm.change(batch)
        took_s = time.perf_counter() - begun_s
        yield {
            "measure": f"change: {name}",
            "batch": len(batch),
            "faults": sum(fault is not None for fault in faults),
            "a_second": round(len(batch) / took_s),
        }


def resident_mib(pid: int | str = "self") -> float:
    """Return a process's memory."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return round(int(line.split()[1]) / 1024, 1)


def rounds(options: argparse.Namespace) -> Iterator[Figures]:
    """Measure the memory of many rounds."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fake = FakeSlurm(SIX_NODES, version=(24, 11, 5), spool=directory / "spool")
        settings = BackendSettings(spool=directory / "spool", restart_cost_s=30.0, poll_s=360.0)
        parts = (
            CommandLine(FakeRunner(slurm=fake)),
            TABLE,
            settings,
            Ledger(directory / FILE_NAME),
        )
        backend = SlurmBackend(*parts, now_s=lambda: fake.now_s, sleep=fake.advance)
        journal = Journal(directory / "journal.jsonl", max_bytes=1e6, keep=3)
        marks = {max(1, options.rounds // 10), max(1, options.rounds // 2), options.rounds}
        found: list[Figures] = []
        stops = number = 0

        def record(line: RoundRecord) -> None:
            nonlocal number, stops
            if line.errors:
                sys.exit(f"slurm_adapter: round {number}: {line.errors[0]}")
            journal.write(line, mode="hold")
            stops += sum(type(outcome.action).__name__ == "Stop" for outcome in line.outcomes)
            number += 1
            fake.forget_ended()
            for job in range(len(fake.jobs), 16):
                gpus, work_s = 1 + (number + job) % 4, 500.0 + 700.0 * ((number * 7 + job) % 9)
                asked, comment = Asked(per_job=(("", gpus),)), described(gpus)
                fake.submit(asked, hold="user", comment=comment, work_s=work_s, steps=LONG)
            if number in marks:
                sizes = [file.stat().st_size for file in directory.glob("journal.jsonl*")]
                figures: Figures = {"measure": "rounds", "rounds": number}
                figures |= {"resident_mib": resident_mib(), "stops": stops}
                figures |= {"journal_files": len(sizes), "journal_mb": round(sum(sizes) / 1e6, 1)}
                found.append(figures)

        begun_s = time.perf_counter()
        run_rounds(
            backend,
            make_policy(DEFAULT_POLICY),
            record,
            length_s=360.0,
            now_s=lambda: fake.now_s,
            clock=time.perf_counter,
            max_rounds=options.rounds,
        )
        took_s = time.perf_counter() - begun_s
        journal.close()
        for figures in found:
            yield {**figures, "ms_a_round": round(1000 * took_s / options.rounds, 1)}


class Timed(FakeRunner):
    """Counts the time that the model takes."""

    took_s = 0.0

    def run(self, argv: Sequence[str], **given: Any) -> str:
        """Answer as the model does."""
        begun_s = time.process_time()
        try:
            return super().run(argv, **given)
        finally:
            Timed.took_s += time.process_time() - begun_s


def large(options: argparse.Namespace) -> Iterator[Figures]:
    """Measure whole rounds on a large site."""
    types = ("v100", "p100", "k80", "a100", "h100")
    nodes = ",".join(f"{types[n // 200]}:4" for n in range(1000))
    names = [f"n{n}" for n in range(1, 1001)]
    partitions = {f"part{n}": names[50 * n : 50 * n + 50] for n in range(20)}
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fake = FakeSlurm(
            nodes, version=(24, 11, 5), spool=directory / "spool", partitions=partitions
        )
        modes = Modes(Mode.STEER)
        settings = BackendSettings(spool=directory / "spool", poll_s=60.0, modes=modes)
        ledger = Ledger(directory / FILE_NAME)
        backend = SlurmBackend(
            CommandLine(Timed(slurm=fake)),
            TABLE,
            settings,
            ledger,
            Mode.STEER,
            now_s=lambda: fake.now_s,
            sleep=fake.advance,
        )
        journal = Journal(directory / "journal.jsonl", max_bytes=1e9, keep=1)
        found: list[float] = []
        begun_s = 0.0

        def submit_jobs(count: int) -> None:
            for _ in range(count):
                gpus, user = draw.choice((1, 1, 2, 4)), f"user{draw.randrange(100)}"
                where = draw.choice(("main", f"part{draw.randrange(20)}"))
                fake.submit(
                    Asked(per_job=(("", gpus),)),
                    comment=described(gpus),
                    partition=where,
                    user=user,
                    work_s=draw.uniform(600, 36_000),
                    steps=LONG,
                )

        def record(line: RoundRecord) -> None:
            nonlocal begun_s
            if line.errors:
                sys.exit(f"slurm_adapter: {line.errors[0]}")
            journal.write(line, mode="steer")
            found.append(time.process_time() - begun_s - Timed.took_s)
            submit_jobs(30)
            fake.forget_ended()
            begun_s, Timed.took_s = time.process_time(), 0.0

        submit_jobs(options.jobs)
        begun_s = time.process_time()
        run_rounds(
            backend,
            make_policy(DEFAULT_POLICY),
            record,
            length_s=60.0,
            now_s=lambda: fake.now_s,
            clock=time.perf_counter,
            max_rounds=11,
        )
        journal.close()
        later = found[1:]
        yield {
            "measure": "large",
            "jobs": options.jobs,
            "first_s": round(found[0], 2),
            "later_mean_s": round(statistics.mean(later), 2),
            "later_most_s": round(max(later), 2),
        }


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Return the CPU time of a process, and that of the commands that it has run."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    own, children = (sum(map(int, fields[at : at + 2])) / tick for at in (11, 13))
    return own, children


def idle(options: argparse.Namespace) -> Iterator[Figures]:
    """Measure a hadard, as its configuration ships, on a cluster without jobs."""
    with a_cluster(SIX_NODES) as cluster, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        config = {
            "slurm_conf": cluster.slurm_conf,
            "mode": "hold",
            "adapter": "command-line",
            "run_dir": cluster.directory / "run",
            "spool_dir": cluster.directory / "spool",
            "state_dir": directory / "state",
            "disable_file": directory / "disabled",
        }
        daemon = Daemon(directory, job_environment(cluster.environment()), config)
        with daemon.running():
            assert daemon.process is not None
            pid = daemon.process.pid
            time.sleep(2)
            before = cpu_seconds(pid)
            time.sleep(options.seconds)
            used_s = zip(before, cpu_seconds(pid), strict=True)
            own, children = (round(100 * (b - a) / options.seconds, 2) for a, b in used_s)
            yield {
                "measure": "idle",
                "seconds": options.seconds,
                "cpu_percent": own,
                "cpu_percent_of_its_commands": children,
                "resident_mib": resident_mib(pid),
            }


def move(options: argparse.Namespace) -> Iterator[Figures]:
    """Measure a round that moves many jobs, some of them to where others are just leaving."""
    count, shift = options.moves, options.nodes - options.moves
    if shift < 1:
        sys.exit("slurm_adapter: move needs more nodes than jobs")
    with a_cluster(f"{options.nodes}*v100:2") as cluster, tempfile.TemporaryDirectory() as name:
        slurm = CommandLine(cluster.runner())
        backend = a_backend(slurm, Path(name), cluster.directory / "spool")
        words = ["--gpus=2", "--cpus-per-task=1", f"--comment={described(2)}"]
        jobs = [submit(slurm.runner, Path(name), *words) for _ in range(count)]
        before, after = (
            {job: Gang.of({(f"n{n}", "v100"): 2}) for n, job in enumerate(jobs, start=first)}
            for first in (1, 1 + shift)
        )
        yield {"nodes": options.nodes, **measure_move(backend, before, after)}


MEASURES: dict[str, Callable[[argparse.Namespace], Iterator[Figures]]] = {
    "look": look,
    "change": look,
    "rounds": rounds,
    "large": large,
    "idle": idle,
    "move": move,
}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(MEASURES), type=lambda text: text.split(","))
    sizes = {"jobs": 10_000, "rounds": 10_000, "seconds": 60, "moves": 40, "nodes": 64}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    gc.set_threshold(COLLECT_AFTER)  # as hadard does
    if unknown := [name for name in options.only if name not in MEASURES]:
        parser.error(f"unknown measure {unknown[0]!r}; there are {', '.join(MEASURES)}")
    head: Figures = {
        "command": " ".join(["python", "benchmarks/slurm_adapter.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, load {os.getloadavg()[0]:.1f} at the start",
    }
    measures = dict.fromkeys(MEASURES[name] for name in options.only)
    found = (figures for measure in measures for figures in measure(options))
    if options.json:
        json.dump([head, *found], sys.stdout, indent=2)
        return
    print("\n".join(f"{key}: {value}" for key, value in head.items()), flush=True)
    for figures in found:
        print("  ".join(f"{key} {value}" for key, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
