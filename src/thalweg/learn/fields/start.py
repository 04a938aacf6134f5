"""The start of a fit: the weak form on counts smoothed in time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.weak.fit import fit_weak
from thalweg.learn.weak.options import WeakOptions
from thalweg.learn.weak.smooth import smoothed_in_time

_COUNTS_PER_CELL = 30.0
"""Counts in a neighbourhood over which a snapshot is smoothed."""
_MOST_STEPS = 40
"""Largest number of smoothing steps."""


def smoothed(kernel: MarkovKernel, counts: Array) -> Array:
    """Positive probabilities: half a count per state, spread over as many neighbours as needed.

    The steps of the lazy walk grow with the sparsity of the counts, up to a neighbourhood of some
    thirty counts.
    """
    walk = sparse.csr_array(0.5 * (sparse.eye_array(kernel.n_states) + kernel.matrix).T)
    out = np.empty_like(counts)
    for k, row in enumerate(counts):
        p = row + 0.5 * kernel.stationary * kernel.n_states
        steps = int(min(_MOST_STEPS, _COUNTS_PER_CELL * kernel.n_states / max(row.sum(), 1.0)))
        for _ in range(steps):
            p = walk @ p
        out[k] = p / p.sum()
    return out


class Start(NamedTuple):
    """`log rho0`, `V` and `beta` to begin with."""

    log_density: Array
    potential: Array
    beta: float


def weak_start(
    kernel: MarkovKernel, times: Array, counts: Array, beta: float | None, rng: np.random.Generator
) -> Start:
    """The weak form's energy, its beta kept within bounds; a flat potential if it fails."""
    p = smoothed(kernel, counts)
    u0 = np.log(p[0] / kernel.stationary)
    try:
        q, sizes = smoothed_in_time(times, counts)
        fit = fit_weak(
            kernel, times, q, sizes=sizes, beta=beta, rng=rng, options=WeakOptions(tolerance=1e-6)
        )
        V, found = fit.potential, fit.beta
    except InputError:
        V, found = np.zeros(kernel.n_states), 0.1
    spread = float(np.sqrt(kernel.stationary @ V**2))
    if spread > 5.0:
        V = V * (5.0 / spread)
    return Start(u0, V, beta if beta is not None else float(np.clip(found, 0.02, 2.0)))
