"""How large the journal of a busy site is, and how long writing and reading it take.

    python benchmarks/journal_size.py [--waiting 10000] [--nodes 1000] [--rounds 240] [--json]

A round a minute, in mode `steer`, on nodes of four GPUs of four types, all held. In each round 1 %
of the running jobs end and others start, new ones arrive (one submission in fifty is an array of up
to 200 tasks), the running jobs report whole steps, wait reasons change, every five rounds the
fair-share factors do, and one workload's throughput estimates do. The claim of each ended job is
judged, and one user in eight is believed less. Times are CPU seconds of one
process: `write` has the whole call, of which `line` is the round as a tree. `report` is that of
`hadar report --no-replay` over all rounds; `last` is what `hadar status` reads; `explain` finds the
newest round of a job that has ended early. `web_start` is what `hadar web` reads before it serves,
`web_rounds` of how many rounds; `page` and `metrics` are one answer each.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from hadar_slurm.core.claims import Credit, Judged
from hadar_slurm.core.cluster import Cluster, GpuType, JobId, Node
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import Ended, Round, Snapshot
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.engine.actions import Outcome, Renew, Start, Status
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.journal import Journal, as_line, claim_facts
from hadar_slurm.journal.reader import read_last, read_period
from hadar_slurm.lab.garbage import rare_collections
from hadar_slurm.status.journal_search import newest_with
from hadar_slurm.status.report import Reporter
from hadar_slurm.web.exposition import exposition
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.page import overview
from hadar_slurm.web.view import PageRequest

TYPES = ("a100", "v100", "p100", "k80")
GPUS_A_NODE = 4
BEGIN_S = 1_790_000_000.0
ROUND_S = 60.0
USERS = 80
# Of each user.
WORKLOADS = 4
SIZES = (1, 1, 2, 4)
REASONS = (WaitReason.INSUFFICIENT, WaitReason.BETTER_LATER, WaitReason.OUTBID)
# Jobs that have ended are shown for this many rounds.
SHOWN_ROUNDS = 5


class Site:
    """A busy site, round by round, the same for the same seed."""

    def __init__(self, nodes: int, waiting: int, seed: int) -> None:
        self.random = Random(seed)
        self.waiting = waiting
        self.names = [f"node{number:04}" for number in range(1, nodes + 1)]
        types = {name: TYPES[n % len(TYPES)] for n, name in enumerate(self.names)}
        self.types = types
        self.cluster = Cluster.of(
            Node.of(name, {types[name]: GPUS_A_NODE}, is_schedulable=True) for name in self.names
        )
        # Each user has a few workloads of his own.
        self.speeds = {
            (user, workload, gpus): self._speeds(gpus)
            for user in range(USERS)
            for workload in range(WORKLOADS)
            for gpus in SIZES
        }
        self.shares = [self.random.random() for _ in range(USERS)]
        self.numbers = count(100_000)
        self.queue: dict[JobId, Job] = {}
        self.running: dict[JobId, Job] = {}
        self.reasons: dict[JobId, WaitReason] = {}
        self.ended: list[Ended] = []
        self.free = [GPUS_A_NODE] * nodes
        self.first_ended = ""
        self.judged: list[Judged] = []
        self.credits: dict[str, Credit] = {}

    def rounds(self, number: int) -> Iterator[RoundRecord]:
        """Yield the rounds."""
        for index in range(number):
            now_s = BEGIN_S + index * ROUND_S
            old = list(self.running)
            if index:
                self._advance(now_s, index)
            while len(self.queue) < self.waiting:
                self._submit(now_s)
            started = self._start(now_s)
            while len(self.queue) < self.waiting:
                self._submit(now_s)
            # A job is shown as running, with its gang, in the round after its start.
            yield self._record(index, now_s, [job for job in old if job in self.running], started)

    def _advance(self, now_s: float, index: int) -> None:
        random, self.judged = self.random, []
        self.ended = [end for end in self.ended if end.end_s > now_s - SHOWN_ROUNDS * ROUND_S]
        for job_id, job in list(self.running.items()):
            if random.random() < 0.01:
                del self.running[job_id]
                for (node, _), gpus in job.allocation.gangs[0].slots:
                    self.free[self.names.index(node)] += gpus
                self.ended.append(Ended(job_id, Phase.DONE, now_s - random.randrange(60)))
                self.first_ended = self.first_ended or job_id
                self._judge(job, now_s)
                continue
            gpu_type = job.allocation.gangs[0].slots[0][0].gpu_type
            rate = job.spec.throughputs.on(gpu_type, job.spec.num_gpus)
            steps = job.progress.steps_done + int(rate * ROUND_S * random.uniform(0.8, 1.2))
            done = Progress(float(min(steps, job.spec.total_steps)), job.progress.restarts)
            self.running[job_id] = replace(job, phase=Phase.RUNNING, progress=done)
        for job_id in random.sample(list(self.reasons), min(50, len(self.reasons))):
            self.reasons[job_id] = random.choice(REASONS)
        user, workload = random.randrange(USERS), random.randrange(WORKLOADS)
        for gpus in SIZES:
            self.speeds[user, workload, gpus] = self._speeds(gpus)
        if index % 5 == 0:
            for user in range(USERS):
                self.shares[user] = round(self.shares[user] * 0.999, 6)
        for jobs in (self.queue, self.running):
            for job_id, job in jobs.items():
                user, workload = int(job.spec.user[4:]), int(job.spec.workload.split()[1])
                speeds, share = self.speeds[user, workload, job.spec.num_gpus], self.shares[user]
                if job.spec.throughputs is not speeds or job.fair_share != share:
                    spec = replace(job.spec, throughputs=speeds)
                    jobs[job_id] = replace(job, spec=spec, fair_share=share)

    def _judge(self, job: Job, now_s: float) -> None:
        """Judge the claim of a job that has ended; throughputs were given for one in four."""
        user, claimed_s = job.spec.user, 3600.0 * (1 + len(job.job_id))
        is_off = int(user[4:]) % 8 == 0
        # By the job's number: the other figures stay those of earlier versions.
        number = int(job.job_id.split("_")[0])
        lasted_s = claimed_s * (3.0 if is_off else 0.9) * (1 + number % 97 / 500)
        off = 1.0 if number % 4 else 1 + number % 83 / 100
        workload = job.spec.workload
        self.judged.append(Judged(job.job_id, user, workload, claimed_s, lasted_s, off))
        if is_off:
            old = self.credits.get(user, Credit())
            self.credits[user] = old.after(claimed_s, lasted_s, now_s, speeds_off=off)

    def _speeds(self, gpus: int) -> Throughputs:
        base = 10 ** self.random.uniform(-1.0, 1.5)
        return Throughputs.of(
            {
                (GpuType(name), gpus): GangThroughput(
                    base * gpus * self.random.uniform(0.9, 1.1) / n
                )
                for n, name in enumerate(TYPES, start=1)
            }
        )

    def _submit(self, now_s: float) -> None:
        random, number = self.random, next(self.numbers)
        user, workload, gpus = (
            random.randrange(USERS),
            random.randrange(WORKLOADS),
            random.choice(SIZES),
        )
        tasks = random.randrange(2, 200) if random.random() < 0.02 else 0
        for task in range(1, tasks + 1) if tasks else [0]:
            job_id = JobId(f"{number}_{task}" if task else str(number))
            spec = JobSpec(
                job_id=job_id,
                num_gpus=gpus,
                total_steps=random.randrange(50_000, 5_000_000),
                throughputs=self.speeds[user, workload, gpus],
                submitted_s=now_s - random.randrange(60),
                workload=f"training {workload} (batch size 64)",
                user=f"user{user}",
            )
            self.queue[job_id] = Job(spec, fair_share=self.shares[user], partition="gpu,long")
            self.reasons[job_id] = random.choice(REASONS)

    def _start(self, now_s: float) -> list[JobId]:
        """Give the free GPUs to the first jobs that fit."""
        started: list[JobId] = []
        places = [place for place, free in enumerate(self.free) if free]
        for job_id, job in list(self.queue.items()):
            if not places:
                break
            gpus = job.spec.num_gpus
            place = next((place for place in places if self.free[place] >= gpus), None)
            if place is None:
                continue
            self.free[place] -= gpus
            if not self.free[place]:
                places.remove(place)
            name = self.names[place]
            gang = Gang.of({(name, self.types[name]): gpus})
            held = Allocation.rigid(gang)
            del self.queue[job_id], self.reasons[job_id]
            self.running[job_id] = replace(
                job, phase=Phase.STARTING, allocation=held, partition="gpu"
            )
            started.append(job_id)
        return started

    def _record(
        self, index: int, now_s: float, kept: list[JobId], started: list[JobId]
    ) -> RoundRecord:
        jobs = [*self.queue.values(), *self.running.values()]
        snapshot = Snapshot.of(now_s=now_s, cluster=self.cluster, jobs=jobs, ended=self.ended)
        held = {job_id: job.allocation for job_id, job in self.running.items()}
        plan = Plan.of(held, self.reasons, {f"price.{name}": 0.5 for name in TYPES})
        actions = [Renew(job_id, 0, held[job_id].gangs[0]) for job_id in sorted(kept)]
        outcomes = [Outcome(action, Status.DONE) for action in actions]
        outcomes += [
            Outcome(Start(job_id, 0, held[job_id].gangs[0]), Status.DONE) for job_id in started
        ]
        durations = {part: self.random.random() for part in ("observe", "plan", "check", "apply")}
        return RoundRecord(
            Round(index, now_s, ROUND_S), "round end", "hadar", snapshot, plan, outcomes, durations
        )


MORE = {
    "held": 0,
    "commands": {"scontrol": {"done": 40}, "squeue": {"done": 2}, "sinfo": {"done": 1}},
    "averages": 0,
}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waiting", type=int, default=10_000, metavar="N", help="jobs that wait")
    parser.add_argument("--nodes", type=int, default=1000, metavar="N")
    parser.add_argument("--rounds", type=int, default=240, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--megabytes", type=float, default=100.0, help="as journal_megabytes")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the journal here")
    parser.add_argument("--read", action="store_true", help="only read the journal in --keep")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = (options.keep or Path(scratch)) / "journal.jsonl"
        found = {} if options.read else written(path, options)
        found |= read(path, found.pop("ended_early", ""))
    if options.json:
        json.dump(found, sys.stdout, indent=2)
    else:
        print("\n".join(f"{name} {value}" for name, value in found.items()))


def written(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write the journal and return its figures."""
    site = Site(options.nodes, options.waiting, options.seed)
    journal = Journal(path, max_bytes=options.megabytes * 1e6, keep=1000)
    lines_s, writes_s = [], []
    for record in site.rounds(options.rounds):
        if record.round.index % 10 == 0:
            lines_s.append(cpu_s(lambda: as_line(record)))  # noqa: B023
        more = MORE | claim_facts(site.judged, site.credits)
        writes_s.append(cpu_s(lambda: journal.write(record, mode="steer", more=more)))  # noqa: B023
    journal.close()
    # As in a process of its own, the collector does not look through the site when reading.
    gc.freeze()
    size = sum(file.stat().st_size for file in path.parent.glob("journal.jsonl*"))
    whole = len(json.dumps(as_line(record), separators=(",", ":")))
    return {
        "waiting": len(site.queue),
        "running": len(site.running),
        "rounds": options.rounds,
        "kb_a_round": round(size / options.rounds / 1e3, 2),
        "kb_whole": round(whole / 1e3, 1),
        "days_in_1_gb": round(1e9 / (size / options.rounds) / 1440, 1),
        "line_s": round(statistics.median(lines_s), 3),
        "write_s": round(statistics.median(writes_s), 3),
        "write_s_max": round(max(writes_s), 3),
        "ended_early": site.first_ended,
    }


def read(path: Path, ended: str) -> dict[str, Any]:
    """Return the times to read a journal."""
    reporter = Reporter()
    last_s = float(read_last(path, 1)[-1]["time_s"])
    found = {
        "report_s": cpu_s(lambda: report(reporter, path)),
        "last_s": cpu_s(lambda: read_last(path, 4)),
        "explain_s": cpu_s(lambda: newest_with(path, (ended,))) if ended else None,
    }
    follower = Follower(path)
    found["web_start_s"] = cpu_s(lambda: follower.poll(counts=False))
    view = PageRequest(follower, last_s, {})
    found["web_rounds"] = len(follower.history.points)
    found["page_s"] = cpu_s(lambda: overview(view))
    found["metrics_s"] = cpu_s(lambda: exposition(follower, "", last_s))
    return {name: round(value, 3) if value is not None else None for name, value in found.items()}


def report(reporter: Reporter, path: Path) -> None:
    """Read all rounds as `hadar report` does."""
    with rare_collections():
        for line, changed in read_period(path, print):
            reporter.add(line, changed)
        reporter.report()


def cpu_s(call: Callable[[], object]) -> float:
    """Return the CPU time of a call in seconds."""
    begun_s = time.process_time()
    call()
    return time.process_time() - begun_s


if __name__ == "__main__":
    main()
