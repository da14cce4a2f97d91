"""The only place that calls a solver: time limit, gap, and a status that becomes an error.

HiGHS solves in this process, with one thread and the same seed (ADR 24). `solve` takes a PuLP
problem, for programs meant to be read (the ILP of `hadar-paper`); `solve_lp` takes arrays, for
programs that a simulation solves thousands of times, and returns the duals, which are prices.
Gavel's policies need the very point that their own solver returns: `interior.py`, ADR 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import highspy
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hadar_slurm.errors import SolverError, SolverTimeout
from hadar_slurm.policies.policy import SolverLimits

if TYPE_CHECKING:
    import pulp

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

# HiGHS keeps one number of threads per process: all callers ask for the same.
_SAME_EACH_TIME = {"threads": 1, "random_seed": 0}


class Method(StrEnum):
    """How HiGHS solves: simplex returns a corner of the optimal face, INTERIOR a point inside."""

    CHOOSE = "choose"
    SIMPLEX = "simplex"
    INTERIOR = "ipm"


@dataclass(frozen=True, slots=True)
class LinearProgram:
    """Minimise cost x subject to row_lower <= A x <= row_upper and lower <= x <= upper.

    A has `values[k]` in row `rows[k]` and column `columns[k]`, in any order, each place at most
    once. The columns marked in `integer` take whole numbers only.
    """

    cost: Floats
    rows: Ints
    columns: Ints
    values: Floats
    row_lower: Floats
    row_upper: Floats
    lower: Floats
    upper: Floats
    integer: NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls,
        cost: Floats,
        blocks: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]],
        row_lower: Floats,
        row_upper: Floats,
        *,
        bounds: tuple[Floats | None, Floats | None] = (None, None),
        integer: NDArray[np.bool_] | None = None,
    ) -> LinearProgram:
        """Return a program from blocks of (rows, columns, values), scalars for constant ones.

        `bounds` are the lower and the upper ones of x: without them x is at least 0.
        """
        parts = zip(*(np.broadcast_arrays(*block) for block in blocks), strict=True)
        rows, columns, values = map(np.concatenate, parts)
        entries = (rows.astype(np.int32), columns.astype(np.int32), values.astype(np.float64))
        lower, upper = bounds
        lower = np.zeros(len(cost)) if lower is None else lower
        upper = np.full(len(cost), np.inf) if upper is None else upper
        return cls(cost, *entries, row_lower, row_upper, lower, upper, integer)


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimum, or the best point within the time limit.

    A row's dual is the change of the objective with its bound; 0 with integer columns.
    """

    objective: float
    x: Floats
    duals: Floats


def solve_lp(
    program: LinearProgram, *, method: Method = Method.CHOOSE, limits: SolverLimits | None = None
) -> Solution:
    """Return the optimum of `program`, the same each time.

    Raises SolverTimeout without a solution within the limit, SolverError if there is none or the
    solver failed.
    """
    limits, highs = limits or SolverLimits(), highspy.Highs()
    options = _SAME_EACH_TIME | {
        "output_flag": False,
        "time_limit": limits.time_limit_s,
        "mip_rel_gap": limits.gap,
        "solver": str(method),
        "run_crossover": "off" if method is Method.INTERIOR else "choose",
    }
    for option, value in options.items():
        highs.setOptionValue(option, value)
    highs.passModel(_as_model(program))
    highs.run()
    # Without crossover HiGHS may call the best point that it can reach "unknown".
    is_unknown = highs.getModelStatus() == highspy.HighsModelStatus.kUnknown
    if not (method is Method.INTERIOR and is_unknown):
        _is_optimal(highs, limits)
    found = highs.getSolution()
    duals = np.array(found.row_dual) if found.row_dual else np.zeros(len(program.row_lower))
    return Solution(highs.getObjectiveValue(), np.array(found.col_value), duals)


def _is_optimal(highs: highspy.Highs, limits: SolverLimits) -> bool:
    """Return whether HiGHS found an optimum, not only a feasible point; raise without one."""
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kOptimal:
        return True
    found = highs.getInfo().primal_solution_status
    has_point = found == highspy.SolutionStatus.kSolutionStatusFeasible
    if has_point and status != highspy.HighsModelStatus.kUnbounded:
        return False
    if status == highspy.HighsModelStatus.kTimeLimit:
        raise SolverTimeout(f"no solution within {limits.time_limit_s:g} s")
    raise SolverError(f"the solver ended with status {highs.modelStatusToString(status)}")


def _as_model(program: LinearProgram) -> highspy.HighsLp:
    order = np.lexsort((program.rows, program.columns))
    counts = np.bincount(program.columns, minlength=len(program.cost))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(program.cost), len(program.row_lower)
    model.col_cost_, model.col_lower_, model.col_upper_ = program.cost, program.lower, program.upper
    model.row_lower_, model.row_upper_ = program.row_lower, program.row_upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    model.a_matrix_.index_ = program.rows[order].astype(np.int32)
    model.a_matrix_.value_ = program.values[order]
    if program.integer is not None:
        either = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [either[int(is_whole)] for is_whole in program.integer]
    return model


def solve(problem: pulp.LpProblem, limits: SolverLimits) -> bool:
    """Solve in place; return whether the solution is optimal within the gap, or only feasible.

    Raises SolverTimeout without a solution within the limit, SolverError for anything else.
    """
    import pulp

    options = {"msg": False, "timeLimit": limits.time_limit_s, "gapRel": limits.gap}
    try:
        problem.solve(pulp.HiGHS(**options, **_SAME_EACH_TIME))
    except (pulp.PulpError, IndexError) as error:
        # HiGHS leaves out a row that it rejects, and PuLP then fails to find it.
        raise SolverError(f"the solver failed: {error}") from error
    return _is_optimal(problem.solverModel, limits)
