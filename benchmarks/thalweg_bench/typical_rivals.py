"""Linear reversible chains: what a landscape must beat where individuals are few.

With an equilibrium `q ~ pi exp(-u)` and edge strengths `s_e`, the rate from `i` to `j` is
`s_e c_e / pi_i exp((u_i - u_j) / 2)`. The Fokker-Planck chain has one strength, a mobility; the
free reversible chain has one per edge. Both are fitted by likelihood under a ridge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import minimize

from thalweg._types import Array
from thalweg.kernel import MarkovKernel

__all__ = ["ReversibleChain", "fokker_planck", "free_reversible"]

RIDGES = (0.003, 0.03, 0.25, 2.0)
"""Precisions of `u`, one of which is chosen on a left-out snapshot."""
_STRENGTH_RIDGE = 0.3
"""Precision of the logarithms of a free chain's edge strengths, about their mobility."""
_START_RIDGE = 0.01
"""Precision of the initial logits: it matters only for states that were never visited."""
_ITERATIONS = 150
"""Bound on the iterations of L-BFGS."""


@dataclass(frozen=True, eq=False)
class ReversibleChain:
    """A chain on a kernel's edges: `u`, logarithms of the edge strengths, start and first time."""

    kernel: MarkovKernel
    u: Array
    log_strengths: Array
    initial: Array
    first: float

    def predict(self, at: Array) -> Array:
        """Probabilities at times, one row each."""
        values, vectors, root = _spectrum(self.kernel, self.u, self.log_strengths)
        inside = vectors.T @ (self.initial / root)
        p = (np.exp(np.outer(at - self.first, values)) * inside) @ vectors.T * root
        p = np.maximum(p, 1e-300)
        return np.asarray(p / p.sum(axis=1, keepdims=True))


def fokker_planck(kernel: MarkovKernel, times: Array, counts: Array) -> ReversibleChain:
    """One mobility; the ridge is the one that predicts a left-out middle snapshot best."""
    left = times.size // 2
    kept = np.arange(times.size) != left
    scores = []
    for ridge in RIDGES:
        chain = _fit(kernel, times[kept], counts[kept], ridge, free=False)
        scores.append(float(np.sum(counts[left] * np.log(chain.predict(times[[left]])[0]))))
    return _fit(kernel, times, counts, RIDGES[int(np.argmax(scores))], free=False)


def free_reversible(kernel: MarkovKernel, times: Array, counts: Array) -> ReversibleChain:
    """A strength for each edge."""
    return _fit(kernel, times, counts, RIDGES[1], free=True)


def _fit(
    kernel: MarkovKernel, times: Array, counts: Array, ridge: float, *, free: bool
) -> ReversibleChain:
    n, m = kernel.n_states, kernel.n_edges if free else 0
    objective = chain_objective(kernel, times, counts, ridge, free=free)
    start = np.log((counts[0] + 0.5) / (counts[0] + 0.5).sum())
    z = np.concatenate([np.zeros(n), [np.log(0.2)], np.zeros(m), start - start.mean()])
    found = minimize(
        objective, z, jac=True, method="L-BFGS-B",
        bounds=[(-30, 30)] * n + [(-9, 5)] + [(-9, 9)] * m + [(-40, 40)] * n,
        options={"maxiter": _ITERATIONS, "maxcor": 20},
    ).x  # fmt: skip
    strengths = np.full(kernel.n_edges, found[n])
    if free:
        strengths += found[n + 1 : n + 1 + m]
    logits = found[n + 1 + m :]
    initial = np.exp(logits - logits.max())
    return ReversibleChain(kernel, found[:n], strengths, initial / initial.sum(), float(times[0]))


def chain_objective(
    kernel: MarkovKernel, times: Array, counts: Array, ridge: float, *, free: bool
) -> Callable[[Array], tuple[float, Array]]:
    """Minus the penalised log likelihood of (u, log mobility, edges, logits), with its gradient."""
    n, m = kernel.n_states, kernel.n_edges if free else 0
    source, target, conductance = kernel.edges
    pi, since = kernel.stationary, times - times[0]

    def objective(z: Array) -> tuple[float, Array]:
        u, extra, logits = z[:n], z[n + 1 : n + 1 + m], z[n + 1 + m :]
        log_s = z[n] + (extra if free else np.zeros(source.size))
        initial = np.exp(logits - logits.max())
        initial /= initial.sum()
        values, vectors, root = _spectrum(kernel, u, log_s)
        decay = np.exp(np.outer(since, values))
        y = vectors.T @ (initial / root)
        raw = (decay * y) @ vectors.T * root
        p = np.maximum(raw, 1e-12)
        value = -float(np.sum(counts * np.log(p)))
        by_p = np.where(raw > 1e-12, -counts / p, 0.0)
        # dL/dS, S the symmetrised generator, through divided differences of the exponential.
        back = (by_p * root) @ vectors
        gap = values[:, None] - values[None, :]
        close = np.abs(gap) < 1e-9
        inner = np.zeros((n, n))
        for t, e, g in zip(since, decay, back, strict=True):
            ratio = np.where(
                close, t * e[:, None], (e[:, None] - e[None, :]) / np.where(close, 1.0, gap)
            )
            inner += ratio * np.outer(g, y)
        by_s = vectors @ inner @ vectors.T
        by_s = by_s + by_s.T
        scale = np.exp(log_s) * conductance
        forth = scale / pi[source] * np.exp(0.5 * (u[source] - u[target]))
        back_rate = scale / pi[target] * np.exp(0.5 * (u[target] - u[source]))
        diagonal = 0.5 * np.diagonal(by_s)
        by_forth, by_back = -diagonal[source] * forth, -diagonal[target] * back_rate
        off = by_s[source, target] * scale / np.sqrt(pi[source] * pi[target])
        by_u = np.zeros(n)
        np.add.at(by_u, source, 0.5 * (by_forth - by_back))
        np.add.at(by_u, target, -0.5 * (by_forth - by_back))
        # p = root exp(tS) (initial / root), root ~ exp(-u / 2).
        by_start = (vectors @ (back * decay).sum(axis=0)) / root
        by_u += -0.5 * (by_p * raw).sum(axis=0) + 0.5 * by_start * initial
        by_log_s = by_forth + by_back + off
        by_logits = initial * (by_start - initial @ by_start)
        value += 0.5 * ridge * float(u @ u) + 0.5 * _START_RIDGE * float(logits @ logits)
        value += 0.5 * _STRENGTH_RIDGE * float(extra @ extra)
        parts = [by_u + ridge * u, np.array([by_log_s.sum()])]
        if free:
            parts.append(by_log_s + _STRENGTH_RIDGE * extra)
        parts.append(by_logits + _START_RIDGE * logits)
        return value, np.concatenate(parts)

    return objective


def _spectrum(kernel: MarkovKernel, u: Array, log_strengths: Array) -> tuple[Array, Array, Array]:
    """Eigenvalues and vectors of the symmetrised generator, and the root of the equilibrium."""
    source, target, conductance = kernel.edges
    pi = kernel.stationary
    scale = np.exp(log_strengths) * conductance
    s = np.zeros((pi.size, pi.size))
    s[source, target] = scale / np.sqrt(pi[source] * pi[target])
    s += s.T
    leave = np.zeros(pi.size)
    np.add.at(leave, source, scale / pi[source] * np.exp(0.5 * (u[source] - u[target])))
    np.add.at(leave, target, scale / pi[target] * np.exp(0.5 * (u[target] - u[source])))
    s[np.arange(pi.size), np.arange(pi.size)] = -leave
    values, vectors = eigh(s, check_finite=False)
    root = np.sqrt(pi * np.exp(-(u - u.mean())))
    return np.minimum(values, 0.0), vectors, root
