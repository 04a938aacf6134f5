"""The paper's tables and ablations as sweeps over cells of `comparison.compare`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from thalweg._version import __version__
from thalweg.graphs import GRAPH_FAMILIES
from thalweg.plots.layout import PALETTE
from thalweg_bench import BenchResult, BenchSettings
from thalweg_bench.comparison import LIMITS, METHODS, compare, melt, summary
from thalweg_bench.published import TABLE1
from thalweg_bench.sweep import SweepResult, swept

__all__ = ["run_energy", "run_limit", "run_samples", "run_size", "run_table1", "run_timegrid"]

_GRIDS = ("uniform", "random", "logarithmic")
_READINGS = ("empirical", "mean-field")
_COSTLY = ("paper", "ctmc_likelihood")
"""Rivals that take nine tenths of the time: the network's training, the free chain's search."""
_PLACED = GRAPH_FAMILIES[::3]
"""Families whose first instance places them: in `limit` and `table1` or the headline reading."""
_LARGEST_FREE_CHAIN = 20
"""Largest number of states at which the free chain is fitted by likelihood."""
_SETTINGS: dict[str, dict[str, Any]] = {
    "uniform-20": {"grid": "uniform", "horizon": 5.0, "steps": 20, "beta": 0.1},
    "random-20": {"grid": "random", "horizon": 5.0, "steps": 20, "beta": 0.1},
    **{
        f"T = {horizon}, beta = {beta}": {
            "horizon": float(horizon), "steps": 10 * horizon, "beta": beta,
        }
        for horizon, beta in product((2, 5), (0.01, 0.1, 0.2))
    },
    **{
        f"amplitude {amplitude}": {
            "amplitude": float(amplitude), "horizon": 5.0, "steps": 50, "beta": 0.2,
            "n_states": 10,
        }
        for amplitude in (2, 4)
    },
}  # fmt: skip
"""The problems of `limit`: N = 6 and amplitude 1 where nothing else is said."""


def _cells(settings: BenchSettings, instances: int, **axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination of the axes and both readings, instance by instance, family by family.

    Families come before axes, those with few edges first, so that a sweep that is stopped early
    has fewer graphs, not fewer settings.
    """
    families = GRAPH_FAMILIES[::4] if settings.quick else GRAPH_FAMILIES[::-1]
    count = settings.instances or (1 if settings.quick else instances)
    names = ["instance", "family", *axes, "reading"]
    values = [range(count), families, *axes.values(), _READINGS]
    return [dict(zip(names, combination, strict=True)) for combination in product(*values)]


def _compared(cell: dict[str, Any], *, everywhere: bool = False) -> list[str]:
    """Methods of a cell of an ablation; the row with an unknown start is in `limit` and `table1`.

    `everywhere`: the costly rivals run in all families.
    """
    placed = cell["instance"] == 0 and cell["reading"] == _READINGS[0]
    left_out = {"likelihood_free"}
    if not placed or not (everywhere or cell["family"] in _PLACED):
        left_out |= set(_COSTLY)
    if cell.get("n_states", 0) > _LARGEST_FREE_CHAIN:
        left_out.add("ctmc_likelihood")
    return [name for name in METHODS if name not in left_out]


def _costliest_last(cells: list[dict[str, Any]], costly: Callable[[dict[str, Any]], bool]) -> None:
    """Give every cell its methods; those whose mean-field fit takes minutes come last."""
    for cell in cells:
        cell["methods"] = _compared(cell)
    cells.sort(
        key=lambda cell: (cell["instance"], cell["reading"] != _READINGS[0] and costly(cell))
    )


def _sweep(name: str, settings: BenchSettings, cells: list[dict[str, Any]]) -> SweepResult:
    version = f"{__version__}|{'quick' if settings.quick else 'full'}"
    return swept(settings, name, compare, cells, fingerprint=version)


def run_limit(settings: BenchSettings) -> BenchResult:
    """The paper's population against its own limit, in both readings."""
    names = list(_SETTINGS)[:1] if settings.quick else list(_SETTINGS)
    cells = [
        {
            **cell, "n_states": 6, **_SETTINGS[cell["problem"]], "n": 10_000,
            "methods": ["likelihood", "likelihood_free", "weak", "paper", "truth"],
        }
        for cell in _cells(settings, 2, problem=names)
    ]  # fmt: skip
    for cell in cells:
        if cell["instance"] or cell["family"] not in _PLACED:
            cell["methods"].remove("paper")
        # With an unknown start the chain is chaotic at large amplitudes; empirical rates do not
        # need the start.
        if cell["n_states"] > 6 or cell["reading"] == _READINGS[0]:
            cell["methods"].remove("likelihood_free")
    sweep = _sweep("limit", settings, cells)
    table = summary(sweep.table, ["reading", "problem"])
    notes = (*sweep.notes, *_collapses(sweep.table))
    return BenchResult(table, {"ratio": _ratios(table)}, notes)


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
    # Both horizons of a graph before the next graph.
    cells.sort(key=lambda cell: (cell["instance"], -GRAPH_FAMILIES.index(cell["family"])))
    for cell in cells:
        cell["methods"] = _compared(cell, everywhere=True)
        if cell["reading"] != _READINGS[0]:
            cell["methods"].insert(1, "likelihood_free")
    sweep = _sweep("table1", settings, cells)
    table = summary(sweep.table, ["reading", "horizon", "steps", "beta"])
    for name in ("paper", "openfim"):
        table[f"published_{name}"] = [str(TABLE1[beta][name]) for beta in table["beta"]]
    notes = (
        *sweep.notes,
        "error: forecast without sampling noise; sampled: n individuals simulated from the energy, "
        "as the paper measures; published columns are the paper's Table 1, whose horizon and "
        "number of steps it does not state.",
        *_collapses(sweep.table),
    )
    headline = sweep.table[sweep.table["reading"] == _READINGS[0]]
    long = melt(headline, ["family", "beta"])
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
        for cell in _cells(settings, 3, grid=_GRIDS, steps=steps)
        if cell["steps"] <= 100 or cell["reading"] == _READINGS[0]
    ]
    for cell in cells:
        # The network trains on every pair of times, two CPU minutes at a thousand steps; the free
        # chain exponentiates a matrix per step; so does every evaluation of the mean-field chain.
        long = set(_COSTLY) if cell["steps"] > 100 else set()
        cell["methods"] = [name for name in _compared(cell) if name not in long]
    cells.sort(key=lambda cell: (cell["instance"], max(cell["steps"], 100)))
    sweep = _sweep("timegrid", settings, cells)
    table = summary(sweep.table, ["reading", "grid", "steps"])
    uniform = table[(table["grid"] == "uniform") & (table["reading"] == _READINGS[0])]
    figure = _curves(uniform, "steps", "time steps, uniform grid")
    return BenchResult(table, {"steps": figure}, (*sweep.notes, *_collapses(sweep.table)))


def run_energy(settings: BenchSettings) -> BenchResult:
    """The ablation on the energy: amplitude of V times beta, the entropic regime, collapses."""
    amplitudes = (0.0, 1.0) if settings.quick else (0.0, 0.5, 1.0, 2.0, 4.0)
    betas = (0.05, 1.0) if settings.quick else (0.01, 0.05, 0.2, 1.0)
    cells = [
        {**cell, "horizon": 5.0, "steps": 50, "n_states": 10, "n": 10_000}
        for cell in _cells(settings, 3, amplitude=amplitudes, beta=betas)
    ]
    _costliest_last(cells, lambda cell: cell["amplitude"] > 1)
    sweep = _sweep("energy", settings, cells)
    table = summary(sweep.table, ["reading", "amplitude", "beta"])
    headline = sweep.table[sweep.table["reading"] == _READINGS[0]]
    figure = _bars(
        melt(headline, ["amplitude"]), "amplitude", "error", "Error by amplitude, all betas"
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
    _costliest_last(cells, lambda cell: cell["n_states"] > 20)
    sweep = _sweep(name, settings, cells)
    table = summary(sweep.table, ["reading", axis])
    notes = (*sweep.notes, *_collapses(sweep.table))
    headline = table[table["reading"] == _READINGS[0]]
    return BenchResult(table, {name: _curves(headline, axis, label)}, notes)


_COUNTED = {
    "collapsed": "{count} of {total} forecasts collapsed",
    "unconverged": "{count} of {total} fits did not converge ({which}); they are counted in the "
    "errors.",
    "rejected": "the deviance rejects {count} of {total} fits; they are counted in the errors.",
    "chaotic": "in {count} of {total} cells linear theory misses the chain (slopes above 1e8, or "
    "draws that disagree with it): the limit is that of draws.",
}
"""What is counted in the columns of a method, and how it is said."""


def _collapses(table: pd.DataFrame) -> list[str]:
    """How often a forecast ended on one state where the truth did not, and which fits to doubt."""
    notes: dict[str, list[str]] = {kind: [] for kind in _COUNTED}
    forecasts = 0
    for column in table.columns:
        kind, _, method = str(column).partition("_")
        values, which = table[column].dropna(), ""
        if kind == "status" and method:
            kind, ends = "unconverged", values[values != "CONVERGED"].value_counts()
            which = ", ".join(f"{count} {name}" for name, count in ends.items())
            values = values != "CONVERGED"
        if kind not in _COUNTED:
            continue
        forecasts += values.size if kind == "collapsed" else 0
        count = int(values.astype(bool).sum())
        if count:
            said = _COUNTED[kind].format(count=count, total=values.size, which=which)
            notes[kind].append(f"{method}: {said}")
    if forecasts and not notes["collapsed"]:
        notes["collapsed"] = [f"none of {forecasts} forecasts collapsed onto one state."]
    failed = table[table["status"] != "ok"]
    failures = [f"{len(failed)} cells failed: {failed['status'].iloc[0]}"] if len(failed) else []
    return [*(note for kind in notes.values() for note in kind), *failures]


def _curves(table: pd.DataFrame, axis: str, label: str) -> go.Figure:
    figure = go.Figure()
    for color, (method, part) in zip(
        PALETTE * 2, table.groupby("method", sort=False), strict=False
    ):
        if (part["error"] > 0).any():
            y = part["median" if method in LIMITS else "error"]
            # More methods than colours: those that learn nothing are dotted.
            dash = "dot" if method in ("no_movement", "histograms", *LIMITS) else "solid"
            figure.add_scatter(
                x=part[axis], y=y, name=str(method), line={"color": color, "dash": dash}
            )
    figure.update_layout(
        template="plotly_white",
        xaxis={"title": label, "type": "log"},
        yaxis={"title": "time-averaged Hellinger distance", "type": "log"},
    )
    return figure


def _ratios(table: pd.DataFrame) -> go.Figure:
    """Error over the limit, problem by problem, in the headline reading and beside it."""
    figure = go.Figure()
    shown = table[~table["method"].isin([*LIMITS, "truth"])]
    groups = shown.groupby(["method", "reading"], sort=False)
    for color, ((method, reading), part) in zip(PALETTE * 2, groups, strict=False):
        figure.add_scatter(
            x=part["problem"], y=part["over_limit"], name=f"{method}, {reading}",
            mode="markers", marker={"color": color, "size": 10},
        )  # fmt: skip
    figure.add_hline(y=1.0, line={"dash": "dot"})
    figure.update_layout(
        template="plotly_white",
        yaxis={"title": "root mean square error over the limit", "type": "log"},
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
