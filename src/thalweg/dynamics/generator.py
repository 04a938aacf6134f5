"""The generator of a reversible walk from its conductances, in the two forms that are needed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from thalweg._types import Array
from thalweg.kernel import MarkovKernel

Index = NDArray[np.integer]


def jump_matrix(kernel: MarkovKernel, out: Array, home: Array) -> sparse.csr_array:
    """The matrix with rate `out` from source to target of each edge, `home` back.

    >>> pair = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> jump_matrix(pair, np.array([2.0]), np.array([3.0])).toarray()
    array([[-2.,  2.],
           [ 3., -3.]])
    """
    source, target, _ = kernel.edges
    n = kernel.n_states
    leaving = np.bincount(source, out, n) + np.bincount(target, home, n)
    states = np.arange(n)
    rows = np.concatenate([source, target, states])
    columns = np.concatenate([target, source, states])
    values = np.concatenate([out, home, -leaving])
    return sparse.csr_array(sparse.coo_array((values, (rows, columns)), shape=(n, n)))


def symmetrised(
    source: Index, target: Index, conductance: Array, mass: Array, ground: Array | float = 0.0
) -> Array:
    """`D^-1/2 (A + diag(ground)) D^-1/2`, dense, with the Laplacian `A` and `D = diag(mass)`.

    >>> symmetrised(np.array([0]), np.array([1]), np.array([2.0]), np.array([1.0, 4.0]))
    array([[ 2. , -1. ],
           [-1. ,  0.5]])
    """
    n, root = mass.size, np.sqrt(mass)
    out = np.zeros((n, n))
    np.add.at(out, (source, target), -conductance / root[source] / root[target])
    out += out.T
    leaving = np.bincount(source, conductance, n) + np.bincount(target, conductance, n)
    out[np.diag_indices(n)] = (leaving + ground) / mass
    return out
