"""Gradient, divergence, inner product and transport Laplacian: the calculus of the paper.

Conventions, used everywhere: the gradient of a potential along the edge `(x, y)` is
`psi(x) - psi(y)`; mass moves towards **high** `psi`; `M(rho) psi = p_dot`.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from thalweg._types import Array
from thalweg.edges import static
from thalweg.kernel import MarkovKernel
from thalweg.mobility import Mobility


def gradient(kernel: MarkovKernel, psi: Array) -> Array:
    """`psi(x) - psi(y)` along each edge of `kernel.edges`.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> gradient(kernel, np.array([3.0, 1.0, 1.5]))
    array([ 2. , -0.5])
    """
    return np.asarray(psi[kernel.edges.source] - psi[kernel.edges.target])


def divergence(kernel: MarkovKernel, field: Array) -> Array:
    """The discrete divergence of an antisymmetric edge field `Psi(x, y)`, given on the edges.

    `(div Psi)(x) = -sum_y K(x, y) Psi(x, y)`, so that `<grad psi, Psi>_pi = -<psi, div Psi>_pi`
    and the continuity equation reads `rho_dot + div(m grad psi) = 0`.
    """
    source, target, conductance = kernel.edges
    gain = static.edge_divergence(source, target, conductance * field, kernel.n_states)
    return np.asarray(-gain / kernel.stationary)


def transport_weights(kernel: MarkovKernel, p: Array, mobility: Mobility) -> Array:
    """`c_xy m(rho_x, rho_y)` per edge: the weights of `M(rho)`."""
    return np.asarray(static.edge_weights(*kernel.edges, p / kernel.stationary, mobility.spec))


def transport_laplacian(kernel: MarkovKernel, p: Array, mobility: Mobility) -> sparse.csr_array:
    """`M(rho) = sum over edges of c m (e_x - e_y)(e_x - e_y)^T` as a sparse matrix.

    >>> from thalweg.mobility import LogMean
    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> transport_laplacian(kernel, np.array([0.5, 0.5]), LogMean()).toarray()
    array([[ 0.5, -0.5],
           [-0.5,  0.5]])
    """
    weights = transport_weights(kernel, p, mobility)
    shape = (kernel.n_states, kernel.n_states)
    off = sparse.csr_array((weights, kernel.edges[:2]), shape=shape)
    off = off + off.T
    return sparse.csr_array(sparse.diags_array(np.asarray(off.sum(axis=1)).ravel()) - off)


def inner(kernel: MarkovKernel, p: Array, phi: Array, psi: Array, mobility: Mobility) -> float:
    """`<grad phi, grad psi>_rho`, eq. (8) of the paper."""
    weights = transport_weights(kernel, p, mobility)
    return float(weights @ (gradient(kernel, phi) * gradient(kernel, psi)))
