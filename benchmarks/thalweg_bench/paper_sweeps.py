"""The paper's tables and ablations as sweeps over cells of `comparison.compare`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from thalweg._version import __version__
from thalweg.graphs import GRAPH_FAMILIES
from thalweg.plots.series import PALETTE
from thalweg_bench import BenchResult, BenchSettings
from thalweg_bench.comparison import LIMIT, compare, melt, summary
from thalweg_bench.published import TABLE1
from thalweg_bench.sweep import SweepResult, run_sweep

__all__ = ["run_energy", "run_samples", "run_size", "run_table1", "run_timegrid"]

_GRIDS = ("uniform", "random", "logarithmic")


def _cells(settings: BenchSettings, instances: int, **axes: Sequence[Any]) -> list[dict[str, Any]]:
    families = GRAPH_FAMILIES[::4] if settings.quick else GRAPH_FAMILIES
    count = settings.instances or (1 if settings.quick else instances)
    names = [*axes, "family", "instance"]
    values = [*axes.values(), families, range(count)]
    return [dict(zip(names, combination, strict=True)) for combination in product(*values)]


def _sweep(name: str, settings: BenchSettings, cells: list[dict[str, Any]]) -> SweepResult:
    return run_sweep(
        name,
        compare,
        cells,
        seed=settings.seed,
        jobs=settings.jobs,
        folder=settings.folder,
        fingerprint=f"{__version__}|{'quick' if settings.quick else 'full'}",
        progress=settings.progress,
    )


def run_table1(settings: BenchSettings) -> BenchResult:
    """Table 1 and the figure per family: N = 6, n = 10^4, beta 0.01, 0.1, 0.2, two horizons."""
    cells = []
    for horizon, steps in ((2.0, 20), (5.0, 50)):
        if settings.quick and steps == 50:
            continue
        cells += [
            {**cell, "horizon": horizon, "steps": steps, "n_states": 6, "n": 10_000}
            for cell in _cells(settings, 5, beta=(0.01, 0.1, 0.2))
        ]
    sweep = _sweep("table1", settings, cells)
    table = summary(sweep.table, ["horizon", "steps", "beta"])
    for name in ("paper", "openfim"):
        table[f"published_{name}"] = [str(TABLE1[beta][name]) for beta in table["beta"]]
    notes = (
        *sweep.notes,
        "error: forecast without sampling noise; sampled: n individuals simulated from the energy, "
        "as the paper measures; published columns are the paper's Table 1, whose horizon and "
        "number of steps it does not state.",
        *_collapses(sweep.table),
    )
    long = melt(sweep.table, ["family", "beta"])
    figure = _bars(long, "family", "sampled", "Sampled Hellinger distance by family")
    return BenchResult(table, {"families": figure}, notes)


def run_size(settings: BenchSettings) -> BenchResult:
    """The ablation on the number of states: 10 to 50."""
    sizes = (10, 20) if settings.quick else (10, 20, 30, 40, 50)
    return _line("size", settings, "n_states", sizes, {"n": 10_000, "beta": 0.1}, 3, "states")


def run_samples(settings: BenchSettings) -> BenchResult:
    """The ablation on the number of samples: 500 to 10^4 at N = 10."""
    sizes = (500, 10_000) if settings.quick else (500, 1000, 2000, 5000, 10_000)
    return _line("samples", settings, "n", sizes, {"n_states": 10, "beta": 0.1}, 3, "samples")


def run_timegrid(settings: BenchSettings) -> BenchResult:
    """The ablation on the time grid: uniform, random and logarithmic, 20 to 10^4 steps."""
    steps = (20, 100) if settings.quick else (20, 100, 1000, 10_000)
    cells = [
        {**cell, "horizon": 5.0, "n_states": 6, "n": 10_000, "beta": 0.1}
        for cell in _cells(settings, 1, grid=("uniform", "random", "logarithmic"), steps=steps)
    ]
    for cell in cells:
        # The free chain exponentiates a matrix per step, the network trains on every pair of times:
        # ten thousand of them say nothing new.
        if cell["steps"] > 1000:
            cell["methods"] = ["likelihood", "weak", "truth", "histograms"]
    sweep = _sweep("timegrid", settings, cells)
    table = summary(sweep.table, ["grid", "steps"])
    figure = _curves(table[table["grid"] == "uniform"], "steps", "time steps, uniform grid")
    return BenchResult(table, {"steps": figure}, (*sweep.notes, *_collapses(sweep.table)))


def run_energy(settings: BenchSettings) -> BenchResult:
    """The ablation on the energy: amplitude of V times beta, the entropic regime, collapses."""
    amplitudes = (0.0, 1.0) if settings.quick else (0.0, 0.5, 1.0, 2.0, 4.0)
    betas = (0.05, 1.0) if settings.quick else (0.01, 0.05, 0.2, 1.0)
    cells = [
        {**cell, "horizon": 5.0, "steps": 50, "n_states": 10, "n": 10_000}
        for cell in _cells(settings, 2, amplitude=amplitudes, beta=betas)
    ]
    sweep = _sweep("energy", settings, cells)
    table = summary(sweep.table, ["amplitude", "beta"])
    figure = _bars(
        melt(sweep.table, ["amplitude"]), "amplitude", "error", "Error by amplitude, all betas"
    )
    figure.update_layout(xaxis={"title": "amplitude of V", "type": "category"})
    notes = (*sweep.notes, *_collapses(sweep.table))
    return BenchResult(table, {"amplitude": figure}, notes)


def _line(
    name: str,
    settings: BenchSettings,
    axis: str,
    values: Sequence[int],
    fixed: dict[str, Any],
    instances: int,
    label: str,
) -> BenchResult:
    cells = [
        {**cell, **fixed, "horizon": 5.0, "steps": 50}
        for cell in _cells(settings, instances, **{axis: values})
    ]
    sweep = _sweep(name, settings, cells)
    table = summary(sweep.table, [axis])
    notes = (*sweep.notes, *_collapses(sweep.table))
    return BenchResult(table, {name: _curves(table, axis, label)}, notes)


def _collapses(table: pd.DataFrame) -> list[str]:
    """How often a method's forecast ended on one state where the truth did not."""
    notes, total = [], 0
    for column in table.columns:
        if column.startswith("collapsed_"):
            known = table[column].dropna().astype(bool)
            total += known.size
            if known.any():
                method = column.removeprefix("collapsed_")
                notes.append(f"{method}: {int(known.sum())} of {known.size} forecasts collapsed")
    if total and not notes:
        notes.append(f"none of {total} forecasts collapsed onto one state.")
    for column in table.columns:
        if column.startswith("status_"):
            told = table[column].dropna()
            other = told[told != "CONVERGED"].value_counts()
            if len(other):
                which = ", ".join(f"{count} {name}" for name, count in other.items())
                method = column.removeprefix("status_")
                notes.append(
                    f"{method}: {int(other.sum())} of {told.size} fits did not converge ({which}); "
                    "they are counted in the errors."
                )
    failed = table[table["status"] != "ok"]
    if len(failed):
        notes.append(f"{len(failed)} cells failed: {failed['status'].iloc[0]}")
    return notes


def _curves(table: pd.DataFrame, axis: str, label: str) -> go.Figure:
    figure = go.Figure()
    for color, (method, part) in zip(
        PALETTE * 2, table.groupby("method", sort=False), strict=False
    ):
        if (part["error"] > 0).any():
            y = part["median" if method == LIMIT else "error"]
            # More methods than colours: those that learn nothing are dotted.
            dash = "dot" if method in ("no_movement", "histograms", LIMIT) else "solid"
            figure.add_scatter(
                x=part[axis], y=y, name=str(method), line={"color": color, "dash": dash}
            )
    figure.update_layout(
        template="plotly_white",
        xaxis={"title": label, "type": "log"},
        yaxis={"title": "time-averaged Hellinger distance", "type": "log"},
    )
    return figure


def _bars(long: pd.DataFrame, axis: str, value: str, title: str) -> go.Figure:
    figure = go.Figure()
    shown = long.dropna(subset=[value])
    for color, (method, part) in zip(PALETTE, shown.groupby("method", sort=False), strict=False):
        groups = part.groupby(axis, sort=False)[value]
        mean, spread = groups.mean(), groups.std()
        figure.add_bar(
            x=list(mean.index), y=mean, name=str(method), marker={"color": color},
            error_y={"type": "data", "array": spread},
        )  # fmt: skip
    figure.update_layout(template="plotly_white", title=title, barmode="group")
    return figure
