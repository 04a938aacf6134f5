"""Sampling noise in the weak form: its size, for the ridge, and its bias in beta.

The normal equations are quadratic in the densities, so their noise does not average out. With
independent counts `C ~ n p`, smoothed to `(C + a) / (n + a N)`, the entries of beta are off by

    G:  sum_j w_j sum_x (1 - K_xx) phi(n p_jx) / n_j,    phi(mu) = E (C - mu) log(C + a),
    m:  the covariance of `log rho_j` with the increment that shares its snapshot,
    C^T A^-1 C, C^T A^-1 l:  trace(A^-1 Cov(C, C)), trace(A^-1 Cov(C, l)),

to first order in `1 / n` (`phi` tends to 1). Subtracted, they leave an estimate of beta that is not
pulled towards zero where there are few counts per state.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from thalweg import _checks
from thalweg._types import Array
from thalweg.edges import static
from thalweg.kernel import MarkovKernel

_LOGS = np.linspace(-7.0, 5.5, 251)
"""Logarithms of the expected counts at which `phi` is tabulated."""
_MANY, _PROBES = 50_000, 8
"""Number of states above which one draw stands for the noise; draws where there are fewer."""


def sampling_deviations(p: Array, sizes: Array, rng: np.random.Generator) -> list[Array]:
    """Draws of the sampling error of all snapshots, scaled so that `noise noise^T` averages it."""
    count = _n_probes(p.shape[1])
    draws = []
    for _ in range(count):
        z = np.sqrt(p / sizes[:, None]) * rng.standard_normal(p.shape)
        draws.append((z - p * z.sum(axis=1, keepdims=True)) / np.sqrt(count))
    return draws


def _n_probes(n_states: int) -> int:
    return 1 if n_states > _MANY else _PROBES


def telescoped_noise(p: Array, sizes: Array) -> Array:
    """The exact root of the covariance of `p_0 - p_T`: for small `N`, in place of draws."""
    roots = []
    for k in (0, -1):
        root = np.sqrt(p[k])
        roots.append((np.diag(root) - np.outer(p[k], root)) / np.sqrt(sizes[k]))
    return np.concatenate(roots, axis=1)


class NoiseBias(NamedTuple):
    """The contribution of noise to the Gram entry and the moment of beta; covariance roots."""

    gram: float
    moment: float
    column: Array
    """`(N, k)`: `Cov(C, C) = column column^T`."""
    load: Array
    """`(N, k)`: `Cov(C, l) = column load^T`."""
    terms: int
    """Number of independent terms in `gram`: its relative error is `sqrt(2 / terms)`."""


def noise_bias(
    kernel: MarkovKernel,
    weight: Array,
    p: Array,
    sizes: Array,
    pseudo_count: float,
    rng: np.random.Generator | None,
) -> NoiseBias:
    """The bias for the logarithmic mean, the entropy and the trapezoid rule with these weights.

    The roots are exact, or draws with `rng`.
    """
    pseudo_count = _checks.positive(pseudo_count, "pseudo_count")
    pi, total = kernel.stationary, sizes + pseudo_count * kernel.n_states
    source, target, conductance = kernel.edges
    leaving = static.degrees(source, target, conductance, pi.size) / pi
    logs = np.log(np.maximum(p * total[:, None], 1e-3))
    own = np.interp(logs, _LOGS, _covariances(pseudo_count), right=1.0) / total[:, None]
    gram, moment = float(weight @ own @ leaving), 0.5 * float(own[0].sum() - own[-1].sum())
    inner = np.sqrt((weight[1:-1] ** 2 / total[1:-1]) @ p[1:-1])
    first, last = np.sqrt(p[0] / total[0]), np.sqrt(p[-1] / total[-1])
    if rng is None:
        z = np.eye(3 * pi.size).reshape(3, pi.size, -1)
    else:
        count = _n_probes(pi.size)
        z = rng.standard_normal((3, pi.size, count)) / np.sqrt(count)
    begin, end = first[:, None] * z[1], last[:, None] * z[2]
    spread = inner[:, None] * z[0] + weight[0] * begin + weight[-1] * end
    load = begin - end
    spread /= pi[:, None]
    column = [static.apply_laplacian(source, target, conductance, s) for s in spread.T.copy()]
    return NoiseBias(gram, moment, np.stack(column, axis=1), load - load.mean(axis=0), p.size)


@lru_cache(maxsize=16)
def _covariances(pseudo_count: float) -> Array:
    """`phi(mu) = E (C - mu) log(C + a)` for Poisson counts, at the tabulated `mu`."""
    mu = np.exp(_LOGS)[:, None]
    c = np.arange(600)[None, :]
    probability = np.exp(c * np.log(mu) - mu - gammaln(c + 1))
    return np.asarray((probability * (c - mu) * np.log(c + pseudo_count)).sum(axis=1))
