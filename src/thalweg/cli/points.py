"""`thalweg interpolate` and `thalweg forecast` on clouds of points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from thalweg.adapters.points import PointTable
from thalweg.cli.options import Output
from thalweg.cli.output import give, parse_times, say
from thalweg.cli.problem import detected_lines
from thalweg.cli.progress import progress_bars
from thalweg.errors import InputError
from thalweg.points import PointInterpolator


def run_points(
    table: PointTable, times: str, task: str, method: str | None, seed: int, output: Output
) -> None:
    """Write or print the cloud at each of `times`: its points, their weights, and its warnings."""
    if output.as_page:
        raise InputError(f"--out is {output.out}; clouds of points are written as .csv.")
    when = parse_times(times, table.scale)
    if table.times.size < 2:
        raise InputError(f"only one time was found, {table.times[0]:g}; at least two are needed.")
    if not output.json:
        for line in detected_lines(table.messages):
            say(line, stderr=True)
        sizes = ", ".join(str(len(x)) for x in table.clouds[:12])
        say(
            f"{table.times.size} clouds of {sizes} points in {len(table.coordinates)} dimensions",
            stderr=True,
        )
    frames, facts = [], []
    with progress_bars() as progress:
        model = PointInterpolator(seed=seed, progress=progress).fit(table.times, table.clouds)
        ask: Any = model.forecast if task == "forecast" else model.interpolate
        for time in when:
            guess = ask(float(time), method=method or "auto")
            cloud = guess.points
            columns: dict[str, Any] = {
                "time": np.repeat(table.scale.column(np.array([time])), len(cloud.weights)),
                "weight": cloud.weights,
            }
            columns |= dict(zip(table.coordinates, cloud.points.T, strict=True))
            frames.append(pd.DataFrame(columns))
            facts.append(_facts(guess))
    for fact in facts:
        said = f"time {fact['time']:g}: {fact['why']}"
        if fact["w1_interval"]:
            low, high = fact["w1_interval"]
            said += f"; W1 to the truth expected between {low:.3g} and {high:.3g} (90 %)"
        if not output.json:
            say(said, stderr=True)
        if fact["warning"]:
            say(f"thalweg: at time {fact['time']:g}, {fact['warning']}", stderr=True)
    give(pd.concat(frames, ignore_index=True), output, "points", {task: facts}, None)


def _facts(guess: Any) -> dict[str, Any]:
    return {
        "time": guess.time,
        "method": guess.method,
        "why": guess.why,
        "goodness": None if guess.goodness is None else str(guess.goodness),
        "warning": guess.warning,
        "w1_interval": None if guess.w1_interval is None else list(guess.w1_interval),
    }
