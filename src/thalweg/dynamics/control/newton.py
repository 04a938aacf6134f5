"""The cheapest path on a given mesh: Newton's method with conjugate gradients.

Unknown are the probabilities at the nodes of a `Curve`. Every iterate is an admissible path, so its
cost bounds the optimum from above. The Hessian is applied through one Laplacian solve per time; the
preconditioner treats the time-averaged path as if the population rested there: in the modes of the
averaged generator each mode is its own small system in time,

    S / lambda + beta^2 lambda W (+ beta at a free end),

with `S` and `W` the time integrals of products of rates and of values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.linalg import eigh_tridiagonal

from thalweg._types import Array, Mask
from thalweg.dynamics.control.action import Action, Moments
from thalweg.dynamics.control.curve import DEGREE, Curve
from thalweg.edges.static import symmetrised
from thalweg.status import Status

MAX_NEWTON, MAX_NEWTON_STEEP = 60, 100
"""Most steps on one mesh, and if the cost is not convex: leaving a saddle takes many short ones."""
MAX_CG = 300
"""Largest number of conjugate-gradient iterations per step."""
POINTS = DEGREE + 2
"""Quadrature points per piece."""
_BACK = 0.9
"""Share of the way to the boundary that a step may take."""


@dataclass(frozen=True, eq=False)
class PlanProblem:
    """Find the cheapest plan from `start` over the nodes of `curve` to `end`, or to a free end.

    With a free end only the mass of `members` there is fixed.
    """

    action: Action
    curve: Curve
    start: Array
    end: Array | None = None
    members: Mask | None = None
    maps: tuple[Array, Array] = field(init=False)
    weights: Array = field(init=False)

    def __post_init__(self) -> None:
        times, weights = self.curve.quadrature(POINTS)
        object.__setattr__(self, "maps", self.curve.maps(times))
        object.__setattr__(self, "weights", weights)

    @property
    def free(self) -> slice:
        """The nodes that are not given."""
        return slice(1, -1 if self.end is not None else None)

    def moments(self, nodes: Array) -> Moments:
        value, rate = self.maps
        return Moments(self.action, value @ nodes, rate @ nodes)

    def value(self, nodes: Array) -> float:
        """The cost, up to the free energy of the fixed ends; infinite outside the simplex."""
        if not min((self.maps[0] @ nodes).min(), nodes.min()) > 0:
            return float("inf")
        out = float(self.weights @ self.moments(nodes).lagrangian())
        return out + (self.action.free_energy(nodes[-1]) if self.end is None else 0.0)

    def force(self, nodes: Array, at: Moments) -> Array:
        """Derivative in the shares at the free nodes."""
        value, rate = self.maps
        w = self.weights[:, None]
        out = value.T @ (w * at.by_p()) + rate.T @ (w * at.psi)
        if self.end is None:
            out[-1] += self.action.first_variation(nodes[-1])
        return np.asarray(out[self.free])

    def gradient(self, nodes: Array, at: Moments) -> Array:
        return self.along(self.force(nodes, at))

    def along(self, force: Array) -> Array:
        """The part of a gradient along changes that keep the masses."""
        out = force - force.mean(axis=1, keepdims=True)
        if self.members is not None:
            normal = self.members - self.members.mean()
            out[-1] -= normal * (float(out[-1] @ normal) / float(normal @ normal))
        return np.asarray(out)

    def bent(self, nodes: Array, at: Moments, change: Array) -> Array:
        """The change of `force` with the shares at the free nodes."""
        value, rate = self.maps
        full = np.zeros_like(nodes)
        full[self.free] = change
        by_p, chi = at.curvature(value @ full, rate @ full)
        w = self.weights[:, None]
        out = value.T @ (w * by_p) + rate.T @ (w * chi)
        if self.end is None:
            out[-1] += self.action.energy.beta * full[-1] / nodes[-1]
        return np.asarray(out[self.free])

    def product(self, nodes: Array, at: Moments, change: Array) -> Array:
        """The Hessian times a change of the free nodes."""
        return self.along(self.bent(nodes, at, change))

    def averaged(self, at: Moments) -> Preconditioner:
        """The inverse Hessian of the averaged path."""
        w = self.weights / self.weights.sum()
        return Preconditioner(self, w @ at.p, w @ at.weights)

    def preconditioner(self, nodes: Array, at: Moments) -> Callable[[Array], Array]:
        """An approximate inverse of `product`."""
        return self.averaged(at)

    def longest(self, nodes: Array, change: Array) -> float:
        """The largest fraction of a change that stays well inside the simplex."""
        full = np.zeros_like(nodes)
        full[self.free] = change
        here, there = self.maps[0] @ nodes, self.maps[0] @ full
        falls = np.concatenate([(-there / here).ravel(), (-full / nodes).ravel()])
        return _BACK / max(float(falls.max()), 1e-300)

    def moved(self, nodes: Array, change: Array) -> Array:
        """The nodes after a change, which keeps the masses to the last digit."""
        out = nodes.copy()
        out[self.free] += self.along(change)
        return out


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """The inverse Hessian of a path that rests at `p` with the Laplacian of `weights`."""

    problem: PlanProblem
    p: Array
    weights: Array

    @cached_property
    def _modes(self) -> tuple[Array, Array]:
        source, target, _ = self.problem.action.kernel.edges
        rates, vectors = np.linalg.eigh(symmetrised(source, target, self.weights, self.p))
        # The first mode is the population itself, which no change that keeps mass contains.
        return np.maximum(rates[1:], 1e-12 * rates[-1]), vectors[:, 1:]

    @cached_property
    def _inverses(self) -> Array:
        problem = self.problem
        value, rate = (m[:, problem.free] for m in problem.maps)
        w = problem.weights[:, None]
        beta = problem.action.energy.beta
        lam = self._modes[0][:, None, None]
        stiff, mass = rate.T @ (w * rate), value.T @ (w * value)
        total = stiff / lam + beta**2 * lam * mass
        if problem.end is None:
            total[:, -1, -1] += beta
        return np.asarray(np.linalg.inv(total))

    def modal(self, right: Array) -> Array:
        root, vectors = np.sqrt(self.p), self._modes[1]
        y = (right * root) @ vectors
        y = np.einsum("ikl,li->ki", self._inverses, y)
        return np.asarray((y @ vectors.T) * root)

    @cached_property
    def _bound(self) -> tuple[Array, float] | None:
        """The change that a unit of the end's constraint causes, and its effect there."""
        members = self.problem.members
        if members is None:
            return None
        pull = np.zeros((self.problem.maps[0][:, self.problem.free].shape[1], members.size))
        pull[-1] = members
        answer = self.modal(pull)
        return answer, float(answer[-1] @ members)

    def __call__(self, right: Array) -> Array:
        """A change that keeps all masses, and that of the members at the end."""
        out = self.modal(right)
        if self._bound is not None:
            answer, effect = self._bound
            out = out - answer * (float(out[-1] @ self.problem.members) / effect)
        return out


@dataclass(frozen=True, eq=False)
class Descent:
    """The nodes of the cheapest path found, how the search ended, and its cost."""

    nodes: Array
    status: Status
    decrement: float
    """Further fall of the cost that the quadratic model predicts."""
    steps: int
    products: int


def cheapest_path(problem: PlanProblem, nodes: Array, tolerance: float) -> Descent:
    """Minimise from `nodes` until the model predicts a gain below `tolerance`."""
    value = problem.value(nodes)
    decrement, products = np.inf, 0
    most = MAX_NEWTON if problem.action.is_convex else MAX_NEWTON_STEEP
    for step in range(most):
        at = problem.moments(nodes)
        gradient = problem.gradient(nodes, at)
        change, count = _direction(problem, nodes, at, gradient, tolerance)
        products += count
        slope = float(np.sum(gradient * change))
        decrement = -0.5 * slope
        if decrement <= tolerance:
            return Descent(nodes, Status.CONVERGED, max(decrement, 0.0), step, products)
        length, moved, reached = _step(problem, nodes, change, value, slope)
        if length == 0.0:
            # Rounding errors of the cost, not of the path, end the search.
            exact = decrement <= 1e3 * tolerance
            status = Status.CONVERGED if exact else Status.STALLED
            return Descent(nodes, status, decrement, step, products)
        nodes, value = moved, reached
    return Descent(nodes, Status.MAX_ITERATIONS, decrement, most, products)


def _direction(
    problem: PlanProblem, nodes: Array, at: Moments, gradient: Array, tolerance: float
) -> tuple[Array, int]:
    """Minus the inverse Hessian times the gradient, by conjugate gradients.

    Where the curvature is negative (steep landscapes at little noise) the step so far is taken, and
    then that direction.
    """
    precondition = problem.preconditioner(nodes, at)
    change, residual = np.zeros_like(gradient), -gradient
    z = precondition(residual)
    direction, size = z, float(np.sum(residual * z))
    first = size
    for k in range(MAX_CG):
        if size <= max(1e-10 * first, 0.1 * tolerance):
            return change, k
        image = problem.product(nodes, at, direction)
        bend = float(np.sum(direction * image))
        if bend <= 0:
            # As far as a step may go: the cost falls faster and faster that way.
            return change + problem.longest(nodes, direction) * direction, k + 1
        alpha = size / bend
        change = change + alpha * direction
        residual = residual - alpha * image
        z = precondition(residual)
        fresh = float(np.sum(residual * z))
        direction, size = z + (fresh / size) * direction, fresh
    return change, MAX_CG


def least_curvature(problem: PlanProblem, nodes: Array, steps: int = 40) -> float:
    """Smallest curvature of the cost about a path, one being that of a population at rest.

    The smallest Ritz value of Lanczos' method on the preconditioned Hessian from a random start:
    positive at a strict local optimum.
    """
    at = problem.moments(nodes)
    precondition = problem.preconditioner(nodes, at)
    noise = np.random.default_rng(0).normal(size=nodes[problem.free].shape)
    residual = problem.along(noise)
    z = precondition(residual)
    direction, size = z, float(np.sum(residual * z))
    diagonal, beside, first, carried = [], [], size, 0.0
    for _ in range(steps):
        image = problem.product(nodes, at, direction)
        bend = float(np.sum(direction * image))
        if bend <= 0:
            return bend / float(np.sum(direction * residual))
        alpha = size / bend
        diagonal.append(1.0 / alpha + carried)
        residual = residual - alpha * image
        z = precondition(residual)
        fresh = float(np.sum(residual * z))
        if not fresh > 1e-12 * first:
            break
        carried = fresh / size / alpha
        beside.append(np.sqrt(fresh / size) / alpha)
        direction, size = z + (fresh / size) * direction, fresh
    ritz = eigh_tridiagonal(diagonal, beside[: len(diagonal) - 1], eigvals_only=True)
    return float(ritz[0])


def _step(
    problem: PlanProblem, nodes: Array, change: Array, value: float, slope: float
) -> tuple[float, Array, float]:
    """The first of halved steps that lowers the cost enough; length 0 if none does."""
    length = min(1.0, problem.longest(nodes, change))
    for _ in range(40):
        moved = problem.moved(nodes, length * change)
        reached = problem.value(moved)
        if reached <= value + 1e-4 * length * slope:
            return length, moved, reached
        length *= 0.5
    return 0.0, nodes, value


_LONGEST = 1.0
"""Largest change of a logarithm in one step."""


@dataclass(frozen=True, eq=False)
class SteepPlanProblem(PlanProblem):
    """Changes of the nodes are changes of the logarithms of their shares: for steep landscapes.

    With `dp = p (dw - <dw>)` and `<.>` the mean under `p` (at a free end, over the states whose
    mass is raised and over the others by themselves), steps multiply shares: none reaches zero, and
    one that has come near it leaves again in a few steps. It finds the same plans on landscapes
    that are not steep, with two to three times the products.
    """

    def _sums(self, x: Array) -> Array:
        """Sums over the states whose mass is kept together, one entry per state."""
        out = np.repeat(x.sum(axis=1, keepdims=True), x.shape[1], axis=1)
        if self.members is not None:
            for group in (self.members, ~self.members):
                out[-1, group] = x[-1, group].sum()
        return out

    def _means(self, p: Array, x: Array) -> Array:
        return np.asarray(self._sums(p * x) / self._sums(p))

    def gradient(self, nodes: Array, at: Moments) -> Array:
        p, force = nodes[self.free], self.force(nodes, at)
        return np.asarray(p * (force - self._means(p, force)))

    def product(self, nodes: Array, at: Moments, change: Array) -> Array:
        p, force = nodes[self.free], self.force(nodes, at)
        dp = p * (change - self._means(p, change))
        bent = self.bent(nodes, at, dp)
        lag = self._means(p, bent) + self._sums(dp * force) / self._sums(p)
        return np.asarray(dp * (force - self._means(p, force)) + p * (bent - lag))

    def preconditioner(self, nodes: Array, at: Moments) -> Callable[[Array], Array]:
        inner, p = self.averaged(at), nodes[self.free]
        root = np.sqrt(inner.p / p)

        def apply(right: Array) -> Array:
            # The averaged path's changes, scaled to the shares at each time.
            out = inner.modal((right - p * self._sums(right) / self._sums(p)) * root / inner.p)
            out = out * root / inner.p
            return np.asarray(out - self._means(p, out))

        return apply

    def longest(self, nodes: Array, change: Array) -> float:
        p = nodes[self.free]
        return _LONGEST / max(float(np.abs(change - self._means(p, change)).max()), 1e-300)

    def moved(self, nodes: Array, change: Array) -> Array:
        out, p = nodes.copy(), nodes[self.free]
        raised = p * np.exp(change)
        out[self.free] = raised * self._sums(p) / self._sums(raised)
        return out
