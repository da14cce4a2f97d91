"""hadar diff: what hadard has changed in Slurm, and the commands that put it back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fakes.fake_bin import on_path
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm, parse_gpus
from fakes.fake_tools import FakeRunner
from typer.testing import CliRunner, Result

from hadar_slurm.cli.main import commands
from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.engine.loan import Loan
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger

DESCRIBED = Description(steps=5, gpus=2, throughputs={"v100": 1.0})
OWN = Request(per_job="gres:gpu:2")
N1, N2 = NodeName("n1"), NodeName("n2")


@dataclass
class Bench:
    """A fake cluster with its commands as programs, a configuration, and a ledger."""

    fake: FakeSlurm
    runner: FakeRunner
    directory: Path

    def submit(self, hold: str = "user") -> FakeJob:
        return self.fake.submit(
            Asked(per_job=parse_gpus("gpu:2")), hold=hold, comment=encode(DESCRIBED)
        )

    def claim(self, **claims: Claim) -> None:
        """Write the ledger; a job's number stands behind a letter."""
        ledger = Ledger(self.directory / FILE_NAME)
        ledger.adopt()
        ledger.note({JobId(name[1:]): claim for name, claim in claims.items()})

    def run(self, *words: str) -> Result:
        config = str(self.directory / "hadar.yaml")
        return CliRunner().invoke(commands, ["diff", *words, "--config", config])


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    fake = FakeSlurm("v100:4,v100:4")
    runner = FakeRunner(slurm=fake)
    (tmp_path / "hadar.yaml").write_text(
        f"run_dir: {tmp_path}\nstate_dir: {tmp_path}\nadapter: command-line\n"
    )
    with on_path(runner, tmp_path / "bin") as path:
        monkeypatch.setenv("PATH", path)
        yield Bench(fake, runner, tmp_path)


def test_nothing_is_different_at_first(bench: Bench) -> None:
    """A hold of the owner's is no difference."""
    bench.submit()
    bench.claim()
    done = bench.run()
    assert (done.exit_code, done.stdout) == (0, "0 waiting jobs differ because of hadard\n")
    assert json.loads(bench.run("--json").stdout) == []
    assert bench.run("--undo").stdout == ""


def test_all_that_is_different_is_told_and_can_be_undone_by_scontrol(bench: Bench) -> None:
    """Holds, excluded nodes, nice value and limit; afterwards nothing is different."""
    held, steered, users = bench.submit(), bench.submit(hold=""), bench.submit()
    words = [f"JobId={steered.key}", "ExcNodeList=n2", "Nice=7", "TimeLimit=20"]
    bench.runner.run(["scontrol", "update", *words])
    limited = Claim(
        state=State.STEERED,
        own=OWN,
        excluded=Loan((N2,), (N2,), ()),
        nice=Loan(7, 7, 0),
        limit_s=Loan(1200, 1200, 600),
        aimed=(N1,),
    )
    bench.claim(
        **{
            f"j{held.key}": Claim(state=State.HELD, own=OWN),
            f"j{steered.key}": limited,
        }
    )
    before = bench.directory.joinpath(FILE_NAME).read_bytes()
    by_job = {each["job"]: each for each in json.loads(bench.run("--json").stdout)}
    assert by_job.keys() == {held.key, steered.key}
    assert by_job[held.key]["fields"] == {"hold": ["user", ""]}
    assert by_job[steered.key]["fields"] == {
        "excluded": ["n2", ""],
        "nice": ["7", "0"],
        "time limit": ["20 min", "10 min"],
    }
    shown = bench.run().stdout
    assert "2 waiting jobs differ because of hadard" in shown
    assert [
        line.split()[2] for line in shown.splitlines() if line.startswith(f"{steered.key}  ")
    ] == [
        "excluded",
        "nice",
        "time",
    ]
    assert bench.directory.joinpath(FILE_NAME).read_bytes() == before
    undo = bench.run("--undo").stdout
    subprocess.run(["scontrol"], input=undo, text=True, check=False, timeout=300)
    assert (held.hold, users.hold) == ("", "user")
    assert (steered.nice, steered.excluded, steered.limit_min) == (0, (), 10)


def test_a_pinned_job_gets_its_own_request_before_its_release(bench: Bench) -> None:
    job = bench.submit()
    pin = ["ReqNodeList=n1", "TresPerNode=gres/gpu:2", "TresPerJob=", "NumNodes=1"]
    bench.runner.run(["scontrol", "update", f"JobId={job.key}", *pin])
    bench.claim(**{f"j{job.key}": Claim(state=State.PINNING, own=OWN, pinned=(N1,))})
    (found,) = json.loads(bench.run("--json").stdout)
    assert found["fields"]["nodes"] == ["n1", ""]
    assert [line.split()[0] for line in found["undo"]] == ["update", "update", "release"]
    assert "ReqNodeList=" in found["undo"][0].split()
    assert "TresPerJob=gres:gpu:2" in found["undo"][1].split()


def test_a_job_under_a_foreign_hold_stays_held(bench: Bench) -> None:
    job = bench.submit()
    claim = Claim(state=State.FOREIGN_HOLD, own=OWN, nice=Loan(5, 5, 0))
    bench.claim(**{f"j{job.key}": replace(claim, excluded=Loan((N2,), (N2,), ()))})
    (found,) = json.loads(bench.run("--json").stdout)
    assert "hold" not in found["fields"]
    assert not any(line.startswith("release") for line in found["undo"])
