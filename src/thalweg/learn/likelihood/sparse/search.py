"""The minimum of likelihood and prior, with as few curvature matrices as possible.

Far from the minimum: Marquardt's method with the Gauss-Newton matrix of the coarsest chain. Near
it, where bent valleys (states that hardly anybody visits, a beta near zero) make such steps short:
BFGS from the exact Gauss-Newton matrix, for which adjoint gradients suffice. A search that begins
next to a known minimum starts with BFGS from the matrix found there. Convergence is judged with a
fresh matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.linalg import cho_solve

from thalweg._types import Array
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import Evaluation, IndependentObjective, Objective
from thalweg.learn.likelihood.optimize import (
    LEAST_DAMPING,
    LONGEST_STEP,
    SHORTEST,
    Minimum,
    Penalty,
    cholesky,
    minimise,
    newton_step,
    positive_change,
    shortened,
)
from thalweg.learn.likelihood.sparse.flow import SPARSE_STATES, Point, SparseFlow, is_plain
from thalweg.learn.limits import exhausted, limit_status, spend
from thalweg.status import Status

__all__ = ["Nearby", "Place", "Terrain", "descend", "minimise_likelihood"]

Solve = Callable[[Array], Array]
Factored = Callable[[Array], Solve]

_NEAR = 0.05
"""Remaining gain of log likelihood per parameter below which BFGS may take over."""
_MOST_MARQUARDT = 25
_MOST_REJECTIONS = 14
_BFGS = 40
"""Largest number of BFGS iterations before the matrix is recomputed."""


class Place(Protocol):
    """A value and its derivatives at one `theta`; curvature when asked for."""

    @property
    def theta(self) -> Array: ...

    @property
    def value(self) -> float: ...

    @property
    def gradient(self) -> Array: ...

    @property
    def information(self) -> Array: ...

    @property
    def evaluation(self) -> Evaluation: ...

    def steering(self, *, levels: int | None = None) -> Array:
        """The curvature to steer by; `levels=1`: that of the coarsest chain alone."""


class Terrain(Protocol):
    """The function to minimise: `at` evaluates it, starting from a place nearby."""

    def at(self, theta: Array, near: Any = None) -> Any:
        """The place at `theta`; `None` if there is no flow."""


class Nearby(Protocol):
    """Results of a minimum nearby that a search reuses."""

    @property
    def point(self) -> Point | None:
        """The flow at this place."""

    @property
    def information(self) -> Array:
        """The data's information about the same parameters."""


def minimise_likelihood(
    objective: Objective,
    prior: Penalty,
    theta: Array,
    mesh: Mesh,
    *,
    max_iterations: int = 100,
    tolerance: float = 1e-4,
    near: Nearby | None = None,
    dense: bool = True,
    solver: Factored | None = None,
) -> Minimum | None:
    """`minimise`, by sparse elimination where the model is plain and its graph not tiny.

    Parameters
    ----------
    objective : Objective
        The likelihood.
    prior : Penalty
        The prior that is added to it.
    theta : array
        Where the search begins.
    mesh : Mesh
        Time steps.
    max_iterations : int
        Bound on the number of steps.
    tolerance : float
        Log likelihood that may be left to gain.
    near : Nearby, optional
        A minimum nearby, where one is known.
    dense : bool
        Whether to go on with dense matrices, ten times as slowly at 100 states, where the sparse
        flow has no solution: beta is then so small that states are deeper than it reaches.
    solver : callable, optional
        Solves with the curvature of an information and the prior, if there is a cheaper way than
        factoring their sum.
    """
    model: FlowModel = objective.model
    if (
        isinstance(objective, IndependentObjective)
        and model.n_states >= SPARSE_STATES
        and objective.totals is None
        and is_plain(model)
    ):
        flow = SparseFlow(model, objective.counts, mesh, objective.noise)
        first = flow.at(theta, None if near is None else near.point)
        if first is None and near is not None:
            first = flow.at(theta)
        if first is not None:
            known = None if near is None else near.information
            return descend(flow, prior, first, tolerance, max_iterations, known, solver)
        if not dense:
            return None
    return minimise(
        objective, prior, theta, mesh, max_iterations=max_iterations, tolerance=tolerance
    )


def descend(
    flow: Terrain,
    prior: Penalty,
    first: Place,
    tolerance: float,
    max_iterations: int,
    known: Array | None = None,
    solver: Factored | None = None,
) -> Minimum:
    """The minimum near `first`; `known`: information found at a minimum nearby."""
    return _Search(flow, prior, tolerance, max_iterations, solver).run(first, known)


@dataclass
class _Search:
    flow: Terrain
    prior: Penalty
    tolerance: float
    max_iterations: int
    solver: Factored | None = None
    used: int = 0

    def run(self, point: Place, base: Array | None) -> Minimum:
        status = Status.MAX_ITERATIONS
        self.precision = self.prior.quadratic(point.theta)[2]
        self.now, self.value, self.gradient = point, *self._with_prior(point)
        try:
            if base is not None and self._nearby(base):
                status = Status.CONVERGED
            rounds = 0
            while not status:
                status, steering = self._marquardt()
                rounds += 1
                if status is not Status.MAX_ITERATIONS or self._spent:
                    break
                before = self.now
                if self._nearby(steering):
                    status = Status.CONVERGED
                elif self.now is before and rounds > 2:
                    status = Status.STALLED
                    break
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        if status is Status.MAX_ITERATIONS:
            status = limit_status()
        now = self.now
        return Minimum(now.theta, self.value, now.evaluation, status, self.used, now)

    def _nearby(self, information: Array) -> bool:
        """BFGS from a known matrix, and from fresh ones while that helps; whether it converged."""
        solve = self._factored(information)
        while solve is not None and self._bfgs(solve):
            solve = self._factored(self.now.information)
            left = self._left(solve)
            if left < self.tolerance:
                return True
            if self._spent or not left < _NEAR * self.gradient.size:
                return False
        return self._left(self._factored(self.now.information)) < self.tolerance

    def _factored(self, information: Array) -> Solve | None:
        """Solves with this information and the prior; None where rounding left no curvature."""
        if self.solver is not None:
            return self.solver(information)
        factor = cholesky(information + self.precision, LEAST_DAMPING)
        if factor is None:
            return None
        return lambda right: np.asarray(cho_solve(factor, right, check_finite=False))

    @property
    def _spent(self) -> bool:
        return self.used >= self.max_iterations or exhausted()

    def _count(self) -> None:
        self.used += 1
        spend()

    def _with_prior(self, point: Place) -> tuple[float, Array]:
        extra, gradient, _ = self.prior.quadratic(point.theta)
        return point.value + extra, point.gradient + gradient

    def _marquardt(self) -> tuple[Status, Array]:
        """Steps until convergence, or until BFGS should take over (`MAX_ITERATIONS`).

        Far from the minimum the coarsest chain's curvature is good enough. With the status comes
        the data's exact curvature at the last point.
        """
        damping, growth, rejected, far = 1e-3, 2.0, 0, True
        for _ in range(_MOST_MARQUARDT):
            if rejected == 0:
                steering = self.now.steering(levels=1 if far else None)
                left = self._left(self._factored(steering))
                if far and left < _NEAR * self.gradient.size:
                    steering, far = self.now.steering(), False
                    left = self._left(self._factored(steering))
                if not far:
                    status = Status.MAX_ITERATIONS
                    return (Status.CONVERGED if left < self.tolerance else status), steering
                curvature = steering + self.precision
            if self._spent:
                break
            self._count()
            step = newton_step(curvature, self.gradient, damping)
            accepted, ratio = False, 0.0
            if step is not None and np.max(np.abs(step) / self.prior.units) <= LONGEST_STEP:
                predicted = -float(self.gradient @ step) - 0.5 * float(step @ curvature @ step)
                accepted, ratio = self._try(step, predicted)
            if accepted:
                damping = max(damping * max(1 / 3, 1 - (2 * ratio - 1) ** 3), 1e-9)
                growth, rejected = 2.0, 0
                continue
            damping *= growth
            growth *= 2.0
            rejected += 1
            if rejected >= _MOST_REJECTIONS:
                return Status.STALLED, steering
        return Status.MAX_ITERATIONS, self.now.steering()

    def _left(self, solve: Solve | None) -> float:
        """Log likelihood left to gain, to second order."""
        gain = np.inf if solve is None else 0.5 * float(self.gradient @ solve(self.gradient))
        return gain if np.isfinite(gain) else np.inf

    def _try(self, step: Array, predicted: float) -> tuple[bool, float]:
        new = self.flow.at(self.now.theta + step, self.now)
        if new is None:
            return False, 0.0
        value = new.value + self.prior.quadratic(new.theta)[0]
        ratio = (self.value - value) / max(predicted, 1e-300)
        if not (value < self.value and ratio > 1e-4):
            return False, ratio
        self._move(new)
        return True, ratio

    def _move(self, new: Place) -> None:
        self.now, self.value, self.gradient = new, *self._with_prior(new)

    def _bfgs(self, solve: Solve) -> bool:
        """BFGS with halved steps, from the matrix that `solve` inverts; whether it moved."""
        pairs: list[tuple[Array, Array, float]] = []
        for iteration in range(_BFGS):
            step = -_two_loops(solve, pairs, self.gradient)
            slope = float(self.gradient @ step)
            if -0.5 * slope < 0.5 * self.tolerance or self._spent:
                return iteration > 0
            before, theta = self.gradient, self.now.theta
            self._count()
            if not self._halved(step, slope):
                return iteration > 0
            moved, change = self.now.theta - theta, self.gradient - before
            pull = -before * float(moved @ step) / float(step @ step)  # the step solves B step = -g
            change, gained = positive_change(moved, change, pull)
            pairs.append((moved, change, 1.0 / gained))
        return True

    def _halved(self, step: Array, slope: float) -> bool:
        share = min(1.0, LONGEST_STEP / float(np.max(np.abs(step) / self.prior.units)))
        while share > SHORTEST:
            new = self.flow.at(self.now.theta + share * step, self.now)
            value = np.inf if new is None else new.value + self.prior.quadratic(new.theta)[0]
            if value <= self.value + 1e-4 * share * slope:
                self._move(new)
                return True
            share = shortened(share, slope, value - self.value)
        return False


def _two_loops(solve: Solve, pairs: list[tuple[Array, Array, float]], gradient: Array) -> Array:
    """The inverse BFGS matrix times the gradient."""
    q, shares = gradient.copy(), []
    for moved, change, scale in reversed(pairs):
        share = scale * float(moved @ q)
        shares.append(share)
        q -= share * change
    q = solve(q)
    for (moved, change, scale), share in zip(pairs, reversed(shares), strict=True):
        q += moved * (share - scale * float(change @ q))
    return np.asarray(q)
