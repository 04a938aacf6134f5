"""Compiled chains of implicit Euler steps that keep their factors, with tangents and adjoints.

The unknown is `u = log rho`; rows of a step are divided by `pi`:

    e^{u_x} - e^{v_x} + h sum_y c_xy / pi_x [m (V_x - V_y) + beta (rho_x - rho_y)] = 0.

Each accepted step keeps its state, its edge weights `h c m / pi` at both ends, and the factors of
its Newton matrix `J`. With them a tangent, an adjoint or a block of sensitivities costs triangular
solves only. Since mass is conserved, `J^T pi = pi e^u`: that identity checks the factors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from thalweg._compile import inner, njit
from thalweg._types import Array, Index
from thalweg.edges.step import bounded_change, entropy_step, lifted
from thalweg.learn.likelihood.sparse.elimination import (
    Plan,
    factor,
    solve,
    solve_many,
    solve_transposed,
)
from thalweg.mobility import logarithmic

__all__ = [
    "Chain",
    "adjoint",
    "advance",
    "empty_chain",
    "follow",
    "reordered",
    "sensitivities",
    "tangent",
    "weigh",
]


_NEWTON_LIMIT = 60
_NEWTON_TOLERANCE = 1e-5
"""Size of the last update in `log rho` at which a step is solved: convergence is quadratic, and the
factors belong to the state before it."""
_CHORD_TOLERANCE = 1e-5
"""The same for updates with old factors, which only prepare Newton's method."""
_SAVED = 3.0
"""Newton iterations that old factors may save: beyond what those cost, new factors are cheaper."""
_VALUE_TOLERANCE = 1e-5
"""The same where only the value is wanted and Newton's method follows only if this fails."""
_COLUMNS = 64
"""Number of sensitivities processed together, so that they stay in the processor's cache."""
_DEEPEST = -250.0
"""Smallest log density; lower ones would underflow."""
_ACCURATE = 1e-4
"""Largest relative violation of the balance of mass by the factors of a step."""


class Chain(NamedTuple):
    """All steps of one chain."""

    steps: Array
    """Lengths, shape (K,)."""
    outputs: Index
    """Steps at whose end a snapshot lies."""
    logs: Array
    """`u` after each step, (K, N)."""
    weights: Array
    """(K, edges, 2)."""
    inverse: Array
    lower: Array
    upper: Array
    tail: Array


class _Step(NamedTuple):
    """The equations of one step: potential, beta, length, densities before."""

    V: Array
    beta: float
    h: float
    before: Array


def empty_chain(plan: Plan, steps: Array, outputs: Index) -> Chain:
    """Storage for a chain with these steps."""
    k, n, dense = steps.size, plan.pi.size, plan.pi.size - plan.split
    return Chain(
        steps,
        outputs,
        np.empty((k, n)),
        np.empty((k, plan.source.size, 2)),
        np.empty((k, n)),
        np.empty((k, plan.later.size)),
        np.empty((k, plan.later.size)),
        np.empty((k, dense, dense)),
    )


@inner(cache=True)
def _residual(plan: Plan, step: _Step, u: Array, rho: Array, out: Array) -> None:
    V, beta, h, before = step
    for x in range(u.size):
        rho[x] = math.exp(u[x])
        out[x] = rho[x] - before[x]
    for e in range(plan.source.size):
        x, y = plan.source[e], plan.target[e]
        m = logarithmic.mean_from_difference(u[x] - u[y], rho[x], rho[y])
        flux = h * plan.conductance[e] * (m * (V[x] - V[y]) + beta * (rho[x] - rho[y]))
        out[x] += flux / plan.pi[x]
        out[y] -= flux / plan.pi[y]


@inner(cache=True)
def _assemble(
    plan: Plan, step: _Step, u: Array, rho: Array, out: Array, work: Array, weights: Array
) -> None:
    """Residual, Newton matrix and edge weights of a step at `u`."""
    V, beta, h, before = step
    split = plan.split
    for k in range(split):
        for q in range(plan.pointer[k], plan.pointer[k + 1]):
            work[k, plan.later[q]] = 0.0
            work[plan.later[q], k] = 0.0
    work[split:, split:] = 0.0
    for x in range(u.size):
        rho[x] = math.exp(u[x])
        work[x, x] = rho[x]
        out[x] = rho[x] - before[x]
    for e in range(plan.source.size):
        x, y = plan.source[e], plan.target[e]
        m, flux, by_x, by_y = entropy_step(beta, V[x] - V[y], u[x] - u[y], rho[x], rho[y])
        at_x, at_y = h * plan.conductance[e] / plan.pi[x], h * plan.conductance[e] / plan.pi[y]
        weights[e, 0], weights[e, 1] = at_x * m, at_y * m
        out[x] += at_x * flux
        out[y] -= at_y * flux
        work[x, x] += at_x * by_x
        work[x, y] += at_x * by_y
        work[y, x] -= at_y * by_x
        work[y, y] -= at_y * by_y


@inner(cache=True)
def _pack(plan: Plan, work: Array, chain: Chain, k: int) -> None:
    """Store the factors in `work` with those of step `k`."""
    split = plan.split
    for i in range(work.shape[0]):
        chain.inverse[k, i] = 1.0 / work[i, i]
    for i in range(split):
        for q in range(plan.pointer[i], plan.pointer[i + 1]):
            chain.lower[k, q] = work[plan.later[q], i]
            chain.upper[k, q] = work[i, plan.later[q]]
    chain.tail[k] = work[split:, split:]


@inner(cache=True)
def _newton(
    plan: Plan, given: _Step, old: Array, u: Array, work: Array, chain: Chain, k: int, limit: int
) -> bool:
    """Solve step `k` for `u` in place; its factors and weights are those of the last iteration."""
    n = u.size
    rho, update = np.empty(n), np.empty(n)
    damp, last = 1.0, math.inf
    for iteration in range(limit):
        _assemble(plan, given, u, rho, update, work, chain.weights[k])
        moved = False
        for x in range(n):
            now = lifted(u[x], 0.0, rho[x], update[x], work[x, x])
            moved = moved or now != u[x]
            u[x] = now
        if moved:
            continue
        if not factor(plan, work):
            return False
        _pack(plan, work, chain, k)
        solve(plan, chain.inverse[k], chain.lower[k], chain.upper[k], chain.tail[k], update)
        biggest, top = 0.0, u.max()
        for x in range(n):
            if not math.isfinite(update[x]):
                return False
            biggest = max(biggest, abs(update[x]) / max(1.0, top - u[x]))
            u[x] += damp * bounded_change(-update[x], u[x], old[x], top)
            if u[x] < _DEEPEST:
                return False
        if biggest < _NEWTON_TOLERANCE:
            return True
        if iteration > 12 and biggest > 0.5 * last:  # a cycle is broken by halving
            damp = max(0.25, 0.5 * damp)
        elif damp < 1.0:
            damp = min(1.0, 1.5 * damp)
        last = biggest
    return False


@inner(cache=True)
def _chord(plan: Plan, given: _Step, u: Array, k: int, old: Chain, tolerance: float) -> bool:
    """Bring `u` towards the solution of step `k` with the factors of an older chain.

    Ends when the updates are below `tolerance`, or (False) when their ratio says that new factors
    would be cheaper; `u` then includes the updates before the last.
    """
    n = u.size
    rho, update = np.empty(n), np.empty(n)
    last, left = 1.0, _SAVED * plan.patience
    while True:
        _residual(plan, given, u, rho, update)
        solve(plan, old.inverse[k], old.lower[k], old.upper[k], old.tail[k], update)
        biggest, top, lowest = 0.0, u.max(), 0.0
        for x in range(n):
            if not math.isfinite(update[x]):
                return False
            biggest = max(biggest, abs(update[x]) / max(1.0, top - u[x]))
            lowest = min(lowest, u[x] - update[x])
        if biggest >= last or lowest < _DEEPEST:
            return False
        left -= 1.0
        if biggest > tolerance and math.log(biggest / tolerance) > left * math.log(last / biggest):
            return False
        for x in range(n):
            u[x] -= update[x]
        if biggest <= tolerance:
            return True
        last = biggest


@inner(cache=True)
def _is_accurate(plan: Plan, chain: Chain, k: int, u: Array) -> bool:
    test = np.empty(u.size)
    for x in range(u.size):
        test[x] = plan.pi[x] * math.exp(u[x])
    solve_transposed(plan, chain.inverse[k], chain.lower[k], chain.upper[k], chain.tail[k], test)
    for x in range(u.size):
        if not abs(test[x] - plan.pi[x]) <= _ACCURATE * plan.pi[x]:
            return False
    return True


@njit(cache=True)
def advance(
    plan: Plan, V: Array, beta: float, start: Array, chain: Chain, old: Chain, guess: Array
) -> bool:
    """All steps of a chain from `start`; False where one has no solution or bad factors.

    With `guess` (K, N) not empty, steps start there with the factors of `old`.
    """
    n = start.size
    work, u, previous = np.zeros((n, n)), start.copy(), start.copy()
    before = np.exp(start)
    for k in range(chain.steps.size):
        v, h = u.copy(), chain.steps[k]
        given, solved = _Step(V, beta, h, before), False
        if guess.shape[0] > 0:
            u[:] = guess[k]
            _chord(plan, given, u, k, old, _CHORD_TOLERANCE)
            solved = _newton(plan, given, v, u, work, chain, k, 8)
        if not solved and k > 0:
            for x in range(n):
                move = 0.8 * (v[x] - previous[x]) * h / chain.steps[k - 1]
                u[x] = v[x] + min(max(move, -0.5), 0.5)
            solved = _newton(plan, given, v, u, work, chain, k, 8)
        if not solved:
            u[:] = v
            solved = _newton(plan, given, v, u, work, chain, k, _NEWTON_LIMIT)
        if not solved:  # along the path of growing step sizes
            reached, part, good = 0.0, h / 16.0, v.copy()
            while reached < h:
                trial = min(h, reached + part)
                u[:] = good
                part_of_it = _Step(V, beta, trial, before)
                if _newton(plan, part_of_it, v, u, work, chain, k, _NEWTON_LIMIT):
                    good[:] = u
                    reached = trial
                    part *= 2.0
                else:
                    part *= 0.25
                    if part < 1e-6 * h:
                        return False
        if not _is_accurate(plan, chain, k, u):
            return False
        previous[:] = v
        chain.logs[k] = u
        for x in range(n):
            before[x] = math.exp(u[x])
    return True


@njit(cache=True)
def tangent(
    plan: Plan, beta: float, start: Array, chain: Chain, change: Array, keep: Index, out: Array
) -> None:
    """Changes of `u` after the steps `keep`, for a change of (potential, log beta, start)."""
    n = start.size
    dV, d_log_beta = change[:n], change[n]
    s, row = change[n + 1 :].copy(), 0
    for k in range(chain.steps.size):
        v = chain.logs[k - 1] if k > 0 else start
        u = chain.logs[k]
        for x in range(u.size):
            s[x] *= math.exp(v[x])
        for e in range(plan.source.size):
            x, y = plan.source[e], plan.target[e]
            force = dV[x] - dV[y] + d_log_beta * beta * (u[x] - u[y])
            s[x] -= chain.weights[k, e, 0] * force
            s[y] += chain.weights[k, e, 1] * force
        solve(plan, chain.inverse[k], chain.lower[k], chain.upper[k], chain.tail[k], s)
        if row < keep.size and keep[row] == k:
            out[row] = s
            row += 1


@njit(cache=True)
def adjoint(
    plan: Plan,
    beta: float,
    start: Array,
    chain: Chain,
    cotangents: Array,
    by_V: Array,
    by_start: Array,
) -> float:
    """Adds to the derivatives in potential and start; returns that in log beta."""
    n, row = start.size, chain.outputs.size - 1
    by_log_beta, back = 0.0, np.zeros(n)
    for k in range(chain.steps.size - 1, -1, -1):
        if row >= 0 and chain.outputs[row] == k:
            back += cotangents[row]
            row -= 1
        solve_transposed(
            plan, chain.inverse[k], chain.lower[k], chain.upper[k], chain.tail[k], back
        )
        u = chain.logs[k]
        for e in range(plan.source.size):
            x, y = plan.source[e], plan.target[e]
            force = chain.weights[k, e, 1] * back[y] - chain.weights[k, e, 0] * back[x]
            by_V[x] += force
            by_V[y] -= force
            by_log_beta += force * beta * (u[x] - u[y])
        v = chain.logs[k - 1] if k > 0 else start
        for x in range(n):
            back[x] *= math.exp(v[x])
    by_start += back
    return by_log_beta


@njit(cache=True)
def follow(
    plan: Plan, V: Array, beta: float, start: Array, old: Chain, logs: Array, spare: Chain
) -> bool:
    """The log densities after all steps, next to a chain whose factors serve instead of new ones.

    `logs` (K, N) holds a guess and takes the answer; `spare` has room for the factors of one step,
    for those that need Newton's method. False where a step has no solution.
    """
    n = start.size
    work, v, factored = np.zeros((n, n)), start.copy(), np.empty(n)
    before = np.exp(start)
    for k in range(old.steps.size):
        u = logs[k]
        given = _Step(V, beta, old.steps[k], before)
        if not _chord(plan, given, u, k, old, _VALUE_TOLERANCE):
            solved, tries = False, 0
            while not solved and tries < 8:  # new factors serve while they bring it closer
                factored[:] = u
                solved = _newton(plan, given, v, u, work, spare, 0, 1)
                if not _is_accurate(plan, spare, 0, factored):
                    break
                solved = solved or _chord(plan, given, u, 0, spare, _VALUE_TOLERANCE)
                tries += 1
            if not solved:
                u[:] = v
                if not _newton(plan, given, v, u, work, spare, 0, _NEWTON_LIMIT):
                    return False
                if not _is_accurate(plan, spare, 0, u):
                    return False
        v[:] = u
        for x in range(n):
            before[x] = math.exp(u[x])
    return True


@njit(cache=True)
def sensitivities(
    plan: Plan, beta: float, start: Array, chain: Chain, first: Array, part: Array, total: Array
) -> None:
    """Adds `part` (outputs, N) times the derivatives of `u` at the outputs to `total`.

    Those in (potential, log beta, start), shape (outputs, N, 2 N + 1); `first` is the distribution
    at the start.
    """
    n = start.size
    for begin in range(0, 2 * n + 1, _COLUMNS):
        end = min(begin + _COLUMNS, 2 * n + 1)
        carried, row = np.zeros((n, end - begin)), 0
        for j in range(max(begin, n + 1), end):
            for x in range(n):
                carried[x, j - begin] = -first[j - n - 1]
            carried[j - n - 1, j - begin] += 1.0
        for k in range(chain.steps.size):
            v = chain.logs[k - 1] if k > 0 else start
            u = chain.logs[k]
            for x in range(n):
                share = math.exp(v[x])
                for j in range(end - begin):
                    carried[x, j] *= share
            for e in range(plan.source.size):
                x, y = plan.source[e], plan.target[e]
                a, b = chain.weights[k, e, 0], chain.weights[k, e, 1]
                if begin <= x < end:
                    carried[x, x - begin] -= a
                    carried[y, x - begin] += b
                if begin <= y < end:
                    carried[x, y - begin] += a
                    carried[y, y - begin] -= b
                if begin <= n < end:
                    gap = beta * (u[x] - u[y])
                    carried[x, n - begin] -= a * gap
                    carried[y, n - begin] += b * gap
            solve_many(
                plan, chain.inverse[k], chain.lower[k], chain.upper[k], chain.tail[k], carried
            )
            if row < chain.outputs.size and chain.outputs[row] == k:
                for x in range(n):
                    share, out = part[row, x], total[row, x, begin:end]
                    for j in range(end - begin):
                        out[j] += share * carried[x, j]
                row += 1


@njit(cache=True)
def weigh(total: Array, p: Array, weights: Array) -> None:
    """From derivatives of `u` to rows whose squares are those of `log p`, weighted."""
    mean = np.empty(total.shape[2])
    for k in range(total.shape[0]):
        mean[:] = 0.0
        for x in range(total.shape[1]):
            row, share = total[k, x], p[k, x]
            for j in range(mean.size):
                mean[j] += share * row[j]
        for x in range(total.shape[1]):
            row, root = total[k, x], math.sqrt(weights[k, x])
            for j in range(mean.size):
                row[j] = root * (row[j] - mean[j])


@njit(cache=True)
def reordered(lower: Array, places: Index) -> Array:
    """The symmetric matrix with this lower triangle, of the rows and columns `places`."""
    size = places.size
    full = np.empty((size, size))
    for a in range(size):
        for b in range(a + 1):
            i, j = max(places[a], places[b]), min(places[a], places[b])
            full[a, b] = lower[i, j]
            full[b, a] = lower[i, j]
    return full
