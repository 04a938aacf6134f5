"""The gradient flow as a velocity of probabilities, and as the jump rates of one individual."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from thalweg import _checks
from thalweg._door import checked
from thalweg._types import Array, Index32
from thalweg.edges.fluxes import Drive, accumulate_velocity, edge_fluxes
from thalweg.edges.static import Graph
from thalweg.energy import FreeEnergy
from thalweg.kernel import MarkovKernel
from thalweg.mobility import Mobility, as_mobility


@checked
def velocity(
    kernel: MarkovKernel, energy: FreeEnergy, p: ArrayLike, mobility: Mobility | None = None
) -> Array:
    """`p_dot = -M(rho) f` of the gradient flow at `p`, with `f` the first variation.

    Under a mean that matches the internal energy (the logarithmic mean and the entropy) it is
    also defined on the boundary of the simplex. `mobility=None` is the logarithmic mean.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> velocity(kernel, FreeEnergy([0.0, 0.0], beta=1.0), [0.25, 0.75])
    array([ 0.5, -0.5])
    """
    energy._check(kernel)
    mobility = as_mobility(mobility)
    p = _checks.as_probability(p, kernel.n_states)
    out, rho = np.empty_like(p), np.empty_like(p)
    drive = Drive.of(energy, mobility, p)
    accumulate_velocity(*Graph.of(kernel, mobility), *drive, p, rho, out)
    return out


@checked
def jump_rates(
    kernel: MarkovKernel, energy: FreeEnergy, p: ArrayLike, *, mobility: Mobility | None = None
) -> sparse.csr_array:
    """The rates `Q` at which one individual of the population `p` jumps: `p^T Q = p_dot`.

    `Q_xy = K_xy m_xy / rho_x [f_x - f_y]_+` off the diagonal (jumps go down the first variation),
    rows summing to zero. Empty states have no individuals, and their rows are zero.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> jump_rates(kernel, FreeEnergy([0.0, 0.0], beta=1.0), [0.25, 0.75]).toarray().round(4)
    array([[ 0.    ,  0.    ],
           [ 0.6667, -0.6667]])
    """
    energy._check(kernel)
    p = _checks.as_probability(p, kernel.n_states)
    start, end, rate = edge_rates(kernel, energy, p, as_mobility(mobility))
    moving = rate > 0
    return generator(kernel.n_states, start[moving], end[moving], rate[moving])


def generator(
    n_states: int, start: NDArray[np.integer], end: NDArray[np.integer], rate: Array
) -> sparse.csr_array:
    """The matrix with these rates from `start` to `end`, rows summing to zero."""
    states = np.arange(n_states)
    rows, columns = np.concatenate([start, states]), np.concatenate([end, states])
    values = np.concatenate([rate, -np.bincount(start, rate, n_states)])
    return sparse.csr_array(sparse.coo_array((values, (rows, columns)), (n_states, n_states)))


def edge_generator(kernel: MarkovKernel, out: Array, home: Array) -> sparse.csr_array:
    """The matrix with rate `out` from source to target of each edge, and `home` back.

    >>> pair = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> edge_generator(pair, np.array([2.0]), np.array([3.0])).toarray()
    array([[-2.,  2.],
           [ 3., -3.]])
    """
    source, target, _ = kernel.edges
    start, end = np.concatenate([source, target]), np.concatenate([target, source])
    return generator(kernel.n_states, start, end, np.concatenate([out, home]))


def net_fluxes(kernel: MarkovKernel, energy: FreeEnergy, p: Array, mobility: Mobility) -> Array:
    """The net flux of the flow from source to target of each edge, `c m (f_x - f_y)`."""
    drive = Drive.of(energy, mobility, p)
    return edge_fluxes(Graph.of(kernel, mobility), drive, p / kernel.stationary)


def edge_rates(
    kernel: MarkovKernel, energy: FreeEnergy, p: Array, mobility: Mobility
) -> tuple[Index32, Index32, Array]:
    """The state that a jump along each edge leaves, the state it reaches, and its rate."""
    source, target, _ = kernel.edges
    flux = net_fluxes(kernel, energy, p, mobility)
    start = np.where(flux > 0, source, target)
    end = np.where(flux > 0, target, source)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rate = np.where(p[start] > 0, abs(flux) / p[start], 0.0)
    # A denormal p may overflow the quotient; the largest float keeps the rate finite.
    return start, end, np.minimum(rate, 1e300)
