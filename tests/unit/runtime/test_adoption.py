"""docs/hadare.md shows how an ordinary script trains in copies; the script does."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.by_loader import LIMIT_S  # noqa: E402

DOCS = Path(__file__).parents[3] / "docs"
ORDINARY, ADOPTED = DOCS / "examples" / "ordinary.py", DOCS / "examples" / "in_copies.py"
# Neither copy trains before both have joined: else one may train all steps alone.
HELD = """
import runpy, sys, time
from pathlib import Path
from hadar_slurm.runtime.intervals.member import Member
script, *joined = sys.argv[1:]
sys.argv = [script]
first_newest = Member.first_newest
def with_both(member):
    Path(joined[member.where.copy]).touch()
    while not all(Path(each).exists() for each in joined):
        time.sleep(0.01)
    return first_newest(member)
Member.first_newest = with_both
runpy.run_path(script, run_name="__main__")
"""


def test_the_page_shows_the_true_diff() -> None:
    """It is the difference of both files, of at most six changed lines."""
    one, other = (path.read_text().splitlines(keepends=True) for path in (ORDINARY, ADOPTED))
    diff = list(difflib.unified_diff(one, other, ORDINARY.name, ADOPTED.name))
    page = (DOCS / "hadare.md").read_text(encoding="utf-8")
    shown = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    assert shown == ["".join(diff)]
    changed = [line for line in diff[2:] if line[0] in "+-"]
    assert 0 < len(changed) <= 6, changed


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ExitStack]:
    """Return what ends processes after the test."""
    with ExitStack() as processes:
        yield processes


def start(processes: ExitStack, room: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Start a program in a directory of its own, outside of Slurm but for `variables`."""
    room.mkdir()
    plain = {name: text for name, text in os.environ.items() if not name.startswith("SLURM")}
    process = processes.enter_context(
        subprocess.Popen(
            [sys.executable, *words],
            cwd=room,
            env={**plain, **variables},
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    processes.callback(process.kill)
    return process


def final(process: subprocess.Popen[str], room: Path) -> dict[str, torch.Tensor]:
    """Return the parameters that a program has written."""
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    found: dict[str, torch.Tensor] = torch.load(room / "model.pt")
    return found


def is_right(parameters: dict[str, torch.Tensor]) -> float:
    """Return the share of new samples on which a trained network is right."""
    nn = torch.nn
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)).eval()
    model.load_state_dict(parameters)
    inputs = torch.randn(1000, 8, generator=torch.Generator().manual_seed(2))
    return float((model(inputs).argmax(dim=1) == (inputs.sum(dim=1) > 0)).float().mean())


@pytest.mark.parametrize("script", [ORDINARY, ADOPTED], ids=lambda path: path.stem)
def test_the_scripts_train_alone(place: ExitStack, tmp_path: Path, script: Path) -> None:
    """The ordinary script and the adopted one come to the same quality."""
    process = start(place, tmp_path / "alone", str(script))
    assert is_right(final(process, tmp_path / "alone")) > 0.9


def test_the_adopted_script_trains_in_two_copies(place: ExitStack, tmp_path: Path) -> None:
    """Both take part, and end with the same parameters, of the same quality as one's alone."""
    job, joined = tmp_path / "job", [str(tmp_path / f"joined-{copy}") for copy in range(2)]
    copies = [
        start(
            place,
            tmp_path / f"copy-{copy}",
            "-c",
            HELD,
            str(ADOPTED),
            *joined,
            HADAR_COPIES="2",
            HADAR_JOB_DIR=str(job),
            SLURM_ARRAY_JOB_ID="7",
            SLURM_ARRAY_TASK_ID=str(copy),
        )
        for copy in range(2)
    ]
    one, other = (final(each, tmp_path / f"copy-{copy}") for copy, each in enumerate(copies))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert is_right(one) > 0.9
    log = (job / "job.log").read_text()
    assert "with 2 copies" in log or "copies 0, 1" in log, log
