"""A path with densities at nodes in time and fluxes between them.

On interval `k`, of width `h_k`, the flux is constant and the mobility is taken at the mean of the
densities at its ends. Half the action plus a barrier on the inner nodes is minimised subject to
`pi (R_k - R_{k-1}) = h_k div F_k`; it is convex for a concave mean. The densities are unknowns of
their own, so one of 1e-20 is as exact as one of 1: nothing is a difference of large numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline

from thalweg._types import Array
from thalweg.edges import kinetic
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import balanced
from thalweg.paths.boundary.space_time import SpaceTime
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.problem import PathProblem

_LEAN = 0.3
"""The share of the stationary distribution in the middle of the first curve."""
_CRUDE = 2.0
"""Reject a start whose action exceeds the coarse curve's by this factor."""


class Curve(NamedTuple):
    """Densities at all nodes, ends included, and fluxes on the intervals."""

    rho: Array
    flux: Array

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

    def start(self) -> tuple[Curve, Array]:
        """A curve that leaves and arrives slowly and leans towards the stationary distribution."""
        pi = self.kernel.stationary
        t = np.concatenate([[0.0], np.cumsum(self.widths)])[:, None]
        share, lean = np.sin(0.5 * np.pi * t) ** 2, _LEAN * np.sin(np.pi * t) ** 2
        rho = (1 - lean) * ((1 - share) * self.path.p0 + share * self.path.p1) / pi + lean
        return self.through(rho)

    def halved(self, curve: Curve) -> tuple[Curve, Array]:
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
        if self.action(smooth[0]) < _CRUDE * coarse:
            return smooth
        share = (first / (first + second))[:, None]
        rho[1::2] = (1 - share) * curve.rho[:-1] + share * curve.rho[1:]
        return self.through(rho)

    def through(self, rho: Array) -> tuple[Curve, Array]:
        """The curve of least action through these densities, and its potentials."""
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
        return Curve(rho, flux), psi

    def weights(self, rho: Array) -> Array:
        """`c m(rho)` of every edge, at one time."""
        return np.asarray(kinetic.stage_weights(*self.kernel.edges, rho[None], self.path.spec)[0])

    def action(self, curve: Curve) -> float:
        return float(
            self.widths
            @ kinetic.flux_action(*self.kernel.edges, curve.middle, *curve[1:], self.path.spec)
        )

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
        source, target, _ = self.kernel.edges
        pi = self.kernel.stationary
        gain = kinetic.flux_gain(source, target, curve.flux, pi.size)
        return np.asarray(self.widths[:, None] * gain - pi * np.diff(curve.rho, axis=0))

    def force(self, curve: Curve) -> Array:
        """The fall of each state's potential in time, times `pi`, on the intervals."""
        return kinetic.flux_force(*self.kernel.edges, curve.middle, curve.flux, self.path.spec)

    def linearise(self, curve: Curve, mu: float, z: Array) -> tuple[SpaceTime, Array, Array, Array]:
        """Newton's system, its two right-hand sides, and minus the slope in the densities."""
        pi, h = self.kernel.stationary, self.widths[:, None]
        middle, inner = curve.middle, self.moving(curve.rho)
        table, force, _ = kinetic.linearise_fluxes(
            *self.kernel.edges, middle, curve.flux, self.path.spec
        )
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
        system = SpaceTime(self.kernel, self.widths, table, damping, scale, coupling)
        return system, push - pull, -pi * np.diff(curve.rho, axis=0), push + pull

    def fluxes(self, table: Array, x: Array, psi: Array) -> Array:
        """The new fluxes `c m grad psi + c g dm`."""
        source, target, _ = self.kernel.edges
        v = np.zeros_like(psi)
        v[: len(x)] = 0.5 * x
        v[1:] += 0.5 * x[: len(v) - 1]
        return np.asarray(
            table[:, :, 0] * (psi[:, source] - psi[:, target])
            + table[:, :, 1] * v[:, source]
            + table[:, :, 2] * v[:, target]
        )
