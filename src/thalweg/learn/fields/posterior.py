"""The posterior of `(log rho0, V, log beta)` given counts, in white coefficients, matrix-free.

    minus log posterior = - sum_k C_k . log p_k + |w|^2 / 2 - force * log beta + weak prior

with `log rho0 = B_0 w_0`, `V = B_V w_V`. The curvature used throughout is Gauss-Newton's,
`I + B^T J^T (n (diag p - p p^T)) J B`, with exact products of the flow's tangent and adjoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from thalweg._types import Array
from thalweg.learn.fields.likelihood import Likelihood, Place
from thalweg.learn.fields.prior import FieldPrior

_LOG_BETA_PRECISION = 0.1
_LOG_BETA_CENTRE = float(np.log(0.1))


@dataclass(frozen=True, eq=False)
class Posterior:
    """The problem at given prior scales; unknowns `z = (w_0, w_V, log beta)`."""

    likelihood: Likelihood
    initial: FieldPrior
    potential: FieldPrior
    force: float = 0.0
    """Slope in log beta of minus half the log determinant of the curvature in `w`."""
    fixed_log_beta: float | None = None
    anchor: tuple[float, float] = (_LOG_BETA_CENTRE, _LOG_BETA_PRECISION)
    """Centre and precision of the weak prior on log beta."""

    @property
    def priors(self) -> tuple[FieldPrior, FieldPrior]:
        return self.initial, self.potential

    @property
    def size(self) -> int:
        return self.initial.size + self.potential.size + 1

    @property
    def log_beta_precision(self) -> float:
        """Precision of the weak prior on log beta; one if beta is given, to avoid singularity."""
        return self.anchor[1] if self.fixed_log_beta is None else 1.0

    @property
    def along_beta(self) -> Array:
        """The direction of log beta, one column."""
        unit = np.zeros((self.size, 1))
        unit[-1] = 1.0
        return unit

    def finer(self) -> Posterior:
        """The posterior with time steps of half the length."""
        return replace(self, likelihood=self.likelihood.finer())

    def split(self, z: Array) -> tuple[Array, Array, Array]:
        a = self.initial.size
        return z[:a], z[a:-1], z[-1]

    def fields(self, z: Array) -> tuple[Array, Array, Array]:
        """`log rho0`, `V` and log beta, one per column of coefficients."""
        w0, wV, theta = self.split(z)
        return self.initial.field(w0), self.potential.field(wV), theta

    def transpose(self, g0: Array, gV: Array, gtheta: Array) -> Array:
        """The transpose of `fields`."""
        parts = [self.initial.transpose(g0), self.potential.transpose(gV), gtheta[None]]
        return np.concatenate(parts)

    def point(self, z: Array) -> Point | None:
        """The posterior at `z`, or `None` if the flow cannot be computed."""
        u0, V, theta = self.fields(z[:, None])
        place = self.likelihood.at(u0[:, 0], V[:, 0], float(theta[0]))
        return None if place is None else Point(self, z, place)


@dataclass(frozen=True, eq=False)
class Point:
    """The posterior at one `z`: value, gradient, products with the curvature."""

    posterior: Posterior
    z: Array
    place: Place

    @property
    def value(self) -> float:
        w, theta = self.z[:-1], float(self.z[-1])
        centre, precision = self.posterior.anchor
        pull = 0.5 * precision * (theta - centre) ** 2
        force = self.posterior.force * theta
        return -self.place.log_likelihood + 0.5 * float(w @ w) - force + pull

    def rescaled(self, scales: tuple[Array, Array], force: float) -> Point:
        """The same fields under other scales of the priors and another force."""
        post = self.posterior
        initial, potential = (p.with_scales(s) for p, s in zip(post.priors, scales, strict=True))
        parts = [
            w * (old.scales / new)[old.groups]
            for w, old, new in zip(post.split(self.z)[:2], post.priors, scales, strict=True)
        ]
        z = np.concatenate([*parts, self.z[-1:]])
        posterior = replace(post, initial=initial, potential=potential, force=force)
        return replace(self, posterior=posterior, z=z)

    def gradient(self) -> Array:
        post = self.posterior
        g = self._pull(self.place.residual)[:, 0]
        g[:-1] += self.z[:-1]
        centre, precision = post.anchor
        g[-1] += precision * (self.z[-1] - centre) - post.force
        if post.fixed_log_beta is not None:
            g[-1] = 0.0
        return g

    def push(self, du0: Array, dV: Array, dtheta: Array, *, tolerance: float) -> Array:
        """Derivatives of the log densities along these fields, one direction per column."""
        if self.posterior.fixed_log_beta is not None:
            dtheta = np.zeros_like(dtheta)
        return self.place.push(du0, dV, dtheta, tolerance=tolerance)

    def _pull(self, weights: Array, tolerance: float | None = None) -> Array:
        g0, gV, gtheta = self.place.pull(weights, tolerance)
        if self.posterior.fixed_log_beta is not None:
            gtheta = np.zeros_like(gtheta)
        return self.posterior.transpose(g0, gV, gtheta)

    def curvature(self, v: Array, damping: float = 0.0, tolerance: float = 1e-4) -> Array:
        """The Gauss-Newton matrix times the columns of `v`."""
        pushed = self.push(*self.posterior.fields(v), tolerance=tolerance)
        out = self._pull(self.place.weigh(pushed), tolerance)
        out += (1.0 + damping) * v
        out[-1] += (self.posterior.log_beta_precision - 1.0) * v[-1]
        return out

    def random_scores(self, count: int, rng: np.random.Generator) -> Array:
        """Draws from `N(0, H)` with `H` the curvature: `H^-1` of them are posterior samples."""
        scores = self._pull(self.place.noise(count, rng))
        prior = rng.standard_normal((self.posterior.size, count))
        prior[-1] *= np.sqrt(self.posterior.log_beta_precision)
        return scores + prior
