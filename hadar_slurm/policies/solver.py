"""The only place that calls a solver: time limit, gap, and a status that becomes an error.

(Gavel's policies need the very point that their own solver returns: `interior.py`, ADR 12.)

HiGHS solves in this process, with one thread and the same seed (ADR 24). Two doors: `solve` takes a
PuLP problem, for programs that are to be read (the ILP of `hadar-paper`); `solve_lp` takes arrays,
for linear programs that are solved thousands of times in a simulation, and gives the duals, which
are prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import highspy
import numpy as np
import pulp
from numpy.typing import NDArray

from hadar_slurm.errors import SolverError, SolverTimeout
from hadar_slurm.policies.policy import SolverLimits

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

# HiGHS keeps one number of threads a process: all callers ask for the same.
_SAME_EACH_TIME = {"threads": 1, "random_seed": 0}


class Method(StrEnum):
    """How HiGHS solves a linear program.

    Where many solutions are optimal, simplex gives a corner of the optimal face; the interior
    point method, without the crossover that would follow, gives a point inside it.
    """

    CHOOSE = "choose"
    SIMPLEX = "simplex"
    INTERIOR = "ipm"


@dataclass(frozen=True, slots=True)
class LinearProgram:
    """Minimise cost x subject to row_lower <= A x <= row_upper and lower <= x <= upper.

    A is given by its entries: `values[k]` in row `rows[k]` and column `columns[k]`, in any order,
    each place at most once. With `integer`, those columns take whole numbers only.
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


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimum: objective, value of each column, dual of each row, reduced cost of each column.

    A row's dual is the change of the objective with its bound. With integer columns there are no
    duals: `duals` and `reduced_costs` are then zeros. `is_optimal` is false when the time limit
    came first.
    """

    objective: float
    x: Floats
    duals: Floats
    reduced_costs: Floats
    is_optimal: bool = True


def solve_lp(
    program: LinearProgram,
    *,
    method: Method = Method.CHOOSE,
    limits: SolverLimits | None = None,
) -> Solution:
    """Return the optimum of `program` by HiGHS, one thread, the same answer each time.

    Raises SolverTimeout when the limit came before any solution, SolverError when there is none
    or the solver failed.
    """
    limits = limits or SolverLimits()
    highs = highspy.Highs()
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
    # Without crossover HiGHS may call a point that is as good as it gets "unknown".
    is_inside = method is Method.INTERIOR and (
        highs.getModelStatus() == highspy.HighsModelStatus.kUnknown
    )
    is_optimal = is_inside or _is_optimal(highs, limits)
    found = highs.getSolution()
    duals = np.array(found.row_dual) if found.row_dual else np.zeros(len(program.row_lower))
    costs = np.array(found.col_dual) if found.col_dual else np.zeros(len(program.cost))
    return Solution(
        highs.getObjectiveValue(),
        np.array(found.col_value),
        duals,
        costs,
        is_optimal,
    )


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
    """Return the program with its matrix by columns, as HiGHS wants it."""
    num_columns, num_rows = len(program.cost), len(program.row_lower)
    order = np.lexsort((program.rows, program.columns))
    counts = np.bincount(program.columns, minlength=num_columns)
    model = highspy.HighsLp()
    model.num_col_ = num_columns
    model.num_row_ = num_rows
    model.col_cost_ = program.cost
    model.col_lower_ = program.lower
    model.col_upper_ = program.upper
    model.row_lower_ = program.row_lower
    model.row_upper_ = program.row_upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    model.a_matrix_.index_ = program.rows[order].astype(np.int32)
    model.a_matrix_.value_ = program.values[order]
    if program.integer is not None:
        gpu_types = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [gpu_types[int(whole)] for whole in program.integer]
    return model


def solve(problem: pulp.LpProblem, limits: SolverLimits) -> bool:
    """Solve in place; return whether the solution is optimal within the gap.

    False means: feasible, but the time limit came first. Raises SolverTimeout when the limit came
    before any solution, SolverError for anything else.
    """
    solver = pulp.HiGHS(
        msg=False, timeLimit=limits.time_limit_s, gapRel=limits.gap, **_SAME_EACH_TIME
    )
    try:
        problem.solve(solver)
    except (pulp.PulpError, IndexError) as error:
        # HiGHS leaves out a row that it refuses, and PuLP then misses it.
        raise SolverError(f"the solver failed: {error}") from error
    return _is_optimal(problem.solverModel, limits)
