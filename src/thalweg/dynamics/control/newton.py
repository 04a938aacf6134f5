"""The cheapest path on a given mesh: Newton's method with conjugate gradients.

Unknown are the probabilities at the nodes of a `Curve`. Every iterate is an admissible path, so its
cost bounds the optimum from above. Steps multiply shares: a change `w` of the logarithms changes
the shares by `dp = p (w - <w>)`, with `<.>` the mean under `p` (where a share is to be raised, at
the end over those states and over the others by themselves). None reaches zero, and a share that
has come near it grows again in a few steps.

The Hessian is applied through one Laplacian solve per time; the preconditioner treats the
time-averaged path as if the population rested there: in the modes of the averaged generator each
mode is its own small system in time,

    S / lambda + beta^2 lambda W (+ beta at a free end),

with `S` and `W` the time integrals of products of rates and of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from scipy.linalg import eigh_tridiagonal

from thalweg._types import Array
from thalweg.dynamics.control.action import Action, Moments
from thalweg.dynamics.control.curve import DEGREE, Curve
from thalweg.dynamics.control.wish import Goal, Share
from thalweg.edges.static import symmetrised
from thalweg.status import Status

MAX_NEWTON = 100
"""Largest number of steps on one mesh: leaving a saddle of a steep cost takes many short ones."""
MAX_CG = 300
"""Largest number of conjugate-gradient iterations per step."""
POINTS = DEGREE + 2
"""Quadrature points per piece."""
_LONGEST = 1.0
"""Largest change of a logarithm in one step."""


@dataclass(frozen=True, eq=False)
class PlanProblem:
    """Find the cheapest plan from `start` over the nodes of `curve` to the goal."""

    action: Action
    curve: Curve
    start: Array
    goal: Goal

    @cached_property
    def maps(self) -> tuple[Array, Array]:
        """Matrices from the nodes to values and rates at the quadrature points."""
        return self.curve.maps(self.curve.quadrature(POINTS)[0])

    @cached_property
    def weights(self) -> Array:
        return self.curve.quadrature(POINTS)[1]

    @property
    def has_free_end(self) -> bool:
        return isinstance(self.goal, Share)

    @property
    def free(self) -> slice:
        """The nodes that are not given."""
        return slice(1, None if self.has_free_end else -1)

    def moments(self, nodes: Array) -> Moments:
        value, rate = self.maps
        return Moments(self.action, value @ nodes, rate @ nodes)

    def value(self, nodes: Array) -> float:
        """The cost, up to the free energy of the fixed ends; infinite outside the simplex."""
        if not min((self.maps[0] @ nodes).min(), nodes.min()) > 0:
            return float("inf")
        out = float(self.weights @ self.moments(nodes).lagrangian())
        return out + (self.action.free_energy(nodes[-1]) if self.has_free_end else 0.0)

    def force(self, nodes: Array, at: Moments) -> Array:
        """Derivative in the shares at the free nodes."""
        value, rate = self.maps
        w = self.weights[:, None]
        out = value.T @ (w * at.by_p()) + rate.T @ (w * at.psi)
        if self.has_free_end:
            out[-1] += self.action.first_variation(nodes[-1])
        return np.asarray(out[self.free])

    def bent(self, nodes: Array, at: Moments, change: Array) -> Array:
        """The change of `force` with the shares at the free nodes."""
        value, rate = self.maps
        full = np.zeros_like(nodes)
        full[self.free] = change
        by_p, chi = at.curvature(value @ full, rate @ full)
        w = self.weights[:, None]
        out = value.T @ (w * by_p) + rate.T @ (w * chi)
        if self.has_free_end:
            out[-1] += self.action.energy.beta * full[-1] / nodes[-1]
        return np.asarray(out[self.free])

    def _sums(self, x: Array) -> Array:
        """Sums over the states whose mass is kept together, one entry per state."""
        out = np.repeat(x.sum(axis=1, keepdims=True), x.shape[1], axis=1)
        if isinstance(self.goal, Share):
            for group in (self.goal.members, ~self.goal.members):
                out[-1, group] = x[-1, group].sum()
        return out

    def centred(self, p: Array, x: Array) -> Array:
        """`x - <x>`, with the mean under `p` over the states whose mass is kept together."""
        return np.asarray(x - self._sums(p * x) / self._sums(p))

    def gradient(self, nodes: Array, at: Moments) -> Array:
        """Derivative in the logarithms of the shares at the free nodes."""
        p = nodes[self.free]
        return p * self.centred(p, self.force(nodes, at))

    def product(self, nodes: Array, at: Moments, change: Array) -> Array:
        """The Hessian times a change of the logarithms."""
        p, force = nodes[self.free], self.force(nodes, at)
        dp = p * self.centred(p, change)
        lag = self._sums(dp * force) / self._sums(p)
        bent = self.centred(p, self.bent(nodes, at, dp)) - lag
        return np.asarray(dp * self.centred(p, force) + p * bent)

    def preconditioner(self, nodes: Array, at: Moments) -> Callable[[Array], Array]:
        """An approximate inverse of `product`: that of the averaged path, at rest."""
        action, w = self.action, self.weights[:, None]
        average = self.weights / self.weights.sum()
        source, target, _ = action.kernel.edges
        rates, vectors = np.linalg.eigh(
            symmetrised(source, target, average @ at.weights, average @ at.p)
        )
        # The first mode is the population itself, which no change that keeps mass contains.
        vectors = vectors[:, 1:]
        lam = np.maximum(rates[1:], 1e-12 * rates[-1])[:, None, None]
        value, rate = (m[:, self.free] for m in self.maps)
        beta = action.energy.beta
        total = rate.T @ (w * rate) / lam + beta**2 * lam * (value.T @ (w * value))
        if self.has_free_end:
            total[:, -1, -1] += beta
        inverses = np.linalg.inv(total)
        p = nodes[self.free]
        root = np.sqrt(p)

        def apply(right: Array) -> Array:
            # The averaged path's changes, scaled to the shares at each time.
            y = ((right - p * self._sums(right) / self._sums(p)) / root) @ vectors
            out = np.einsum("ikl,li->ki", inverses, y) @ vectors.T / root
            return self.centred(p, out)

        return apply

    def longest(self, nodes: Array, change: Array) -> float:
        """The largest fraction of a change of the logarithms that a step may take."""
        moved = self.centred(nodes[self.free], change)
        return _LONGEST / max(float(np.abs(moved).max()), 1e-300)

    def moved(self, nodes: Array, change: Array) -> Array:
        """The nodes after a change of the logarithms, which keeps the masses."""
        out, p = nodes.copy(), nodes[self.free]
        raised = p * np.exp(change)
        out[self.free] = raised * self._sums(p) / self._sums(raised)
        return out


@dataclass(frozen=True, eq=False)
class Descent:
    """The nodes of the cheapest path found, how the search ended, and its cost."""

    nodes: Array
    status: Status
    decrement: float
    """Further fall of the cost that the quadratic model predicts."""
    products: int
    """Products with the Hessian."""


def cheapest_path(problem: PlanProblem, nodes: Array, tolerance: float) -> Descent:
    """Minimise from `nodes` until the model predicts a gain below `tolerance`."""
    value = problem.value(nodes)
    decrement, products = np.inf, 0
    for _ in range(MAX_NEWTON):
        at = problem.moments(nodes)
        gradient = problem.gradient(nodes, at)
        change, count = _direction(problem, nodes, at, gradient, tolerance)
        products += count
        slope = float(np.sum(gradient * change))
        decrement = -0.5 * slope
        if decrement <= tolerance:
            return Descent(nodes, Status.CONVERGED, max(decrement, 0.0), products)
        found = _step(problem, nodes, change, value, slope)
        if found is None:
            # Rounding errors of the cost, not of the path, end the search.
            exact = decrement <= 1e3 * tolerance
            status = Status.CONVERGED if exact else Status.STALLED
            return Descent(nodes, status, decrement, products)
        nodes, value = found
    return Descent(nodes, Status.MAX_ITERATIONS, decrement, products)


def _conjugate(
    problem: PlanProblem,
    nodes: Array,
    at: Moments,
    residual: Array,
    share: float,
    least: float = 0.0,
) -> Iterator[tuple[Array, float, float]]:
    """Conjugate directions, each with the size of the residual and the curvature along it.

    Ends when the size is below `least`, or below `share` of the first.
    """
    precondition = problem.preconditioner(nodes, at)
    direction = z = precondition(residual)
    size = first = float(np.sum(residual * z))
    while size > max(share * first, least):
        image = problem.product(nodes, at, direction)
        bend = float(np.sum(direction * image))
        yield direction, size, bend
        residual = residual - size / bend * image
        z = precondition(residual)
        fresh = float(np.sum(residual * z))
        direction, size = z + (fresh / size) * direction, fresh


def _direction(
    problem: PlanProblem, nodes: Array, at: Moments, gradient: Array, tolerance: float
) -> tuple[Array, int]:
    """Minus the inverse Hessian times the gradient, and the number of products.

    Where the curvature is negative (steep landscapes at little noise) the step so far is taken, and
    then that direction.
    """
    change, count = np.zeros_like(gradient), 0
    found = _conjugate(problem, nodes, at, -gradient, 1e-10, 0.1 * tolerance)
    for direction, size, bend in islice(found, MAX_CG):
        count += 1
        if bend <= 0:
            # As far as a step may go: the cost falls faster and faster that way.
            return change + problem.longest(nodes, direction) * direction, count
        change = change + size / bend * direction
    return change, count


def least_curvature(problem: PlanProblem, nodes: Array, steps: int = 40) -> float:
    """Smallest curvature of the cost about a path, one being that of a population at rest.

    The smallest Ritz value of Lanczos' method on the preconditioned Hessian from a random start:
    positive at a strict local optimum.
    """
    p = nodes[problem.free]
    noise = np.random.default_rng(0).normal(size=p.shape)
    diagonal: list[float] = []
    beside: list[float] = []
    before, last = 1.0, 0.0
    start = p * problem.centred(p, noise)
    found = _conjugate(problem, nodes, problem.moments(nodes), start, 1e-12)
    for _, size, bend in islice(found, steps):
        own = bend / size
        if own <= 0:
            return own
        if diagonal:
            beside.append(np.sqrt(size / before) * last)
        diagonal.append(own + size / before * last)
        before, last = size, own
    return float(eigh_tridiagonal(diagonal, beside, eigvals_only=True)[0])


def _step(
    problem: PlanProblem, nodes: Array, change: Array, value: float, slope: float
) -> tuple[Array, float] | None:
    """Nodes and cost after the first of halved steps that lowers it enough, if one does."""
    length = min(1.0, problem.longest(nodes, change))
    for _ in range(40):
        moved = problem.moved(nodes, length * change)
        reached = problem.value(moved)
        if reached <= value + 1e-4 * length * slope:
            return moved, reached
        length *= 0.5
    return None
