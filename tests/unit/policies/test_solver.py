"""The solver's answers as values and errors, and that it runs inside the process."""

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
    """Maximise 2x + y over whole x and y up to 3, x + y <= 4 and x >= `at_least`."""
    problem = pulp.LpProblem("toy", pulp.LpMaximize)
    x, y = (problem.add_variable(name, 0, 3, cat=pulp.LpInteger) for name in "xy")
    problem += 2 * x + y
    problem += x + y <= 4
    problem += x >= at_least
    return problem, x


def test_an_optimum_is_found() -> None:
    """Two times three and one."""
    problem, x = a_problem()
    assert solve(problem, SolverLimits()) is True
    assert x.value() == 3
    assert pulp.value(problem.objective) == pytest.approx(7.0)


def test_no_solution_is_an_error() -> None:
    """With the solver's own word for it."""
    problem, _ = a_problem(at_least=4.0)
    with pytest.raises(SolverError, match="the solver ended with status Infeasible"):
        solve(problem, SolverLimits())


def test_no_solution_in_time_is_another_error() -> None:
    """With the limit that was too short."""
    problem, _ = a_problem()
    with pytest.raises(SolverTimeout, match="no solution within 0 s"):
        solve(problem, SolverLimits(time_limit_s=0.0))


def test_what_was_found_before_the_limit_is_taken() -> None:
    """As not optimal; a linear program has a feasible point from the beginning."""
    problem = pulp.LpProblem("linear", pulp.LpMaximize)
    x, y = (problem.add_variable(name, 0) for name in "xy")
    problem += x + y
    problem += x + y <= 4
    assert solve(problem, SolverLimits(time_limit_s=0.0)) is False
    assert x.value() + y.value() <= 4


def test_a_program_without_bounds_is_an_error() -> None:
    """A point on the way to infinity is no answer."""
    problem = pulp.LpProblem("unbounded", pulp.LpMaximize)
    problem += problem.add_variable("x", 0)
    with pytest.raises(SolverError, match="the solver ended with status"):
        solve(problem, SolverLimits())


def test_a_program_that_the_solver_refuses_is_an_error() -> None:
    """A policy then decides without one."""
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
    """Solvers run inside hadard, and are silent there."""
    program = ROUNDS.replace("POLICIES", repr(("hadar", "hadar-paper", "hadare")))
    search = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": search},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
