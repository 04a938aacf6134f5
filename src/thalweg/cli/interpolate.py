"""`thalweg interpolate`: the population between the snapshots.

`flow`: the flow of a landscape, bent so that it meets the snapshots: with `r_k` the logarithm of
observed over expected shares at snapshot `k`, `p(t) ~ flow(t) exp((1 - s) r_k + s r_{k+1})` for `t`
a fraction `s` of the way to the next one. `geodesic`: the shortest path in W_K between the two
snapshots around `t`; it needs no landscape, and moves at constant speed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg._files import atomic_write
from thalweg.cli.forecast import smoothed_shares
from thalweg.cli.output import ends_in, finish, give, long_table, parse_times, say
from thalweg.cli.problem import Problem
from thalweg.cli.progress import progress_bars
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.snapshots import Snapshots
from thalweg.status import Status

__all__ = ["bent_flow", "geodesic_path", "run_interpolate"]

Array = NDArray[np.float64]


def run_interpolate(
    problem: Problem,
    times: str,
    *,
    model_file: Path | None,
    method: str | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write or print the population at `times`, by the chosen method."""
    ends_in(out, ".csv", ".html")
    seen = problem.snapshots
    when = parse_times(times, seen.scale)
    if method is None:
        method = "flow" if model_file is not None or seen.n_times > 2 else "geodesic"
    if method not in ("flow", "geodesic"):
        raise InputError(f"--method is {method!r}; choose flow or geodesic.")
    _check_inside(when, seen)
    if method == "flow":
        model = _model(problem, model_file, seed)
        # In the model's own time, which may count from another day.
        there = model.time_scale_
        p, status = bent_flow(model, seen.on(there), seen.scale.converted(when, there))
    else:
        p, status = geodesic_path(problem.kernel, seen, when)
    if out is not None and out.suffix.lower() == ".html":
        _picture(problem, when, p, method, out)
        if as_json:
            print(json.dumps({"method": method, "status": status.name, "files": [str(out)]}))
        else:
            say(f"open {out}")
    else:
        frame = long_table(problem.kernel, when, p, scale=seen.scale)
        give(frame, out, as_json, "interpolation", {"method": method, "status": status.name})
    finish(status)


def bent_flow(model: Any, seen: Snapshots, when: Array) -> tuple[Array, Status]:
    """The model's flow at `when`, bent to meet the snapshots."""
    grid = np.union1d(seen.times, when)
    path = model.predict(None, grid)
    flow = np.maximum(path.probabilities, 1e-300)
    at = np.searchsorted(grid, seen.times)
    tilt = np.empty((seen.n_times, flow.shape[1]))
    for k, row in enumerate(at):
        counts = seen.counts[k]
        counts = counts if isinstance(counts, np.ndarray) else counts.toarray().ravel()
        # Half an individual per state, spread like the flow, gives an empty state a logarithm.
        extra = 0.5 * flow.shape[1]
        share = (counts + extra * flow[row]) / (counts.sum() + extra)
        tilt[k] = np.log(share) - np.log(flow[row])
    before = np.clip(np.searchsorted(seen.times, when, side="right") - 1, 0, seen.n_times - 2)
    s = (when - seen.times[before]) / np.diff(seen.times)[before]
    bend = (1 - s)[:, None] * tilt[before] + s[:, None] * tilt[before + 1]
    p = flow[np.searchsorted(grid, when)] * np.exp(bend)
    return np.asarray(p / p.sum(axis=1, keepdims=True)), path.status


def geodesic_path(kernel: MarkovKernel, seen: Snapshots, when: Array) -> tuple[Array, Status]:
    """The points at `when` of the geodesics between neighbouring snapshots."""
    from thalweg.geometry import TransportGeometry

    geometry = TransportGeometry(kernel)
    p = np.empty((when.size, kernel.n_states))
    status = Status.CONVERGED
    before = np.clip(np.searchsorted(seen.times, when, side="right") - 1, 0, seen.n_times - 2)
    pairs = np.unique(before)
    with progress_bars() as progress:
        for done, k in enumerate(pairs):
            here = before == k
            ends = (
                smoothed_shares(kernel, seen, int(k)),
                smoothed_shares(kernel, seen, int(k) + 1),
            )
            path = geometry.geodesic(*ends)
            s = (when[here] - seen.times[k]) / (seen.times[k + 1] - seen.times[k])
            order = np.unique(np.concatenate([[0.0], s, [1.0]]))
            points = path.at(order).probabilities
            p[here] = points[np.searchsorted(order, s)]
            status = status and path.status
            progress("geodesics", done + 1, pairs.size)
    return p, status


def _check_inside(when: Array, seen: Snapshots) -> None:
    if seen.n_times < 2:
        raise InputError("Only one snapshot was given; interpolation needs at least two.")
    low, high = float(seen.times[0]), float(seen.times[-1])
    outside = when[(when < low) | (when > high)]
    if outside.size:
        shown = seen.scale.labels([outside[0], low, high])
        raise InputError(
            f"time {shown[0]} lies outside the snapshots ({shown[1]} to {shown[2]}); `thalweg "
            "forecast` goes beyond the last one."
        )


def _model(problem: Problem, model_file: Path | None, seed: int) -> Any:
    from thalweg.learn import FreeEnergyRegressor, load

    if model_file is None:
        with progress_bars() as progress:
            model = FreeEnergyRegressor(seed=seed, progress=progress)
            return model.fit(problem.kernel, problem.snapshots)
    model = load(model_file)
    mine, theirs = problem.kernel.names, model.kernel_.names
    if mine is None or theirs is None or [str(x) for x in mine] != [str(x) for x in theirs]:
        raise InputError(
            f"{model_file.name} was fitted on other states, or on the same in another order; give "
            "the graph that it was fitted on."
        )
    first = problem.snapshots.on(model.time_scale_).times[0]
    if model.times_[0] > first:
        raise InputError(
            f"{model_file.name} begins at time {model.times_[0]:g}, after the first snapshot at "
            f"{first:g}; give the snapshots that it was fitted to."
        )
    return model


def _picture(problem: Problem, when: Array, p: Array, method: str, out: Path) -> None:
    from thalweg import plots
    from thalweg.report import Section, page

    seen = problem.snapshots
    shown = np.vstack([smoothed_shares(problem.kernel, seen, k) for k in range(seen.n_times)])
    times = np.concatenate([seen.times, when])
    order = np.argsort(times, kind="stable")
    keep = order[np.concatenate([[True], np.diff(times[order]) > 0])]
    figure = plots.flow(
        problem.kernel,
        times[keep],
        np.vstack([shown, p])[keep],
        title="share, relative to pure diffusion at rest",
    )
    how = {
        "flow": "Between the snapshots the population follows the learned landscape, bent to meet "
        "them.",
        "geodesic": "Between two snapshots the population takes the shortest path in the transport "
        "metric, at constant speed.",
    }[method]
    text = page("Between the snapshots", how, [Section("The population", (), (figure,))])
    with atomic_write(out) as file:
        file.write(text)
