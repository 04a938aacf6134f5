"""Gaussian priors: smoothness along the graph, with a strength chosen by the data.

The potential's prior has precision `strength * (N L + ridge)`, with the graph's Laplacian
`x^T L x = sum_e c_e (x_s - x_t)^2`. The same form, weak, holds the initial log density, and a wide
one `log beta`; they decide only what the data leave open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from thalweg._types import Array
from thalweg.edges.static import dense_laplacian
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.inverse import inverse
from thalweg.learn.likelihood.model import FlowModel

WEAK = 1e-2
"""Strength of a prior that only decides what the data leave open."""
_RIDGE = 1e-3
_LOG_BETA_PRECISION = 0.1
_INTERACTION_PRECISION = 1e-2
_GROWTH_STRENGTH = 1.0
"""Strength of the prior on rates of growth, which are of the size of the potential: both are per
unit of time. At a hundredth of it the rates of rarely visited states diverge (on 30 states no
search ended)."""
_HELD = 1e8
"""Precision of the prior on a parameter that is held."""
_FIRMEST, _TRIED = 1e6, 25
"""Largest factor by which the evidence strengthens that prior, and the number of factors tried."""
_CLEARLY = 1e-6
"""Gain in log evidence that a stronger prior needs."""


def roughness(kernel: MarkovKernel) -> Array:
    """`N L + ridge`, dense."""
    n = kernel.n_states
    return np.asarray(n * dense_laplacian(*kernel.edges, n) + _RIDGE * np.eye(n))


@dataclass(frozen=True, eq=False)
class Prior:
    """`1/2 strength theta_V^T A theta_V + 1/2 (theta - mean)^T B (theta - mean)`."""

    strength: float
    shape: Array
    """`A` on the potential's coefficients."""
    base: Array
    """`B` on all other parameters."""
    mean: Array
    scale: float
    """Typical size of the potential: strengths are in units of `1 / scale^2`."""

    @property
    def precision(self) -> Array:
        total = self.base.copy()
        k = self.shape.shape[0]
        total[:k, :k] += self.strength / self.scale**2 * self.shape
        return total

    @property
    def units(self) -> Array:
        """Typical size of a change of each parameter."""
        units = np.ones(self.mean.size)
        units[: self.shape.shape[0]] = self.scale
        return units

    def with_strength(self, strength: float) -> Prior:
        return Prior(strength, self.shape, self.base, self.mean, self.scale)

    def quadratic(self, theta: Array) -> tuple[float, Array, Array]:
        """Value, gradient and Hessian of minus the log prior, up to a constant."""
        precision = self.precision
        gradient = precision @ (theta - self.mean)
        return 0.5 * float((theta - self.mean) @ gradient), gradient, precision

    def determined(self, curvature: Array) -> float:
        """The share of the potential's directions that the data, not the prior, determine."""
        k = self.shape.shape[0]
        if k == 0:
            return 1.0
        return 1.0 - self._held(curvature) / k

    def _held(self, curvature: Array) -> float:
        """Number of directions of the potential that the prior determines: `strength tr(C A)`."""
        k = self.shape.shape[0]
        covariance = inverse(curvature + self.precision)[:k, :k]
        return self.strength / self.scale**2 * float(np.sum(covariance * self.shape))

    def firmer(self, theta: Array, curvature: Array, part: slice) -> float:
        """By what factor the evidence wants the prior on `part` of the other parameters stronger.

        Laplace's method around the optimum `theta` under this prior, where the data have this
        `curvature`; the factor is between one and `_FIRMEST`.
        """
        precision = self.precision
        data = curvature @ theta + precision @ (theta - self.mean)
        best, found = -np.inf, 1.0
        for factor in np.geomspace(1.0, _FIRMEST, _TRIED):
            held = precision.copy()
            held[part, part] *= factor
            # Where the data reach their optimum under this prior, and the evidence there.
            lower = np.linalg.cholesky(curvature + held)
            gap = np.linalg.solve(lower, data + held @ self.mean)
            value = 0.5 * float(gap @ gap - self.mean @ held @ self.mean)
            value -= float(np.log(np.diag(lower)).sum())
            value += 0.5 * theta[part].size * float(np.log(factor))
            if value > best + _CLEARLY:
                best, found = value, float(factor)
        return found

    def with_firmer(self, part: slice, factor: float) -> Prior:
        base = self.base.copy()
        base[part, part] *= factor
        return replace(self, base=base)

    def holding(self, index: int, theta: Array) -> Prior:
        """The prior that keeps one of the other parameters where it is."""
        base, mean = self.base.copy(), self.mean.copy()
        base[index, index], mean[index] = _HELD, theta[index]
        return replace(self, base=base, mean=mean)

    def updated(self, theta: Array, curvature: Array) -> float:
        """MacKay's fixed point of the evidence: determined parameters over their roughness.

        `curvature` is that of the data; the result is between 0.01 and 10^6 times `WEAK`.
        """
        k = self.shape.shape[0]
        if k == 0:
            return self.strength
        unit = self.shape / self.scale**2
        used = k - self._held(curvature)
        rough = float(theta[:k] @ unit @ theta[:k])
        return float(np.clip(max(used, 0.1) / max(rough, 1e-12), 1e-2 * WEAK, 1e6 * WEAK))


def make_prior(model: FlowModel, beta_guess: float, scale: float, strength: float) -> Prior:
    """The prior of a fit; `scale` is the typical size of the potential in the weak start."""
    size = model.n_parameters
    along = roughness(model.kernel)
    if model.features is None:
        one = along
    else:
        one = model.features.T @ along @ model.features
        one += 1e-9 * np.trace(one) / max(1, one.shape[0]) * np.eye(one.shape[0])
    base, mean = np.zeros((size, size)), np.zeros(size)
    i = model.interaction_slice
    base[i, i] = _INTERACTION_PRECISION / scale**2 * np.eye(model.n_interactions)
    if model.growth_features is not None:
        g, k = model.growth_slice, model.growth_features
        pull = _GROWTH_STRENGTH * (along + np.eye(model.n_states)) / scale**2
        base[g, g] = k.T @ pull @ k
    if model.learns_beta:
        base[model.beta_index, model.beta_index] = _LOG_BETA_PRECISION
        mean[model.beta_index] = np.log(beta_guess)
    if model.n_initial:
        base[model.initial_slice, model.initial_slice] = WEAK * along
    shape = np.asarray(np.kron(np.eye(model.n_basis), one), dtype=np.float64)
    return Prior(strength, shape, base, mean, scale)
