"""Which scripts with --signal are moved by it: those that save or leave on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hadar_slurm.jobspec.description import Description
from hadar_slurm.state.heartbeat import Heartbeat
from hadar_slurm.submit.describing.own_signal import as_movable
from hadar_slurm.submit.request import parse_words, with_script
from hadar_slurm.submit.service import Service

ALL = {"default": "signals"}


PREEMPTIBLE = {
    "partition=low": (0.0, 60.0),
    "partition=": (0.0, 60.0),
    "partition=brief": (10.0, 300.0),
    "partition=late": (600.0, 0.0),
    "qos=cheap": (30.0, 0.0),
}


def movable(script: str, *words: str, moves: Mapping[str, str] = ALL) -> Description:
    """Return how a job of a script is described."""
    beat = Heartbeat(1, "toy", 1e12, "/spool", moves=moves, preemptible=PREEMPTIBLE)
    request = with_script(parse_words([*words, "job.sh"], {}), lambda *_: script)
    plain = Description(limit_s=3600.0, workload="job:job.sh")
    return as_movable(plain, request, Service("", False, beat, Path()))


def found(script: str, *words: str, moves: Mapping[str, str] = ALL) -> str:
    """Return the signal by which a job of a script may be moved; "" for none."""
    return movable(script, *words, moves=moves).signal


def batch(*lines: str, signal: str = "B:USR1@120", words: str = "--requeue") -> str:
    """Return a batch script."""
    return "\n".join(["#!/bin/bash -l", f"#SBATCH --signal={signal} {words}", *lines, ""])


HEEDING = {
    "a command": batch("trap 'echo saves; scontrol requeue $SLURM_JOB_ID' USR1", "train & wait"),
    "a function": batch("save()", "{", "  touch x", "  exit 0", "}", "trap save SIGUSR1", "wait"),
    "a function in Bash's words": batch("function save {", " kill -TERM $PID", "}", "trap save 10"),
    "a function on one line": batch('save() { pkill -USR1 -f train; }; trap "save" TERM USR1'),
    "of a program in its place": batch("trap '' USR1", "exec python train.py"),
    "of the steps": batch("srun python train.py", signal="USR1@90"),
    "after a count of letters": batch("n=${#name}", "trap 'kill $pid' USR1"),
    "it requeues itself": batch("trap 'scontrol requeue $SLURM_JOB_ID' USR1", words=""),
    "in a condition": batch("if true; then trap 'kill -s USR1 $pid' USR1; fi"),
    "Python": "#!/usr/bin/env python3\n#SBATCH --signal=B:USR1 --requeue\n"
    "import signal\nsignal.signal(signal.SIGUSR1, save)\n",
}


@pytest.mark.parametrize("name", HEEDING)
def test_a_script_that_heeds_its_signal_is_moved_by_it(name: str) -> None:
    """In the form in which hadard reads it."""
    assert found(HEEDING[name]) in ("B:USR1@120", "USR1@90", "B:USR1@60")


OTHERS = {
    "no handler": batch("python train.py"),
    "rotates logs": batch(
        "rotate() {", " mv log log.1", " kill -HUP $pid", "}", "trap rotate USR1"
    ),
    "looks at GPUs": batch("trap nvidia-smi USR1"),
    "only a comment": batch("# trap 'exit 0' USR1", "python train.py"),
    "another signal's": batch("trap 'exit 1' TERM INT", "python train.py"),
    "an ignored one": batch("trap '' USR1", "python train.py"),
    "another function's": batch("save() { exit 0; }", "trap 'echo here' USR1"),
    "no step": batch("python train.py", signal="USR1@90"),
    "no requeue": batch("trap 'exit 0' USR1", words=""),
    "forbidden": batch("trap 'exit 0' USR1", words="--requeue --no-requeue"),
    "an array": batch("trap 'exit 0' USR1", words="--requeue --array=1-9"),
    "no signal": batch("trap 'exit 0' USR1").replace("--signal=B:USR1@120", ""),
    "too early": batch("trap 'exit 0' USR1", signal="B:USR1@3600"),
    "Python without a handler": "#!/usr/bin/python3\n#SBATCH --signal=B:USR1 --requeue\nrun()\n",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_scripts_are_not(name: str) -> None:
    """Where it is not sure that the job saves, or its user does not want it."""
    assert found(OTHERS[name]) == ""


def test_a_script_with_much_data_is_read_in_time() -> None:
    """What follows its first part counts for nothing."""
    handler = "trap 'exit 0' USR1"
    for data in ("a{" * 1_000_000, "a{\n" * 1_000_000, "trap a " * 1_000_000):
        assert found(batch(handler, data)) == "B:USR1@120"
        assert found(batch(data, handler)) == ""


def test_own_options_and_the_site_say_how_else() -> None:
    """--hadar-checkpoint wins; so does the site, for a partition, QOS or account."""
    script = HEEDING["a command"]
    assert found(script, "--hadar-checkpoint=no") == ""
    assert found(script, "--hadar-checkpoint=yes") == ""
    assert found(script, moves={}) == ""
    assert found(script, "--account=bio", moves=ALL | {"account=bio": "none"}) == ""
    assert found(script, "--partition=gpu", moves={"partition=gpu": "signals"}) == "B:USR1@120"
    # The default partition, under no name.
    assert found(script, moves={"partition=": "signals"}) == "B:USR1@120"


@pytest.mark.parametrize(
    ("words", "exempt_s", "signal"),
    [
        (["--partition=low"], 60.0, ""),
        ([], 60.0, ""),
        (["--partition=high", "--qos=cheap"], 0.0, "TERM@30"),
        # No round waits for ten minutes.
        (["--partition=late"], None, ""),
        (["--partition=low,high"], None, ""),
        (["--partition=low,brief"], 300.0, "TERM@10"),
        (["--partition=low", "--no-requeue"], None, ""),
        (["--partition=low", "--array=1-9"], None, ""),
        (["--partition=low", "--hadar-checkpoint=no"], None, ""),
        (["--partition=low", "--account=bio"], None, ""),
        # What its owner has arranged goes before.
        (["--partition=low", "--signal=USR2@40", "--requeue"], None, "USR2@40"),
    ],
)
def test_a_job_that_slurm_may_preempt_may_be_requeued(
    words: list[str], exempt_s: float | None, signal: str
) -> None:
    """Where the site says so, by the times of its partition or QOS, within half an hour a day."""
    moves = {"default": "preemptible:30m", "account=bio": "signals"}
    job = movable("#!/bin/bash\nsrun train\n", *words, moves=moves)
    assert (job.exempt_s, job.signal) == (exempt_s, signal)
    assert job.restart_loss_s == (0.0 if exempt_s is None else 1800.0)
    assert movable("#!/bin/bash\nsrun train\n", *words, moves=ALL).exempt_s is None
