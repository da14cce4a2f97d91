"""The demo's training program, run by its batch script without Slurm."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hadar_slurm
from hadar_slurm.handoff import ProgressReport, read_report, user_reports
from hadar_slurm.resources import beside

PROGRAM = beside("job_templates", "paced_training.py")
BATCH_SCRIPT = beside("job_templates", "paced_training.sbatch")
JOB = "77"
TOTAL = 2000
PATIENCE_S = 30.0

# The output of `scontrol show job -d -o 33` of Slurm 22.05.8, shortened, when 33 is an array: the
# last task has the array's own id. The task on two nodes holds what the tests expect.
ARRAY_DETAIL = """\
JobId=33 ArrayJobId=33 ArrayTaskId=1 JobName=x NodeList=n[2-3] JOB_GRES=gpu:v100:4   \
Nodes=n[2-3] CPU_IDs=1 Mem=100 GRES=gpu:v100:2(IDX:1-2),gpu:k80:0(IDX:) MinCPUsNode=1
JobId=34 ArrayJobId=33 ArrayTaskId=0 JobName=x NodeList=n4 JOB_GRES=gpu:k80:1   \
Nodes=n4 CPU_IDs=0 Mem=100 GRES=gpu:k80:1(IDX:0) MinCPUsNode=1
"""


def load_program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paced_training_under_test", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


paced_training = load_program()


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a batch script, without the variables of the tests' caller."""
    package = Path(hadar_slurm.__file__).parents[1]
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(package),
        "PYTHONWARNINGS": "error",
        "HADAR_PYTHON": sys.executable,
    } | changes


def eventually(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.005)


@dataclass
class Job:
    """A job that is started, signalled and restarted as by Slurm."""

    directory: Path
    options: Sequence[str] = ()
    restart: int = -1
    errors: list[str] = field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints" / JOB

    @contextlib.contextmanager
    def run(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """Start a new run of the batch script, and kill it at the end of the context."""
        self.restart += 1
        variables = environment(
            SLURM_JOB_ID=JOB,
            SLURM_RESTART_COUNT=str(self.restart),
            SLURM_SUBMIT_DIR=str(self.directory),
            HADAR_TEMPLATES=str(PROGRAM.parent),
            HADAR_SPOOL=str(user_reports(self.directory / "spool", os.getuid())),
        )
        if self.restart == 0:
            del variables["SLURM_RESTART_COUNT"]  # Slurm sets it from the first restart on
        arguments = ["--total-steps", str(TOTAL), "--gpus", "n1:v100:2", *self.options, *options]
        with subprocess.Popen(
            ["bash", str(BATCH_SCRIPT), *arguments],
            cwd=self.directory,
            env=variables,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                yield process
            finally:
                process.kill()
                self.errors.append(process.stderr.read() if process.stderr else "")

    def finish(self, *options: str) -> dict[str, Any]:
        """Run to the end at a high rate, and return the result."""
        with self.run("--rate", "v100=1e6", *options) as process:
            assert process.wait(PATIENCE_S) == 0
        return self.result()

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.checkpoints / "result.json").read_text("utf-8"))
        return result

    def history(self) -> list[dict[str, Any]]:
        lines = (self.checkpoints / "history.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def report(self) -> ProgressReport | None:
        return read_report(self.directory / "spool", JOB, owner_uid=os.getuid())

    def wait_for(self, state: str, *, at_least: int = 0) -> ProgressReport:
        """Wait for a report of the current run, and return it."""

        def is_there() -> bool:
            report = self.report()
            return (
                report is not None
                and (report.restart, report.state) == (self.restart, state)
                and report.steps_done >= at_least
            )

        eventually(is_there, f"run {self.restart} reports {state} with {at_least} steps")
        report = self.report()
        assert report is not None
        return report

    def wait_for_start(self, process: subprocess.Popen[str]) -> None:
        """Wait until the current run has written a report or ended."""

        def is_there() -> bool:
            report = self.report()
            return process.poll() is not None or (
                report is not None and report.restart == self.restart
            )

        eventually(is_there, f"run {self.restart} reports")


def assert_partition(history: Sequence[Mapping[str, Any]], total: int = TOTAL) -> None:
    """Assert that every step from 0 to `total` was trained once, in order."""
    ends = [0, *(segment["to_step"] for segment in history)]
    starts = [*(segment["from_step"] for segment in history), total]
    assert ends == starts
    assert all(segment["from_step"] < segment["to_step"] for segment in history)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, ["--rate", "v100=500", "--rate", "k80=200"])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of a run without interruption."""
    return Job(tmp_path_factory.mktemp("reference")).finish()


def test_training_learns(expected: dict[str, Any]) -> None:
    """The training is real: the loss falls by a factor of more than 100."""
    assert expected["steps"] == TOTAL
    assert 0 < expected["loss_last"] < expected["loss_first"] / 100


def test_the_pace_is_the_gangs(job: Job) -> None:
    """Two GPUs of 500 steps/s train at 1000 steps/s at most, as time and report show."""
    with job.run() as process:
        job.wait_for("running", at_least=500)
        report = job.report()
        assert process.wait(PATIENCE_S) == 0
    assert report is not None
    assert 0 < report.steps_per_s <= 1000
    (segment,) = job.history()
    took_s = segment["end_s"] - segment["start_s"]
    assert TOTAL / 1000 - 0.01 <= took_s < PATIENCE_S
    assert (segment["job"], segment["restart"], segment["ended"]) == (JOB, 0, "done")
    assert segment["gpus"] == {"n1": {"v100": 2}}


def interrupt(job: Job, process: subprocess.Popen[str], how: str) -> None:
    """End a run by a migration, a plain requeue or a kill."""
    if how == "move":
        process.send_signal(signal.SIGUSR1)
        eventually(
            lambda: (
                process.poll() is not None
                or (job.report() or ProgressReport(-1, "", 0)).state in ("saved", "done")
            ),
            "saved",
        )
        process.send_signal(signal.SIGTERM)
    elif how == "requeue":
        process.send_signal(signal.SIGTERM)
    else:
        process.kill()
    process.wait(PATIENCE_S)


@pytest.mark.parametrize("seed", range(4))
def test_interruptions_change_nothing(job: Job, seed: int, expected: dict[str, Any]) -> None:
    """Migrations, requeues and kills at random times neither lose nor repeat a step."""
    chance = random.Random(seed)
    for _ in range(5):
        gpus = chance.choice(["n1:v100:2", "n4:k80:4", "n5:v100:1"])
        with job.run("--gpus", gpus, "--checkpoint-every-s", "0.05") as process:
            job.wait_for_start(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, 0.3))
            interrupt(job, process, chance.choice(["move", "requeue", "kill"]))
            assert process.returncode in (0, 143, -signal.SIGKILL)
    assert job.finish() == expected
    assert_partition(job.history())
    assert len(list(job.checkpoints.glob("checkpoint-*"))) <= 2
    assert not any("Traceback" in text for text in job.errors)


def test_a_saved_job_reports_what_its_checkpoint_holds(job: Job) -> None:
    """The steps in the report `saved` are those from which the next run starts."""
    with job.run() as process:
        job.wait_for("running", at_least=1)
        process.send_signal(signal.SIGUSR1)
        saved = job.wait_for("saved")
        assert process.poll() is None, "it must wait to be requeued"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143
    assert [s["to_step"] for s in job.history()] == [saved.steps_done]
    with job.run() as process:
        assert job.wait_for("running").steps_done == saved.steps_done
        process.kill()


def test_a_plain_requeue_loses_nothing(job: Job, expected: dict[str, Any]) -> None:
    """SIGTERM without USR1 saves a checkpoint, too, and the report says `saved`."""
    with job.run() as process:
        job.wait_for("running", at_least=1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143
    assert job.wait_for("saved").steps_done == job.history()[-1]["to_step"] > 0
    assert job.finish() == expected
    assert [segment["ended"] for segment in job.history()] == ["terminated", "done"]


def test_a_signal_that_hadard_did_not_send_does_no_harm(job: Job, expected: dict[str, Any]) -> None:
    """After USR1 without a requeue the job continues, and its result is unchanged."""
    with job.run("--move-timeout-s", "0.2") as process:
        job.wait_for("running", at_least=1)
        process.send_signal(signal.SIGUSR1)
        saved = job.wait_for("saved")
        assert job.wait_for("running").steps_done >= saved.steps_done
        assert process.wait(PATIENCE_S) == 0
    assert job.wait_for("done").steps_done == TOTAL
    assert job.result() == expected
    assert_partition(job.history())
    assert [(s["restart"], s["ended"]) for s in job.history()] == [(0, "saved"), (0, "done")]


def test_a_second_request_is_acknowledged_again(job: Job) -> None:
    """A second USR1, as after a restart of hadard, restarts the wait for a requeue."""
    with job.run("--move-timeout-s", "1.5") as process:
        job.wait_for_start(process)
        process.send_signal(signal.SIGUSR1)
        first = job.wait_for("saved")
        eventually(lambda: job.report() not in (None, first), "it says every second that it waits")
        asked_s = time.time()
        process.send_signal(signal.SIGUSR1)

        def goes_on() -> bool:
            report = job.report()
            return report is not None and report.state == "running" and report.time_s > asked_s

        eventually(goes_on, "it goes on when nobody comes")
        assert time.time() - asked_s >= 1.5
        process.kill()


def test_a_job_that_was_done_is_done_at_once(job: Job, expected: dict[str, Any]) -> None:
    """A finished job that is requeued ends at once and adds no segment."""
    job.finish()
    with job.run() as process:
        assert process.wait(PATIENCE_S) == 0
    assert job.result() == expected
    assert job.wait_for("done").steps_done == TOTAL
    assert len(job.history()) == 1


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    middle = content.index(b'"parameters"') + 20
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "spoil", [cut, flipped, lambda _: b"", lambda _: b"null"], ids=["cut", "bit", "empty", "null"]
)
def test_a_spoilt_checkpoint_falls_back_to_the_one_before(
    job: Job, spoil: Callable[[bytes], bytes], expected: dict[str, Any]
) -> None:
    """A corrupt checkpoint is renamed and logged, and the run continues from the one before."""
    with job.run("--checkpoint-every-s", "0.05") as process:
        eventually(lambda: len(list(job.checkpoints.glob("checkpoint-*"))) >= 2, "two checkpoints")
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    before, newest = sorted(job.checkpoints.glob("checkpoint-*.json"))
    newest.write_bytes(spoil(newest.read_bytes()))
    assert job.finish() == expected
    assert newest.with_suffix(".corrupt").exists()
    assert f"{newest.name}: set aside" in job.errors[-1]
    last = job.history()[-1]
    assert last["from_step"] == int(before.stem.removeprefix("checkpoint-"))
    assert last["to_step"] == TOTAL


def test_without_any_good_checkpoint_it_starts_over(job: Job, expected: dict[str, Any]) -> None:
    """Without a valid checkpoint the job trains from step 0."""
    job.checkpoints.mkdir(parents=True)
    (job.checkpoints / "checkpoint-000000000900.json").write_bytes(b"?")
    assert job.finish() == expected
    assert_partition(job.history())


def test_half_a_line_of_history_spoils_no_other(job: Job) -> None:
    """A line that a kill cut off is written again from the checkpoint of its run."""
    with job.run() as process:
        job.wait_for("running", at_least=1)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    path = job.checkpoints / "history.jsonl"
    path.write_text(path.read_text("utf-8")[:40], encoding="utf-8")
    job.finish()
    torn, *lines = path.read_text("utf-8").splitlines()
    assert len(torn) == 40
    assert_partition([json.loads(line) for line in lines])


def test_without_a_spool_it_trains_all_the_same(job: Job, expected: dict[str, Any]) -> None:
    """Reports that cannot be written cause one warning, and the training continues."""
    (job.directory / "spool").write_text("in the way", encoding="utf-8")
    assert job.finish() == expected
    assert job.errors[-1].count("without progress reports") == 1


def test_outside_slurm_it_reports_to_nobody(tmp_path: Path) -> None:
    """Outside of Slurm, with --gpus, no report is written."""
    spool = tmp_path / "spool"
    done = run_program("--gpus", "n1:v100:1", cwd=tmp_path, HADAR_SPOOL=str(spool))
    assert (done.returncode, done.stderr) == (0, "")
    assert not spool.exists()


def test_loading_takes_the_time_asked_for(job: Job) -> None:
    """No step is trained during the simulated load time, and USR1 is still answered."""
    with job.run("--restart-delay-s", "60") as process:
        job.wait_for_start(process)
        process.send_signal(signal.SIGUSR1)
        assert job.wait_for("saved").steps_done == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143
    assert not (job.checkpoints / "history.jsonl").exists()
    job.finish("--restart-delay-s", "0.5")
    (segment,) = job.history()
    assert segment["end_s"] - segment["start_s"] >= 0.5


def run_program(*options: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program without its batch script, at a high rate unless a workload is given."""
    given = ["--rate", "v100=1e6"] if "--workload" not in options else []
    return subprocess.run(
        [
            *(sys.executable, str(PROGRAM), "--checkpoint-dir", "here", "--total-steps", "50"),
            *given,
            *options,
        ],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--total-steps", "0"], "'0' is not a whole number from 1"),
        (["--total-steps", "many"], "'many' is not a whole number from 1"),
        (["--checkpoint-every-s", "-1"], "'-1' is not a number of seconds, 0 or more"),
        (["--move-timeout-s", "nan"], "'nan' is not a number of seconds"),
        (["--restart-delay-s", "inf"], "'inf' is not a number of seconds"),
        (["--rate", "v100"], "'v100' is not a GPU type and steps/s, like v100=10"),
        (["--rate", "v100=0"], "'v100=0' is not a GPU type and steps/s"),
        (["--gpus", "n1:v100"], "'n1:v100' is not NODE:TYPE:COUNT, like n1:v100:2"),
        (["--gpus", "n1:v100:0"], "'n1:v100:0' is not NODE:TYPE:COUNT"),
        (["--gpus", "n1:rtx:2"], "--rate has no rate for 2 GPUs of rtx; it has rates for v100"),
        (["--workload", "Tetris"], "--workload 'Tetris' is not in the table, which has: A3C;"),
        (
            ["--workload", "ResNet-50 (batch size 128)", "--gpus", "n4:k80:2"],
            "has no rate for 2 GPUs of k80",
        ),
        (["--workload", "A3C", "--throughputs", "none.json"], "--throughputs none.json: "),
        (["--workload", "A3C", "--throughputs", "bad.json"], "bad.json: not JSON"),
        (["--checkpoint-dir", "bad.json"], "--checkpoint-dir bad.json: File exists"),
        (["--colour", "red"], "unrecognized arguments: --colour red"),
    ],
)
def test_wrong_options_are_told_in_one_line(tmp_path: Path, options: list[str], words: str) -> None:
    """Wrong options end with status 2 and one line that names the fault."""
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    gpus = [] if "--gpus" in options else ["--gpus", "n1:v100:2"]
    done = run_program(*gpus, *options, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_outside_slurm_the_gpus_must_be_named(tmp_path: Path) -> None:
    """Without a job id --gpus is required."""
    done = run_program(cwd=tmp_path)
    assert done.returncode == 2
    assert "name the GPUs: --gpus NODE:TYPE:COUNT" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seed", "2"], "--seed 2: here holds the training of seed 1"),
        (["--total-steps", "20"], "--total-steps 20: here already holds 50 steps"),
    ],
)
def test_another_trainings_checkpoint_is_not_continued(
    tmp_path: Path, options: list[str], words: str
) -> None:
    """A checkpoint directory of another seed or of more steps is refused."""
    assert run_program("--gpus", "n1:v100:1", cwd=tmp_path).returncode == 0
    done = run_program("--gpus", "n1:v100:1", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr


def fake_scontrol(directory: Path, script: str) -> str:
    """Put a fake scontrol first on PATH, and return that PATH."""
    tool = directory / "scontrol"
    tool.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    tool.chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


def test_slurm_is_asked_once_for_the_gpus(tmp_path: Path) -> None:
    """One scontrol call finds the array task's GPUs; on two nodes the rate across nodes counts."""
    (tmp_path / "detail").write_text(ARRAY_DETAIL, encoding="utf-8")
    path = fake_scontrol(tmp_path, f'echo "$@" >> {tmp_path}/asked; cat {tmp_path}/detail')
    done = run_program(
        *("--workload", "LM (batch size 80)"), cwd=tmp_path, PATH=path, SLURM_JOB_ID="33"
    )
    assert done.returncode == 0
    assert "26.65 steps/s from step 0" in done.stdout
    assert (tmp_path / "asked").read_text("utf-8") == "show job -d -o 33\n"
    (line,) = (tmp_path / "here" / "history.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line)["gpus"] == {"n2": {"v100": 2}, "n3": {"v100": 2}}


def test_a_job_without_gpus_says_so(tmp_path: Path) -> None:
    """A job without GPUs ends with status 2 and advice."""
    path = fake_scontrol(tmp_path, "echo 'JobId=33 JobName=x JOB_GRES=(null)'")
    done = run_program(cwd=tmp_path, PATH=path, SLURM_JOB_ID="33")
    assert done.returncode == 2
    assert "job 33 holds no GPU; ask for some, for example" in done.stderr


def test_a_silent_slurm_is_asked_again_then_told(tmp_path: Path) -> None:
    """scontrol is tried three times, and then its error is printed in one line."""
    path = fake_scontrol(
        tmp_path, f"echo x >> {tmp_path}/asked; echo 'Connection refused' >&2; exit 1"
    )
    done = run_program(cwd=tmp_path, PATH=path, SLURM_JOB_ID="33")
    assert done.returncode == 1
    assert "Connection refused" in done.stderr
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "asked").read_text("utf-8") == "x\n" * 3


def test_it_starts_without_the_schedulers_libraries(tmp_path: Path) -> None:
    """The program imports no large library, because start-up is part of every migration."""
    code = (
        "import runpy, sys; sys.argv = ['x', '--help']\n"
        "try: runpy.run_path(sys.orig_argv[-1], run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'yaml', 'pydantic', 'typer', 'rich', 'pulp', 'ClusterShell', 'random'}\n"
        "print(*sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(PROGRAM)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("paced_training", ["--checkpoint-dir", f"checkpoints/{JOB}"]),
        ("pytorch_loop", ["--checkpoint-dir", f"checkpoints/{JOB}"]),
        ("lightning_trainer", []),
        ("hf_trainer", []),
        ("forked_training", []),
    ],
)
@pytest.mark.parametrize("place", ["HADAR_TEMPLATES", ".", "job_templates"])
def test_the_batch_script_finds_its_program(
    tmp_path: Path, name: str, own: list[str], place: str
) -> None:
    """The program is found in HADAR_TEMPLATES, the directory of submission or its job_templates."""
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text("import sys; print(sys.argv[1:])", encoding="utf-8")
    spooled = shutil.copy(beside("job_templates", f"{name}.sbatch"), tmp_path / "slurm_script")
    variables = environment(SLURM_JOB_ID=JOB, SLURM_SUBMIT_DIR=str(tmp_path))
    if place == "HADAR_TEMPLATES":
        variables[place] = str(folder)
    done = subprocess.run(
        ["bash", str(spooled), "--some", "two words"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.strip() == str([*own, "--some", "two words"])


@pytest.mark.parametrize(
    ("folded", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12],m1", ["n08", "n09", "n10", "n12", "m1"]),
        ("r[1-2]n[1-2]x", ["r1n1x", "r1n2x", "r2n1x", "r2n2x"]),
        ("gpu-a,gpu-b[3]", ["gpu-a", "gpu-b3"]),
    ],
)
def test_node_lists_are_unfolded(folded: str, names: list[str]) -> None:
    """Slurm's node lists with ranges, padding and several brackets are expanded."""
    assert paced_training.unfolded(folded) == names


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, 200), max_size=5), seed=st.integers(1, 10**6))
def test_parameters_depend_on_seed_and_step_alone(cuts: list[int], seed: int) -> None:
    """Training in several parts gives the same bits as training in one."""

    def trained(bounds: Sequence[int]) -> str:
        parameters = [0.0] * paced_training.LeastSquares.FEATURES
        for first, last in itertools.pairwise(bounds):
            problem = paced_training.LeastSquares(seed)
            for number in range(first, last):
                parameters = problem.step(parameters, number)
            parameters = json.loads(json.dumps(parameters))  # as in a checkpoint
        return str(paced_training.parameters_sha256(parameters))

    assert trained([0, *sorted(cuts), 200]) == trained([0, 200])
