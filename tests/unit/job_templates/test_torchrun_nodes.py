"""The example for torchrun on several nodes, here two launchers on this machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.trainings import until  # noqa: E402

import hadar_slurm  # noqa: E402
from hadar_slurm.handoff import ProgressReport, read_report, user_reports  # noqa: E402
from hadar_slurm.resources import beside  # noqa: E402

PROGRAM = beside("job_templates", "torchrun_nodes.py")
JOB, TOTAL = "79", 400
# What a job may have to add to its program and its batch script.
MOST_LINES = 10


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def run_of(
    directory: Path, restart: int, nodes: int, *options: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the launchers of `nodes` nodes, with two processes in all; kill what is left."""
    words = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}"]
    words += [f"--nproc-per-node={2 // nodes}", f"--rdzv-id={JOB}.{restart}"]
    words += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", str(PROGRAM)]
    words += ["--checkpoint-dir=kept", f"--total-steps={TOTAL}", *options]
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(hadar_slurm.__file__).parents[1]),
        **dict.fromkeys(("OMP_NUM_THREADS", "TORCH_NUM_THREADS"), "1"),
        "CUDA_VISIBLE_DEVICES": "",
        "SLURM_JOB_ID": JOB,
        "SLURM_RESTART_COUNT": str(restart),
        "HADAR_SPOOL": str(user_reports(directory / "spool", os.getuid())),
    }
    log = (directory / f"output-{restart}").open("w")
    launchers = [
        subprocess.Popen(
            words, cwd=directory, env=variables, stdout=log, stderr=log, text=True, process_group=0
        )
        for _ in range(nodes)
    ]
    try:
        yield launchers
    finally:
        for launcher in launchers:
            for pid in (*workers(launcher), launcher.pid):
                if launcher.poll() is None:
                    os.kill(pid, signal.SIGKILL)
            launcher.wait()
        log.close()


def workers(launcher: subprocess.Popen[str]) -> list[int]:
    """Return the processes that a launcher has started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(launcher.pid)], capture_output=True)
    return [int(word) for word in found.stdout.split()]


def report_of(directory: Path) -> ProgressReport:
    """Return the job's report; without one, that no step is done."""
    found = read_report(directory / "spool", JOB, owner_uid=os.getuid())
    return found or ProgressReport(0, "none", 0)


def test_processes_on_two_nodes_stop_at_one_step_and_go_on_as_one_node(tmp_path: Path) -> None:
    """One process gets USR1; all save that step, end by TERM, and resume in another layout.

    Without a TERM they train on.
    """
    with run_of(tmp_path, 0, 2, "--step-seconds=0.02", "--move-timeout-s=0.5") as launchers:
        until(lambda: report_of(tmp_path).state == "running")
        assert report_of(tmp_path).listens
        pids = [pid for launcher in launchers for pid in workers(launcher)]
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGUSR1)
        until(lambda: report_of(tmp_path).state == "saved")
        until(lambda: report_of(tmp_path).state == "running")
        os.kill(pids[0], signal.SIGUSR1)
        until(lambda: report_of(tmp_path).state == "saved")
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        until(lambda: all(launcher.poll() is not None for launcher in launchers))
    saved = report_of(tmp_path)
    assert (saved.state, saved.saved_steps) == ("saved", saved.steps_done)
    assert 0 < saved.steps_done < TOTAL
    with run_of(tmp_path, 1, 1) as launchers:
        assert launchers[0].wait(90.0) == 0, (tmp_path / "output-1").read_text()
    output = (tmp_path / "output-1").read_text()
    assert f"from step {saved.steps_done}: 2 processes on 1 nodes\n" in output
    assert (report_of(tmp_path).state, report_of(tmp_path).steps_done) == ("done", TOTAL)


def test_the_protocol_takes_few_lines() -> None:
    """Each line that hadard needs is numbered, in the program and the batch script."""
    texts = (
        beside("job_templates", f"torchrun_nodes.{kind}").read_text() for kind in ("py", "sbatch")
    )
    numbers = [int(found) for text in texts for found in re.findall("# hadar: ([0-9]+)", text)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) <= MOST_LINES
