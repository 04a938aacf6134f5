"""Gaussian priors: smoothness along the graph, and how strong the data want it.

The potential's prior has precision `strength * (N L + ridge)`, with the graph's Laplacian
`x^T L x = sum_e c_e (x_s - x_t)^2`. The same form, weak, holds the initial log density, and a wide
one `log beta`; they decide only what the data leave open.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.model import FlowModel

__all__ = ["Prior", "make_prior", "roughness"]

Array = NDArray[np.float64]

WEAK = 1e-2  # strength of a prior that is there only for what the data do not say
_RIDGE = 1e-3
_LOG_BETA_PRECISION = 0.1
_INTERACTION_PRECISION = 1e-2
_GROWTH_STRENGTH = 1.0
"""Of the prior on rates of growth: they are as large as the potential, both being per unit of time.

At a hundredth of it the rates of states that few visit ran off: on 30 states no search ended."""


def roughness(kernel: MarkovKernel) -> Array:
    """`N L + ridge`, dense."""
    n = kernel.n_states
    flow = kernel.flow_matrix.toarray()
    laplacian = np.diag(flow.sum(axis=1)) - flow
    return np.asarray(n * laplacian + _RIDGE * np.eye(n))


@dataclass(frozen=True, eq=False)
class Prior:
    """`1/2 strength theta_V^T A theta_V + 1/2 (theta - mean)^T B (theta - mean)`."""

    strength: float
    shape: Array
    """`A` on the potential's coefficients."""
    base: Array
    """`B`, everything else."""
    mean: Array
    scale: float
    """The size of an ordinary potential here: strengths are in units of `1 / scale^2`."""

    @property
    def precision(self) -> Array:
        total = self.base.copy()
        k = self.shape.shape[0]
        total[:k, :k] += self.strength / self.scale**2 * self.shape
        return total

    @property
    def units(self) -> Array:
        """The ordinary size of a change of each parameter."""
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
        """How many directions of the potential the prior holds: `strength tr(C A)`."""
        k = self.shape.shape[0]
        covariance = np.linalg.pinv(curvature + self.precision, hermitian=True)[:k, :k]
        return self.strength / self.scale**2 * float(np.sum(covariance * self.shape))

    def updated(self, theta: Array, curvature: Array) -> float:
        """MacKay's fixed point of the evidence: parameters that count over their roughness.

        `curvature` is the data's; the answer lies between a hundredth of and 10^6 times the weak
        strength.
        """
        k = self.shape.shape[0]
        if k == 0:
            return self.strength
        unit = self.shape / self.scale**2
        used = k - self._held(curvature)
        rough = float(theta[:k] @ unit @ theta[:k])
        return float(np.clip(max(used, 0.1) / max(rough, 1e-12), 1e-2 * WEAK, 1e6 * WEAK))


def make_prior(model: FlowModel, beta_guess: float, scale: float, strength: float) -> Prior:
    """The prior of a fit; `scale` is the size of potentials the weak start suggests."""
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
