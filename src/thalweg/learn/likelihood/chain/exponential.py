"""`exp(t Q)` of a generator whose jumps all go one way, and its derivatives in every rate.

Frozen rates point down the first variation, so `Q` is triangular in the order of falling `f`. Its
exponential is a short series of positive terms, squared until the interval is covered: no
subtraction, so that tiny probabilities keep their digits. With `m_s = m exp(s Q)`, one rate
`Q_ab` changes `m exp(t Q)` by the adjoint formula

    d(m exp(t Q))_y / dQ_ab = integral_0^t m_s(a) (exp((t - s) Q)_by - exp((t - s) Q)_ay) ds,

integrated by Gauss points on panels that double in length from either end, where fast states are
in their initial layers. All edges together cost a fixed number of products of two triangular
matrices, where forward derivatives would take as many for every parameter.
"""

from __future__ import annotations

import math

import numpy as np

from thalweg._compile import inner, njit
from thalweg._types import Array, Index

FASTEST = 1e8
"""Rates per interval are capped at this value, which is practically immediate, as in `simulate`."""
_TERMS = 19  # terms of the series; at norm one the remainder is below 1e-17
_POINTS = 4  # Gauss points per panel: derivatives to about 1e-6 of their size
_NODES = 0.5 * (1.0 + np.polynomial.legendre.leggauss(_POINTS)[0])
_WEIGHTS = 0.5 * np.polynomial.legendre.leggauss(_POINTS)[1]


@inner(cache=True)
def _product(a: Array, b: Array, out: Array) -> None:
    """`out = a b`, all upper triangular."""
    n = a.shape[0]
    for i in range(n):
        for k in range(i, n):
            out[i, k] = 0.0
        for j in range(i, n):
            v = a[i, j]
            if v != 0.0:
                for k in range(j, n):
                    out[i, k] += v * b[j, k]


@inner(cache=True)
def _rows(m: Array, a: Array, out: Array) -> None:
    """`out = m a` for the rows `m` and an upper triangular `a`."""
    n = a.shape[0]
    for i in range(m.shape[0]):
        for k in range(n):
            out[i, k] = 0.0
        for j in range(n):
            v = m[i, j]
            if v != 0.0:
                for k in range(j, n):
                    out[i, k] += v * a[j, k]


@inner(cache=True)
def _unit_rows(a: Array) -> None:
    n = a.shape[0]
    for i in range(n):
        total = 0.0
        for k in range(i, n):
            total += a[i, k]
        for k in range(i, n):
            a[i, k] /= total


@inner(cache=True)
def _collect(weight: float, m: Array, a: Array, start: Index, end: Index, out: Array) -> None:
    """Add `weight m(start) (a[end] - a[start])` for every edge and every row of `m`."""
    n = a.shape[0]
    for e in range(start.size):
        x, y = start[e], end[e]
        for i in range(m.shape[0]):
            v = weight * m[i, x]
            if v == 0.0:
                continue
            for k in range(x, y):
                out[i, e, k] -= v * a[x, k]
            for k in range(y, n):
                out[i, e, k] += v * (a[y, k] - a[x, k])


@njit(cache=True)
def exponential(
    n: int, start: Index, end: Index, rate: Array, t: float, mass: Array, slopes: bool
) -> tuple[Array, Array]:
    """`exp(t Q)` (n, n), and the derivatives of `mass exp(t Q)` in each rate (rows, edges, n).

    Edge `e` jumps from `start[e]` to `end[e] > start[e]`. The derivatives are empty unless
    `slopes`.
    """
    tick, leaving = np.zeros((n, n)), np.zeros(n)
    for e in range(start.size):
        tick[start[e], end[e]] += rate[e]
        leaving[start[e]] += rate[e]
    clock = max(leaving.max(), 1e-300)
    doublings = max(1, math.ceil(math.log2(max(clock * t, 1e-300))))
    h = t / 2.0**doublings
    for i in range(n):
        for k in range(i + 1, n):
            tick[i, k] /= clock
        tick[i, i] = max(1.0 - leaving[i] / clock, 0.0)
    # Steps of h and, for derivatives, of the Gauss points' shares of h: one series of powers.
    n_steps = 1 + _POINTS if slopes else 1
    steps = np.zeros((n_steps, n, n))
    weight, mean = np.ones(n_steps), np.empty(n_steps)
    mean[0] = clock * h
    for j in range(1, n_steps):
        mean[j] = clock * h * _NODES[j - 1]
    power, spare = np.eye(n), np.zeros((n, n))
    for term in range(_TERMS):
        for j in range(n_steps):
            for i in range(n):
                for k in range(i, n):
                    steps[j, i, k] += weight[j] * power[i, k]
            weight[j] *= mean[j] / (term + 1)
        if weight.max() < 1e-18:
            break
        _product(power, tick, spare)
        power, spare = spare, power
    whole = np.zeros((doublings + 1, n, n))
    whole[0] = steps[0]
    _unit_rows(whole[0])
    for i in range(doublings):
        _product(whole[i], whole[i], whole[i + 1])
        _unit_rows(whole[i + 1])
    if not slopes:
        return whole[doublings], np.zeros((mass.shape[0], 0, n))
    # rest[i] covers the time after 2^i h.
    rest = np.zeros((doublings, n, n))
    rest[doublings - 1] = whole[doublings - 1]
    for i in range(doublings - 1, 0, -1):
        _product(rest[i], whole[i - 1], rest[i - 1])
    out = np.zeros((mass.shape[0], start.size, n))
    early, late, now = np.empty_like(mass), np.empty_like(mass), np.empty_like(mass)
    part = steps[1:]
    for j in range(_POINTS):
        _unit_rows(part[j])
    for i in range(doublings):
        # The panel [0, h], then [h, 2 h], [2 h, 4 h], ..., each with its mirror at the other end.
        length = h if i == 0 else 2.0 ** (i - 1) * h
        if i == 0:
            early[:] = mass
        else:
            _rows(mass, whole[i - 1], early)
        _rows(mass, rest[i], late)
        for j in range(_POINTS):
            mirror = part[_POINTS - 1 - j]
            share = length * _WEIGHTS[j]
            _rows(early, part[j], now)
            _product(mirror, rest[i], spare)
            _collect(share, now, spare, start, end, out)
            _rows(late, mirror, now)
            if i == 0:
                _collect(share, now, part[j], start, end, out)
            else:
                _product(part[j], whole[i - 1], spare)
                _collect(share, now, spare, start, end, out)
        if 0 < i < doublings - 1:
            for j in range(_POINTS):
                _product(part[j], part[j], spare)
                part[j] = spare
                _unit_rows(part[j])
    return whole[doublings], out
