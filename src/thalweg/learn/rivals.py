"""Rival models without a landscape, which a gradient flow must beat.

Each is a plain function from counts at times to predicted probabilities at the times `at`.

| rival | says | free numbers |
| --- | --- | --- |
| `no_movement` | nothing moves: one distribution for all times | `N - 1` |
| `pure_heat` | `p(t) = exp(beta t (K - I))^T p_0`: `V = 0` | `N` |
| `free_ctmc` | one free rate for each direction of each edge | `2 E + N - 1` |
| `fokker_planck` | a landscape without the geometry: rates `b K_xy exp(g_x - g_y)` | `2 N` |

`free_ctmc` is linear in `p`, so it contains no gradient flow with a potential and a logarithmic
mean; but it has far more freedom, cycles included, and wins if a landscape is the wrong model. The
rates of `fokker_planck` are reversible with respect to `pi e^{-2 g}`: individuals jump downhill
more often than uphill, independently of each other. The gradient flow of the logarithmic mean has
the same equilibrium, but another path to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, sparse
from scipy.linalg import eigh, expm, expm_frechet

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.flow.rates import edge_generator
from thalweg.kernel import MarkovKernel
from thalweg.snapshots.density import smoothed

CtmcMethod = Literal["likelihood", "least-squares"]

PSEUDO_COUNT = 0.5
"""Added to every count before logarithms are taken (Jeffreys' prior)."""

MOST_STATES = 300
"""Largest number of states with dense matrices, and so of the Fokker-Planck chain."""
_LOG_FLOOR = -690.0
_RIDGE = 0.01
"""Weight of `|g|^2 / 2` beside the log-likelihood: holds states that were never seen."""


def no_movement(
    kernel: MarkovKernel, times: ArrayLike, counts: ArrayLike, *, at: ArrayLike | None = None
) -> Array:
    """The pooled distribution, the same at every time: the likelihood's maximum if nothing moves.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> no_movement(kernel, [0, 1], [[3, 1], [1, 2]])
    array([[0.5625, 0.4375],
           [0.5625, 0.4375]])
    """
    times, counts, at = _check(kernel, times, counts, at)
    return np.tile(smoothed(counts.sum(axis=0)), (at.size, 1))


@single_threaded
def pure_heat(
    kernel: MarkovKernel, times: ArrayLike, counts: ArrayLike, *, at: ArrayLike | None = None
) -> Array:
    """`p(t) = exp(beta (t - t_0) (K - I))^T p_0` with the likeliest `beta`.

    `p_0` is estimated with it up to a few hundred states; above, it is the first snapshot.
    """
    times, counts, at = _check(kernel, times, counts, at)
    start = smoothed(counts[0])
    if kernel.n_states > MOST_STATES:
        return _sparse_heat(kernel, times, counts, at, start)
    root = np.sqrt(kernel.stationary)
    symmetric = root[:, None] * kernel.matrix.toarray() / root[None, :]
    values, vectors = eigh(0.5 * (symmetric + symmetric.T))
    decay = np.maximum(1.0 - values, 0.0)
    left, right = root[:, None] * vectors, (vectors / root[:, None]).T

    def predict(z: Array, when: Array) -> Array:
        spread = np.exp(-np.exp(z[0]) * np.outer(when - times[0], decay))
        return np.asarray(np.maximum((spread * (right @ _softmax(z[1:]))) @ left.T, 1e-300))

    def objective(z: Array) -> tuple[float, Array]:
        beta, initial = np.exp(z[0]), _softmax(z[1:])
        since = np.outer(times - times[0], decay)
        spread, inside = np.exp(-beta * since), right @ initial
        p = np.maximum((spread * inside) @ left.T, 1e-300)
        by_p = -((counts + _PRIOR / counts.shape[1]) / p)
        back = by_p @ left
        by_initial = right.T @ (back * spread).sum(axis=0)
        gradient = np.empty_like(z)
        gradient[0] = -beta * float((back * spread * since * inside).sum())
        gradient[1:] = initial * (by_initial - initial @ by_initial)
        return -_log_likelihood(counts, p), gradient

    z0 = np.concatenate([[np.log(0.1)], np.log(start)])
    best = _minimise(objective, z0, lower=np.r_[-12.0, np.full(start.size, -60.0)])
    return predict(best, at)


@single_threaded
def free_ctmc(
    kernel: MarkovKernel,
    times: ArrayLike,
    counts: ArrayLike,
    *,
    at: ArrayLike | None = None,
    method: CtmcMethod = "likelihood",
) -> Array:
    """The Markov chain with a free rate for each direction of each edge: `p' = Q^T p`.

    `"least-squares"`: non-negative least squares of the integrated master equation,
    `p_k - p_{k-1} = tau / 2 Q^T (p_{k-1} + p_k)`, each component weighted by its sampling error.
    `"likelihood"` continues from there to the likeliest rates and `p_0` (exact gradients through
    the matrix exponential); above a few hundred states it keeps the least squares.
    """
    if method not in ("likelihood", "least-squares"):
        raise InputError(f"method is {method!r}; choose 'likelihood' or 'least-squares'.")
    times, counts, at = _check(kernel, times, counts, at)
    rates = _least_squares_rates(kernel, times, counts)
    start = smoothed(counts[0])
    if kernel.n_states > MOST_STATES:
        return _sparse_chain(edge_generator(kernel, *np.split(rates, 2)), times[0], at, start)
    if method == "likelihood":
        rates, start = _likeliest_rates(kernel, times, counts, rates, start)
    return _chain(_generator(kernel, rates), times[0], at, start)


@single_threaded
def fokker_planck(
    kernel: MarkovKernel, times: ArrayLike, counts: ArrayLike, *, at: ArrayLike | None = None
) -> Array:
    """Predicted probabilities at the times `at` of the likeliest chain with such rates.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> p = fokker_planck(kernel, [0.0, 1.0, 50.0], [[900, 100], [500, 500], [200, 800]])
    >>> p[2].round(2)
    array([0.2, 0.8])
    """
    if kernel.n_states > MOST_STATES:
        raise InputError(
            f"the Fokker-Planck chain is fitted up to {MOST_STATES} states, not {kernel.n_states}."
        )
    when, table, target = _check(kernel, times, counts, at)
    source, end, c = kernel.edges
    n, e = kernel.n_states, source.size
    log_k = np.log(np.r_[c / kernel.stationary[source], c / kernel.stationary[end]])
    tail, head = np.r_[source, end], np.r_[end, source]

    def log_rates(z: Array) -> Array:
        return np.asarray(log_k + z[0] + z[1 : n + 1][tail] - z[1 : n + 1][head])

    def objective(z: Array) -> tuple[float, Array]:
        value, slope = ctmc_objective(kernel, when, table, np.r_[log_rates(z), z[n + 1 :]])
        by_rate, g = slope[: 2 * e], z[1 : n + 1]
        by_g = np.bincount(tail, by_rate, n) - np.bincount(head, by_rate, n)
        gradient = np.r_[by_rate.sum(), by_g + _RIDGE * g, slope[2 * e :]]
        return value + 0.5 * _RIDGE * float(g @ g), gradient

    start = np.r_[np.log(0.1), np.zeros(n), np.log(smoothed(table[0]))]
    fastest = np.log(100.0 / float(np.diff(when).min()))
    lower = np.r_[-12.0, np.full(n, -15.0), np.full(n, -60.0)]
    upper = np.r_[fastest, np.full(n, 15.0), np.full(n, 60.0)]
    best = _minimise(objective, start, lower=lower, upper=upper)
    rates = np.exp(np.minimum(log_rates(best), fastest))
    q = _generator(kernel, rates)
    return _chain(q, when[0], target, _softmax(best[n + 1 :]))


# ------------------------------------------------------------------------ the pieces

_SMALL = 30
"""Size up to which matrices are exponentiated together."""
_PRIOR = 1e-3
"""Counts added per snapshot, spread over the states: keeps logarithms of empty states finite."""


def _check(
    kernel: MarkovKernel, times: ArrayLike, counts: ArrayLike, at: ArrayLike | None
) -> tuple[Array, Array, Array]:
    when = _checks.as_times(times, minimum=2)
    table = _checks.as_counts(counts, when, kernel.n_states)
    target = when if at is None else _checks.as_times(at, "at")
    if target[0] < when[0]:
        raise InputError(
            f"at begins with {target[0]:.6g}, before the first snapshot at {when[0]:.6g}; rivals "
            "predict forwards only."
        )
    return when, table, target


def _softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def _log_likelihood(counts: Array, p: Array) -> float:
    weights = counts + _PRIOR / counts.shape[1]
    return float((weights * np.maximum(np.log(p), _LOG_FLOOR)).sum())


def _minimise(
    objective: Callable[[Array], tuple[float, Array]],
    start: Array,
    *,
    lower: Array,
    upper: Array | float = 60.0,
) -> Array:
    bounds = optimize.Bounds(lower, np.broadcast_to(upper, start.shape))
    found = optimize.minimize(
        objective,
        np.clip(start, lower, upper),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 500, "maxcor": 20, "ftol": 1e-12, "gtol": 1e-6},
    )
    return np.asarray(found.x)


def _generator(kernel: MarkovKernel, rates: Array) -> Array:
    """`Q` with `rates[:E]` from source to target of each edge and `rates[E:]` back."""
    source, target, _ = kernel.edges
    q = np.zeros((kernel.n_states, kernel.n_states))
    q[source, target], q[target, source] = rates[: source.size], rates[source.size :]
    np.fill_diagonal(q, -q.sum(axis=1))
    return q


def _chain(q: Array, first: float, at: Array, start: Array) -> Array:
    out, p, now = np.empty((at.size, start.size)), start, first
    step, size = np.eye(start.size), 0.0
    for k, time in enumerate(at):
        if time > now:
            if abs(time - now - size) > 1e-12 * size:
                size = time - now
                step = expm(size * q)
            p = np.maximum(p @ step, 0.0)
            now = time
        out[k] = p / p.sum()
    return np.maximum(out, 1e-300)


def _sparse_chain(q: sparse.csr_array, first: float, at: Array, start: Array) -> Array:
    from scipy.sparse.linalg import expm_multiply

    out, p, now = np.empty((at.size, start.size)), start, first
    forward = q.T.tocsr()
    trace = float(forward.diagonal().sum())
    for k, time in enumerate(at):
        if time > now:
            step = time - now
            p = np.maximum(expm_multiply(step * forward, p, traceA=step * trace), 0.0)
            now = time
        out[k] = p / p.sum()
    return np.maximum(out, 1e-300)


def _sparse_heat(
    kernel: MarkovKernel, times: Array, counts: Array, at: Array, start: Array
) -> Array:
    generator = sparse.csr_array(kernel.matrix - sparse.eye_array(kernel.n_states))

    def misfit(log_beta: float) -> float:
        beta = np.exp(log_beta)
        p = _sparse_chain(generator, 0.0, beta * (times - times[0]), start)
        return -_log_likelihood(counts, p)

    best = optimize.minimize_scalar(misfit, bounds=(-9.0, 4.0), method="bounded").x
    return _sparse_chain(generator, 0.0, np.exp(best) * (at - times[0]), start)


def _least_squares_rates(kernel: MarkovKernel, times: Array, counts: Array) -> Array:
    source, target, _ = kernel.edges
    n, m = kernel.n_states, times.size - 1
    p = smoothed(counts)
    size = counts.sum(axis=1) + PSEUDO_COUNT * n
    mass = 0.5 * np.diff(times)[:, None] * (p[1:] + p[:-1])
    scale = 1.0 / np.sqrt(p[1:] / size[1:, None] + p[:-1] / size[:-1, None])
    tail, head = np.r_[source, target], np.r_[target, source]
    # Each rate moves `mass` from its tail to its head, in every interval: two entries per row.
    columns = np.tile(np.arange(tail.size), m)
    shift = np.repeat(np.arange(m) * n, tail.size)
    flow = mass[:, tail].ravel()
    rows = np.r_[shift + np.tile(head, m), shift + np.tile(tail, m)]
    entries = np.r_[flow * scale[:, head].ravel(), -flow * scale[:, tail].ravel()]
    matrix = sparse.coo_array(
        (entries, (rows, np.r_[columns, columns])), shape=(m * n, tail.size)
    ).tocsr()
    load = ((p[1:] - p[:-1]) * scale).ravel()
    if tail.size <= 600:
        gram = (matrix.T @ matrix).toarray()
        right = np.asarray(matrix.T @ load)
        # Least squares through the Cholesky factor: as small as the rates are many.
        lift = 1e-12 * max(float(np.trace(gram)), 1e-300) / tail.size
        factor = np.linalg.cholesky(gram + lift * np.eye(tail.size))
        return np.asarray(optimize.nnls(factor.T, np.linalg.solve(factor, right))[0])
    found = optimize.lsq_linear(matrix, load, bounds=(0.0, np.inf), max_iter=60, lsq_solver="lsmr")
    return np.asarray(np.maximum(found.x, 0.0))


def _likeliest_rates(
    kernel: MarkovKernel, times: Array, counts: Array, rates: Array, start: Array
) -> tuple[Array, Array]:
    floor = 1e-3 * max(float(rates.mean()), 1e-3)
    z0 = np.concatenate([np.log(rates + floor), np.log(start)])
    lower = np.r_[np.full(rates.size, -18.0), np.full(start.size, -60.0)]
    # A state left a hundred times between two snapshots is empty; a faster rate adds nothing.
    fastest = np.log(100.0 / float(np.diff(times).min()))
    upper = np.r_[np.full(rates.size, fastest), np.full(start.size, 60.0)]
    best = _minimise(
        lambda z: ctmc_objective(kernel, times, counts, z), z0, lower=lower, upper=upper
    )
    return np.exp(best[: rates.size]), _softmax(best[rates.size :])


def ctmc_objective(
    kernel: MarkovKernel, times: Array, counts: Array, z: Array
) -> tuple[float, Array]:
    """Minus the log-likelihood at `z = (log rates, logits of p_0)`, and its gradient.

    The adjoint runs backwards through the snapshots; equal time steps share one exponential and
    one Frechet derivative.
    """
    source, target, _ = kernel.edges
    e = source.size
    rates, initial = np.exp(z[: 2 * e]), _softmax(z[2 * e :])
    q = _generator(kernel, rates)
    steps = np.diff(times)
    sizes, which = np.unique(steps.round(12), return_inverse=True)
    jumps = expm(sizes[:, None, None] * q)
    p = np.empty_like(counts)
    p[0] = initial
    for k in range(steps.size):
        p[k + 1] = np.maximum(p[k] @ jumps[which[k]], 1e-300)
    weights = counts + _PRIOR / counts.shape[1]
    by_p = -weights / p
    by_jump = np.zeros_like(jumps)
    carried = by_p[-1]
    for k in range(steps.size - 1, -1, -1):
        by_jump[which[k]] += np.outer(p[k], carried)
        carried = by_p[k] + jumps[which[k]] @ carried
    # The adjoint of the derivative of expm at X is the derivative of expm at X^T.
    by_q = np.tensordot(sizes, _expm_derivatives(sizes[:, None, None] * q.T, by_jump), 1)
    diagonal = np.diagonal(by_q)
    forth, back = by_q[source, target] - diagonal[source], by_q[target, source] - diagonal[target]
    gradient = np.concatenate([rates * np.r_[forth, back], initial * (carried - initial @ carried)])
    return -_log_likelihood(counts, p), gradient


def _expm_derivatives(at: Array, along: Array) -> Array:
    """The derivatives of the exponential at matrices, along others; small ones all at once."""
    n = at.shape[-1]
    if n > _SMALL:
        pairs = zip(at, along, strict=True)
        return np.array([expm_frechet(a, b, compute_expm=False) for a, b in pairs])
    # The exponential of [[A, B], [0, A]] has the derivative at A along B in its corner.
    norm = np.maximum(np.abs(along).max(axis=(1, 2)), 1e-300)[:, None, None]
    size = np.maximum(np.abs(at).max(axis=(1, 2)), 1e-300)[:, None, None]
    both = np.zeros((at.shape[0], 2 * n, 2 * n))
    both[:, :n, :n] = both[:, n:, n:] = at
    both[:, :n, n:] = along * (size / norm)
    return np.asarray(expm(both)[:, :n, n:] * (norm / size))
