"""The paper's formulas, transcribed literally and densely: slow, small, and not optimised.

Tests compare the library with these. Names and order follow the paper; the three places where the
paper's text is corrected are marked with `Erratum`.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, expm

Array = NDArray[np.float64]


def log_mean(s: float, t: float) -> float:
    """Equation (3)."""
    if s == t:
        return s
    if s == 0 or t == 0:
        return 0.0
    return float((s - t) / (np.log(s) - np.log(t)))


def theta(rho: Array) -> Array:
    """The logarithmic mean matrix."""
    n = rho.size
    return np.array([[log_mean(rho[i], rho[j]) for j in range(n)] for i in range(n)])


def continuity_operator(K: Array, rho: Array) -> Array:
    """`A(rho) = K . Theta - diag((K . Theta) 1)`."""
    weighted = K * theta(rho)
    return weighted - np.diag(weighted.sum(axis=1))


def graph_laplacian(K: Array, pi: Array, rho: Array) -> Array:
    """`M(rho) = diag(W 1) - W`, `W = diag(pi) (K . Theta)`."""
    W = np.diag(pi) @ (K * theta(rho))
    return np.diag(W.sum(axis=1)) - W


def gradient(psi: Array) -> Array:
    """`grad psi (x, y) = psi(x) - psi(y)`."""
    return psi[:, None] - psi[None, :]


def divergence(K: Array, Psi: Array) -> Array:
    """`(div Psi)(x) = 1/2 sum_y K(x, y) (Psi(y, x) - Psi(x, y))`."""
    return 0.5 * (K * (Psi.T - Psi)).sum(axis=1)


def inner_pi(K: Array, pi: Array, Phi: Array, Psi: Array) -> float:
    """`1/2 sum Phi Psi K pi`."""
    return float(0.5 * (Phi * Psi * K * pi[:, None]).sum())


def inner_rho(K: Array, pi: Array, rho: Array, phi: Array, psi: Array) -> float:
    """Equation (7)."""
    return float(0.5 * (gradient(phi) * gradient(psi) * K * theta(rho) * pi[:, None]).sum())


def schur_cholesky(K: Array, pi: Array, rho: Array, rho_dot: Array, pinned: int = 0) -> Array:
    """Algorithm 1, returning `psi`.

    Erratum: `M` is singular, so its Cholesky factorisation does not exist; the pinned component is
    taken out of the system first, as the gauge `psi_p = 0` intends.
    """
    keep = np.arange(rho.size) != pinned
    M = graph_laplacian(K, pi, rho)[np.ix_(keep, keep)]
    A = continuity_operator(K, rho)[np.ix_(keep, keep)]
    c = -rho_dot[keep]
    Y = cho_solve(cho_factor(M), A.T)
    S = A @ Y
    multiplier = cho_solve(cho_factor((S + S.T) / 2), -2 * c)
    psi = np.zeros(rho.size)
    psi[keep] = -0.5 * Y @ multiplier
    return psi


def free_energy(pi: Array, rho: Array, V: Array, beta: float) -> float:
    """`V(rho) + beta H(rho)`."""
    return float((V * rho * pi).sum() + beta * (rho * np.log(rho) * pi).sum())


def flow_velocity(K: Array, rho: Array, V: Array, beta: float) -> Array:
    """`rho_dot = -grad F`, by the continuity equation with `psi = -(V + beta log rho)`."""
    psi = -(V + beta * np.log(rho))
    return -np.array(
        [
            sum((psi[y] - psi[x]) * K[x, y] * log_mean(rho[x], rho[y]) for y in range(rho.size))
            for x in range(rho.size)
        ]
    )


def jump_rates(K: Array, rho: Array, V: Array, beta: float) -> Array:
    """The rate matrix of the inference appendix.

    Erratum: as printed, `[psi_j - psi_i]_+`, mass climbs; it must be `[psi_i - psi_j]_+`.
    """
    psi = V + beta * np.log(rho)
    Q = K * theta(rho) / rho[:, None] * np.maximum(gradient(psi), 0.0)
    np.fill_diagonal(Q, 0.0)
    np.fill_diagonal(Q, -Q.sum(axis=1))
    return Q


def frozen_step(K: Array, pi: Array, p: Array, V: Array, beta: float, dt: float) -> Array:
    """One interval of the paper's population: `p exp(dt Q)` with `Q` frozen at its start."""
    return np.asarray(p @ expm(dt * jump_rates(K, p / pi, V, beta)))


def loss(K: Array, pi: Array, rhos: list[Array], tau: float, V: Array, beta: float) -> float:
    """Equation (16), the expectation over states written as a sum."""
    total = 0.0
    for before, after in pairwise(rhos):
        v = gradient(schur_cholesky(K, pi, after, before - after))
        # Erratum: one sign convention for all gradients, psi(x) - psi(y).
        residual = gradient(V) + beta * gradient(np.log(after)) - v / tau
        total += float((after * pi) @ (residual**2).sum(axis=1))
    return total


def hellinger(p: Array, q: Array) -> float:
    """The metric of the experiments."""
    return float(np.sqrt(((np.sqrt(p) - np.sqrt(q)) ** 2).sum()) / np.sqrt(2))
