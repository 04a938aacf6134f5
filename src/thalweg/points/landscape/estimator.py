"""`PointLandscape`: the potential on R^d whose flow carries each snapshot to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array, Progress
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.points.goodness import joined
from thalweg.points.landscape.chart import Chart
from thalweg.points.landscape.field import Field, in_chunks, time_basis
from thalweg.points.landscape.on_graph import graph_energy, graph_gradient
from thalweg.points.landscape.problem import Problem, Support
from thalweg.points.landscape.solve import solve
from thalweg.snapshots.clouds import as_clouds

Feature = Callable[[Array], Array]

_MOST_POINTS = 4000
"""Largest number of individuals per snapshot,"""
_HIGH_DIMENSION = 10
"""up to this dimension,"""
_MOST_POINTS_HIGH = 2000
"""and above it."""
FEWEST = 20
"""Least number of individuals per snapshot."""
_BACKWARD_STEPS = 4
"""Least number of steps per interval of a push backwards in time."""
_GROWN = 1.5
"""Ratio of the numbers of individuals above which growth is suspected."""


class PointLandscape:
    """A potential `V` on R^d and a noise `beta`, learned from snapshots of points.

    Points follow `dX = -grad V(X) dt + sqrt(2 beta) dW`. Each snapshot is pushed to the time of the
    next, and the moments of the two clouds are matched by generalised least squares with the exact
    covariance of the samples; individuals need not be matched. Functions that span `V` and their
    ridge are chosen by Laplace evidence. If the moments agree far better than independent samples
    could, the individuals were tracked, and the covariance is that of their own steps. In more than
    ten dimensions the potential is one of the few principal components in which the snapshots
    differ most, at most five; the others are left as they are.

    Parameters
    ----------
    n_centers : int, optional
        Number of Gaussians beside the polynomials; 0 for polynomials alone. By default the evidence
        chooses among polynomials, Gaussians of two widths, and Gaussians along the axes.
    time_order : int
        Degree in time of a potential that changes; 0 for a fixed one.
    beta : float, optional
        The noise, if known. By default it is estimated.
    features : sequence of callables, optional
        Functions from points (one row each) to numbers, which span `V` with the automatic ones.
    steps : int, optional
        Number of steps per interval; 1 is `x - tau grad V(x)`. By default the evidence chooses
        between one explicit step and the flow in continuous time, if the two differ; where it
        does not decide it is the flow, and the error bars include the difference.
    seed : int
        Seed of every random number generator used.
    progress : callable, optional
        Called as `progress(what, done, total)`.

    Attributes
    ----------
    beta_, beta_stderr_ : float
        The noise and its standard error; infinite if the clouds could all be at rest.
    goodness_ : GoodnessOfFit
        Chi-square, degrees of freedom, p-value, and the verdict as a sentence.
    warning_ : str
        Why the potential should not be trusted; empty if nothing speaks against it.
    tracked_ : bool
        Whether the same individuals were seen at every time.
    evidence_ : dict
        Log evidence of each candidate.
    why_ : str
        How functions and steps were chosen.
    status_ : Status
        How the fit ended.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> times = [0.0, 0.2, 0.4, 0.6]
    >>> clouds = [rng.normal(2 * np.exp(-t), np.exp(-t), size=(400, 1)) for t in times]
    >>> model = PointLandscape(n_centers=0, beta=0.0).fit(times, clouds)
    >>> model.gradient([[1.0], [2.0]]).shape, model.tracked_, model.goodness_.rejected
    ((2, 1), False, False)
    >>> model.push(clouds[-1], 0.6, 1.0).shape
    (400, 1)
    """

    def __init__(
        self,
        n_centers: int | None = None,
        time_order: int = 0,
        beta: float | None = None,
        features: Sequence[Feature] | None = None,
        *,
        steps: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.n_centers = n_centers
        self.time_order = time_order
        self.beta = beta
        self.features = features
        self.steps = steps
        self.seed = seed
        self.progress = progress

    @single_threaded
    def fit(
        self,
        times: ArrayLike,
        clouds: Iterable[ArrayLike],
        *,
        start: tuple[MarkovKernel, FreeEnergy] | None = None,
    ) -> PointLandscape:
        """Learn the potential from one cloud per time.

        Parameters
        ----------
        times : array_like
            Increasing times.
        clouds : iterable of array_like
            One array of shape (individuals, dimension) per time.
        start : (MarkovKernel, FreeEnergy), optional
            A fit on a graph of points to start from; used if it is nearer than the weak form.
        """
        t = _checks.as_times(times, minimum=2)
        points = as_clouds(clouds, t)
        self._check(points, t)
        d = self.dimension_ = int(points[0].shape[1])
        reducible = d > _HIGH_DIMENSION and not self.features and start is None
        self._chart = Chart.of(points) if reducible else Chart.whole(d)
        thinned = self._thinned(tuple(self._chart.down(x) for x in points))
        problem = Problem(
            t, thinned, self.n_centers, self.time_order, self.beta, self.steps,
            tuple(self.features or ()), self.seed, self.progress or _silent,
            graph_gradient(*start) if start is not None else None,
        )  # fmt: skip
        found = self._answer = solve(problem)
        self.beta_, self.beta_stderr_ = found.beta, found.beta_stderr
        self.evidence_, self.goodness_ = found.evidence, found.goodness
        self.tracked_, self.status_ = found.tracked, found.status
        self.times_, self.sizes_ = t, np.array([len(x) for x in points])
        self._support = Support.of(self._field, thinned, found.steps, self.seed)
        values = self._field.basis.value
        self._center = np.mean([in_chunks(values, x).mean(axis=0) for x in thinned], axis=0)
        return self

    def _thinned(self, points: tuple[Array, ...]) -> tuple[Array, ...]:
        """The clouds, thinned to thousands of individuals; the same rows if sizes are equal."""
        most = _MOST_POINTS if self.dimension_ <= _HIGH_DIMENSION else _MOST_POINTS_HIGH
        out = []
        for x in points:
            rows = np.random.default_rng([self.seed, 9]).permutation(len(x))[:most]
            out.append(x[np.sort(rows)])
        return tuple(out)

    def _check(self, points: tuple[Array, ...], t: Array) -> None:
        for name, least in (("n_centers", 0), ("time_order", 0), ("steps", 1)):
            if getattr(self, name) is not None:
                _checks.whole(getattr(self, name), name, least)
        if self.time_order >= t.size - 1:
            raise InputError(
                f"time_order is {self.time_order}, but {t.size} snapshots have {t.size - 1} "
                f"intervals; use at most {t.size - 2}."
            )
        if self.beta is not None:
            _checks.positive(self.beta, "beta", zero=True)
        for k, x in enumerate(points):
            if len(x) < FEWEST:
                raise InputError(
                    f"the snapshot at time {t[k]:g} has {len(x)} individuals; a landscape on R^d "
                    f"needs at least {FEWEST} at every time."
                )
        if not np.concatenate(points).std(axis=0).max() > 0:
            raise InputError("all points coincide; there is nothing to learn from.")

    # ---------------------------------------------------------------- results

    @property
    def why_(self) -> str:
        where = str(self._chart)
        return joined(self._answer.why, where and f"in {where}")

    @property
    def warning_(self) -> str:
        contradicted = self.goodness_.warning
        if contradicted:
            contradicted += (
                ": the forces may rotate, change in time, or individuals may be born and die"
            )
        failed = "" if self.status_ else self.status_.value.rstrip(".")
        left = ""
        if self._chart.left:
            left = f"the potential is one of {self._chart}, and are left where they are"
        growth, (first, *_, last) = "", self.sizes_
        steady = np.all(np.diff(self.sizes_) * np.sign(last - first) > 0)
        if steady and not 1 / _GROWN < last / first < _GROWN:
            growth = (
                f"the number of individuals goes steadily from {first} to {last}: if that is "
                "growth and not sampling, a potential cannot explain it"
            )
        return joined(contradicted, failed, left, growth)

    def potential(self, x: ArrayLike, time: float | None = None) -> Array:
        """`V` at points, zero on average over the snapshots.

        Parameters
        ----------
        x : array_like
            One row per point.
        time : float, optional
            For a potential that changes; by default the last snapshot's.
        """
        points, theta = self._points(x), self._field.at(self._when(time))
        return in_chunks(lambda part: self._centred(part) @ theta, points)

    def gradient(self, x: ArrayLike, time: float | None = None) -> Array:
        """Gradient of `V` at points; the drift is minus this."""
        return self._chart.lift(self._field.gradient(self._points(x), self._when(time)))

    def potential_stderr(self, x: ArrayLike, time: float | None = None) -> Array:
        """Standard error of `potential`."""
        points, spread = self._points(x), self._spread(self._when(time))

        def squares(part: Array) -> Array:
            v = self._centred(part)
            return np.asarray(((v @ spread) * v).sum(axis=1))

        return np.sqrt(np.maximum(in_chunks(squares, points), 0.0))

    def gradient_stderr(self, x: ArrayLike, time: float | None = None) -> Array:
        """Standard error of each component of `gradient`; larger where no individual was seen.

        If one explicit step and the flow explain the snapshots alike, the difference of the two
        gradients is included.
        """
        found, scheme = self.drift_stderr(x, time), self._answer.scheme
        return found if scheme is None else np.hypot(found, self._every(scheme(self._points(x))))

    def drift_stderr(self, x: ArrayLike, time: float | None = None) -> Array:
        """Standard error of each component of the drift by which `push` carries points."""
        points, spread = self._points(x), self._spread(self._when(time))

        def squares(part: Array) -> Array:
            g = self._chart.axes @ self._field.basis.gradient(part)
            return np.asarray(((g @ spread) * g).sum(axis=2))

        found = np.sqrt(np.maximum(in_chunks(squares, points), 0.0))
        away = self._support.curvature * self._support.beyond(points)
        found, rough = np.hypot(found, self._every(away**2)), self._answer.unresolved
        return found if rough is None else np.hypot(found, self._every(rough(points)))

    def push(
        self,
        points: ArrayLike,
        start: float,
        stop: float,
        rng: np.random.Generator | None = None,
    ) -> Array:
        """Points at `start` carried to `stop`, forwards with noise from `rng`, or backwards.

        Parameters
        ----------
        points : array_like
            One row per individual.
        start, stop : float
            Times; if `stop` is before `start`, the drift alone is reversed.
        rng : numpy.random.Generator, optional
            Source of the noise; without it points follow the drift alone.
        """
        here, reach = self._points(points), stop - start
        x = np.array(points, dtype=np.float64)
        if reach == 0:
            return x
        count, forwards = self._answer.steps, reach > 0
        steps = self._intervals(reach * (count if forwards else max(_BACKWARD_STEPS, count)))
        there = self._field.flow(
            here, (start, stop), steps, beta=self.beta_, rng=rng, euler=forwards and count == 1
        )
        return x + self._chart.lift(there - here)

    def extrapolates(self, points: ArrayLike, start: float, stop: float) -> NDArray[np.bool_]:
        """Mark the points that `push` would carry where no individual showed the gradient.

        Parameters
        ----------
        points : array_like
            One row per individual.
        start, stop : float
            Times, as of `push`.
        """
        edges = np.linspace(start, stop, self._intervals(stop - start) + 1)
        out, x = np.asarray(self._support.beyond(self._points(points)) > 0), points
        for a, b in zip(edges[:-2], edges[1:-1], strict=True):
            x = self.push(x, float(a), float(b))
            lost = ~np.isfinite(x).all(axis=1)
            x[lost] = 0.0
            out |= lost | (self._support.beyond(self._points(x)) > 0)
        return out

    def energy_on(self, kernel: MarkovKernel) -> FreeEnergy:
        """The free energy on a graph of points with this potential.

        Parameters
        ----------
        kernel : MarkovKernel
            From `MarkovKernel.from_points`, in the same coordinates.
        """
        if kernel.coordinates is None or kernel.coordinates.shape[1] != self.dimension_:
            raise InputError(
                f"the kernel has no coordinates in {self.dimension_} dimensions; build it with "
                "MarkovKernel.from_points from points like the snapshots'."
            )
        return graph_energy(kernel, self.potential(kernel.coordinates), self.beta_)

    # ---------------------------------------------------------------- how

    @property
    def _field(self) -> Field:
        return self._answer.field

    def _intervals(self, reach: float) -> int:
        """Number of typical intervals in a time, rounded up."""
        typical = float(np.median(np.diff(self.times_)))
        return max(1, int(np.ceil(abs(reach) / typical - 1e-9)))

    def _when(self, time: float | None) -> float:
        return float(self.times_[-1]) if time is None else float(time)

    def _points(self, x: ArrayLike) -> Array:
        """Points in the coordinates of the potential."""
        points = _checks.as_array(x, "x")
        if points.ndim != 2 or points.shape[1] != self.dimension_:
            raise InputError(
                f"x has shape {points.shape}; give one row per point with {self.dimension_} "
                "coordinates, as in the snapshots."
            )
        return self._chart.down(points)

    def _every(self, squares: Array) -> Array:
        """The share of each coordinate in errors of any direction, from their squares."""
        return np.sqrt(squares)[:, None] * self._chart.reach

    def _centred(self, x: Array) -> Array:
        return self._field.basis.value(x) - self._center

    def _spread(self, time: float) -> Array:
        """Covariance of the weights at a time."""
        when = time_basis(self.times_, time, self.time_order)
        size = self._field.basis.size
        full = self._answer.covariance.reshape(when.size, size, when.size, size)
        return np.asarray(np.einsum("a,ajbk,b->jk", when, full, when))


def _silent(what: str, done: int, total: int) -> None:
    """Report nothing."""
