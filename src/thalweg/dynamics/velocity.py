"""The flow as a velocity field on an embedding.

Along the edges of a state `x` with displacements `d_xy` in the embedding, the force is the gradient
that best explains the drops of the first variation,

    min_g sum_y K_xy (g . d_xy - (f_x - f_y))^2.

An edge's flux is shared by its two ends, so the population at `x` moves with
`v_x = 1/2 (sum_y K_xy d d^T) g = 1/2 sum_y K_xy (f_x - f_y) d`, by the normal equations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from thalweg import _checks
from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel


def velocity(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    embedding: ArrayLike,
    p: ArrayLike | None = None,
) -> Array:
    """The velocity of the population at each state, one row per state.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    energy : FreeEnergy
        The landscape.
    embedding : array
        Positions of the states, shape `(n_states, dimension)`.
    p : array, optional
        The population; by default the drift of the landscape alone, without the spreading.

    >>> path = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> velocity(path, FreeEnergy([0.0, 1.0, 4.0], 0.1), [[0.0], [1.0], [2.0]]).ravel()
    array([-0.5, -1. , -1.5])
    """
    f, xy = _drops(kernel, energy, embedding, p)
    return np.asarray(velocity_map(kernel, f) @ xy)


def velocity_map(kernel: MarkovKernel, f: Array) -> sparse.csr_array:
    """The matrix that takes positions to velocities under the first variation `f`; rows sum to 0.

    >>> path = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> velocity_map(path, np.array([1.0, 0.0])).toarray()
    array([[-0.5,  0.5],
           [-0.5,  0.5]])
    """
    source, target, c = kernel.edges
    drop, n = 0.5 * c * (f[source] - f[target]), kernel.n_states
    rows, columns = np.concatenate([source, target]), np.concatenate([target, source])
    off = sparse.csr_array((np.concatenate([drop, -drop]), (rows, columns)), shape=(n, n))
    out = off - sparse.diags_array(np.asarray(off.sum(axis=1)).ravel())
    return sparse.csr_array(sparse.diags_array(1.0 / kernel.stationary) @ out)


def force(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    embedding: ArrayLike,
    p: ArrayLike | None = None,
) -> Array:
    """Minus the gradient of the first variation in the embedding, by least squares at each state.

    The parameters are those of `velocity`. Directions that no edge of a state spans have force 0.

    >>> path = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> force(path, FreeEnergy([0.0, 1.0, 4.0], 0.1), [[0.0], [1.0], [2.0]]).ravel()
    array([-1., -2., -3.])
    """
    f, xy = _drops(kernel, energy, embedding, p)
    source, target, c = kernel.edges
    d, drop = xy[target] - xy[source], f[source] - f[target]
    n, dim = xy.shape
    right, spread = np.zeros((n, dim)), np.zeros((n, dim, dim))
    for end in (source, target):
        np.add.at(right, end, (c * drop)[:, None] * d)
        np.add.at(spread, end, c[:, None, None] * d[:, :, None] * d[:, None, :])
    return np.asarray(np.einsum("xij,xj->xi", np.linalg.pinv(spread, hermitian=True), right))


def _drops(
    kernel: MarkovKernel, energy: FreeEnergy, embedding: ArrayLike, p: ArrayLike | None
) -> tuple[Array, Array]:
    energy._check(kernel)
    xy = _checks.as_array(embedding, "embedding")
    if xy.ndim != 2 or xy.shape[0] != kernel.n_states:
        raise InputError(
            f"embedding has shape {xy.shape}; give one row per state, "
            f"shape ({kernel.n_states}, dimension)."
        )
    if p is None:
        return energy.potential, xy
    here = np.maximum(_checks.as_probability(p, kernel.n_states), 1e-300)
    return energy.first_variation(kernel, here / here.sum()), xy
