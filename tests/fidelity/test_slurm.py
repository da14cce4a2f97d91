"""Policy `slurm` beside a real slurmctld, on a short list of jobs.

Long lists, of all forms of requests: benchmarks/slurm_fidelity and docs/slurm-fidelity.md.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hadar_slurm.devcluster.processes import find_binaries
from hadar_slurm.errors import ClusterError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def fidelity(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the package with its modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import slurm_fidelity.from_states
    import slurm_fidelity.real

    return slurm_fidelity


def a_list(fidelity: ModuleType) -> Any:
    """Return 14 jobs of `--gpus=N`, one each 0.1 s, on four nodes of two types; times are real."""
    draw, jobs = random.Random("short gpus 0"), fidelity.jobs
    listed = []
    for number in range(14):
        gpus = draw.choice((1, 2, 3, 3, 4, 5, 6))
        seconds = draw.choice((1.0, 2.5, 4.0))
        on = {"a": (seconds, seconds), "b": (seconds + 1.5, seconds + 1.5)}
        limit_min = draw.choice((1, 1, 2))
        listed.append(jobs.ListedJob(number, "u0", number / 10, gpus, -(-gpus // 4), on, limit_min))
    pools = (jobs.Pool("a", 2, 4), jobs.Pool("b", 2, 4))
    return jobs.JobList("short", "", pools, tuple(listed), form="gpus", compression=1)


@pytest.mark.slurm
def test_a_real_slurm_decides_as_the_policy_would(fidelity: ModuleType) -> None:
    """From the state in which Slurm starts a job, the policy gives it the same GPUs.

    But for a few: in a tenth of a second in which a job ends, the state is not known.
    """
    try:
        find_binaries()
    except ClusterError as error:
        pytest.skip(str(error))
    jobs = a_list(fidelity)
    play = fidelity.real.play(jobs)
    assert any(len(run.gpu_types) > 1 for run in play.runs.values())
    assert any(len(set(run.gpus)) > 1 for run in play.runs.values())
    found = fidelity.from_states.agreement(jobs, play)
    assert found.decided >= len(jobs.jobs)
    assert found.alike >= 0.75 * found.decided
