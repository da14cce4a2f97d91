"""The only place that calls a solver: time limit, gap, and a status that becomes an error."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import dataclass

import pulp

from hadar_slurm.errors import SolverError, SolverTimeout


@dataclass(frozen=True, slots=True)
class SolverLimits:
    """How long a solve may take, in seconds, and how far from the optimum it may stop."""

    time_limit_s: float = 5.0
    gap: float = 1e-3


def solve(problem: pulp.LpProblem, limits: SolverLimits) -> bool:
    """Solve in place; return whether the solution is optimal within the gap.

    False means: feasible, but the time limit came first. Raises SolverTimeout when the limit came
    before any solution, SolverError for anything else.
    """
    try:
        problem.solve(_solver(limits))
    except pulp.PulpSolverError as error:
        raise SolverError(f"the solver failed: {error}") from error
    if problem.sol_status == pulp.LpSolutionOptimal:
        return True
    if problem.sol_status == pulp.LpSolutionIntegerFeasible:
        return False
    status = pulp.LpStatus[problem.status]
    if problem.status == pulp.LpStatusNotSolved:
        raise SolverTimeout(f"no solution within {limits.time_limit_s:g} s")
    raise SolverError(f"the solver ended with status {status}")


def _solver(limits: SolverLimits) -> pulp.LpSolver:
    """Return CBC: the site's own where installed, else the one inside PuLP 3, else HiGHS."""
    options = {"msg": False, "timeLimit": limits.time_limit_s, "gapRel": limits.gap}
    if own := shutil.which("cbc"):
        return pulp.COIN_CMD(path=own, **options)
    with warnings.catch_warnings():
        # PuLP 4 will drop the bundled CBC; pyproject.toml stays below 4 (docs/adr/0006).
        warnings.simplefilter("ignore", DeprecationWarning)
        bundled = pulp.PULP_CBC_CMD(**options)
    return bundled if bundled.available() else pulp.HiGHS(**options)
