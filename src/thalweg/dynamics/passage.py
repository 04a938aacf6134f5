"""First-passage times of the walk at rest: means and quantiles.

The mean time `tau` to reach the targets solves `A tau = p` outside them (one grounded Laplacian
solve); the probability of not having arrived by `t` is `exp(t G) 1` with the generator `G` outside.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array, Index
from thalweg.dynamics.fates import Absorbed, disjoint
from thalweg.dynamics.landscape import Estimate, Landscape, differences, estimate
from thalweg.dynamics.walk import DENSE_STATES, resting_walk
from thalweg.edges.static import symmetrised
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.status import Status

MOST_VECTORS = 60
"""Largest number of products that span the Krylov space."""
ENOUGH = 1e-7
"""Relative change between two subspaces below which a large problem stops."""


class Exponentials(NamedTuple):
    """`f_x(t) = sum_k weights[x, k] exp(-rates[k] t)`."""

    weights: Array
    rates: Array
    error: float = 0.0
    """Change of the values when the subspace grew last; 0 if they are exact."""

    @property
    def status(self) -> Status:
        return Status.CONVERGED if self.error < 1e2 * ENOUGH else Status.MAX_ITERATIONS

    def at(self, t: Array) -> Array:
        """The function of each row at its own time."""
        return np.asarray(np.einsum("xk,xk->x", self.weights, np.exp(-np.outer(t, self.rates))))


def survival(absorbed: Absorbed, times: tuple[float, float]) -> Exponentials:
    """The probability `exp(t G) 1` of not having arrived, from the shortest to the longest time.

    The generator is `G = -diag(1/p) A`, so `S = D^-1/2 A D^-1/2`, `D = diag(p)`, is symmetric.
    Small problems are diagonalised. Large ones are projected onto a rational Krylov space, the span
    of `v = D^1/2 1` and of products with `(I + g S)^-1`, the poles `g` cycling through the decades
    of time: each product is one grounded Laplacian solve.
    """
    mass, (_, _, conductance) = absorbed.walk.p[absorbed.inside], absorbed.edges
    root = np.sqrt(mass)
    if root.size <= DENSE_STATES:
        rates, vectors = np.linalg.eigh(symmetrised(*absorbed.edges, mass, absorbed.ground))
        return Exponentials(vectors * (vectors.T @ root) / root[:, None], np.maximum(rates, 0.0))
    low, high = times
    poles = np.geomspace(max(low, 1e-12), high, max(2, int(np.log10(high / low)) + 1)) / 5.0
    factors = [absorbed.solver.factor(conductance, absorbed.ground + mass / g) for g in poles]
    basis = [root / np.linalg.norm(root)]
    checks = np.geomspace(low, high, 7)
    before: Array | None = None
    while True:
        g = (len(basis) - 1) % len(poles)
        w = root * factors[g].solve(root * basis[-1] / poles[g], tolerance=1e-11).x
        for _ in range(2):
            for b in basis:
                w = w - b * (b @ w)
        size = float(np.linalg.norm(w))
        if size < 1e-13:
            # The space holds all its products: the answer in it is exact.
            return _projected(absorbed, np.array(basis))
        basis.append(w / size)
        full = len(basis) > MOST_VECTORS
        if full or (len(basis) - 1) % (2 * len(poles)) == 0:
            found = _projected(absorbed, np.array(basis))
            values = np.exp(-np.outer(checks, found.rates)) @ found.weights.T
            error = np.inf
            if before is not None:
                error = float(np.abs(values - before).max() / max(np.abs(values).max(), 1e-300))
            if full or error < ENOUGH:
                return found._replace(error=error)
            before = values


def _projected(absorbed: Absorbed, basis: Array) -> Exponentials:
    """The answer in the span of orthonormal rows, the first of them that of the start."""
    root = np.sqrt(absorbed.walk.p[absorbed.inside])
    source, target, conductance = absorbed.edges
    scaled = basis / root
    drop = scaled[:, source] - scaled[:, target]
    h = (drop * conductance) @ drop.T + (scaled * absorbed.ground) @ scaled.T
    rates, vectors = np.linalg.eigh(0.5 * (h + h.T))
    weights = (scaled.T @ vectors) * (vectors[0] * np.linalg.norm(root))
    return Exponentials(weights, np.maximum(rates, 0.0))


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
    (target,) = disjoint(landscape.kernel, {"targets": targets})
    value, curve = _quantiles(landscape, target, wanted)

    def moved(energy: FreeEnergy) -> Array:
        return _quantiles(replace(landscape, energy=energy), target, wanted)[0]

    tangents = differences(landscape, moved) if landscape.has_errors else None
    return estimate(value, tangents, scale="positive", level=level, status=curve.status)


def _quantiles(landscape: Landscape, target: Index, wanted: Array) -> tuple[Array, Exponentials]:
    walk = resting_walk(landscape)
    absorbed = Absorbed.of(walk, [target])
    inside = absorbed.inside
    tau = absorbed.solve(walk.p[inside], 1e-8)[0]
    shortest = float(tau.min()) * max(1e-3, 0.3 * float(wanted.min()))
    longest = float(tau.max()) * max(1.0, -2.0 * float(np.log1p(-wanted.max())))
    curve = survival(absorbed, (shortest, longest))
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
