"""Exact optimal transport between clouds of points (POT): distances and couplings."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thalweg._types import Array, Index
from thalweg.errors import MissingDependencyError
from thalweg.snapshots import WeightedPoints

__all__ = [
    "Pairs", "coupling", "entropic_coupling", "mean_error", "unbalanced_coupling", "wasserstein1",
]  # fmt: skip

_ITERATIONS = 10_000_000
"""Largest number of iterations of the network simplex."""
_FAR = 3.0
"""Default cost of a death and a birth, in mean costs of the balanced plan."""


class Pairs(NamedTuple):
    """A plan with births and deaths: pairs, deaths, births, and their masses."""

    first: Index
    second: Index
    mass: Array
    dying: Index
    dying_mass: Array
    born: Index
    born_mass: Array


def _pot() -> Any:
    try:
        import ot
    except ImportError:
        raise MissingDependencyError(
            "exact optimal transport between points needs POT; pip install 'thalweg[points]'."
        ) from None
    return ot


def wasserstein1(
    first: WeightedPoints,
    second: WeightedPoints,
    *,
    most: int | None = None,
    rng: np.random.Generator | None = None,
) -> float:
    """The exact Wasserstein-1 distance (Euclidean cost) between two weighted clouds.

    With `most`, larger clouds are first thinned to that many points by systematic resampling,
    which needs `rng` and adds a little to the distance.

    >>> a = WeightedPoints(np.array([[0.0], [1.0]]), np.array([0.5, 0.5]))
    >>> b = WeightedPoints(np.array([[2.0]]), np.array([1.0]))
    >>> wasserstein1(a, b)
    1.5
    """
    ot = _pot()
    clouds = []
    for cloud in (first, second):
        if most is not None and cloud.weights.size > most:
            rng = np.random.default_rng(0) if rng is None else rng
            points = cloud.resample(most, rng=rng)
            cloud = WeightedPoints(points, np.full(most, 1 / most))
        keep = cloud.weights > 0
        clouds.append((cloud.points[keep], cloud.weights[keep] / cloud.weights[keep].sum()))
    (x, a), (y, b) = clouds
    cost = ot.dist(x, y, metric="euclidean")
    return float(ot.emd2(a, b, cost, numItermax=_ITERATIONS))


def mean_error(first: WeightedPoints, second: WeightedPoints) -> float:
    """The distance of the means, a lower bound on every Wasserstein distance."""
    return float(np.linalg.norm(first.mean - second.mean))


def coupling(
    x: Array, y: Array, weights: tuple[Array, Array] | None = None
) -> tuple[Index, Index, Array]:
    """Pairs `(i, j)` and their masses in an optimal plan (squared Euclidean cost)."""
    ot = _pot()
    a, b = weights or (_even(x), _even(y))
    plan = ot.emd(a, b, ot.dist(x, y, metric="sqeuclidean"), numItermax=_ITERATIONS)
    i, j = np.nonzero(plan)
    return i, j, np.asarray(plan[i, j])


def unbalanced_coupling(x: Array, y: Array, *, far: float = _FAR) -> Pairs:
    """An optimal plan in which mass may die and be born instead of moving too far.

    Moving costs the squared distance; dying and being born together cost `far` times the mean cost
    of the balanced plan. Solved by one network simplex with an extra point on either side.

    >>> x = np.array([[0.0], [0.1], [0.2]])
    >>> plan = unbalanced_coupling(x, np.array([[0.0], [0.1], [9.0]]), far=1.0)
    >>> plan.dying.tolist(), plan.born.tolist()
    ([2], [2])
    """
    ot = _pot()
    n, m = x.shape[0], y.shape[0]
    cost = ot.dist(x, y, metric="sqeuclidean")
    i, j, mass = coupling(x, y)
    price = 0.5 * far * float((mass * cost[i, j]).sum())
    padded = np.full((n + 1, m + 1), price)
    padded[:n, :m] = cost
    padded[n, m] = 0.0
    a, b = np.append(_even(x), 1.0), np.append(_even(y), 1.0)
    plan = ot.emd(a, b, padded, numItermax=_ITERATIONS)
    i, j = np.nonzero(plan[:n, :m])
    dying, born = np.flatnonzero(plan[:n, m]), np.flatnonzero(plan[n, :m])
    return Pairs(i, j, plan[i, j], dying, plan[dying, m], born, plan[n, born])


def entropic_coupling(
    x: Array, y: Array, *, rng: np.random.Generator, strength: float = 0.05
) -> tuple[Index, Index, Array]:
    """Pairs drawn from the entropic plan with regularisation `strength` times the mean cost."""
    ot = _pot()
    cost = ot.dist(x, y, metric="sqeuclidean")
    plan = ot.sinkhorn(
        _even(x), _even(y), cost, reg=strength * float(cost.mean()), method="sinkhorn_log",
        numItermax=200, stopThr=1e-6, warn=False,
    )  # fmt: skip
    flat = np.cumsum(plan.ravel())
    n = 4 * max(x.shape[0], y.shape[0])
    picks = np.searchsorted(flat, (np.arange(n) + rng.random()) / n * flat[-1])
    i, j = np.divmod(np.minimum(picks, flat.size - 1), y.shape[0])
    return i, j, np.full(n, 1 / n)


def _even(x: Array) -> Array:
    return np.full(x.shape[0], 1 / x.shape[0])
