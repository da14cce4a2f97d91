"""A training program that keeps the pace of the GPUs it was given, without needing them.

It trains a real model, a small least-squares problem, one sample per step; the order of samples
is a function of the step number alone, so the final parameters are bit for bit the same however
often the run was interrupted. What a GPU would change is only the pace, and that is kept by the
throughput table: as many steps per second as the job's gang would make.

How it is moved by hadard (docs/adr/0005, hadar_slurm/handoff.py):

* USR1: stop between two steps, write a checkpoint, report `saved`, wait to be requeued. When
  nobody comes within --move-timeout-s the signal was not hadard's: report `running` and go on.
* TERM (scancel, a plain requeue): write a checkpoint and leave. Nothing is lost either way.
* Killed outright: all but the steps since the last checkpoint (--checkpoint-every-s) are kept.

In --checkpoint-dir: the two newest checkpoints; history.jsonl, one line per run segment, whose
[from_step, to_step) follow one another without gap or overlap; result.json when all is done.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NoReturn

from hadar_slurm import handoff
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.errors import HadarError, SlurmError, UsageError
from hadar_slurm.jobspec.gres import parse_gpu_detail
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.resources import data_file
from hadar_slurm.slurm.client.runner import Runner

TICK_S = 0.025
REPORT_EVERY_S = 1.0
MAX_STEPS_PER_TICK = 5000  # some 20 ms of work, so that a signal never waits long
KEPT_CHECKPOINTS = 2
SCONTROL_TRIES = 3

Gpus = dict[str, dict[str, int]]  # node -> GPU type -> count


class LeastSquares:
    """Samples x with targets y = w.x + noise, all drawn from a seed; SGD on the squared error.

    Uses + and * only, which IEEE 754 defines to the last bit on every machine.
    """

    FEATURES, SAMPLES, LEARNING_RATE = 6, 256, 0.1

    def __init__(self, seed: int) -> None:
        self.seed = seed
        draw = (_uniform(seed, index) for index in itertools.count())
        truth = [next(draw) for _ in range(self.FEATURES)]
        self.samples = [[next(draw) for _ in truth] for _ in range(self.SAMPLES)]
        self.targets = [_dot(truth, x) + 0.05 * next(draw) for x in self.samples]

    def step(self, parameters: list[float], number: int) -> list[float]:
        """Return the parameters after step `number`, the sample of which depends on it alone."""
        sample = _mixed(self.seed ^ (number << 1 | 1)) % self.SAMPLES
        x = self.samples[sample]
        pull = self.LEARNING_RATE * (self.targets[sample] - _dot(parameters, x))
        return [p + pull * value for p, value in zip(parameters, x, strict=True)]

    def loss(self, parameters: list[float]) -> float:
        """Return the mean squared error over all samples."""
        errors = (y - _dot(parameters, x) for x, y in zip(self.samples, self.targets, strict=True))
        return sum(error * error for error in errors) / self.SAMPLES


def _dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _mixed(number: int) -> int:
    """Return 64 well-mixed bits of a number (the finaliser of SplitMix64)."""
    mask = (1 << 64) - 1
    number = (number + 0x9E3779B97F4A7C15) & mask
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & mask
    number = (number ^ number >> 27) * 0x94D049BB133111EB & mask
    return number ^ number >> 31


def _uniform(seed: int, index: int) -> float:
    """Return a number in [-1, 1)."""
    return (_mixed(_mixed(seed) ^ index) >> 11) / 2**52 - 1


@dataclass(frozen=True)
class Segment:
    """A stretch of steps trained in one go on the same GPUs; times in seconds since the epoch.

    `start_s` includes loading. `ended` says how: saved, terminated, done, or killed when only a
    periodic checkpoint is left of it, in which case `end_s` is the time of that checkpoint.
    """

    job: str
    restart: int
    from_step: int
    to_step: int
    gpus: Gpus
    start_s: float
    end_s: float
    ended: str = "killed"


@dataclass(frozen=True)
class Checkpoint:
    """All that a later run needs, and the segment that it was written in."""

    step: int
    parameters: list[float]
    seed: int
    segment: Segment


class Store:
    """The checkpoint directory. Files appear whole or not at all, and survive a power cut."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.history = directory / "history.jsonl"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--checkpoint-dir {directory}: {error.strerror}") from error

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that can be trusted; set those aside that cannot."""
        for path in reversed(self._checkpoints()):
            try:
                return _parsed_checkpoint(path.read_bytes())
            except (ValueError, KeyError, TypeError) as error:
                _warn(f"{path}: set aside, not a whole checkpoint ({error})")
                path.rename(path.with_suffix(".corrupt"))
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and forget all but the two newest."""
        body = json.dumps(asdict(checkpoint)).encode()
        digest = hashlib.sha256(body).hexdigest().encode()
        name = f"checkpoint-{checkpoint.step:012d}.json"
        self.replace_file(name, digest + b"\n" + body + b"\n")
        for old in self._checkpoints()[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def record(self, segment: Segment) -> None:
        """Add a line to the history, once for each segment and none for an empty one."""
        if segment.from_step == segment.to_step:
            return
        text = self.history.read_text(encoding="utf-8") if self.history.exists() else ""
        if any(_is_start_of(segment, line) for line in text.splitlines()):
            return
        with self.history.open("a", encoding="utf-8") as file:
            # A run killed while it wrote may have left half a line.
            torn = bool(text) and not text.endswith("\n")
            file.write("\n" * torn + json.dumps(asdict(segment)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def replace_file(self, name: str, content: bytes) -> None:
        """Write a file of the directory in one step."""
        draft = self.directory / ".draft"
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.directory / name)
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _checkpoints(self) -> list[Path]:
        return sorted(self.directory.glob("checkpoint-*.json"))


def _parsed_checkpoint(content: bytes) -> Checkpoint:
    digest, _, body = content.partition(b"\n")
    body = body.rstrip(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError("its checksum differs")
    tree = json.loads(body)
    return Checkpoint(**{**tree, "segment": Segment(**tree["segment"])})


def _is_start_of(segment: Segment, line: str) -> bool:
    try:
        known = json.loads(line)
        return bool((known["from_step"], known["start_s"]) == (segment.from_step, segment.start_s))
    except (ValueError, KeyError, TypeError):
        return False


class Signals:
    """Flags, set by the handlers and by nothing else that happens in them."""

    def __init__(self) -> None:
        self.is_move_asked = False
        self.stop: int | None = None

    def install(self) -> None:
        """Listen to USR1, TERM and, for runs by hand, INT."""
        signal.signal(signal.SIGUSR1, self._on_move)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)

    @staticmethod
    def ignore() -> None:
        """Let a late signal not spoil the exit status: Python's end restores deadly defaults."""
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    def _on_move(self, _number: int, _frame: object) -> None:
        self.is_move_asked = True

    def _on_stop(self, number: int, _frame: object) -> None:
        self.stop = number


class Reporter:
    """Reports progress to hadard; a job outside Slurm writes no report."""

    def __init__(self, job: str | None, restart: int) -> None:
        self.spool = handoff.own_reports(os.environ)
        self.job, self.restart = job, restart
        self.last_s = -math.inf
        self.has_warned = False

    def report(self, state: str, steps_done: int, steps_per_s: float) -> None:
        """Write a report now."""
        self.last_s = time.monotonic()
        if self.job is None:
            return
        listens = handoff.listens_now()
        handoff.warn_of_unsaved_run(self.spool, self.job, self.restart)
        report = handoff.ProgressReport(
            self.restart, state, steps_done, steps_per_s, time.time(), listens=listens
        )
        try:
            handoff.write_report(self.spool, self.job, report)
        except OSError as error:
            if not self.has_warned:
                _warn(f"training goes on without progress reports: {error}")
            self.has_warned = True

    def report_if_due(self, state: str, steps_done: int, steps_per_s: float) -> None:
        """Write a report when the last one is a second old."""
        if time.monotonic() - self.last_s >= REPORT_EVERY_S:
            self.report(state, steps_done, steps_per_s)


class Training:
    """The state of one run of the program, from its checkpoint to its end."""

    def __init__(
        self, options: argparse.Namespace, gpus: Gpus, throughput: float, signals: Signals
    ) -> None:
        self.options, self.throughput, self.signals = options, throughput, signals
        self.problem = LeastSquares(options.seed)
        self.store = Store(options.checkpoint_dir)
        job = os.environ.get("SLURM_JOB_ID")
        restart = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        self.reporter = Reporter(job, restart)
        self.parameters = [0.0] * LeastSquares.FEATURES
        self.step, self.kept_step, self.steps_per_s = 0, -1, 0.0
        self._resume()
        now_s = round(time.time(), 3)
        self.segment = Segment(job or "", restart, self.step, self.step, gpus, now_s, now_s)
        self.clock_s = self.kept_s = time.monotonic()

    def run(self) -> int:
        """Train to the end, or until told to stop; return the exit status."""
        self.clock_s += self.options.restart_delay_s
        self.reporter.report("running", self.step, 0.0)
        while self.step < self.options.total_steps:
            if self.signals.stop is not None:
                return self._stop(self.signals.stop)
            if self.signals.is_move_asked:
                self._offer_move()
                continue
            self._advance()
            if time.monotonic() - self.kept_s >= self.options.checkpoint_every_s:
                self._try_keep("killed")
            self.reporter.report_if_due("running", self.step, self.steps_per_s)
            if self.step < self.options.total_steps:
                time.sleep(TICK_S)
        return self._finish()

    def _resume(self) -> None:
        checkpoint = self.store.latest()
        if checkpoint is None:
            return
        if checkpoint.seed != self.options.seed:
            raise UsageError(
                f"--seed {self.options.seed}: {self.store.directory} holds the training of seed "
                f"{checkpoint.seed}; use that seed or another --checkpoint-dir"
            )
        if checkpoint.step > self.options.total_steps:
            raise UsageError(
                f"--total-steps {self.options.total_steps}: {self.store.directory} already holds "
                f"{checkpoint.step} steps; ask for that many or use another --checkpoint-dir"
            )
        self.step = self.kept_step = checkpoint.step
        self.parameters = checkpoint.parameters
        # The run that wrote it may have been killed before it wrote its line.
        self.store.record(checkpoint.segment)

    def _advance(self) -> None:
        """Train the steps that are due by now."""
        elapsed_s = time.monotonic() - self.clock_s
        due = self.segment.from_step + math.floor(self.throughput * max(elapsed_s, 0.0))
        last = min(due, self.options.total_steps, self.step + MAX_STEPS_PER_TICK)
        if last <= self.step:
            return
        for number in range(self.step, last):
            self.parameters = self.problem.step(self.parameters, number)
        self.step = last
        self.steps_per_s = (self.step - self.segment.from_step) / elapsed_s

    def _keep(self, ended: str) -> None:
        """Write a checkpoint; unless it is a periodic one, end the segment with it."""
        self.segment = replace(
            self.segment, to_step=self.step, end_s=round(time.time(), 3), ended=ended
        )
        if self.step != self.kept_step:
            self.store.save(Checkpoint(self.step, self.parameters, self.options.seed, self.segment))
        self.kept_step, self.kept_s = self.step, time.monotonic()
        if ended != "killed":
            self.store.record(self.segment)

    def _try_keep(self, ended: str) -> bool:
        try:
            self._keep(ended)
        except OSError as error:
            _warn(f"no checkpoint at step {self.step}: {error}")
            self.kept_s = time.monotonic()
            return False
        return True

    def _offer_move(self) -> None:
        """Save and wait to be requeued; continue without a requeue, or when saving failed."""
        self.signals.is_move_asked = False
        if not self._try_keep("saved"):
            return
        self.reporter.report("saved", self.step, self.steps_per_s)
        deadline_s = time.monotonic() + self.options.move_timeout_s
        while time.monotonic() < deadline_s:
            if self.signals.stop is not None or self.signals.is_move_asked:
                return
            self.reporter.report_if_due("saved", self.step, self.steps_per_s)
            time.sleep(TICK_S)
        self._begin_segment()
        self.reporter.report("running", self.step, 0.0)

    def _begin_segment(self) -> None:
        now_s = round(time.time(), 3)
        self.segment = replace(
            self.segment, from_step=self.step, to_step=self.step, start_s=now_s, end_s=now_s
        )
        self.clock_s, self.steps_per_s = time.monotonic(), 0.0

    def _stop(self, number: int) -> int:
        if self._try_keep("terminated"):
            self.reporter.report("saved", self.step, self.steps_per_s)
        return 128 + number

    def _finish(self) -> int:
        self._keep("done")
        result = {
            "steps": self.step,
            "parameters_sha256": parameters_sha256(self.parameters),
            "loss_first": self.problem.loss([0.0] * LeastSquares.FEATURES),
            "loss_last": self.problem.loss(self.parameters),
        }
        self.store.replace_file("result.json", (json.dumps(result) + "\n").encode())
        self.reporter.report("done", self.step, self.steps_per_s)
        return 0


def parameters_sha256(parameters: Iterable[float]) -> str:
    """Return a digest that differs when any bit of any parameter does."""
    return hashlib.sha256(" ".join(map(float.hex, parameters)).encode()).hexdigest()


def gpus_of_job(job: str) -> Gpus:
    """Ask Slurm, in one call, which GPUs the job holds on which nodes."""
    for tries_left in reversed(range(SCONTROL_TRIES)):
        try:
            text = Runner().run(["scontrol", "show", "job", "-d", "-o", job])
            break
        except SlurmError:
            if not tries_left:
                raise
            time.sleep(1)
    # The id of an array or of a heterogeneous job names several jobs, one a line.
    mine = [line for line in text.splitlines() if re.search(rf"\b(Het)?JobId={job}\s", line)]
    held: Gpus = {}
    for nodes, gpus in parse_gpu_detail("\n".join(mine)):
        for node in unfolded(nodes):
            here = held.setdefault(node, {})
            for gpu_type, count in gpus.items():
                here[gpu_type] = here.get(gpu_type, 0) + count
    if not held:
        raise UsageError(f"job {job} holds no GPU; ask for some, for example --gpus=v100:2")
    return held


def unfolded(nodes: str) -> list[str]:
    """Return the names in a folded node list such as `n[1-2,05],m3`."""
    names = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        pieces = re.split(r"\[([^\]]*)\]", part)
        choices = [_numbers(p) if odd % 2 else [p] for odd, p in enumerate(pieces)]
        names += ["".join(choice) for choice in itertools.product(*choices)]
    return names


def _numbers(ranges: str) -> list[str]:
    numbers = []
    for one in ranges.split(","):
        first, _, last = one.partition("-")
        numbers += [f"{n:0{len(first)}d}" for n in range(int(first), int(last or first) + 1)]
    return numbers


def gang_throughput(throughputs: Throughputs, gpus: Gpus, workload: str) -> float:
    """Return the steps/s of a job that holds `gpus`."""
    gpu_types = [gpu_type for here in gpus.values() for gpu_type in here]
    num_gpus = sum(sum(here.values()) for here in gpus.values())
    throughput = throughputs.of_gang(gpu_types, num_gpus, is_spread=len(gpus) > 1)
    if throughput <= 0:
        raise UsageError(
            f"{workload} has no rate for {num_gpus} GPUs of {', '.join(sorted(set(gpu_types)))}; "
            f"it has rates for {', '.join(throughputs.gpu_types) or 'no type'}"
        )
    return throughput


def chosen_throughputs(options: argparse.Namespace) -> Throughputs:
    """Return the rates of --rate, or those of --workload in the table."""
    if options.rate:
        return Throughputs.of(
            {(gpu_type, 1): GangThroughput(throughput) for gpu_type, throughput in options.rate}
        )
    if options.workload is None:
        raise UsageError("name a --workload of the throughput table, or rates by --rate TYPE=RATE")
    try:
        text = options.throughputs.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--throughputs {options.throughputs}: {error}") from error
    table = parse_table(text, str(options.throughputs))
    throughputs = table.throughputs(options.workload)
    if throughputs is None:
        known = "; ".join(table.workloads)
        raise UsageError(f"--workload {options.workload!r} is not in the table, which has: {known}")
    return throughputs


def merged(gpus: Sequence[tuple[str, str, int]]) -> Gpus:
    """Return --gpus options as one mapping."""
    held: Gpus = {}
    for node, gpu_type, count in gpus:
        held.setdefault(node, {})[gpu_type] = count
    return held


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line: a job's output file is no place for a usage page."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    words = OneLineParser(description="Train at the pace of the GPUs that Slurm gave this job.")
    add = words.add_argument
    add("--workload", help="a workload of the throughput table, such as 'LM (batch size 80)'")
    add("--throughputs", type=Path, default=data_file("throughputs.json"), metavar="FILE")
    add(
        "--rate",
        action="append",
        default=[],
        type=_type_and_rate,
        metavar="TYPE=RATE",
        help="steps/s of one GPU of a type, instead of a workload; repeat for more types",
    )
    add("--total-steps", type=_steps, required=True, metavar="N")
    add("--checkpoint-dir", type=Path, required=True, metavar="DIR")
    add("--checkpoint-every-s", type=_seconds, default=30.0, metavar="S")
    add("--move-timeout-s", type=_seconds, default=60.0, metavar="S")
    add(
        "--restart-delay-s",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="train nothing for so long after each start, as if loading",
    )
    add(
        "--gpus",
        action="append",
        default=[],
        type=_node_type_count,
        metavar="NODE:TYPE:COUNT",
        help="use these instead of asking Slurm; repeat for more",
    )
    add("--seed", type=_steps, default=1, metavar="N")
    return words


def _steps(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**12):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 10^12 - 1")
    return int(text)


def _seconds(text: str) -> float:
    number = _number(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return number


def _type_and_rate(text: str) -> tuple[str, float]:
    gpu_type, _, throughput = text.partition("=")
    if not gpu_type or not 0 < _number(throughput) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a GPU type and steps/s, like v100=10")
    return gpu_type, float(throughput)


def _node_type_count(text: str) -> tuple[str, str, int]:
    node, gpu_type, count = [*text.split(":"), "", ""][:3]
    if text.count(":") != 2 or not (node and gpu_type and count.isdecimal() and int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE:TYPE:COUNT, like n1:v100:2")
    return node, gpu_type, int(count)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _warn(message: str) -> None:
    print(f"paced_training: {message}", file=sys.stderr, flush=True)


def run(options: argparse.Namespace, signals: Signals) -> int:
    """Find the pace and train."""
    job = os.environ.get("SLURM_JOB_ID")
    if not options.gpus and job is None:
        raise UsageError("outside a Slurm job, name the GPUs: --gpus NODE:TYPE:COUNT")
    throughputs = chosen_throughputs(options)
    gpus = merged(options.gpus) if options.gpus else gpus_of_job(str(job))
    throughput = gang_throughput(throughputs, gpus, options.workload or "--rate")
    training = Training(options, gpus, throughput, signals)
    print(f"{json.dumps(gpus)}: {throughput:g} steps/s from step {training.step}", flush=True)
    return training.run()


def main() -> int:
    """Return the exit status: 0 done, 2 for wrong options, 143 after TERM, 1 otherwise."""
    words = parser()
    options = words.parse_args()
    signals = Signals()
    signals.install()
    try:
        return run(options, signals)
    except UsageError as error:
        words.error(str(error))
    except (HadarError, OSError) as error:
        _warn(str(error))
        return 1
    finally:
        signals.ignore()


if __name__ == "__main__":
    sys.exit(main())
