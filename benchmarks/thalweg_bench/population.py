"""The paper's population: rates frozen over each interval, every individual followed.

The rates are those of the infinite population, `p_{k+1} = p_k exp(dt Q(p_k))`, by whose matrices
`follow` moves the individuals, or those of the population's own density (`follow_itself`). Counts
of transitions, which a Markov-state model needs, come with the snapshots.
"""

from __future__ import annotations

import math

import numpy as np

from thalweg._door import single_threaded
from thalweg._types import Array, Counts
from thalweg.energy import FreeEnergy
from thalweg.flow.rates import edge_rates
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.chain.steps import LEAST
from thalweg.learn.likelihood.tracked import PSEUDO_COUNT
from thalweg.mobility import LogMean

__all__ = ["follow", "follow_itself", "frozen_chain", "transition_matrix"]


_FASTEST = 1e8
"""Rates per interval are capped at this value, which is practically immediate."""
_TERMS = 24
"""Terms of the exponential's series; at norm one the remainder is below 1e-23."""
_SMALLEST = 1e-24
"""Terms of the series below this are left out."""


def transition_matrix(kernel: MarkovKernel, energy: FreeEnergy, p: Array, step: float) -> Array:
    """`exp(step Q(p))`, rows summing to one, by a series without subtractions and squarings.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> transition_matrix(kernel, FreeEnergy([0.0, 0.0], 1.0), np.array([0.25, 0.75]), 1.0).round(3)
    array([[1.   , 0.   ],
           [0.487, 0.513]])
    """
    rates = np.zeros((kernel.n_states, kernel.n_states))
    start, end, rate = edge_rates(kernel, energy, p, LogMean())
    rates[start, end] = np.minimum(rate, _FASTEST / step)
    leaving = rates.sum(axis=1)
    clock = max(float(leaving.max()), 1e-300)
    tick = rates / clock
    tick[np.diag_indices_from(tick)] = np.maximum(1 - leaving / clock, 0.0)
    squarings = max(0, math.ceil(math.log2(clock * step)))
    mean = clock * step / 2.0**squarings
    out, power, weight = np.zeros_like(tick), np.eye(len(tick)), 1.0
    for j in range(_TERMS):
        out += weight * power
        weight *= mean / (j + 1)
        if weight < _SMALLEST:
            break
        power = power @ tick
    for k in range(squarings + 1):
        out /= out.sum(axis=1, keepdims=True)
        if k < squarings:
            out = out @ out
    return out


@single_threaded
def frozen_chain(
    kernel: MarkovKernel, energy: FreeEnergy, p0: Array, times: Array
) -> tuple[Array, Array]:
    """The infinite population at the times, and the matrices that move it from each to the next."""
    p, rows, matrices = p0, [p0], []
    for step in np.diff(times):
        matrices.append(transition_matrix(kernel, energy, p, float(step)))
        # The mass left in an emptied state sets the rates back into it: the fit has the same floor.
        p = np.maximum(p @ matrices[-1], LEAST)
        p = p / p.sum()
        rows.append(p)
    return np.array(rows), np.array(matrices)


def follow(p0: Array, matrices: Array, n: int, rng: np.random.Generator) -> tuple[Counts, Counts]:
    """`n` individuals: counts at the times, and transitions (intervals, from, to) between them."""
    counts = [rng.multinomial(n, p0)]
    transitions = np.empty(matrices.shape, dtype=np.int64)
    for k, matrix in enumerate(matrices):
        transitions[k] = rng.multinomial(counts[-1], matrix)
        counts.append(transitions[k].sum(axis=0))
    return np.array(counts), transitions


@single_threaded
def follow_itself(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p0: Array,
    times: Array,
    n: int,
    rng: np.random.Generator,
) -> tuple[Counts, Counts]:
    """`n` individuals whose own density sets the rates; counts and transitions as `follow` gives.

    As in `thalweg.simulate`, a pseudo-count in every state lets a potential push individuals into
    an empty one.
    """
    counts, transitions = [rng.multinomial(n, p0)], []
    for step in np.diff(times):
        dressed = counts[-1] + np.full(kernel.n_states, PSEUDO_COUNT)
        p = np.asarray(dressed / dressed.sum(), dtype=np.float64)
        matrix = transition_matrix(kernel, energy, p, float(step))
        transitions.append(rng.multinomial(counts[-1], matrix))
        counts.append(transitions[-1].sum(axis=0))
    return np.array(counts), np.array(transitions)
