"""`hadar site` on real Slurm clusters, from its options to summary.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.leftovers import mentions

pytestmark = pytest.mark.slurm

# Four times what it takes on an idle machine.
LIMIT_S = 240.0


@pytest.mark.usefixtures("accounting_programs")
@pytest.mark.parametrize(("way", "name"), [("hold", "array-throttle"), ("steer", "make-way")])
def test_a_scenario_is_played_beside_its_twin(
    tmp_path: Path, new_directory: Callable[[], Path], way: str, name: str
) -> None:
    """Both twins start and are reported, and nothing is left behind.

    With `steer` the wait is at most that of plain jobs. No plain job takes a freed GPU.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can submit jobs of several users: run this test as root")
    output, scratch = tmp_path / "out", new_directory()
    scratch.mkdir(mode=0o755)
    command = [sys.executable, "-m", "hadar_slurm.cli.main", "site", "--json"]
    try:
        done = subprocess.run(
            [*command, f"--way={way}", f"--scenario={name}", f"--output={output}"],
            env={**os.environ, "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert mentions(scratch) == []
        assert list(scratch.iterdir()) == []
    finally:
        scratch.rmdir()
    summary = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    assert summary == json.loads(done.stdout)
    assert summary["adoption"] == []
    [row] = summary["scenarios"]
    assert (row["name"], row["way"], row["interval_s"]) == (name, way, 5.0)
    assert 0 <= row["plain_wait_s"] <= LIMIT_S
    assert row["hadar_wait_s"] is not None or "did not start" in row["note"]
    assert row["lost_gpus"] == 0
    assert row["idle_gpu_s"] >= 0
    if way == "steer":
        assert row["hadar_wait_s"] <= row["plain_wait_s"] + row["interval_s"]
    assert f"{name}, {way}: waited" in done.stderr
