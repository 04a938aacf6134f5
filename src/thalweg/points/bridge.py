"""The Schroedinger bridge on a graph: the likeliest path of a walk between two snapshots."""

from __future__ import annotations

import numpy as np
from scipy.linalg import expm

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel

_SWEEPS = 500
"""Largest number of alternate scalings."""
_TOLERANCE = 1e-9
"""Error of the end point, in mass, at which scaling ends."""


def walk_generator(kernel: MarkovKernel, energy: FreeEnergy) -> Array:
    """The walk with rates `beta K(x, y) exp((U_x - U_y) / 2)`, `U = V / beta`, dense.

    Its equilibrium is that of the flow of the same energy; with `V = 0` it is free diffusion.
    """
    if not energy.beta > 0:
        raise InputError("beta is 0: a walk without noise has no bridges; use a positive beta.")
    u = energy.potential / energy.beta
    k = kernel.matrix.toarray()
    q = energy.beta * k * np.exp(np.clip(0.5 * (u[:, None] - u[None, :]), -30, 30))
    np.fill_diagonal(q, 0.0)
    np.fill_diagonal(q, -q.sum(axis=1))
    return np.asarray(q)


@single_threaded
def schroedinger_bridge(generator: Array, p: Array, q: Array, span: float, at: Array) -> Array:
    """Distributions at the times `at` in `[0, span]` of the walk conditioned on `p` and `q`.

    Of all laws of paths with these end points, the one nearest in relative entropy to the walk:
    `p_t = (f exp(t Q)) (exp((span - t) Q) g)`, with `f`, `g` found by alternate scaling.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> walk = walk_generator(kernel, FreeEnergy([0.0, 0.0, 0.0], 1.0))
    >>> ends = np.array([0.8, 0.1, 0.1]), np.array([0.1, 0.1, 0.8])
    >>> schroedinger_bridge(walk, *ends, 1.0, np.array([0.0, 0.5, 1.0])).round(3)
    array([[0.8  , 0.1  , 0.1  ],
           [0.287, 0.427, 0.287],
           [0.1  , 0.1  , 0.8  ]])
    """
    span = _checks.positive(span, "span")
    step = np.maximum(expm(span * generator), 1e-300)
    g = np.ones(p.size)
    for _ in range(_SWEEPS):
        f = p / (step @ g)
        reached = f @ step
        error = float(np.abs(reached * g - q).sum())
        g = q / reached
        if error < _TOLERANCE:
            break
    f = p / (step @ g)
    out = []
    for t in at:
        here = (f @ expm(t * generator)) * (expm((span - t) * generator) @ g)
        here = np.maximum(here, 0.0)
        out.append(here / here.sum())
    return np.array(out)
