"""Compiled passes over the edges: fluxes, weighted Laplacians, and their derivatives.

Plain arrays in, plain arrays out, no checks; memory is linear in the edges and each pass reads them
once, in order. `source`, `target` and `conductance` are those of `MarkovKernel.edges`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from thalweg._compile import njit
from thalweg._types import Array, Index32
from thalweg.edges.kinetic import Graph as Graph
from thalweg.edges.kinetic import edge_divergence as edge_divergence
from thalweg.edges.kinetic import stage_weights as stage_weights
from thalweg.edges.kinetic import write_weights

AnyIndex = NDArray[np.integer]


def edge_weights(
    source: Index32, target: Index32, conductance: Array, rho: Array, spec: Array
) -> Array:
    """`w_e = c_e m(rho_source, rho_target)`: the weights of the transport Laplacian."""
    out = np.empty((1, source.size))
    write_weights(source, target, conductance, rho[None], spec, out)
    return out[0]


def dense_laplacian(source: AnyIndex, target: AnyIndex, weights: Array, n_states: int) -> Array:
    """`M = sum_e w_e (e_x - e_y) (e_x - e_y)^T` as a matrix.

    >>> dense_laplacian(np.array([0]), np.array([1]), np.array([2.0]), 2)
    array([[ 2., -2.],
           [-2.,  2.]])
    """
    m = np.zeros((n_states, n_states))
    m[source, target] = m[target, source] = -weights
    np.fill_diagonal(m, -m.sum(axis=1))
    return m


def stacked_laplacians(
    source: AnyIndex, target: AnyIndex, weights: Array, n_states: int
) -> sparse.csr_array:
    """The sparse Laplacians of each row of weights, one above the other.

    >>> stacked_laplacians(np.array([0]), np.array([1]), np.array([[2.0], [3.0]]), 2).toarray()
    array([[ 2., -2.],
           [-2.,  2.],
           [ 3., -3.],
           [-3.,  3.]])
    """
    count, states = weights.shape[0], np.arange(n_states)
    diagonal = np.array([degrees(source, target, row, n_states) for row in weights])
    values = np.concatenate([-weights, -weights, diagonal], axis=1)
    rows = np.concatenate([source, target, states])
    columns = np.concatenate([target, source, states])
    rows = rows + n_states * np.arange(count)[:, None]
    places = (rows.ravel(), np.tile(columns, count))
    return sparse.csr_array((values.ravel(), places), shape=(count * n_states, n_states))


def degrees(source: AnyIndex, target: AnyIndex, weights: Array, n_states: int) -> Array:
    """The sum of the weights at each state: the diagonal of the Laplacian.

    >>> degrees(np.array([0, 1]), np.array([1, 2]), np.array([2.0, 3.0]), 3)
    array([2., 5., 3.])
    """
    leaving = np.bincount(source, weights, n_states) + np.bincount(target, weights, n_states)
    return np.asarray(leaving, dtype=np.float64)


def symmetrised(
    source: AnyIndex, target: AnyIndex, weights: Array, mass: Array, ground: Array | float = 0.0
) -> Array:
    """`D^-1/2 (M + diag(ground)) D^-1/2` as a matrix, with `D = diag(mass)`.

    With the conductances and `mass = pi` it is similar to `I - K`: its eigenvalues are the rates of
    the walk.

    >>> symmetrised(np.array([0]), np.array([1]), np.array([2.0]), np.array([1.0, 4.0]))
    array([[ 2. , -1. ],
           [-1. ,  0.5]])
    """
    m = dense_laplacian(source, target, weights, mass.size)
    m[np.diag_indices(mass.size)] += ground
    root = np.sqrt(mass)
    return np.asarray(m / np.outer(root, root))


@njit(cache=True, error_model="numpy")
def apply_laplacian(source: Index32, target: Index32, weights: Array, psi: Array) -> Array:
    """`M psi` in flux form, `sum_e w_e (psi_x - psi_y) (e_x - e_y)`: what leaves enters."""
    out = np.zeros(psi.size)
    for e in range(source.size):
        flux = weights[e] * (psi[source[e]] - psi[target[e]])
        out[source[e]] += flux
        out[target[e]] -= flux
    return out
