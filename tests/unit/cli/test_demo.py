"""What the demo starts hadard with."""

from __future__ import annotations

from typer.testing import CliRunner

from hadar_slurm.cli.demo import CONFIG
from hadar_slurm.cli.main import commands
from hadar_slurm.config import Config
from hadar_slurm.errors import UsageError
from hadar_slurm.lab.demo.runs import submission
from hadar_slurm.lab.demo.workload import load_workload


def test_the_demos_hadard_enforces_its_plans() -> None:
    """Left to the default it would only watch, and both runs would be plain Slurm's."""
    assert Config.model_validate(CONFIG).mode == "enforce"


def test_jobs_may_keep_their_length_to_themselves() -> None:
    """All that hadard hears of it is then the time limit, which is the same for all."""
    job = load_workload().jobs[0]
    told, untold = (submission(job, ["hadar-sbatch"], tells_steps=tells) for tells in (True, False))
    assert [word for word in told if word not in untold] == [f"--hadar-steps={job.total_steps}"]
    assert "--time=30" in untold
    assert f"--total-steps={job.total_steps}" in untold


def test_a_policy_that_is_not_there_is_refused_before_anything_starts() -> None:
    done = CliRunner().invoke(commands, ["demo", "--policy", "no-such"])
    assert isinstance(done.exception, UsageError)
    assert "--policy 'no-such': expected one of hadar, hadar-paper" in str(done.exception)
