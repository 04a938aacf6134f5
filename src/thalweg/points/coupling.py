"""Exact optimal transport between clouds of points (POT): distance and coupling."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.errors import MissingDependencyError
from thalweg.snapshots import WeightedPoints

__all__ = ["coupling", "entropic_coupling", "mean_error", "wasserstein1"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

_ITERATIONS = 10_000_000


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
    """The distance of the means: no Wasserstein distance is smaller."""
    return float(np.linalg.norm(first.mean - second.mean))


def coupling(x: Array, y: Array) -> tuple[Index, Index, Array]:
    """Pairs `(i, j)` and their masses in an optimal plan (squared Euclidean cost)."""
    ot = _pot()
    a, b = np.full(x.shape[0], 1 / x.shape[0]), np.full(y.shape[0], 1 / y.shape[0])
    plan = ot.emd(a, b, ot.dist(x, y, metric="sqeuclidean"), numItermax=_ITERATIONS)
    i, j = np.nonzero(plan)
    return i, j, np.asarray(plan[i, j])


def entropic_coupling(
    x: Array, y: Array, *, rng: np.random.Generator, strength: float = 0.05
) -> tuple[Index, Index, Array]:
    """Pairs drawn from the entropic plan with regularisation `strength` times the mean cost."""
    ot = _pot()
    a, b = np.full(x.shape[0], 1 / x.shape[0]), np.full(y.shape[0], 1 / y.shape[0])
    cost = ot.dist(x, y, metric="sqeuclidean")
    plan = ot.sinkhorn(
        a, b, cost, reg=strength * float(cost.mean()), method="sinkhorn_log", numItermax=200,
        stopThr=1e-6, warn=False,
    )  # fmt: skip
    flat = np.cumsum(plan.ravel())
    n = 4 * max(x.shape[0], y.shape[0])
    picks = np.searchsorted(flat, (np.arange(n) + rng.random()) / n * flat[-1])
    i, j = np.divmod(np.minimum(picks, flat.size - 1), y.shape[0])
    return i, j, np.full(n, 1 / n)
