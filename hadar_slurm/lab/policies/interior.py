"""Interior point for programs over shares: the fraction of time of each job on each GPU type.

Gavel (OSDI'20) solves its programs with ECOS. Many shares can be optimal (for its makespan policy
any feasible ones are), so results depend on *which* of them the solver returns: with another solver
whole runs differ by several per cent. This is the method of ECOS, written from the publications,
for programs in which one row per GPU type and an optional common level couple the jobs:

* the homogeneous self-dual embedding (Ye, Todd, Mizuno, 1994), which needs no feasible start and
  proves infeasibility;
* Mehrotra's predictor and corrector (1992) with the start, step lengths and stopping rules of ECOS
  (Domahidi, Chu, Boyd, ECC 2013);
* equilibration of rows and columns (Ruiz, 2001). It affects the result: without an objective the
  method ends near the point where the *scaled* slacks are most equal.

A step solves one small dense system per job, batched in numpy, and one of the size of the number of
GPU types. The systems are regularised and the solutions refined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hadar_slurm.errors import SolverError

Floats = NDArray[np.float64]

# ECOS's settings: final feasibility and gap, fraction of the way to the boundary, bounds of a step
# and of centring, regularisation, refinements of a solution and the gain each must bring.
_TOLERANCE = 1e-8
_TO_BOUNDARY = 0.99
_STEP = (1e-6, 0.999)
_LEAST_CENTRING = 1e-4
_REGULARISATION = 7e-8
_ACCURACY = 1e-10
_REFINEMENTS = 9
_REFINEMENT_GAIN = 6.0
_RUIZ_PASSES = 3
_MOST_ITERATIONS = 100


@dataclass(frozen=True, slots=True)
class ShareProgram:
    """Minimise sum(cost x) - level over shares x >= 0, one row a job and one column a GPU type.

    Subject to: sum over a job's row of x <= 1; sum over a column of gangs x <= capacity; and where
    `throughputs` are given, for each job sum(rates x) >= needs + level. All numbers are finite.
    """

    # (jobs,) positive.
    gangs: Floats
    # (types,) positive.
    capacity: Floats
    # (jobs, types), like the throughputs.
    cost: Floats | None = None
    throughputs: Floats | None = None
    # (jobs,)
    needs: Floats | None = None
    # Without it the level is 0.
    has_level: bool = False


@dataclass(frozen=True, slots=True)
class Inside:
    """A solution: shares strictly inside their bounds, and the level."""

    shares: Floats
    level: float


def solve_inside(program: ShareProgram) -> Inside:
    """Return an optimum in the interior of the optimal set. Raises SolverError without one."""
    try:
        with np.errstate(all="ignore"):
            return _Descent(_Scaled(program)).run()
    except np.linalg.LinAlgError as error:
        raise SolverError(f"the interior point method failed: {error}") from error


class _Scaled:
    """The program as: minimise cost p, G p + s = limits, s >= 0, with rows and columns scaled.

    p holds the shares type by type, then the level. The rows of G are, in this order: x >= 0 (one a
    share), capacity (GPU types), sum of a job's shares (jobs), needs (jobs, or none). Arrays have a
    row a type and a column a job, which numpy sums faster.
    """

    def __init__(self, program: ShareProgram) -> None:
        jobs, gpu_types = self.jobs, self.gpu_types = len(program.gangs), len(program.capacity)
        self.has_needs, self.has_level = program.throughputs is not None, program.has_level
        self.bounds = slice(0, jobs * gpu_types)
        self.types = slice(self.bounds.stop, self.bounds.stop + gpu_types)
        self.totals = slice(self.types.stop, self.types.stop + jobs)
        self.needs = slice(self.totals.stop, self.totals.stop + jobs * self.has_needs)
        # Absolute values of G's entries: bounds, capacity, totals, needs, and needs' level.
        ones, zeros = np.ones((gpu_types, jobs)), np.zeros((gpu_types, jobs))
        self.bound, self.total, self.usage = ones.copy(), ones.copy(), ones * program.gangs
        self.throughput = zeros if program.throughputs is None else program.throughputs.T.copy()
        self.level = np.full(jobs, float(program.has_level))
        rows, columns, last_column = self._equilibrate()
        needs = np.zeros(jobs) if program.needs is None else program.needs
        limits = [np.zeros(jobs * gpu_types), program.capacity, np.ones(jobs), -needs]
        self.limits = np.concatenate(limits)[: self.needs.stop] / rows[: self.needs.stop]
        self.columns = np.append(columns.ravel(), last_column)
        cost = zeros if program.cost is None else program.cost.T
        self.cost = np.append(cost.ravel(), -float(program.has_level)) / self.columns

    def _equilibrate(self) -> tuple[Floats, Floats, float]:
        """Scale G in place; return the divisors of its rows, share columns and level column."""
        jobs, gpu_types = self.jobs, self.gpu_types
        rows = [np.ones((gpu_types, jobs)), np.ones(gpu_types), np.ones(jobs), np.ones(jobs)]
        columns, last_column = np.ones((gpu_types, jobs)), 1.0
        for _ in range(_RUIZ_PASSES):
            needs = np.maximum(self.throughput.max(axis=0), self.level)
            largest = (self.bound, self.usage.max(axis=1), self.total.max(axis=0), needs)
            by = [_root(values) for values in largest]
            column = _root(np.maximum.reduce((self.bound, self.usage, self.total, self.throughput)))
            level = float(_root(self.level.max(keepdims=True))[0])
            self.bound /= by[0] * column
            self.usage /= by[1][:, None] * column
            self.total /= by[2] * column
            self.throughput /= by[3] * column
            self.level /= by[3] * level
            rows = [scale * part for scale, part in zip(rows, by, strict=True)]
            columns, last_column = columns * column, last_column * level
        return np.concatenate([part.ravel() for part in rows]), columns, last_column

    def times(self, p: Floats) -> Floats:
        """Return G p."""
        x = p[:-1].reshape(self.gpu_types, self.jobs)
        usage, total = (self.usage * x).sum(axis=1), (self.total * x).sum(axis=0)
        parts = [-(self.bound * x).ravel(), usage, total]
        if self.has_needs:
            parts.append(self.level * p[-1] - (self.throughput * x).sum(axis=0))
        return np.concatenate(parts)

    def transposed_times(self, z: Floats) -> Floats:
        """Return G' z."""
        x = self.usage * z[self.types, None] + self.total * z[self.totals]
        x -= self.bound * z[self.bounds].reshape(x.shape)
        level = 0.0
        if self.has_needs:
            x -= self.throughput * z[self.needs]
            level = float(self.level @ z[self.needs])
        return np.append(x.ravel(), level)

    def unscaled(self, p: Floats) -> Inside:
        """Return a point in the program's own units, its shares within 0 and 1."""
        p = p / self.columns
        shares = p[:-1].reshape(self.gpu_types, self.jobs).T
        return Inside(np.clip(shares, 0.0, 1.0), float(p[-1]))


def _root(values: Floats) -> Floats:
    return np.sqrt(np.where(values > 0, values, 1.0))


class _Newton:
    """Solves G' z = a, G p - w z = b repeatedly for given weights w.

    Per job the unknowns are its shares and the duals of its own rows. A Schur complement gives the
    common unknowns: the duals of the types' rows and the level.
    """

    def __init__(self, scaled: _Scaled, weights: Floats) -> None:
        self.scaled, self.weights, self.firm = scaled, weights, weights + _REGULARISATION
        jobs, gpu_types = scaled.jobs, scaled.gpu_types
        size, diagonal = gpu_types + 1 + scaled.has_needs, np.arange(gpu_types)
        own = np.zeros((size, size, jobs))
        bounds = self.firm[scaled.bounds].reshape(gpu_types, jobs)
        own[diagonal, diagonal] = scaled.bound**2 / bounds + _REGULARISATION
        own[:gpu_types, gpu_types] = own[gpu_types, :gpu_types] = scaled.total
        own[gpu_types, gpu_types] = -self.firm[scaled.totals]
        common = np.zeros((size, gpu_types + 1, jobs))
        common[diagonal, diagonal] = scaled.usage
        if scaled.has_needs:
            own[:gpu_types, -1] = own[-1, :gpu_types] = -scaled.throughput
            own[-1, -1] = -self.firm[scaled.needs]
            common[-1, gpu_types] = scaled.level
        inverse = np.linalg.inv(own.transpose(2, 0, 1))
        self.inverse = np.ascontiguousarray(inverse.transpose(1, 2, 0))
        self.common = common.transpose(1, 0, 2).reshape(gpu_types + 1, size * jobs)
        spread = inverse @ common.transpose(2, 0, 1)
        self.spread = np.ascontiguousarray(spread.transpose(1, 0, 2)).reshape(size * jobs, -1)
        schur = -(self.common @ self.spread)
        schur[diagonal, diagonal] -= self.firm[scaled.types]
        if not scaled.has_level:
            schur[gpu_types, gpu_types] = 1.0
        self.schur_inverse = np.linalg.inv(schur)

    def solve(self, a: Floats, b: Floats) -> tuple[Floats, Floats]:
        """Return p and z, refined until the equations hold or the error stops falling."""
        p, z = self._solve_once(a, b)
        enough = _ACCURACY * (1.0 + max(float(abs(a).max()), float(abs(b).max())))
        before, step_p, step_z = math.inf, p, z
        for _ in range(_REFINEMENTS):
            left_a = a - self.scaled.transposed_times(z)
            left_b = b - self.scaled.times(p) + self.weights * z
            error = max(float(abs(left_a).max()), float(abs(left_b).max()))
            if error > before:
                return p - step_p, z - step_z
            if error < enough or before < _REFINEMENT_GAIN * error:
                break
            before = error
            step_p, step_z = self._solve_once(left_a, left_b)
            p, z = p + step_p, z + step_z
        return p, z

    def _solve_once(self, a: Floats, b: Floats) -> tuple[Floats, Floats]:
        scaled, gpu_types = self.scaled, self.scaled.gpu_types
        bounds, weights = b[scaled.bounds], self.firm[scaled.bounds]
        bound = scaled.bound.ravel()
        # The last rows of `own` are the totals and the needs, if any.
        right = np.concatenate([a[:-1] - bound * bounds / weights, b[scaled.totals.start :]])
        own = (self.inverse * right.reshape(-1, scaled.jobs)).sum(axis=1).ravel()
        common = self.schur_inverse @ (np.append(b[scaled.types], a[-1]) - self.common @ own)
        own -= self.spread @ common
        shares, duals = np.split(own, [scaled.bounds.stop])
        z = np.concatenate([-(bound * shares + bounds) / weights, common[:gpu_types], duals])
        return np.append(shares, common[gpu_types] if scaled.has_level else 0.0), z


class _Descent:
    """The iterates: p, slacks s, duals z, and the embedding's tau and kappa."""

    def __init__(self, scaled: _Scaled) -> None:
        self.scaled, self.cost, self.limits = scaled, scaled.cost, scaled.limits
        newton = _Newton(scaled, np.ones(len(self.limits)))
        self.p, minus_s = newton.solve(np.zeros(len(self.cost)), self.limits)
        self.s = _made_positive(-minus_s)
        self.z = _made_positive(newton.solve(-self.cost, np.zeros(len(self.limits)))[1])
        self.tau = self.kappa = 1.0

    def run(self) -> Inside:
        """Return the optimum, or raise SolverError."""
        for _ in range(_MOST_ITERATIONS):
            dual, primal = self.scaled.transposed_times(self.z), self.scaled.times(self.p)
            left_a = -dual - self.cost * self.tau
            left_b = self.s + primal - self.limits * self.tau
            if self._is_optimal(left_a, left_b):
                return self.scaled.unscaled(self.p / self.tau)
            bound = float(self.limits @ self.z)
            if bound < 0 and self.tau < self.kappa and _size(dual) < _TOLERANCE * _size(self.z):
                raise SolverError("no shares satisfy the program")
            self._step(left_a, left_b)
        raise SolverError(f"no optimum after {_MOST_ITERATIONS} steps of the interior point")

    def _is_optimal(self, left_a: Floats, left_b: Floats) -> bool:
        cost, bound = float(self.cost @ self.p), -float(self.limits @ self.z)
        gap = float(self.s @ self.z)
        scale = -cost if cost < 0 else bound
        ends = gap < _TOLERANCE or (scale > 0 and gap < _TOLERANCE * scale)
        primal = max(1.0, _size(self.limits)) + _size(self.p) + _size(self.s)
        dual = max(1.0, _size(self.cost)) + _size(self.z)
        is_primal = _size(left_b) < _TOLERANCE * primal * self.tau
        is_dual = _size(left_a) < _TOLERANCE * dual * self.tau
        return ends and is_primal and is_dual and (cost < 0 or bound <= _TOLERANCE)

    def _step(self, left_a: Floats, left_b: Floats) -> None:
        """Take one predictor and one corrector."""
        s, z, tau, kappa = self.s, self.z, self.tau, self.kappa
        left_tau = kappa + float(self.cost @ self.p + self.limits @ z)
        mean = (float(s @ z) + kappa * tau) / (len(s) + 1)
        # In these units the slack and the dual of a row are equal.
        unit, alike = np.sqrt(s / z), np.sqrt(s * z)
        newton = _Newton(self.scaled, s / z)
        p1, z1 = newton.solve(-self.cost, self.limits)
        curve = kappa / tau - float(self.cost @ p1 + self.limits @ z1)

        def direction(
            share: float, complement: Floats, complement_tau: float
        ) -> tuple[Floats, Floats, Floats, float, float]:
            p2, z2 = newton.solve(share * left_a, unit * complement - share * left_b)
            d_tau = share * left_tau - complement_tau / tau
            d_tau = (d_tau + float(self.cost @ p2 + self.limits @ z2)) / curve
            dual = unit * (z2 + d_tau * z1)
            d_kappa = -(complement_tau + kappa * d_tau) / tau
            return p2 + d_tau * p1, -complement - dual, dual, d_tau, d_kappa

        def longest(ds: Floats, dz: Floats, d_tau: float, d_kappa: float) -> float:
            least = min(float((ds / alike).min()), float((dz / alike).min()))
            fastest = -min(least, d_tau / tau, d_kappa / kappa)
            return min(max(1.0 / fastest if fastest > 0 else 1.0, _STEP[0]), _STEP[1])

        _, ds, dz, d_tau, d_kappa = direction(1.0, alike, kappa * tau)
        centring = max((1.0 - longest(ds, dz, d_tau, d_kappa)) ** 3, _LEAST_CENTRING)
        dp, ds, dz, d_tau, d_kappa = direction(
            1.0 - centring,
            alike + (ds * dz - centring * mean) / alike,
            kappa * tau + d_kappa * d_tau - centring * mean,
        )
        length = _TO_BOUNDARY * longest(ds, dz, d_tau, d_kappa)
        self.p = self.p + length * dp
        self.s = s + length * unit * ds
        self.z = z + length * dz / unit
        self.tau, self.kappa = tau + length * d_tau, kappa + length * d_kappa


def _made_positive(values: Floats) -> Floats:
    """Return the values, shifted to 1 or more if any of them is 0 or less."""
    least = float(values.min())
    return values if least > 0 else values + (1.0 - least)


def _size(values: Floats) -> float:
    return float(np.linalg.norm(values))
