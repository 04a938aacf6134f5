"""The score of discrete diffusion and the entropy gradient: one object in two forms.

Along an edge `(x, y)` the score is the ratio `p(y) / p(x)`; the gradient of the relative entropy in
`W_K` is `(grad H)(x, y) = log rho(x) - log rho(y)`, `rho = p / pi`. Hence

    p(y) / p(x) = pi(y) / pi(x) * exp(-(grad H)(x, y)),

and, because `K` is reversible, the rates of the reversed heat flow carry no correction at all:

    K(y, x) p(y) / p(x) = K(x, y) exp(-(grad H)(x, y)).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from thalweg import _checks
from thalweg._door import checked
from thalweg._types import Array, Index
from thalweg.errors import InputError
from thalweg.flow.rates import edge_generator, generator
from thalweg.kernel import MarkovKernel


@checked
def score_ratios(kernel: MarkovKernel, p: ArrayLike) -> sparse.csr_array:
    """`S[x, y] = p(y) / p(x)` on the edges of the kernel, in both directions.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    p : array
        A positive probability per state.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> score_ratios(kernel, [0.2, 0.4, 0.4]).toarray()
    array([[0. , 2. , 0. ],
           [0.5, 0. , 1. ],
           [0. , 1. , 0. ]])
    """
    p = _positive(kernel, p)
    return _along(kernel, lambda x, y: p[y] / p[x])


def entropy_gradient(kernel: MarkovKernel, p: ArrayLike) -> sparse.csr_array:
    """`G[x, y] = log rho(x) - log rho(y)`: the `W_K` gradient of the relative entropy at `p`.

    Zeros are stored where the densities agree, so that the pattern is that of the kernel.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> entropy_gradient(kernel, [0.5, 0.5]).nnz
    2
    """
    p = _positive(kernel, p)
    log_rho = np.log(p) - np.log(kernel.stationary)
    return _along(kernel, lambda x, y: np.asarray(log_rho[x] - log_rho[y]))


def scores_from_entropy_gradient(
    kernel: MarkovKernel, gradient: sparse.csr_array
) -> sparse.csr_array:
    """`pi(y) / pi(x) exp(-G[x, y])`: the score, from the entropy gradient.

    The factor `pi(y) / pi(x)` is the stationary correction, which turns densities into
    probabilities; it is 1 for uniform noise and far from it for masking noise.
    """
    size = 2 * kernel.n_edges
    if gradient.shape != (kernel.n_states, kernel.n_states) or gradient.nnz != size:
        raise InputError(
            f"the gradient has shape {gradient.shape} and {gradient.nnz} entries; give one entry "
            f"for each of the {size} directed edges, as entropy_gradient does."
        )
    pi = kernel.stationary
    return _along(kernel, lambda x, y: np.asarray(pi[y] / pi[x] * np.exp(-gradient.data)))


@checked
def reverse_rates(
    kernel: MarkovKernel, p: ArrayLike, *, forward: sparse.csr_array | None = None
) -> sparse.csr_array:
    """The rates of the reversed process where the law is `p`: `R[x, y] = Q[y, x] p(y) / p(x)`.

    Rows sum to zero. States without mass are never visited, and their rows are zero.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    p : array
        The law, a probability per state.
    forward : scipy.sparse.csr_array, optional
        The rates `Q` of the forward process; by default those of the heat flow, `K - I`.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> reverse_rates(kernel, [0.2, 0.8]).toarray()
    array([[-4.  ,  4.  ],
           [ 0.25, -0.25]])
    """
    p = _checks.as_probability(p, kernel.n_states)
    q = kernel.matrix if forward is None else forward
    if q.shape != (kernel.n_states, kernel.n_states):
        raise InputError(
            f"the forward rates have shape {q.shape}; the kernel has {kernel.n_states} states."
        )
    back = sparse.csr_array(q.T).tocoo()
    off = (back.row != back.col) & (p[back.row] > 0)
    rows, columns = back.row[off], back.col[off]
    rates = back.data[off] * (p[columns] / p[rows])
    return generator(kernel.n_states, rows, columns, rates)


def langevin_rates(kernel: MarkovKernel, p: ArrayLike) -> sparse.csr_array:
    """A chain that leaves `p` invariant: the Langevin dynamics of the kernel's own geometry.

    It is the gradient flow of the free energy whose equilibrium is `p` (`V = -log rho`, `beta = 1`)
    as one individual sees it at equilibrium: `2 K(x, y) rho(y) / (rho(x) + rho(y))`, the harmonic
    mean of the forward and the reverse rate. It satisfies detailed balance with `p`, and its rates
    are at most `2 K`.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> rates = langevin_rates(kernel, [0.2, 0.8])
    >>> (np.array([0.2, 0.8]) @ rates).round(12) + 0.0
    array([0., 0.])
    """
    p = _positive(kernel, p)
    source, target, conductance = kernel.edges
    rho = p / kernel.stationary
    flux = 2 * conductance * rho[source] * rho[target] / (rho[source] + rho[target])
    return edge_generator(kernel, flux / p[source], flux / p[target])


# -------------------------------------------------------------------- parts


def quotient(top: Array, bottom: Array) -> Array:
    """`top / bottom`, zero where the bottom is."""
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


def _positive(kernel: MarkovKernel, p: ArrayLike) -> Array:
    p = _checks.as_probability(p, kernel.n_states)
    if p.min() <= 0:
        raise InputError(
            f"p is zero at state {int(np.argmin(p))}, where the score is infinite; let the noise "
            "run for a moment (any time above zero), or smooth p."
        )
    return p


def _along(
    kernel: MarkovKernel, values: Callable[[Index, NDArray[np.int32]], Array]
) -> sparse.csr_array:
    """The matrix of `values(x, y)` on the directed edges of the kernel."""
    indptr, neighbor, _ = kernel.adjacency
    rows = np.repeat(np.arange(kernel.n_states), np.diff(indptr))
    shape = (kernel.n_states, kernel.n_states)
    return sparse.csr_array((values(rows, neighbor), neighbor, indptr), shape=shape)
