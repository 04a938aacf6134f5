"""The flow as a function of `(u0, V, beta)`: log densities at the snapshot times, and products.

Chains of implicit Euler steps of two lengths, `h` and `h/2`, are combined at the snapshot times:

    log rho = u_fine + s tanh((u_fine - u_coarse) / s)

which is Richardson's extrapolation (second order) wherever the two agree to better than `s = 1`,
and stays bounded where they do not, as when a state empties within one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from thalweg._types import Array
from thalweg.kernel import MarkovKernel
from thalweg.learn.fields import chains

_SPREAD = 1.0
"""`s` of the extrapolation: difference of the two chains beyond which it is bounded."""


@dataclass(frozen=True, eq=False)
class FlowMap:
    """The parts of the flow that stay fixed during a fit."""

    kernel: MarkovKernel
    times: Array
    substeps: int = 1
    """Steps of the coarse chain in each interval."""
    newton_tolerance: float = 1e-7
    product_tolerance: float = 1e-8

    @cached_property
    def graph(self) -> chains.Graph:
        """The kernel as the compiled chains take it."""
        indptr, neighbor, edge = self.kernel.adjacency
        rows = np.repeat(np.arange(self.kernel.n_states), np.diff(indptr))
        # Entries are sorted by (row, column): sorted by (column, row) they list the reverses.
        order = np.lexsort((rows, neighbor)).astype(np.int64)
        conductance = self.kernel.edges.conductance[edge]
        return chains.Graph(indptr, neighbor, order, conductance, self.kernel.stationary)

    def __call__(self, u0: Array, V: Array, beta: float) -> Run | None:
        """The run from `u0`, or `None` if Newton's method failed."""
        coarse = self._chain(self.substeps, u0, V, beta)
        fine = None if coarse is None else self._chain(2 * self.substeps, u0, V, beta)
        return None if coarse is None or fine is None else Run(self, coarse, fine)

    def _chain(self, substeps: int, u0: Array, V: Array, beta: float) -> chains.Chain | None:
        steps = np.repeat(np.diff(self.times) / substeps, substeps)
        keep = np.arange(1, self.times.size, dtype=np.int64) * substeps - 1
        sizes = (u0.size, u0.size, self.graph.neighbor.size, self.graph.neighbor.size // 2)
        chain = chains.Chain(u0, steps, keep, *(np.empty((steps.size, size)) for size in sizes))
        done = chains.forward_chain(self.graph, V, beta, chain, self.newton_tolerance)
        return chain if done else None


@dataclass(frozen=True, eq=False)
class Run:
    """A run of the flow: `log_density` at every snapshot time, with its derivative's products."""

    flow: FlowMap
    coarse: chains.Chain
    fine: chains.Chain

    @property
    def log_density(self) -> Array:
        """Shape (snapshots, states)."""
        fine, coarse = self.fine.u[self.fine.keep], self.coarse.u[self.coarse.keep]
        later = fine + _SPREAD * np.tanh((fine - coarse) / _SPREAD)
        return np.concatenate([self.fine.u0[None], later])

    def _slope(self) -> Array:
        """`d log rho / d u_fine - 1`, minus `d log rho / d u_coarse`."""
        fine, coarse = self.fine.u[self.fine.keep], self.coarse.u[self.coarse.keep]
        return np.asarray(1.0 / np.cosh(np.clip((fine - coarse) / _SPREAD, -50, 50)) ** 2)

    def tangent(
        self,
        du0: Array,
        dV: Array,
        dbeta: Array,
        *,
        tolerance: float | None = None,
        coarse: bool = False,
    ) -> Array:
        """Derivatives of `log_density`, shape (snapshots, states, directions).

        `du0` and `dV` have shape (states, directions), `dbeta` (directions,). `coarse`: derivatives
        of the coarse chain only, of first order in the time step, at a third of the cost.
        """
        tolerance = self.flow.product_tolerance if tolerance is None else tolerance
        n, width = du0.shape
        out = np.empty((self.flow.times.size, n, width))
        out[0] = du0
        parts = []
        for chain in (self.coarse,) if coarse else (self.coarse, self.fine):
            part = np.empty((chain.keep.size, n, width))
            chains.tangent_chain(self.flow.graph, chain, du0, dV, dbeta, tolerance, part)
            parts.append(part)
        out[1:] = parts[-1]
        if not coarse:
            out[1:] += self._slope()[:, :, None] * (parts[1] - parts[0])
        return out

    def adjoint(
        self, weights: Array, *, tolerance: float | None = None, coarse: bool = False
    ) -> tuple[Array, Array, Array]:
        """Derivatives in `(u0, V, beta)` of `sum weights * log_density`, one set per direction."""
        tolerance = self.flow.product_tolerance if tolerance is None else tolerance
        _, n, width = weights.shape
        g0, gV, gbeta = weights[0].copy(), np.zeros((n, width)), np.zeros(width)
        parts = [(self.coarse, weights[1:])]
        if not coarse:
            slope = self._slope()[:, :, None]
            parts = [(self.coarse, -slope * weights[1:]), (self.fine, (1.0 + slope) * weights[1:])]
        for chain, part in parts:
            chains.adjoint_chain(self.flow.graph, chain, part, tolerance, g0, gV, gbeta)
        return g0, gV, gbeta
