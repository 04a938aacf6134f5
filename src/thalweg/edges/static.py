"""Compiled passes over the edges: fluxes, weighted Laplacians, and their derivatives.

Plain arrays in, plain arrays out, no checks; memory is linear in the edges and each pass reads them
once, in order. `source`, `target` and `conductance` are those of `MarkovKernel.edges`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from thalweg._compile import njit
from thalweg._types import Array, Index32
from thalweg.edges.kinetic import stage_weights
from thalweg.mobility import formulas

if TYPE_CHECKING:
    from thalweg.kernel import MarkovKernel
    from thalweg.mobility import Mobility


AnyIndex = NDArray[np.integer]


class Graph(NamedTuple):
    """Edges, the stationary distribution, and the code of the mean: what most passes take."""

    source: Index32
    target: Index32
    conductance: Array
    pi: Array
    spec: Array

    @staticmethod
    def of(kernel: MarkovKernel, mobility: Mobility) -> Graph:
        return Graph(*kernel.edges, kernel.stationary, mobility.spec)


def edge_weights(
    source: Index32, target: Index32, conductance: Array, rho: Array, spec: Array
) -> Array:
    """`w_e = c_e m(rho_source, rho_target)`: the weights of the transport Laplacian."""
    return stage_weights(source, target, conductance, rho[None], spec)[0]


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


@njit(cache=True, error_model="numpy")
def quadratic_form(
    source: Index32, target: Index32, weights: Array, phi: Array, psi: Array
) -> float:
    """`phi^T M psi = sum_e w_e (phi_x - phi_y) (psi_x - psi_y)`."""
    total = 0.0
    for e in range(source.size):
        x, y = source[e], target[e]
        total += weights[e] * (phi[x] - phi[y]) * (psi[x] - psi[y])
    return total


@njit(cache=True, error_model="numpy")
def edge_divergence(source: Index32, target: Index32, flux: Array, n_states: int) -> Array:
    """`sum_e flux_e (e_x - e_y)`: what each state gains."""
    out = np.zeros(n_states)
    for e in range(source.size):
        out[source[e]] += flux[e]
        out[target[e]] -= flux[e]
    return out


@njit(cache=True, error_model="numpy")
def kinetic_derivative(
    source: Index32, target: Index32, conductance: Array, rho: Array, psi: Array, spec: Array
) -> Array:
    """`d/d rho (psi^T M(rho) psi)`: `sum_y c_xy d1 m(rho_x, rho_y) (psi_x - psi_y)^2` at `x`."""
    out = np.zeros(rho.size)
    for e in range(source.size):
        x, y = source[e], target[e]
        difference = psi[x] - psi[y]
        _, first, second = formulas.mean_partials(spec, rho[x], rho[y])
        energy = conductance[e] * difference * difference
        out[x] += energy * first
        out[y] += energy * second
    return out
