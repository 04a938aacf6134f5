"""The heat semigroup of a kernel applied to counts, and the choice of its bandwidth."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.special import ive

from thalweg._types import Array
from thalweg.edges.static import symmetrised
from thalweg.kernel import MarkovKernel

_TRUNCATION = 1e-17
"""Coefficient below which the Chebyshev series ends."""
_EXACT_LIMIT = 1000
"""Number of states up to which individuals are left out one at a time."""
_FOLDS = 5
_LARGEST = 1e5
"""Largest bandwidth tried, in jumps."""
_PATIENCE = 4
_ENOUGH = 20_000
"""Number of predicted individuals that decides."""


def heat_flow(kernel: MarkovKernel, counts: Array, s: float) -> Array:
    """`c^T exp(-s (I - K))` for each row `c`: the counts after diffusion for a time `s`.

    Chebyshev series `e^-s (I_0(s) + 2 sum_k I_k(s) T_k(K))` with the Bessel functions `I_k`: about
    `9 sqrt(s)` products with `K`, each linear in the edges, exact to rounding. Mass is kept.
    """
    if s == 0:
        return counts.copy()
    matrix, pi = kernel.matrix, kernel.stationary
    # In densities the semigroup acts from the left: K is self-adjoint under pi.
    rho = np.ascontiguousarray((counts / pi).T)
    out = _chebyshev(matrix, rho, s).T * pi
    out = np.maximum(out, 0.0)
    total, spread = counts.sum(axis=1), out.sum(axis=1)
    return np.asarray(
        out * np.divide(total, spread, out=np.zeros_like(total), where=spread > 0)[:, None]
    )


def _chebyshev(matrix: sparse.csr_array, x: Array, s: float) -> Array:
    """`exp(-s (I - K)) x`."""
    order = np.arange(int(9 * np.sqrt(s)) + 30)
    coefficient = 2 * ive(order, s)
    coefficient[0] /= 2
    coefficient = coefficient[: int(np.flatnonzero(coefficient > _TRUNCATION)[-1]) + 1]
    before, now = x, matrix @ x
    out = coefficient[0] * before
    if coefficient.size > 1:
        out += coefficient[1] * now
    for weight in coefficient[2:]:
        before, now = now, 2 * (matrix @ now) - before
        out += weight * now
    return np.asarray(out)


def select_bandwidth(kernel: MarkovKernel, counts: Array, background: float) -> float:
    """The `s` that best predicts individuals from the others of their time.

    Up to 1000 states by leaving out one individual at a time, in closed form: without one
    individual at `x`, the mass at `x` is that of all minus `H(x, x)`, `H = exp(-s (I - K))`, whose
    diagonal comes from the eigenvectors of `K`. Above, five-fold: individuals are assigned to folds
    at random (with a fixed seed, so that the answer is reproducible), and each fold is predicted
    from the other four, which needs no diagonal. Folds beyond 20 000 predicted individuals are left
    out, since the first ones decide. Bandwidths grow by factors of `sqrt(2)` from `1/16` (after 0)
    until four in a row have not improved the likelihood.
    """
    kind = _LeaveOneOut if kernel.n_states <= _EXACT_LIMIT else _Folds
    score = kind(kernel, counts, background)
    best, best_value, worse = 0.0, score.at(0.0), 0
    s = 1 / 16
    while s <= _LARGEST and worse < _PATIENCE:
        value = score.at(s)
        if value > best_value:
            best, best_value, worse = s, value, 0
        else:
            worse += 1
        s *= np.sqrt(2)
    return float(best)


class _LeaveOneOut:
    """Log-likelihood of each individual under all the others, by the eigenvectors of `K`."""

    def __init__(self, kernel: MarkovKernel, counts: Array, background: float) -> None:
        root = np.sqrt(kernel.stationary)
        rates, self._vector = np.linalg.eigh(symmetrised(*kernel.edges, kernel.stationary))
        self._rates = np.maximum(rates, 0.0)
        self._coefficient = (counts / root) @ self._vector
        self._root, self._counts = root, counts
        self._background = background * kernel.stationary
        # A fraction of an individual cannot leave more than itself.
        self._left = np.minimum(counts, 1.0)
        self._rest = counts.sum(axis=1, keepdims=True) - self._left + background

    def at(self, s: float) -> float:
        decay = np.exp(-s * self._rates)
        mass = (self._coefficient * decay) @ self._vector.T * self._root
        diagonal = self._vector**2 @ decay
        others = np.maximum(mass - self._left * diagonal, 0.0) + self._background
        return _log_likelihood(self._counts, others, self._rest)


class _Folds:
    """Log-likelihood of each fold under the others; bandwidths must come in increasing order."""

    def __init__(self, kernel: MarkovKernel, counts: Array, background: float) -> None:
        # Assigning in turn would separate individuals of one state too evenly and favour small
        # bandwidths: each would too often find a twin in the other folds.
        deal = np.random.default_rng(0)
        seen = counts > 0
        held = np.zeros((_FOLDS, *counts.shape))
        whole = counts[seen].round().astype(np.int64)
        held[:, seen] = deal.multinomial(whole, np.full(_FOLDS, 1 / _FOLDS)).T
        needed = min(_FOLDS, int(np.ceil(_ENOUGH / (whole.sum() / _FOLDS))))
        self._held = held[:needed].reshape(-1, counts.shape[1])
        self._kept = np.maximum(np.tile(counts, (needed, 1)) - self._held, 0.0)
        self._rest = self._kept.sum(axis=1, keepdims=True) + background
        self._background = background * kernel.stationary
        self._kernel, self._s = kernel, 0.0

    def at(self, s: float) -> float:
        # The semigroup continues from the previous bandwidth.
        self._kept = heat_flow(self._kernel, self._kept, s - self._s)
        self._s = s
        return _log_likelihood(self._held, self._kept + self._background, self._rest)


def _log_likelihood(counts: Array, mass: Array, total: Array) -> float:
    seen = counts > 0
    ratio = mass[seen] / np.broadcast_to(np.maximum(total, 1e-300), mass.shape)[seen]
    return float(counts[seen] @ np.log(np.maximum(ratio, 1e-300)))
