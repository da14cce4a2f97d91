"""Results and errors of the solver, and that it runs within the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pulp
import pytest

from hadar_slurm.errors import SolverError, SolverTimeout
from hadar_slurm.policies.policy import SolverLimits
from hadar_slurm.policies.solver import solve


def a_problem(*, at_least: float = 0.0) -> tuple[pulp.LpProblem, pulp.LpVariable]:
    """Return: maximise 2x + y over integers x and y up to 3, x + y <= 4 and x >= `at_least`."""
    problem = pulp.LpProblem("toy", pulp.LpMaximize)
    x, y = (problem.add_variable(name, 0, 3, cat=pulp.LpInteger) for name in "xy")
    problem += 2 * x + y
    problem += x + y <= 4
    problem += x >= at_least
    return problem, x


def test_an_optimum_is_found() -> None:
    """The optimum is 2 * 3 + 1."""
    problem, x = a_problem()
    assert solve(problem, SolverLimits()) is True
    assert x.value() == 3
    assert pulp.value(problem.objective) == pytest.approx(7.0)


def test_no_solution_is_an_error() -> None:
    """The error quotes the status of the solver."""
    problem, _ = a_problem(at_least=4.0)
    with pytest.raises(SolverError, match="the solver ended with status Infeasible"):
        solve(problem, SolverLimits())


def test_no_solution_in_time_is_another_error() -> None:
    """The error states the time limit."""
    problem, _ = a_problem()
    with pytest.raises(SolverTimeout, match="no solution within 0 s"):
        solve(problem, SolverLimits(time_limit_s=0.0))


def test_what_was_found_before_the_limit_is_taken() -> None:
    """A feasible point at the time limit is accepted as not optimal."""
    problem = pulp.LpProblem("linear", pulp.LpMaximize)
    x, y = (problem.add_variable(name, 0) for name in "xy")
    problem += x + y
    problem += x + y <= 4
    assert solve(problem, SolverLimits(time_limit_s=0.0)) is False
    assert x.value() + y.value() <= 4


def test_a_program_without_bounds_is_an_error() -> None:
    """An unbounded program raises a SolverError."""
    problem = pulp.LpProblem("unbounded", pulp.LpMaximize)
    problem += problem.add_variable("x", 0)
    with pytest.raises(SolverError, match="the solver ended with status"):
        solve(problem, SolverLimits())


def test_a_program_that_the_solver_refuses_is_an_error() -> None:
    """A program that the solver rejects raises a SolverError."""
    problem, x = a_problem()
    problem += pulp.LpAffineExpression([(x, 1e300)]) <= 4
    with pytest.raises(SolverError, match="the solver failed"):
        solve(problem, SolverLimits())


ROUNDS = """
import sys
from builders import ROUND, a_job, a_snapshot, some_rates
from hadar_slurm.policies.registry import make_policy

jobs = [a_job(str(n), throughputs=some_rates(V100=10.0, K80=5.0)) for n in range(4)]
snapshot = a_snapshot("1xV100,1xK80", *jobs)
started = []
new_process = "os.exec os.fork os.forkpty os.posix_spawn os.system subprocess.Popen".split()
sys.addaudithook(lambda event, _: started.append(event) if event in new_process else None)
figures = {name: dict(make_policy(name).plan(snapshot, ROUND).figures) for name in POLICIES}
assert figures["hadar"]["solved"] == 1, figures
assert figures["hadar-paper"]["solver_optimal"] == 1, figures
assert not started, started
"""


def test_decisions_start_no_process_and_print_nothing() -> None:
    """Solvers run inside the process and print nothing."""
    program = ROUNDS.replace("POLICIES", repr(("hadar", "hadar-paper", "hadare")))
    search = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": search},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
