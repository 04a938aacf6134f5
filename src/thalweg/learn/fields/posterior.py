"""The posterior of `(log rho0, V, log beta)` given counts, in white coefficients, matrix-free.

    minus log posterior = - sum_k C_k . log p_k + |w|^2 / 2 - force * log beta + weak prior

with `log rho0 = B_0 w_0`, `V = B_V w_V`. The curvature used throughout is Gauss-Newton's,
`I + B^T J^T (n (diag p - p p^T)) J B`, with exact products of the flow's tangent and adjoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.kernel import MarkovKernel
from thalweg.learn.fields.flow_map import FlowMap, Run
from thalweg.learn.fields.prior import FieldPrior

__all__ = ["Point", "Posterior"]

Array = NDArray[np.float64]

_LOG_BETA_PRECISION = 0.1
_LARGEST_LOG_BETA = 30.0
_LOG_BETA_CENTRE = float(np.log(0.1))


@dataclass(frozen=True, eq=False)
class Posterior:
    """The problem at given prior scales; unknowns `z = (w_0, w_V, log beta)`."""

    flow: FlowMap
    counts: Array
    initial: FieldPrior
    potential: FieldPrior
    force: float = 0.0
    """Slope in log beta of minus half the log determinant of the curvature in `w`."""
    fixed_log_beta: float | None = None
    anchor: tuple[float, float] = (_LOG_BETA_CENTRE, _LOG_BETA_PRECISION)
    """Centre and precision of the weak prior on log beta."""

    @property
    def kernel(self) -> MarkovKernel:
        return self.flow.kernel

    @property
    def size(self) -> int:
        return self.initial.size + self.potential.size + 1

    @property
    def log_beta_precision(self) -> float:
        """Of the weak prior on log beta; one where beta is given, so that nothing is singular."""
        return self.anchor[1] if self.fixed_log_beta is None else 1.0

    @property
    def totals(self) -> Array:
        return np.asarray(self.counts.sum(axis=1))

    def split(self, z: Array) -> tuple[Array, Array, Array]:
        a = self.initial.size
        return z[:a], z[a:-1], z[-1]

    def fields(self, z: Array) -> tuple[Array, Array, float]:
        """Normalised `log rho0`, `V` and `beta`."""
        w0, wV, theta = self.split(z)
        u0 = self.initial.field(w0[:, None])[:, 0]
        V = self.potential.field(wV[:, None])[:, 0]
        top = u0.max()
        u0 = u0 - top - np.log(self.kernel.stationary @ np.exp(u0 - top))
        return u0, V, float(np.exp(min(float(theta), _LARGEST_LOG_BETA)))

    def point(self, z: Array) -> Point | None:
        """The posterior at `z`, or `None` where the flow cannot be computed."""
        u0, V, beta = self.fields(z)
        if not (np.all(np.isfinite(u0)) and np.all(np.isfinite(V)) and 1e-8 < beta < 1e8):
            return None
        run = self.flow(u0, V, beta)
        if run is None:
            return None
        log_p = run.log_density + np.log(self.kernel.stationary)
        top = log_p.max(axis=1, keepdims=True)
        log_p = log_p - top - np.log(np.exp(log_p - top).sum(axis=1, keepdims=True))
        if not np.all(np.isfinite(log_p)):
            return None
        return Point(self, z, run, log_p, u0, V, beta)

    def rescaled(self, z: Array, initial: FieldPrior, potential: FieldPrior) -> Array:
        """The coefficients under other scales that keep the fields."""
        parts = []
        for w, old, new in zip(
            self.split(z), (self.initial, self.potential), (initial, potential), strict=False
        ):
            parts.append(w * (old.scales / new.scales)[old.groups])
        return np.concatenate([*parts, z[-1:]])


@dataclass(frozen=True, eq=False)
class Point:
    """The posterior at one `z`: value, gradient, products with the curvature."""

    posterior: Posterior
    z: Array
    run: Run
    log_p: Array
    u0: Array
    V: Array
    beta: float

    @property
    def log_likelihood(self) -> float:
        counts = self.posterior.counts
        return float(np.sum(counts[counts > 0] * self.log_p[counts > 0]))

    @property
    def value(self) -> float:
        w, theta = self.z[:-1], float(self.z[-1])
        centre, precision = self.posterior.anchor
        pull = 0.5 * precision * (theta - centre) ** 2
        return -self.log_likelihood + 0.5 * float(w @ w) - self.posterior.force * theta + pull

    def gradient(self) -> Array:
        post = self.posterior
        residual = post.totals[:, None] * np.exp(self.log_p) - post.counts
        g = self._pull(residual[:, :, None])[:, 0]
        g[:-1] += self.z[:-1]
        centre, precision = post.anchor
        g[-1] += precision * (self.z[-1] - centre) - post.force
        if post.fixed_log_beta is not None:
            g[-1] = 0.0
        return g

    def push(self, du0: Array, dV: Array, dtheta: Array, *, tolerance: float) -> Array:
        """Derivatives of the log densities along these fields, one direction per column."""
        du0 = du0 - (self.posterior.kernel.stationary * np.exp(self.u0)) @ du0
        if self.posterior.fixed_log_beta is not None:
            dtheta = np.zeros_like(dtheta)
        return self.run.tangent(du0, dV, self.beta * dtheta, tolerance=tolerance)

    def _push(self, v: Array, tolerance: float) -> Array:
        post = self.posterior
        w0, wV, theta = post.split(v)
        return self.push(
            post.initial.field(w0), post.potential.field(wV), theta, tolerance=tolerance
        )

    def _pull(self, weights: Array, tolerance: float | None = None) -> Array:
        post = self.posterior
        g0, gV, gbeta = self.run.adjoint(weights, tolerance=tolerance)
        g0 = g0 - np.outer(post.kernel.stationary * np.exp(self.u0), g0.sum(axis=0))
        gtheta = self.beta * gbeta
        if post.fixed_log_beta is not None:
            gtheta = np.zeros_like(gtheta)
        return np.concatenate(
            [post.initial.transpose(g0), post.potential.transpose(gV), gtheta[None]]
        )

    def _weigh(self, dl: Array) -> Array:
        """`n (diag p - p p^T) dl`, in place of `dl`."""
        p = np.exp(self.log_p)
        mean = np.einsum("kx,kxj->kj", p, dl)
        return np.asarray(
            (self.posterior.totals[:, None] * p)[:, :, None] * (dl - mean[:, None, :])
        )

    def curvature(self, v: Array, damping: float = 0.0, tolerance: float = 1e-4) -> Array:
        """The Gauss-Newton matrix times the columns of `v`."""
        out = self._pull(self._weigh(self._push(v, tolerance)), tolerance)
        out += (1.0 + damping) * v
        out[-1] += (self.posterior.log_beta_precision - 1.0) * v[-1]
        return out

    def random_scores(self, count: int, rng: np.random.Generator) -> Array:
        """Draws from `N(0, H)` with `H` the curvature: `H^-1` of them are posterior samples."""
        post = self.posterior
        p = np.exp(self.log_p)
        noise = rng.standard_normal((*p.shape, count)) * np.sqrt(p)[:, :, None]
        noise -= p[:, :, None] * noise.sum(axis=1)[:, None]
        # sqrt(p) eps - p (sqrt(p) . eps) has covariance diag p - p p^T.
        scores = self._pull(np.sqrt(post.totals)[:, None, None] * noise)
        prior = rng.standard_normal((post.size, count))
        prior[-1] *= np.sqrt(post.log_beta_precision)
        return scores + prior
