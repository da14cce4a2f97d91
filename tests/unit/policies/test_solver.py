"""The solver's answers as values and errors, also those of a solver that a site brought along."""

from __future__ import annotations

import sys
from pathlib import Path

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


def bring(cbc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program called cbc on PATH."""
    program = tmp_path / "cbc"
    program.write_text(f"#!{sys.executable}\n{cbc}", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


ANSWER = """
import pathlib, sys
path = pathlib.Path(sys.argv[sys.argv.index("-solution") + 1])
path.write_text("Stopped on time - objective value 5\\n0 X0000000 2 2\\n1 X0000001 1 1\\n")
"""


def test_the_sites_own_solver_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it found before its time was up is taken, as not optimal."""
    bring(ANSWER, tmp_path, monkeypatch)
    problem, x = a_problem()
    assert solve(problem, SolverLimits()) is False
    assert x.value() == 2


def test_a_solver_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy then decides without one."""
    bring("import sys; sys.exit(3)", tmp_path, monkeypatch)
    problem, _ = a_problem()
    with pytest.raises(SolverError, match="the solver failed"):
        solve(problem, SolverLimits())
