"""Births and deaths between the steps of the flow, compiled, with their sensitivities.

`p' = -M f + (g - <g>) p` is split: after each step `h` of transport the densities are multiplied by
`exp(h g)` and normalised. The error has an expansion in `h`, so the extrapolation over the chains
raises the order as it does for transport alone. The logarithm of the factor that normalises is the
growth of the whole population, `h <g>` to first order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from thalweg._compile import njit
from thalweg._types import Array


class Births(NamedTuple):
    """Rates of birth, their derivatives, and the growth of the whole population so far.

    Parameters
    ----------
    rates : array
        Rate of each state, shape (N,).
    columns : array
        Derivatives of the rates in their coefficients, shape (N, n).
    offset : int
        Column of the sensitivities where these coefficients begin.
    log_mass : array
        Logarithm of the whole population, one per chain.
    slopes : array
        Its derivatives, shape (chains, parameters).
    out : array
        Logarithm and derivatives after each interval, shape (intervals, 1 + parameters).
    """

    rates: Array
    columns: Array
    offset: int
    log_mass: Array
    slopes: Array
    out: Array


@njit(cache=True)
def grow(births: Births, chain: int, h: float, pi: Array, u: Array, slopes: Array) -> None:
    """One step of births for a chain: log densities and sensitivities in place, mass one."""
    n, n_columns, n_rates = pi.size, slopes.shape[1], births.columns.shape[1]
    total = 0.0
    for x in range(n):
        u[x] += h * births.rates[x]
        total += pi[x] * math.exp(u[x])
    level = math.log(total)
    births.log_mass[chain] += level
    for x in range(n):
        u[x] -= level
        if n_columns > 0:
            for i in range(n_rates):
                slopes[x, births.offset + i] += h * births.columns[x, i]
    for j in range(n_columns):
        mean = 0.0
        for x in range(n):
            mean += pi[x] * math.exp(u[x]) * slopes[x, j]
        for x in range(n):
            slopes[x, j] -= mean
        births.slopes[chain, j] += mean
