"""`interpolate`: the population between snapshots.

`"flow"`: the flow of a landscape, bent so that it meets the snapshots: with `r_k` the logarithm of
observed over expected shares at snapshot `k`, `p(t) ~ flow(t) exp((1 - s) r_k + s r_{k+1})` for `t`
a fraction `s` of the way to the next one. `"geodesic"`: the shortest path in W_K between the two
snapshots around `t`; it needs no landscape, and moves at constant speed.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import checked
from thalweg._sparse import dense
from thalweg._types import Array, Index, Progress
from thalweg.errors import InputError
from thalweg.flow import Trajectory
from thalweg.geometry import TransportGeometry
from thalweg.kernel import MarkovKernel
from thalweg.learn.answer import check_match
from thalweg.learn.regressor import FreeEnergyRegressor
from thalweg.snapshots import Snapshots
from thalweg.status import Status


@checked
def interpolate(
    kernel: MarkovKernel,
    snapshots: Snapshots,
    times: ArrayLike,
    *,
    method: Literal["auto", "flow", "geodesic"] = "auto",
    model: FreeEnergyRegressor | None = None,
    progress: Progress | None = None,
) -> Trajectory:
    """The population at `times`, which lie between the first and the last snapshot.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    snapshots : Snapshots
        At least two.
    times : array
        Rising times in the unit of the snapshots, or dates if those have dates.
    method : {"auto", "flow", "geodesic"}
        Follow a landscape and bend it to meet the snapshots, or take the shortest paths in W_K
        between them. By default the flow if a model is given or there are at least three snapshots.
    model : FreeEnergyRegressor, optional
        For `"flow"`; fitted to the snapshots if it is not fitted yet, or not given.
    progress : callable, optional
        Called as `progress(what, done, total)`.

    >>> from thalweg import MarkovKernel, Snapshots
    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> seen = Snapshots.from_counts([0.0, 1.0], [[80, 15, 5], [40, 40, 20]])
    >>> interpolate(kernel, seen, [0.0, 0.5, 1.0]).probabilities.round(3)
    array([[0.797, 0.152, 0.051],
           [0.586, 0.31 , 0.104],
           [0.399, 0.4  , 0.2  ]])
    """
    check_match(kernel, snapshots)
    when = _checks.as_times(snapshots.scale.numbers(times))
    _check_inside(when, snapshots)
    if method == "auto":
        method = "flow" if model is not None or snapshots.n_times > 2 else "geodesic"
    if method == "geodesic":
        p, status = _geodesics(kernel, snapshots, when, progress)
    elif method == "flow":
        model = FreeEnergyRegressor(progress=progress) if model is None else model
        if not hasattr(model, "fitted_"):
            model.fit(kernel, snapshots)
        # In the model's own time, which may count from another day.
        there = model.time_scale_
        p, status = _bent(model, snapshots.on(there), snapshots.scale.converted(when, there))
    else:
        raise InputError(f"method is {method!r}; choose 'flow' or 'geodesic'.")
    return Trajectory(when, p, status, method=method, names=kernel.names, scale=snapshots.scale)


def smoothed_shares(kernel: MarkovKernel, snapshots: Snapshots, row: int) -> Array:
    """The shares in one snapshot, with half an individual spread over all states.

    An empty state would have no logarithm.
    """
    p = dense(snapshots.frequencies[row]).ravel()
    mixed = p * float(snapshots.sizes[row]) + 0.5 * kernel.stationary
    return np.asarray(mixed / mixed.sum())


def _bent(model: FreeEnergyRegressor, seen: Snapshots, when: Array) -> tuple[Array, Status]:
    """The model's flow at `when`, bent to meet the snapshots."""
    if model.times_[0] > seen.times[0]:
        raise InputError(
            f"the model begins at time {model.times_[0]:g}, after the first snapshot at "
            f"{seen.times[0]:g}; give the snapshots that it was fitted to."
        )
    grid = np.union1d(seen.times, when)
    path = model.predict(None, grid)
    flow = np.maximum(path.probabilities, 1e-300)
    tilt = np.empty((seen.n_times, flow.shape[1]))
    for k, row in enumerate(np.searchsorted(grid, seen.times)):
        counts = dense(seen.counts[k]).ravel()
        # Half an individual per state, spread like the flow, gives an empty state a logarithm.
        extra = 0.5 * flow.shape[1]
        share = (counts + extra * flow[row]) / (counts.sum() + extra)
        tilt[k] = np.log(share) - np.log(flow[row])
    before, s = _between(seen, when)
    bend = (1 - s)[:, None] * tilt[before] + s[:, None] * tilt[before + 1]
    p = flow[np.searchsorted(grid, when)] * np.exp(bend)
    return np.asarray(p / p.sum(axis=1, keepdims=True)), path.status


def _geodesics(
    kernel: MarkovKernel, seen: Snapshots, when: Array, progress: Progress | None
) -> tuple[Array, Status]:
    """The points at `when` of the geodesics between neighbouring snapshots."""
    geometry = TransportGeometry(kernel)
    p, status = np.empty((when.size, kernel.n_states)), Status.CONVERGED
    before, s = _between(seen, when)
    pairs = np.unique(before)
    for done, k in enumerate(int(k) for k in pairs):
        path = geometry.geodesic(*(smoothed_shares(kernel, seen, j) for j in (k, k + 1)))
        here = before == k
        order = np.unique(np.concatenate([[0.0], s[here], [1.0]]))
        p[here] = path.at(order).probabilities[np.searchsorted(order, s[here])]
        status = status and path.status
        if progress is not None:
            progress("geodesics", done + 1, pairs.size)
    return p, status


def _between(seen: Snapshots, when: Array) -> tuple[Index, Array]:
    """The snapshot before each time, and the fraction of the way from it to the next."""
    before = np.searchsorted(seen.times, when, side="right") - 1
    before = np.clip(before, 0, seen.n_times - 2).astype(np.int64)
    return before, (when - seen.times[before]) / np.diff(seen.times)[before]


def _check_inside(when: Array, seen: Snapshots) -> None:
    if seen.n_times < 2:
        raise InputError("Only one snapshot was given; interpolation needs at least two.")
    low, high = float(seen.times[0]), float(seen.times[-1])
    outside = when[(when < low) | (when > high)]
    if outside.size:
        shown = seen.scale.labels([outside[0], low, high])
        raise InputError(
            f"time {shown[0]} lies outside the snapshots ({shown[1]} to {shown[2]}); a forecast "
            "goes beyond the last one."
        )
