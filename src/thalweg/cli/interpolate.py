"""`thalweg interpolate`: the population between the snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from thalweg.cli.forecast import announced
from thalweg.cli.options import PageOutput
from thalweg.cli.output import give, give_page, long_table, parse_times, state_labels
from thalweg.cli.problem import Problem
from thalweg.cli.progress import progress_bars
from thalweg.errors import InputError
from thalweg.flow import Trajectory
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.between import interpolate, smoothed_shares
from thalweg.report.findings import WITHOUT_BIRTHS

_HOW = {
    "flow": "Between the snapshots the population follows the learned landscape, bent to meet "
    "them.",
    "geodesic": "Between two snapshots the population takes the shortest path in the transport "
    "metric, at constant speed.",
}


def run_interpolate(
    problem: Problem, times: str, model_file: Path | None, method: Any, seed: int, to: PageOutput
) -> None:
    """Write or print the population at `times`, by the chosen method."""
    kernel, seen = problem.kernel, problem.snapshots
    when = parse_times(times, seen.scale)
    if method is None:
        method = "flow" if model_file is not None or seen.n_times > 2 else "geodesic"
    if method not in _HOW:
        raise InputError(f"--method is {method!r}; choose flow or geodesic.")
    with progress_bars() as progress:
        model = FreeEnergyRegressor(seed=seed, progress=progress)
        if model_file is not None and method == "flow":
            model = _model(problem, model_file, to)
        path = interpolate(kernel, seen, when, method=method, model=model, progress=progress)
    facts = {"method": method}
    if to.as_page:
        give_page(_page(problem, path), to, facts, path.status)
    else:
        frame = long_table(kernel, when, path.probabilities, scale=seen.scale)
        give(frame, to, "interpolation", facts, path.status)


def _model(problem: Problem, model_file: Path, to: PageOutput) -> FreeEnergyRegressor:
    model, _ = announced(model_file, to, growing=WITHOUT_BIRTHS)
    mine, theirs = problem.kernel, model.kernel_
    same = state_labels(mine) == state_labels(theirs)
    if not same or (problem.own_states and not mine.same_graph(theirs)):
        raise InputError(
            f"{model_file.name} was fitted on other states, or on the same in another order; give "
            "the graph that it was fitted on."
        )
    return model


def _page(problem: Problem, path: Trajectory) -> str:
    from thalweg.report import Section, page
    from thalweg.report.graph import drawn, moving_picture

    seen = problem.snapshots
    shown = np.vstack([smoothed_shares(problem.kernel, seen, k) for k in range(seen.n_times)])
    times = np.concatenate([seen.times, path.times])
    order = np.argsort(times, kind="stable")
    keep = order[np.concatenate([[True], np.diff(times[order]) > 0])]
    p = np.vstack([shown, path.probabilities])[keep]
    film = moving_picture(drawn(problem.kernel), times[keep], p)
    sections = [Section("The population", (), (film,))]
    return page("Between the snapshots", _HOW[path.method], sections)
