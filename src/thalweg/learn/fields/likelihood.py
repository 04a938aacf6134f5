"""The likelihood of snapshots as a function of the fields `(log rho0, V, log beta)`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from thalweg._types import Array
from thalweg.kernel import MarkovKernel
from thalweg.learn.fields.flow_map import FlowMap, Run
from thalweg.learn.likelihood.model import log_normalised


@dataclass(frozen=True, eq=False)
class Likelihood:
    """Counts, one row per snapshot, and the flow that explains them."""

    flow: FlowMap
    counts: Array

    @property
    def kernel(self) -> MarkovKernel:
        return self.flow.kernel

    @property
    def totals(self) -> Array:
        return np.asarray(self.counts.sum(axis=1))

    def finer(self, factor: int = 2) -> Likelihood:
        """The likelihood of a flow whose time steps are shorter by this factor."""
        return replace(self, flow=replace(self.flow, substeps=factor * self.flow.substeps))

    def at(self, u0: Array, V: Array, log_beta: float) -> Place | None:
        """The likelihood at these fields, or `None` if the flow cannot be computed."""
        if not (np.all(np.isfinite(u0)) and np.all(np.isfinite(V)) and -18.4 < log_beta < 18.4):
            return None
        top = u0.max()
        u0 = u0 - top - np.log(self.kernel.stationary @ np.exp(u0 - top))
        beta = float(np.exp(log_beta))
        run = self.flow(u0, V, beta)
        if run is None:
            return None
        log_p = log_normalised(run.log_density + np.log(self.kernel.stationary))
        if not np.all(np.isfinite(log_p)):
            return None
        return Place(self, u0, V, beta, run, log_p)


@dataclass(frozen=True, eq=False)
class Place:
    """The likelihood at one place: value, score and products with the information."""

    likelihood: Likelihood
    u0: Array
    """Normalised."""
    V: Array
    beta: float
    run: Run
    log_p: Array

    @property
    def log_likelihood(self) -> float:
        counts = self.likelihood.counts
        return float(np.sum(counts[counts > 0] * self.log_p[counts > 0]))

    def finer(self) -> Place | None:
        """The likelihood at the same fields with time steps of half the length."""
        return self.likelihood.finer().at(self.u0, self.V, float(np.log(self.beta)))

    def apart(self, other: Place) -> float:
        """Twice the log likelihood ratio against another flow, to second order."""
        weights = self.likelihood.totals[:, None] * np.exp(self.log_p)
        return float(np.sum(weights * (self.log_p - other.log_p) ** 2))

    def push(
        self, du0: Array, dV: Array, dtheta: Array, *, tolerance: float, coarse: bool = False
    ) -> Array:
        """Derivatives of the log densities along these fields, one direction per column."""
        du0 = du0 - (self.likelihood.kernel.stationary * np.exp(self.u0)) @ du0
        return self.run.tangent(du0, dV, self.beta * dtheta, tolerance=tolerance, coarse=coarse)

    def pull(
        self, weights: Array, tolerance: float | None = None, *, coarse: bool = False
    ) -> tuple[Array, Array, Array]:
        """The transpose of `push`: derivatives in the three fields of `sum weights * log p`."""
        g0, gV, gbeta = self.run.adjoint(weights, tolerance=tolerance, coarse=coarse)
        g0 = g0 - np.outer(self.likelihood.kernel.stationary * np.exp(self.u0), g0.sum(axis=0))
        return g0, gV, self.beta * gbeta

    def weigh(self, dl: Array) -> Array:
        """`n (diag p - p p^T) dl`."""
        p = np.exp(self.log_p)
        mean = np.einsum("kx,kxj->kj", p, dl)
        return np.asarray(
            (self.likelihood.totals[:, None] * p)[:, :, None] * (dl - mean[:, None, :])
        )

    @property
    def residual(self) -> Array:
        """Expected minus observed counts, with a last axis of one."""
        expected = self.likelihood.totals[:, None] * np.exp(self.log_p)
        return np.asarray((expected - self.likelihood.counts)[:, :, None])

    def noise(self, count: int, rng: np.random.Generator) -> Array:
        """Draws of the residual under the model, to leading order; `pull` gives scores."""
        p = np.exp(self.log_p)
        noise = rng.standard_normal((*p.shape, count)) * np.sqrt(p)[:, :, None]
        # sqrt(p) eps - p (sqrt(p) . eps) has covariance diag p - p p^T.
        noise -= p[:, :, None] * noise.sum(axis=1)[:, None]
        return np.asarray(np.sqrt(self.likelihood.totals)[:, None, None] * noise)

    # Stacked fields: z = (log rho0, V), and log beta apart.

    def score(self) -> tuple[Array, float]:
        """Gradient of the log likelihood in `z` and in log beta."""
        g0, gV, g = self.pull(-self.residual)
        return np.concatenate([g0[:, 0], gV[:, 0]]), float(g[0])

    def information(
        self, z: Array, theta: Array, *, tolerance: float = 1e-3, coarse: bool = False
    ) -> tuple[Array, Array]:
        """The Fisher information times `(z, theta)`, one direction per column.

        Products along the `coarse` chain cost a third.
        """
        n = self.u0.size
        du0, dV = np.ascontiguousarray(z[:n]), np.ascontiguousarray(z[n:])
        pushed = self.push(du0, dV, theta, tolerance=tolerance, coarse=coarse)
        g0, gV, g = self.pull(self.weigh(pushed), tolerance, coarse=coarse)
        return np.concatenate([g0, gV]), g
