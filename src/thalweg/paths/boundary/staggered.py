"""A path with densities at nodes in time and fluxes between them.

On interval `k`, of width `h_k`, the flux is constant and the mobility is taken at the mean of the
densities at its ends. Half the action plus a barrier on the inner nodes is minimised subject to
`pi (R_k - R_{k-1}) = h_k div F_k`; it is convex for a concave mean. The densities are unknowns of
their own, so one of 1e-20 is as exact as one of 1: nothing is a difference of large numbers.

The unknowns of Newton's system (`SpaceTime`) are the change `x` of the density at the nodes that
may move (all but the first, and but the last unless the end is free), and the new potential `psi`
on the intervals. With `v = (x_{k-1} + x_k) / 2` on interval `k`,

    pi (x_k - x_{k-1}) - h (A v + M psi_k) = right_psi,
    pi (psi_k - psi_{k+1}) - (h/2) (A^T psi + K v)_k - (h/2) (A^T psi + K v)_{k+1} + d x_k = right_x

is symmetric and quasi-definite: positive in `x` (a concave mean makes `-K` so, and the barrier
gives `d > 0`), negative in `psi`. `incomplete` solves it. By primal-dual steps (`centre`) the curve
becomes a geodesic as the barrier falls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline

from thalweg._compile import njit
from thalweg._types import Array
from thalweg.edges import kinetic
from thalweg.edges.static import Graph
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import balanced
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.problem import Path, PathProblem
from thalweg.status import Status

_LEAN = 0.3
"""The share of the stationary distribution in the middle of the first curve."""
_CRUDE = 2.0
"""Reject a start whose action exceeds the coarse curve's by this factor."""
_TO_BOUNDARY = 0.99
"""Share of the way to the boundary that a step may take."""
_GROWTH = 1.0
"""Relative growth of a density beyond which a step to a free end is not near the central path."""
_STILL = 1e-4
"""Relative change of densities below which the decrement is lost in rounding."""
_CENTRAL = 1e4
"""Multipliers stay within this factor of `mu / rho`."""


@dataclass(frozen=True, eq=False)
class SpaceTime:
    """Newton's system at one iterate; `x` has a row less than `psi` if the end is fixed."""

    graph: Graph
    widths: Array
    table: Array
    """Per interval and edge: `c m, c g m_s, c g m_t, c g^2 m''/2` (three)."""
    damping: Array
    """`d`, at the nodes that move."""
    scale: tuple[Array, Array]
    """Units of `x` and of `psi` in which the entries are of order one."""
    coupling: Callable[[Array], Array] | None = None
    """The part that a free end adds to the last row of `x`."""

    def product(self, x: Array, psi: Array) -> tuple[Array, Array]:
        """The matrix times `(x, psi)`."""
        top, bottom = _product(self.graph, self.widths, self.table, self.damping, x, psi)
        if self.coupling is not None:
            top[-1] += self.coupling(x[-1])
        return top, bottom


@njit(cache=True, error_model="numpy")
def _product(
    graph: Graph, h: Array, table: Array, damping: Array, x: Array, psi: Array
) -> tuple[Array, Array]:
    source, target, _, pi, _ = graph
    count, n = psi.shape
    moving = x.shape[0]
    top, bottom = damping * x, np.zeros((count, n))
    v, force = np.zeros(n), np.zeros(n)
    for k in range(count):
        for i in range(n):
            after = x[k, i] if k < moving else 0.0
            before = x[k - 1, i] if k > 0 else 0.0
            v[i] = 0.5 * (before + after)
            force[i] = 0.0
            bottom[k, i] = pi[i] * (after - before)
        for e in range(source.size):
            p, q = source[e], target[e]
            difference = psi[k, p] - psi[k, q]
            a, b = table[k, e, 1], table[k, e, 2]
            flux = h[k] * (table[k, e, 0] * difference + a * v[p] + b * v[q])
            bottom[k, p] -= flux
            bottom[k, q] += flux
            cross = table[k, e, 4]
            force[p] += a * difference + table[k, e, 3] * v[p] + cross * v[q]
            force[q] += b * difference + cross * v[p] + table[k, e, 5] * v[q]
        for i in range(n):
            half = 0.5 * h[k] * force[i]
            if k < moving:
                top[k, i] += pi[i] * psi[k, i] - half
            if k > 0:
                top[k - 1, i] -= pi[i] * psi[k, i] + half
    return top, bottom


Solve = Callable[[SpaceTime, Array, Array, Array], tuple[Array, Array, int]]
"""The solution of a system for two right-hand sides, from a first guess of `psi`; its cost."""


class Curve(NamedTuple):
    """Densities at all nodes, ends included; fluxes and potentials on the intervals."""

    rho: Array
    flux: Array
    psi: Array

    @property
    def middle(self) -> Array:
        return 0.5 * (self.rho[:-1] + self.rho[1:])


@dataclass(frozen=True, eq=False)
class Staggered:
    """Minimise `sum_k h_k sum_e F_ke^2 / (2 c m_ke)` over the curves of a problem.

    The mesh has one stage per piece. With a free end its cost is added.
    """

    path: PathProblem

    def on(self, mesh: TimeMesh) -> Staggered:
        return Staggered(self.path.on(mesh))

    @property
    def kernel(self) -> MarkovKernel:
        return self.path.kernel

    @property
    def widths(self) -> Array:
        return self.path.mesh.widths

    @property
    def spans(self) -> Array:
        """The time that each node that moves stands for."""
        after = self.widths[1:] if self.path.end is None else np.append(self.widths[1:], 0.0)
        return np.asarray(0.5 * (self.widths[: after.size] + after))

    def moving(self, nodes: Array) -> Array:
        """The rows of the nodes that may move: the inner ones, and a free end."""
        return nodes[1:-1] if self.path.end is None else nodes[1:]

    def at_nodes(self, intervals: Array) -> Array:
        """The sum of the values on the intervals before and after each moving node."""
        total = intervals.copy()
        total[:-1] += intervals[1:]
        return total[: self.spans.size]

    def start(self) -> Curve:
        """A curve that leaves and arrives slowly and leans towards the stationary distribution."""
        pi = self.kernel.stationary
        t = np.concatenate([[0.0], np.cumsum(self.widths)])[:, None]
        share, lean = np.sin(0.5 * np.pi * t) ** 2, _LEAN * np.sin(np.pi * t) ** 2
        rho = (1 - lean) * ((1 - share) * self.path.p0 + share * self.path.p1) / pi + lean
        return self.through(rho)

    def halved(self, curve: Curve) -> Curve:
        """A curve through the nodes of a coarser one and new ones between them.

        The new nodes come from splines of the square root, kept near the straight line, or from
        the line itself if the splines would push mass through empty states.
        """
        count = len(curve.flux)
        first, second = self.widths[::2], self.widths[1::2]
        coarse = self.on(TimeMesh(first + second, np.ones(count, dtype=np.int64))).action(curve)
        line = 0.5 * (curve.rho[:-1] + curve.rho[1:])
        root = CubicSpline(np.arange(count + 1.0), np.sqrt(curve.rho), axis=0)
        new = np.clip(root(np.arange(count) + 0.5) ** 2, 0.1 * line, 2.0 * line)
        rho = np.empty((2 * count + 1, line.shape[1]))
        rho[::2] = curve.rho
        rho[1::2] = new / (new @ self.kernel.stationary)[:, None]
        smooth = self.through(rho)
        if self.action(smooth) < _CRUDE * coarse:
            return smooth
        share = (first / (first + second))[:, None]
        rho[1::2] = (1 - share) * curve.rho[:-1] + share * curve.rho[1:]
        return self.through(rho)

    def through(self, rho: Array) -> Curve:
        """The curve of least action through these densities."""
        pi = self.kernel.stationary
        source, target, _ = self.kernel.edges
        rho[0] = self.path.p0 / pi
        if self.path.end is None:
            rho[-1] = self.path.p1 / pi
        flux, psi = np.empty((self.widths.size, source.size)), np.empty((self.widths.size, pi.size))
        for k, h in enumerate(self.widths):
            w = self.weights(0.5 * (rho[k] + rho[k + 1]))
            gain = balanced(pi * (rho[k + 1] - rho[k]) / h)
            psi[k] = self.path.solver.factor(w).solve(gain, tolerance=1e-8).x
            flux[k] = w * (psi[k][source] - psi[k][target])
        return Curve(rho, flux, psi)

    def as_path(
        self,
        curve: Curve,
        length: float,
        error: float,
        status: Status,
        steps: int = 0,
        products: int = 0,
    ) -> Path:
        """The curve as a path whose length is a bound, with fluxes that keep mass to rounding."""
        # Newton's steps were inexact.
        exact = self.through(curve.rho.copy())
        ended = length, length, error, status, steps, products
        return Path(self.path, exact.flux, exact.middle, exact.psi, *ended)

    def weights(self, rho: Array) -> Array:
        """`c m(rho)` of every edge, at one time."""
        return np.asarray(self.path.weights(rho[None])[0])

    def action(self, curve: Curve) -> float:
        return float(self.widths @ self.path.actions(curve.middle, curve.flux))

    def value(self, curve: Curve, mu: float) -> float:
        """Half the action minus `mu` times the mean logarithm of the densities that move."""
        inner = self.moving(curve.rho)
        if not inner.min() > 0:
            return np.inf
        barrier = mu * float(self.spans @ (np.log(inner) @ self.kernel.stationary))
        own = 0.0 if self.path.end is None else self.path.end.value(curve.rho[-1])
        return 0.5 * self.action(curve) + own - barrier

    def defect(self, curve: Curve) -> Array:
        """The mass that the fluxes bring and the densities lack, per interval and state."""
        gain, pi = self.path.gains(curve.flux), self.kernel.stationary
        return np.asarray(self.widths[:, None] * gain - pi * np.diff(curve.rho, axis=0))

    def force(self, curve: Curve) -> Array:
        """The fall of each state's potential in time, times `pi`, on the intervals."""
        return self.path.forces(curve.middle, curve.flux)

    def linearise(self, curve: Curve, mu: float, z: Array) -> tuple[SpaceTime, Array, Array, Array]:
        """Newton's system, its two right-hand sides, and minus the slope in the densities."""
        pi, h = self.kernel.stationary, self.widths[:, None]
        middle, inner = curve.middle, self.moving(curve.rho)
        speed = curve.flux / self.path.weights(middle)
        table, force = kinetic.linearise_stages(self.path.graph, middle, speed)
        spans = self.spans[:, None]
        # Potentials are of the size of the action, changes of the density of the density's.
        length = np.sqrt(self.widths @ (curve.flux**2 / table[:, :, 0]).sum(axis=1))
        scale = (np.sqrt(inner / pi) / length, length / np.sqrt(middle * pi))
        damping = spans * pi * z / inner
        push, pull = spans * pi * mu / inner, self.at_nodes(0.5 * h * force)
        coupling = None
        if self.path.end is not None:
            slope, curvature = self.path.end.slopes(curve.rho[-1])
            damping[-1] += curvature
            push[-1] -= slope
            coupling = self.path.end.coupling
        system = SpaceTime(self.path.graph, self.widths, table, damping, scale, coupling)
        return system, push - pull, -pi * np.diff(curve.rho, axis=0), push + pull

    def fluxes(self, table: Array, x: Array, psi: Array) -> Array:
        """The new fluxes `c m grad psi + c g dm`."""
        source, target, _ = self.kernel.edges
        v = np.zeros_like(psi)
        v[: len(x)] = 0.5 * x
        v[1:] += 0.5 * x[: len(v) - 1]
        return np.asarray(
            table[:, :, 0] * self.path.differences(psi)
            + table[:, :, 1] * v[:, source]
            + table[:, :, 2] * v[:, target]
        )


class Centred(NamedTuple):
    """A curve near the minimum of the barrier function, and what it cost."""

    curve: Curve
    status: Status
    steps: int
    products: int


def centre(
    problem: Staggered,
    curve: Curve,
    solve: Solve,
    *,
    mu: float,
    mu_end: float,
    tolerance: float,
    max_steps: int,
) -> Centred:
    """The minimiser of the barrier function at `mu_end`, reached by reducing `mu` tenfold.

    `tolerance` is the decrement of half the action, Newton's estimate of its excess over the
    minimum, at which to stop.
    """
    pi, h, spans = problem.kernel.stationary, problem.widths, problem.spans
    value = problem.value(curve, mu)
    z = mu / problem.moving(curve.rho)
    step, products, stuck, status = 0, 0, 0, Status.MAX_ITERATIONS
    while step < max_steps:
        step += 1
        system, right_x, right_psi, downhill = problem.linearise(curve, mu, z)
        x, psi, cost = solve(system, right_x, right_psi, curve.psi)
        products += cost
        goal = problem.fluxes(system.table, x, psi)
        if not (np.isfinite(goal).all() and np.isfinite(x).all()):
            status = Status.NOT_FINITE
            break
        inner = problem.moving(curve.rho)
        move, ratio = goal - curve.flux, x / inner
        kinetic = h @ (curve.flux / system.table[:, :, 0] * move).sum(axis=1)
        decrement = abs(float(kinetic - (downhill * x).sum()))
        length = min(1.0, _TO_BOUNDARY / max(float(-ratio.min()), 1e-300))

        def moved(length: float) -> Curve:
            rho = curve.rho.copy()
            problem.moving(rho)[:] += length * x
            return Curve(rho, curve.flux + length * move, psi)

        # The potential prices the mass that an inexact step leaves unbalanced; with that price the
        # step goes downhill from any curve.
        price = float((psi * (problem.defect(curve) - problem.defect(moved(1.0)))).sum())
        # Next to the minimum the value's rounding hides what is left to gain.
        slack = 1e-12 * abs(value) + (0.5 * decrement if decrement < 0.01 * mu else 0.0)
        trial = moved(length)
        trial_value = problem.value(trial, mu)
        while not trial_value + length * price <= value + slack and length > 1e-6:
            length *= 0.5
            trial = moved(length)
            trial_value = problem.value(trial, mu)
        if not np.isfinite(trial_value):
            status = Status.STALLED
            break
        aim = mu / inner - z * ratio
        shrink = float(((z - aim) / z).max())
        z = z + min(1.0, _TO_BOUNDARY / max(shrink, 1e-300)) * (aim - z)
        curve, value = trial, trial_value
        central = mu / problem.moving(curve.rho)
        z = np.clip(z, central / _CENTRAL, central * _CENTRAL)
        size = float(np.sqrt(spans @ (ratio**2 @ pi)))
        settled = float(ratio.max()) < _GROWTH
        if mu <= mu_end:
            still = float(np.abs(ratio).max()) < _STILL
            if (decrement <= tolerance or still) and length > 0.5 and settled:
                status = Status.CONVERGED
                break
            stuck = stuck + 1 if length < 1e-4 else 0
            if stuck >= 3:
                status = Status.STALLED
                break
        elif length > 0.5 and settled and (size < 0.5 or decrement < mu):
            mu = max(0.1 * mu, mu_end)
            value = problem.value(curve, mu)
    return Centred(curve, status, step, products)
