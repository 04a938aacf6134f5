"""The problem of learning a potential, its answer, and the functions that may span it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import comb

import numpy as np
from scipy.spatial import cKDTree

from thalweg._types import Array, Progress
from thalweg.points.goodness import GoodnessOfFit
from thalweg.points.landscape.features import (
    Basis,
    Block,
    Gaussians,
    Given,
    OnAxis,
    Polynomials,
    scales,
)
from thalweg.points.landscape.field import Field
from thalweg.status import Status

_MOST_POWERS = 60
"""Largest number of monomials."""
_MOST_AXES = 10
"""Largest dimension with Gaussians along the axes."""
_KNOTS = 12
"""Number of Gaussians per axis."""
_KNOWN = 3000
"""Individuals that represent where the gradient is known,"""
_BENT = 1000
"""and those of them that show its second derivatives."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Snapshots, and what is required of the potential."""

    times: Array
    clouds: tuple[Array, ...]
    n_centers: int | None
    order: int
    beta: float | None
    steps: int | None
    given: tuple[Callable[[Array], Array], ...]
    seed: int
    progress: Progress
    guess: Callable[[Array], Array] | None = None
    """Gradient of a potential to start from, such as a graph's."""


@dataclass(frozen=True, eq=False)
class Unresolved:
    """Variance of a component of the gradient that the functions cannot resolve.

    The mean squared residual of the nearest individuals, less what noise explains.
    """

    points: Array
    squares: Array
    neighbors: int = 30

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self.points)

    def __call__(self, x: Array) -> Array:
        near = self._tree.query(x, k=min(self.neighbors, len(self.points)))[1].reshape(len(x), -1)
        return np.maximum(self.squares[near].mean(axis=1), 0.0)


@dataclass(frozen=True, eq=False)
class Disagreement:
    """Variance of a component of the gradient due to a choice between fields that fit as well.

    The largest mean square difference from the chosen one.
    """

    chosen: Field
    others: list[Field]

    def __call__(self, x: Array) -> Array:
        time = float(self.chosen.times.mean())
        known, found = self.chosen.gradient(x, time), np.zeros(len(x))
        for other in self.others:
            found = np.maximum(found, ((known - other.gradient(x, time)) ** 2).mean(axis=1))
        return found


@dataclass(frozen=True, eq=False)
class Support:
    """The region where the gradient was learned: near individuals that the fit pushed.

    Outside, it is extrapolated, and may change by `curvature` per unit of distance.
    """

    points: Array
    curvature: float

    @classmethod
    def of(cls, field: Field, clouds: tuple[Array, ...], steps: int, seed: int) -> Support:
        """One explicit step uses no gradient at the last snapshot; a flow does."""
        pool = np.concatenate(clouds if steps > 1 else clouds[:-1])
        points = np.random.default_rng([seed, 11]).permutation(pool)[:_KNOWN]
        theta = field.at(float(field.times.mean()))
        bend = np.sqrt(float((field.basis.hessian(points[:_BENT], theta) ** 2).sum(axis=2).mean()))
        slope = np.sqrt(float((field.basis.slope(points, theta) ** 2).mean()))
        extent = np.sqrt(float(points.var(axis=0).mean())) or 1.0
        return cls(points, max(bend, slope / extent))

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self.points)

    @cached_property
    def _reach(self) -> float:
        """The distance to the nearest other that all but a hundredth of the points have."""
        return float(np.quantile(self._tree.query(self.points, k=2)[0][:, 1], 0.99))

    def beyond(self, x: Array) -> Array:
        """The distance of points from the region; 0 inside."""
        return np.asarray(np.maximum(self._tree.query(x)[0] - self._reach, 0.0))


@dataclass(frozen=True, eq=False)
class Answer:
    """A field with its posterior, its tests and how it was chosen."""

    field: Field
    beta: float
    covariance: Array
    """Covariance of the weights, row after row."""
    beta_stderr: float
    goodness: GoodnessOfFit
    tracked: bool
    steps: int
    status: Status
    evidence: dict[str, float]
    why: str
    unresolved: Unresolved | Disagreement | None = None
    """What the error bars of the gradient include in addition to the covariance."""
    scheme: Disagreement | None = None
    """The doubt between one explicit step and the flow, which `push` does not feel: either model
    carries points to where the snapshots are."""


def candidates(problem: Problem, rng: np.random.Generator) -> dict[str, Basis]:
    """Bases by name: polynomials, with Gaussians at two scales, with Gaussians along the axes.

    From ten dimensions on the polynomials are powers of single coordinates.
    """
    pool = np.concatenate(problem.clouds)
    d, n_centers = pool.shape[1], problem.n_centers
    degrees = [k for k in (4, 3, 2) if comb(d + k, k) - 1 <= _MOST_POWERS]
    powers = Polynomials.over(pool, max(degrees, default=2), cross=bool(degrees))
    first: tuple[Block, ...] = (powers,)
    if problem.given:
        first = (powers, Given(problem.given, scales(pool)))
    bases = {} if n_centers else {"polynomials": Basis(first)}
    wanted = [(n_centers, 1.5)] if n_centers else []
    if n_centers is None:
        wanted = [(100, 1.5), (40, 2.0)]
    for count, factor in wanted:
        bumps = Gaussians.over(pool, min(count, max(len(pool) // 10, 2)), factor, rng)
        bases[f"{count} Gaussians"] = Basis((*first, bumps))
    if n_centers is None and 1 < d <= _MOST_AXES:
        knots = np.quantile(pool, np.linspace(0.005, 0.995, _KNOTS), axis=0)
        low, high = knots[0], knots[-1]
        knots = 0.5 * knots + 0.5 * np.linspace(low, high, _KNOTS)
        width = np.maximum(1.2 * (high - low) / (_KNOTS - 1), 1e-12)
        axes = [OnAxis(Gaussians(knots[:, [i]], np.full(_KNOTS, width[i])), i) for i in range(d)]
        bases["Gaussians along the axes"] = Basis((*first, *axes))
    return bases
