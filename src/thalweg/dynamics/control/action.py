"""The cost of a path in closed form: value, derivatives and curvature.

A path `p(t)` is followed by the flow of `V + u` where `psi + f + u` is constant, with
`M(rho) psi = p_dot` and `f = V + beta log rho`. Its cost is a square,

    1/2 |grad u|^2_rho = 1/2 |psi + f|^2_rho = 1/2 |psi|^2_rho + 1/2 |f|^2_rho + d/dt F(p),

so between fixed ends one minimises the action of a geodesic with the Fisher information
`I = |f|^2_rho` as a potential energy, and with a free end also `F` there. For the logarithmic mean
`I = sum_e c (dV^2 m + 2 beta dV drho + beta^2 drho dlog rho)`: convex where no edge drops by more
than `sqrt(12) beta`, because the curvature of `m` is at most 1/12 of that of `drho dlog rho`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.laplacian.solver import Factor
from thalweg.mobility import Mobility
from thalweg.status import Status

CONVEX_DROP = float(np.sqrt(12.0))
"""Largest drop of the potential along an edge, in units of `beta`, for a convex problem."""

DENSE_STATES = 200
"""Number of states up to which the Laplacians of all times are inverted together."""

TOLERANCE = 1e-11
"""Energy error of a solve on larger graphs."""


@dataclass(frozen=True, eq=False)
class Action:
    """The edges of the graph and the landscape, with the Laplacian's solver."""

    kernel: MarkovKernel
    energy: FreeEnergy
    mobility: Mobility

    @cached_property
    def _ends(self) -> list[sparse.csr_array]:
        """Maps from edges to their source and to their target."""
        e = np.arange(self.kernel.n_edges)
        shape = (self.kernel.n_states, e.size)
        return [
            sparse.csr_array((np.ones(e.size), (end, e)), shape=shape)
            for end in self.kernel.edges[:2]
        ]

    @cached_property
    def solver(self) -> LaplacianSolver:
        return LaplacianSolver.for_kernel(self.kernel)

    @cached_property
    def drop(self) -> Array:
        """`V` at the source less `V` at the target of each edge."""
        return self.differences(self.energy.potential)

    @property
    def is_convex(self) -> bool:
        return bool(np.abs(self.drop).max(initial=0.0) <= CONVEX_DROP * self.energy.beta)

    def differences(self, values: Array) -> Array:
        """Along every edge, for one or several functions of the state."""
        source, target, _ = self.kernel.edges
        return np.asarray(values[..., source] - values[..., target])

    def gathered(self, at_source: Array, at_target: Array) -> Array:
        """Sums at each state over its edges of values at their two ends, for each row."""
        return np.asarray((self._ends[0] @ at_source.T + self._ends[1] @ at_target.T).T)

    def by_p(self, by_source: Array, by_target: Array) -> Array:
        """Derivatives in `p` from derivatives in the densities at the two ends of each edge."""
        return self.gathered(by_source, by_target) / self.kernel.stationary

    def first_variation(self, p: Array) -> Array:
        """`V + beta log rho`."""
        logs = np.log(p / self.kernel.stationary)
        return np.asarray(self.energy.potential + self.energy.beta * logs)

    def free_energy(self, p: Array) -> float:
        return float(p @ self.first_variation(p))


@dataclass(frozen=True, eq=False)
class Moments:
    """A path at several times: `p` and `rate = p_dot`, one row each."""

    action: Action
    p: Array
    rate: Array

    @cached_property
    def rho(self) -> tuple[Array, Array]:
        """Densities at source and target of every edge."""
        source, target, _ = self.action.kernel.edges
        rho = self.p / self.action.kernel.stationary
        return rho[:, source], rho[:, target]

    @cached_property
    def weights(self) -> Array:
        return np.asarray(self.action.kernel.edges.conductance * self.action.mobility(*self.rho))

    @cached_property
    def partials(self) -> tuple[Array, Array]:
        c = self.action.kernel.edges.conductance
        first, second = self.action.mobility.partials(*self.rho)
        return c * first, c * second

    @cached_property
    def _inverse(self) -> Array:
        """Inverses of the Laplacians, of small graphs."""
        action, n = self.action, self.p.shape[1]
        source, target, _ = action.kernel.edges
        dense = np.zeros((len(self.p), n, n))
        dense[:, source, target] = dense[:, target, source] = -self.weights
        dense[:, np.arange(n), np.arange(n)] = action.gathered(self.weights, self.weights)
        return np.asarray(np.linalg.inv(dense + self.weights.mean(axis=1)[:, None, None]))

    @cached_property
    def _factors(self) -> list[Factor]:
        return [self.action.solver.factor(w) for w in self.weights]

    def solve(self, right: Array) -> tuple[Array, Status]:
        """`M(rho) x = right` at every time."""
        if right.shape[1] <= DENSE_STATES:
            x = np.matmul(self._inverse, right[:, :, None])[:, :, 0]
            return np.asarray(x), Status.CONVERGED
        out, status = np.empty_like(right), Status.CONVERGED
        for i, factor in enumerate(self._factors):
            b = right[i] - right[i].mean()
            solved = factor.solve(b, tolerance=TOLERANCE)
            if not solved.status and solved.energy_error > 1e3 * TOLERANCE:
                status = solved.status
            out[i] = solved.x
        return out, status

    @cached_property
    def psi(self) -> Array:
        """`M(rho) psi = p_dot`."""
        return self.solve(self.rate)[0]

    @cached_property
    def push(self) -> Array:
        """`psi + f`: minus the additional potential, up to a constant."""
        return self.psi + self.action.first_variation(self.p)

    def effort(self) -> Array:
        """`1/2 |grad u|^2` at each time."""
        return np.asarray(
            0.5 * np.sum(self.weights * self.action.differences(self.push) ** 2, axis=1)
        )

    def lagrangian(self) -> Array:
        """`1/2 |psi|^2 + 1/2 |f|^2` at each time."""
        steep = self.action.differences(self.psi) ** 2
        fall = self.action.differences(self.action.first_variation(self.p)) ** 2
        return np.asarray(0.5 * np.sum(self.weights * (steep + fall), axis=1))

    def by_p(self, psi: Array | None = None) -> Array:
        """Derivative of the Lagrangian in `p` at fixed rate: `-1/2 (psi^T M psi)' + 1/2 I'`."""
        action, beta = self.action, self.action.energy.beta
        steep = action.differences(self.psi if psi is None else psi)
        s, t = self.rho
        c = action.kernel.edges.conductance
        first, second = self.partials
        bend = 0.5 * (action.drop**2 - steep**2)
        log = np.log(s / t)
        # Of c (beta dV drho + beta^2/2 drho dlog rho).
        half = 0.5 * beta**2
        own = c * (beta * action.drop + half * (log + (s - t) / s))
        other = c * (-beta * action.drop - half * (log + (s - t) / t))
        return action.by_p(first * bend + own, second * bend + other)

    @cached_property
    def _curvature(self) -> tuple[Array, Array, Array]:
        """Second derivatives in the densities of each edge at fixed `psi`."""
        action = self.action
        s, t = self.rho
        c = action.kernel.edges.conductance
        bend = 0.5 * c * (action.drop**2 - action.differences(self.psi) ** 2)
        half = 0.5 * c * action.energy.beta**2
        ss, st, tt = action.mobility.seconds(s, t)
        return (
            bend * ss + half * (1 / s + t / s**2),
            bend * st - half * (1 / s + 1 / t),
            bend * tt + half * (1 / t + s / t**2),
        )

    def curvature(self, dp: Array, drate: Array) -> tuple[Array, Array]:
        """The Hessian of the Lagrangian times `(dp, drate)`, one row per time."""
        action = self.action
        source, target, _ = action.kernel.edges
        steep = action.differences(self.psi)
        first, second = self.partials
        drho = dp / action.kernel.stationary
        ds, dt = drho[:, source], drho[:, target]
        flux = (first * ds + second * dt) * steep
        right = drate - action.gathered(flux, -flux)
        chi = self.solve(right)[0]
        cross = steep * action.differences(chi)
        ss, st, tt = self._curvature
        by_p = action.by_p(ss * ds + st * dt - first * cross, st * ds + tt * dt - second * cross)
        return by_p, chi
