"""First-passage times of the walk at rest: means and quantiles.

The mean time `tau` to reach the targets solves `A tau = p` outside them (one grounded Laplacian
solve); the probability of not having arrived by `t` is `exp(t G) 1` with the generator `G` outside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array, Index
from thalweg.dynamics.exponentials import Exponentials, Killed, exponentials
from thalweg.dynamics.fates import Absorbed, disjoint
from thalweg.dynamics.landscape import Estimate, Landscape, differences, estimate
from thalweg.dynamics.walk import resting_walk
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError


@single_threaded
def mean_first_passage_time(landscape: Landscape, targets: Any, *, level: float = 0.95) -> Estimate:
    """The mean time until an individual at rest first enters the targets, from every state.

    Parameters
    ----------
    landscape : Landscape
        Kernel, energy and its uncertainty.
    targets : state or states
        By number or by name; not all states of the graph.
    level : float
        Level of the intervals, which are symmetric in the logarithm.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> path = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> flat = Landscape(path, FreeEnergy([0.0, 0.0, 0.0], beta=1.0))
    >>> mean_first_passage_time(flat, 2).value.round(12)
    array([4., 3., 0.])
    """
    groups = disjoint(landscape.kernel, {"targets": targets})
    walk = resting_walk(landscape)
    absorbed = Absorbed.of(walk, groups)
    x, status = absorbed.solve(walk.p[absorbed.inside])
    tau = absorbed.embedded(x)
    tangents = None
    if landscape.has_errors:
        right = absorbed.change(tau) + (walk.log_p_tangents * walk.p)[:, absorbed.inside]
        tangents = absorbed.tangents(right)
    return estimate(tau, tangents, scale="positive", level=level, status=status)


@single_threaded
def passage_quantiles(
    landscape: Landscape, targets: Any, quantiles: ArrayLike = (0.05, 0.5, 0.95), *,
    level: float = 0.95,
) -> Estimate:  # fmt: skip
    """Quantiles of the first-passage time from every state; one row per quantile.

    Parameters
    ----------
    landscape : Landscape
        Kernel, energy and its uncertainty.
    targets : state or states
        By number or by name; not all states of the graph.
    quantiles : array
        Between 0 and 1: the shares of individuals that have arrived.
    level : float
        Level of the intervals.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> pair = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> flat = Landscape(pair, FreeEnergy([0.0, 0.0], beta=1.0))
    >>> passage_quantiles(flat, 1, [0.5]).value.round(9)
    array([[0.69314718, 0.        ]])
    """
    wanted = np.atleast_1d(_checks.as_array(quantiles, "quantiles"))
    if wanted.ndim != 1 or wanted.min() <= 0 or wanted.max() >= 1:
        raise InputError(f"quantiles are {wanted}; they must lie strictly between 0 and 1.")
    groups = disjoint(landscape.kernel, {"targets": targets})
    value, curve = _quantiles(landscape, groups[0], wanted)

    def moved(energy: FreeEnergy) -> Array:
        other = Landscape(landscape.kernel, energy, landscape.mobility)
        return _quantiles(other, groups[0], wanted)[0]

    tangents = differences(landscape, moved)
    return estimate(value, tangents, scale="positive", level=level, status=curve.status)


def _quantiles(landscape: Landscape, target: Index, wanted: Array) -> tuple[Array, Exponentials]:
    walk = resting_walk(landscape)
    absorbed = Absorbed.of(walk, [target])
    inside = absorbed.inside
    tau = absorbed.solve(walk.p[inside], 1e-8)[0]
    shortest = float(tau.min()) * max(1e-3, 0.3 * float(wanted.min()))
    longest = float(tau.max()) * max(1.0, -2.0 * float(np.log1p(-wanted.max())))
    killed = Killed(*absorbed.edges, absorbed.crossing.sum(axis=1), walk.p[inside])
    curve = exponentials(killed, np.ones(inside.size), (shortest, longest))
    out = np.zeros((wanted.size, walk.p.size))
    for k, q in enumerate(wanted):
        # Bisection on the logarithm of time: the survival falls from one to zero. Markov's
        # inequality bounds the quantile from above.
        low = np.full(inside.size, np.log(shortest) - 20.0)
        high = np.log(tau / (1.0 - q)) + 1e-9
        for _ in range(60):
            middle = 0.5 * (low + high)
            late = curve.at(np.exp(middle)) > 1.0 - q
            low, high = np.where(late, middle, low), np.where(late, high, middle)
        out[k, inside] = np.exp(0.5 * (low + high))
    return out, curve
