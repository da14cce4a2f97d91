"""The example for users' own programs: a real PyTorch loop, migrated and killed.

The program runs in its own process, so torch may be installed in another Python than the tests':
HADAR_TORCH_PYTHON names it; the default is the tests' own Python.
"""

from __future__ import annotations

import ast
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import hadar_slurm
from hadar_slurm.handoff import read_report, user_reports
from hadar_slurm.resources import beside

PROGRAM = beside("job_templates", "pytorch_loop.py")
PYTHON = os.environ.get("HADAR_TORCH_PYTHON") or sys.executable
JOB = "78"
TOTAL = 2000
PATIENCE_S = 120.0

SAME_WEIGHTS = """
import sys, torch
one, other = (torch.load(path, weights_only=True)["model"] for path in sys.argv[1:])
sys.exit(one.keys() != other.keys() or not all(torch.equal(one[key], other[key]) for key in one))
"""


def eventually(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.01)


@functools.cache
def has_torch() -> bool:
    """Return whether PYTHON can import torch."""
    done = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def needs_torch() -> None:
    if not has_torch():
        pytest.skip(f"{PYTHON} cannot import torch; HADAR_TORCH_PYTHON may name one that can")


def variables(directory: Path, restart: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(hadar_slurm.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",  # only on a CPU two runs give the same bits
        "SLURM_JOB_ID": JOB,
        "SLURM_RESTART_COUNT": str(restart),
        "HADAR_SPOOL": str(user_reports(directory / "spool", os.getuid())),
    }


def start(directory: Path, restart: int, *options: str) -> subprocess.Popen[bytes]:
    """Start a run of the program in `directory`."""
    arguments = ["--total-steps", str(TOTAL), "--checkpoint-dir", "kept", *options]
    return subprocess.Popen(
        [PYTHON, str(PROGRAM), *arguments],
        cwd=directory,
        env=variables(directory, restart),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def has_reported(directory: Path, restart: int, state: str) -> bool:
    report = read_report(directory / "spool", JOB, owner_uid=os.getuid())
    return report is not None and (report.restart, report.state) == (restart, state)


def finish(directory: Path, restart: int) -> Path:
    """Run to the end and return the checkpoint."""
    with start(directory, restart) as process:
        assert process.wait(PATIENCE_S) == 0
    assert has_reported(directory, restart, "done")
    return directory / "kept" / "checkpoint.pt"


@pytest.mark.torch
@pytest.mark.usefixtures("needs_torch")
def test_a_moved_and_killed_training_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """The final weights after a migration and a kill equal those without, bit for bit."""
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    disturbed.mkdir()
    undisturbed.mkdir()

    with start(disturbed, 0, "--checkpoint-every-s", "0.2") as process:
        eventually(lambda: has_reported(disturbed, 0, "running"), "the first run is under way")
        process.send_signal(signal.SIGUSR1)
        eventually(lambda: has_reported(disturbed, 0, "saved"), "it has saved")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    checkpoint = disturbed / "kept" / "checkpoint.pt"
    saved = checkpoint.stat().st_mtime_ns
    with start(disturbed, 1, "--checkpoint-every-s", "0.1") as process:
        eventually(
            lambda: checkpoint.stat().st_mtime_ns > saved or process.poll() is not None,
            "a checkpoint of the second run",
        )
        process.kill()

    kept = [finish(disturbed, 2), finish(undisturbed, 0)]
    compared = [PYTHON, "-c", SAME_WEIGHTS, *map(str, kept)]
    assert subprocess.run(compared, capture_output=True, check=False).returncode == 0


@pytest.mark.torch
@pytest.mark.usefixtures("needs_torch")
def test_a_signal_that_nobody_follows_up_does_no_harm(tmp_path: Path) -> None:
    """After USR1 without a requeue the program saves, waits, and continues to the end."""
    with start(tmp_path, 0, "--move-timeout-s", "0.3") as process:
        eventually(lambda: has_reported(tmp_path, 0, "running"), "it is under way")
        process.send_signal(signal.SIGUSR1)
        eventually(lambda: has_reported(tmp_path, 0, "saved"), "it has saved")
        eventually(lambda: not has_reported(tmp_path, 0, "saved"), "it goes on")
        assert process.wait(PATIENCE_S) == 0
    assert has_reported(tmp_path, 0, "done")


@pytest.mark.parametrize("name", ["pytorch_loop.py", "torchrun_nodes.py"])
def test_the_example_is_python_3_9_and_needs_little(name: str) -> None:
    """The example needs only Python 3.9, torch, hadar_slurm and the standard library."""
    source = beside("job_templates", name).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 9))
    imported = {
        name.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for name in node.names
    } | {
        str(node.module).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert imported - set(sys.stdlib_module_names) == {"torch", "hadar_slurm"}
