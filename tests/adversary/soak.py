"""Runs one user's jobs for a given time while a second user, the adversary, attacks hadard.

Every second or two the adversary plants links, takes names of directories and sockets, holds locks,
fills its report directory, submits jobs with false descriptions, changes other jobs, and sends slow
requests to the web page. Halfway hadard is killed; the reaper runs periodically, as from its timer.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from adversary.users import User
from builders import whole_journal
from integration.site import Site

from hadar_slurm.core.cluster import JobId
from hadar_slurm.handoff import user_reports
from hadar_slurm.resources import beside
from hadar_slurm.slurm.enforce.ledger import Ledger

TRAIN = beside("job_templates", "bash_trap.sbatch").read_text()
SETTINGS = {
    "policy": "hadar",
    "round_seconds": 5,
    "poll_seconds": 0.5,
    "alive_seconds": 10,
    "command_timeout_seconds": 5,
    "journal_megabytes": 2,
}
# docs/fail-open.md limits a hold without hadard to the heartbeat's lifetime and one reaper period.
REAPER_EVERY_S = 15.0
HELD_WITHOUT_HADARD_S = 10.0 + REAPER_EVERY_S + 5.0
# A job that fits free GPUs is placed in the round that first observes it, later on a slow machine.
HELD_WITH_HADARD_S = 60.0
METRICS_WITHIN_S = 5.0

# The adversary's program, bounded in number, size and time. Each attempt may fail; most should.
ATTACK = """
seed, seconds, spool, state, run, address = sys.argv[1:7]
draw = random.Random(int(seed))
ends = time.monotonic() + float(seconds)
held, sockets = [], []
host, port = address.rsplit(":", 1)

def shell(*words):
    try:
        subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        pass

def links():
    for place in (spool, spool + "/reports", spool + "/assignments", state, run, "/tmp"):
        for name in (str(draw.randrange(1, 400)), "u%d" % draw.randrange(100, 5000),
                     "heartbeat.json", "ledger.json", ".ledger.json.%d" % draw.randrange(1, 9999)):
            try:
                os.symlink(draw.choice((state, run, "/etc", spool)), os.path.join(place, name))
            except OSError:
                pass

def squat():
    for number in range(draw.randrange(100, 4000), 4000, 97):
        for name in (str(number), "u%d" % number):
            try:
                os.mkdir(os.path.join(spool, "reports", name))
            except OSError:
                pass
    for name in {n for n in open("/proc/net/unix").read().split() if n.startswith("@hadar")}:
        taken = socket.socket(socket.AF_UNIX)
        try:
            taken.bind("\\0" + name[1:])
            taken.listen(1)
            held.append(taken)
        except OSError:
            taken.close()

def locks():
    for place in (spool, state, run):
        try:
            names = [place, *(os.path.join(place, name) for name in os.listdir(place))]
        except OSError:
            names = [place]
        for name in names:
            try:
                number = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(number)
            except OSError:
                pass
    while len(held) > 200:
        one = held.pop(0)
        one.close() if hasattr(one, "close") else os.close(one)

def fill():
    own = os.path.join(spool, "reports", "u%d" % os.getuid())
    try:
        os.makedirs(own, exist_ok=True)
        with open(os.path.join(own, "fill"), "ab") as file:
            if file.tell() < 100_000_000:
                file.write(b"x" * 5_000_000)
        for number in range(50):
            os.makedirs(os.path.join(own, str(draw.randrange(2000))), exist_ok=True)
    except OSError:
        pass

def trickle():
    while len(sockets) > 120:
        sockets.pop(0).close()
    for _ in range(40):
        try:
            one = socket.create_connection((host, int(port)), timeout=1)
            one.setblocking(False)
            one.send(b"G")
            sockets.append(one)
        except OSError:
            pass
    for one in sockets:
        try:
            one.send(b"x")
        except OSError:
            pass

def lie():
    steps, speed = draw.choice((1, 10**15)), draw.choice(("1e-9", "1e12", "7"))
    described = {"hadar": 1, "workload": "", "rates": {"v100": float(speed)}, "steps": steps,
                 "gpus": 1, "checkpoint": True, "held": draw.random() < 0.5}
    bombs = ('{"hadar":1,"rates":' + "[" * 900, "a|b\\nJobId=1 x")
    text = draw.choice((json.dumps(described), *bombs))
    shell("sbatch", "-H", "--gpus=1", "--time=1", "--output=/dev/null", "--comment=" + text,
          "--job-name=x\\nJobId=1 y|z", "--wrap=sleep 5")

def meddle():
    job = str(draw.randrange(1, 200))
    shell("scancel", "--signal=USR1", job)
    shell("scontrol", "release", job)
    shell("scontrol", "update", "JobId=" + job, "ReqNodeList=n1")

print("ready", flush=True)
while time.monotonic() < ends:
    draw.choice((links, squat, locks, fill, trickle, lie, meddle))()
    trickle()
    time.sleep(draw.uniform(0.2, 1.5))
"""


@dataclass
class Outcome:
    """The results of a run; `faults` is empty if every check passed."""

    jobs: dict[str, str] = field(default_factory=dict)
    longest_held_s: float = 0.0
    slowest_metrics_s: float = 0.0
    scrapes: int = 0
    moves: int = 0
    rounds: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass
class Soak:
    """One run of `seconds`; the honest user submits `jobs` evenly over its first two thirds."""

    site: Site
    honest: User
    adversary: User
    seconds: float
    jobs: int
    seed: int = 1
    say: Callable[[str], None] = lambda text: None
    outcome: Outcome = field(default_factory=Outcome)
    _held_since: dict[str, float] = field(default_factory=dict)
    _killed_s: float | None = None

    def run(self) -> Outcome:
        """Run, and return the results."""
        self.site.settings.update(SETTINGS)
        self.site.start()
        assert self.site.hadard.process is not None
        with ExitStack() as beside:
            page = beside.enter_context(self._page())
            arguments = [str(self.seed), str(self.seconds), str(self.site.spool)]
            arguments += [str(self.site.state_dir), str(self.site.run_dir), page]
            attack = beside.enter_context(self.adversary.running(ATTACK, *arguments))
            stop = threading.Event()
            scraper = threading.Thread(target=self._scrape, args=(page, stop))
            scraper.start()
            beside.callback(scraper.join)
            beside.callback(stop.set)
            self._go_on()
            if attack.poll() not in (None, 0):
                self.outcome.faults.append("the adversary failed, and this run shows nothing")
        self._check_end()
        return self.outcome

    def _go_on(self) -> None:
        draw = random.Random(self.seed)
        begun_s = reaped_s = said_s = time.monotonic()
        came: list[str] = []
        has_been_killed = False
        while True:
            now_s = time.monotonic()
            age_s = now_s - begun_s
            due = min(self.jobs, 1 + int(self.jobs * age_s / (self.seconds * 2 / 3)))
            while len(came) < due:
                came.append(self._submit(draw.randrange(50, 200)))
            if not has_been_killed and age_s > self.seconds / 2:
                self.site.kill(self.site.hadard)
                has_been_killed, self._killed_s = True, now_s
            if self._killed_s is not None and now_s > self._killed_s + 2 * REAPER_EVERY_S:
                self.site.start(**SETTINGS)
                self._killed_s = None
            if now_s >= reaped_s + REAPER_EVERY_S:
                self._reap()
                reaped_s = now_s
            self._look(came, now_s)
            ended = sum(state == "COMPLETED" for state in self.outcome.jobs.values())
            if now_s >= said_s + 30:
                self.say(f"{age_s:.0f} s: {len(came)} jobs came, {ended} ended")
                said_s = now_s
            if len(came) == self.jobs == ended and age_s >= self.seconds:
                return
            if age_s > self.seconds + 120:
                self.outcome.faults.append(f"{self.jobs - ended} jobs have not ended")
                return
            time.sleep(1.0)

    def _submit(self, steps: int) -> str:
        return self.honest.submit(
            "--hadar-throughput=v100=10,p100=5,k80=2",
            f"--hadar-steps={steps}",
            "--hadar-checkpoint=yes",
            "--gpus=1",
            "--time=10",
            self.honest.script("train.sbatch", TRAIN),
            str(steps),
        )

    def _look(self, came: list[str], now_s: float) -> None:
        """Record states and hold times of the honest user's jobs, and failures and long holds."""
        queue = self.site.queue()
        for job in came:
            row = queue.get(JobId(job))
            if row is None:
                continue
            self.outcome.jobs[job] = row.state
            if row.state in ("FAILED", "CANCELLED", "TIMEOUT"):
                self.outcome.faults.append(f"job {job} ended {row.state}")
            if not row.is_held:
                self._held_since.pop(job, None)
                continue
            held_s = now_s - self._held_since.setdefault(job, now_s)
            self.outcome.longest_held_s = max(self.outcome.longest_held_s, held_s)
            most_s = HELD_WITH_HADARD_S if self._killed_s is None else HELD_WITHOUT_HADARD_S
            if held_s > most_s and f"job {job} is held" not in str(self.outcome.faults):
                self.outcome.faults.append(f"job {job} is held for {held_s:.0f} s")

    def _reap(self) -> None:
        config = str(self.site.hadard.directory / "hadar.yaml")
        argv = [sys.executable, "-m", "hadar_slurm.cli.main", "release", "--expired"]
        done = self.site.run([*argv, "--config", config])
        if done.returncode:
            self.outcome.faults.append(f"the reaper: {done.stderr}{done.stdout}")

    @contextmanager
    def _page(self) -> Iterator[str]:
        """Serve the web page, and give its address."""
        config = str(self.site.hadard.directory / "hadar.yaml")
        argv = [sys.executable, "-m", "hadar_slurm.cli.main", "web", "--config", config]
        with subprocess.Popen(
            [*argv, "--journal", str(self.site.hadard.journal), "--address", "127.0.0.1:0"],
            env=self.site.environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as page:
            try:
                assert page.stdout is not None
                yield page.stdout.readline().strip().rpartition("http://")[2].rstrip("/")
            finally:
                page.terminate()

    def _scrape(self, address: str, stop: threading.Event) -> None:
        """Request the metrics every few seconds, as Prometheus does; slow answers are faults."""
        while not stop.wait(3.0):
            begun_s = time.monotonic()
            try:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=15) as answer:
                    answer.read()
            except (OSError, urllib.error.URLError) as error:
                self.outcome.faults.append(f"/metrics: {error}")
            took_s = time.monotonic() - begun_s
            self.outcome.scrapes += 1
            self.outcome.slowest_metrics_s = max(self.outcome.slowest_metrics_s, took_s)
            if took_s > METRICS_WITHIN_S:
                self.outcome.faults.append(f"/metrics took {took_s:.1f} s")

    def _check_end(self) -> None:
        """Check that hadard runs, that no round had an error, and that its files are intact."""
        site, faults = self.site, self.outcome.faults
        if site.hadard.process is None or site.hadard.process.poll() is not None:
            faults.append(f"hadard has ended: {site.hadard.log.read_text()[-2000:]}")
        lines = whole_journal(site.hadard.journal)
        self.outcome.rounds = len(lines)
        self.outcome.moves = sum(
            action["do"] == "stop" and action["status"] == "done"
            for line in lines
            for action in line["actions"]
        )
        faults += sorted({error for line in lines for error in line["errors"]})
        if not Ledger(site.state_dir / "ledger.json").was_read:
            faults.append("the ledger is not whole")
        own = (site.state_dir, site.run_dir, site.spool, site.spool / "assignments")
        for place in own:
            for path in (place, *place.iterdir()):
                with suppress(FileNotFoundError):  # a temporary file, renamed after the listing
                    facts = path.lstat()
                    is_reports = path == site.spool / "reports"
                    if facts.st_uid != os.geteuid() or (facts.st_mode & 0o022 and not is_reports):
                        faults.append(f"{path}: uid {facts.st_uid}, mode {facts.st_mode:o}")
        reports = user_reports(site.reports, self.honest.uid)
        if reports.lstat().st_uid != self.honest.uid:
            faults.append(f"{reports} is not its user's")


def as_tree(outcome: Outcome) -> str:
    """Return an outcome as JSON."""
    return json.dumps({**vars(outcome), "jobs": len(outcome.jobs)}, indent=2)
