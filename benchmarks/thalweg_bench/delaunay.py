"""Landscapes on a Delaunay triangulation from snapshots: correlation, shrinkage, calibration.

`V = 1.5 sin(3 pi x) cos(2 pi y)`, `beta = 0.1`, `p0 ~ pi exp(-4 r^2)` around the centre, 21
independent snapshots: 10^4 samples of 1000 states until time 10, or 10^5 of 10^4 states until 100.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from thalweg._types import Array
from thalweg.energy import FreeEnergy, centred
from thalweg.flow import gradient_flow
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn.fields import LargeFit, fit_likelihood_large
from thalweg.learn.fields.start import smoothed
from thalweg.learn.weak.fit import fit_weak
from thalweg.learn.weak.smooth import smoothed_in_time
from thalweg_bench import BenchResult, BenchSettings

__all__ = ["run"]


BETA = 0.1
_FAMILIES = ("grid", "watts_strogatz", "regular")
"""Other graphs, with rough landscapes."""
_WEAK_TARGET = 0.87
"""Least correlation of the weak form with the true potential."""
_SECONDS = {1000: 30.0, 10_000: 180.0}
"""Most CPU seconds of a fit, by number of states."""


class Problem(NamedTuple):
    """A kernel, what is true on it, and counts drawn from it."""

    kernel: MarkovKernel
    potential: Array
    times: Array
    probabilities: Array
    counts: Array


def landscape(n: int, n_samples: int, horizon: float, seed: int) -> Problem:
    """The Delaunay problem."""
    rng = np.random.default_rng(seed)
    kernel = make_graph("delaunay", n, rng=rng)
    assert kernel.coordinates is not None
    x, y = kernel.coordinates.T
    potential = 1.5 * np.sin(3 * np.pi * x) * np.cos(2 * np.pi * y)
    p0 = kernel.stationary * np.exp(-4 * ((x - 0.5) ** 2 + (y - 0.5) ** 2))
    return _drawn(kernel, potential, p0 / p0.sum(), np.linspace(0, horizon, 21), n_samples, rng)


def _drawn(
    kernel: MarkovKernel,
    potential: Array,
    p0: Array,
    times: Array,
    n_samples: int,
    rng: np.random.Generator,
) -> Problem:
    p = gradient_flow(kernel, FreeEnergy(potential, BETA), p0, times, rtol=1e-6).probabilities
    counts = np.array([rng.multinomial(n_samples, row / row.sum()) for row in p], dtype=np.float64)
    return Problem(kernel, potential, times, p, counts)


def agreement(problem: Problem, fitted: Array) -> tuple[float, float]:
    """Correlation with the true potential, and the slope of fitted on true, weighted by `pi`."""
    pi = problem.kernel.stationary
    a, b = centred(fitted, problem.kernel), centred(problem.potential, problem.kernel)
    cross, own = float((pi * a) @ b), float((pi * b) @ b)
    return cross / float(np.sqrt((pi * a) @ a * own)), cross / own


def _hellinger(p: Array, q: Array) -> float:
    """Root mean square of the Hellinger distance over the times."""
    return float(np.sqrt(np.mean(0.5 * np.sum((np.sqrt(p) - np.sqrt(q)) ** 2, axis=1))))


def _fit(problem: Problem, with_coordinates: bool, seed: int) -> tuple[LargeFit, float]:
    start = time.process_time()
    fit = fit_likelihood_large(
        problem.kernel,
        problem.times,
        problem.counts,
        coordinates="kernel" if with_coordinates else None,
        rng=np.random.default_rng(seed),
    )
    return fit, time.process_time() - start


def _row(problem: Problem, fit: LargeFit, seconds: float, label: str, seed: int) -> dict[str, Any]:
    """What every fit of many states is judged by."""
    low, high = fit.beta_interval
    error = np.abs(centred(fit.potential, problem.kernel) - centred(problem.potential, fit.kernel))
    return {
        **_basic_row(problem, fit, seconds, label, seed),
        "beta stderr": fit.beta_stderr,
        "beta low": low,
        "beta high": high,
        "V within 2 se": float(np.mean(error < 2 * fit.potential_stderr)),
    }


def _basic_row(problem: Problem, fit: Any, seconds: float, label: str, seed: int) -> dict[str, Any]:
    correlation, slope = agreement(problem, fit.potential)
    return {
        "case": f"delaunay {problem.kernel.n_states}",
        "prior": label,
        "seed": seed,
        "correlation": correlation,
        "slope": slope,
        "beta": fit.beta,
        "CPU seconds": seconds,
        "status": fit.status.name,
    }


def _judged(row: dict[str, Any], n: int) -> dict[str, Any]:
    target = 0.999 if n >= 10_000 else (0.99 if row["prior"] == "coordinates" else 0.975)
    met = row["correlation"] >= target and 0.9 <= row["slope"] <= 1.1
    met = met and row["beta low"] <= BETA <= row["beta high"]
    allowed = _SECONDS.get(n, np.nan)
    met = met and not row["CPU seconds"] > allowed
    return {**row, "target": target, "seconds allowed": allowed, "met": met}


def _weak_row(problem: Problem, seed: int) -> dict[str, Any]:
    """The closed form on counts smoothed in time: graph alone, no error bars."""
    start = time.process_time()
    p, sizes = smoothed_in_time(problem.times, problem.counts)
    fit = fit_weak(problem.kernel, problem.times, p, sizes=sizes)
    row = _basic_row(problem, fit, time.process_time() - start, "weak form", seed)
    return {**row, "target": _WEAK_TARGET, "met": row["correlation"] >= _WEAK_TARGET}


def _family_row(family: str, n: int, seed: int) -> dict[str, Any]:
    """Rough landscapes on other graphs: how far the forecast is from the truth, against weak."""
    rng = np.random.default_rng(seed)
    kernel = make_graph(family, n, rng=rng)
    n = kernel.n_states
    p0 = rng.dirichlet(np.full(n, 5.0))
    times = np.linspace(0, 5, 21)
    problem = _drawn(kernel, rng.uniform(-1, 1, n), p0, times, 20 * n, rng)
    fit, seconds = _fit(problem, False, seed)
    weak = fit_weak(
        kernel, times, smoothed(kernel, problem.counts), sizes=problem.counts.sum(axis=1)
    )
    forecast = [
        gradient_flow(kernel, energy, p0, times, rtol=1e-5).probabilities
        for energy in (fit.energy, FreeEnergy(weak.potential, max(weak.beta, 1e-3)))
    ]
    ours, theirs = (_hellinger(problem.probabilities, q) for q in forecast)
    row = _row(problem, fit, seconds, "graph", seed)
    return {**row, "case": f"{family} {n}", "Hellinger over weak": ours / theirs}


def measure(kind: str, seed: int) -> tuple[list[dict[str, Any]], Problem, LargeFit]:
    """One landscape, with `"coordinates"` (the weak form beside), from the `"graph"`, or `"large"`.

    Rows of the table, and what they were measured on.
    """
    large = kind == "large"
    problem = landscape(*((10_000, 100_000, 100.0) if large else (1000, 10_000, 10.0)), seed)
    fit, seconds = _fit(problem, kind != "graph", seed)
    label = "graph" if kind == "graph" else "coordinates"
    rows = [_judged(_row(problem, fit, seconds, label, seed), problem.kernel.n_states)]
    if kind == "coordinates":
        rows.append(_weak_row(problem, seed))
    return rows, problem, fit


def run(settings: BenchSettings) -> BenchResult:
    """The rows of the table, a picture of the first, and a sentence on each target."""
    seeds = range(settings.seed, settings.seed + (1 if settings.quick else 3))
    plan: list[tuple[str, int]] = [(kind, s) for s in seeds for kind in ("coordinates", "graph")]
    if not settings.quick:
        plan += [("large", settings.seed)] + [(family, settings.seed) for family in _FAMILIES]
    rows: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    for done, (kind, seed) in enumerate(plan):
        settings.progress(f"delaunay: {kind}, seed {seed}", done, len(plan))
        if kind in _FAMILIES:
            rows.append(_family_row(kind, 1000, seed))
            continue
        found, problem, fit = measure(kind, seed)
        rows += found
        if f"landscape_{kind}" not in figures:
            figures[f"landscape_{kind}"] = picture(problem, fit)
    table = pd.DataFrame(rows)
    return BenchResult(table, figures, _notes(table))


def _notes(table: pd.DataFrame) -> tuple[str, ...]:
    out = []
    judged = table[table["met"].notna()]
    for (case, prior), part in judged.groupby(["case", "prior"], sort=False):
        if prior == "weak form":
            out.append(
                f"{case}, weak form: correlation {part['correlation'].min():.3f}-"
                f"{part['correlation'].max():.3f} (target {_WEAK_TARGET:g}), slope "
                f"{part['slope'].min():.2f}-{part['slope'].max():.2f}, beta "
                f"{part['beta'].min():.3f}-{part['beta'].max():.3f} for {BETA:g}."
            )
            continue
        inside = (part["beta low"] <= BETA) & (part["beta high"] >= BETA)
        out.append(
            f"{case}, {prior}: correlation at least {part['correlation'].min():.4f} (target "
            f"{part['target'].iloc[0]:g}), slope {part['slope'].min():.3f}-"
            f"{part['slope'].max():.3f}, beta inside its interval in {int(inside.sum())} of "
            f"{len(part)}, at most {part['CPU seconds'].max():.0f} CPU s of "
            f"{part['seconds allowed'].iloc[0]:.0f}, {part['V within 2 se'].mean():.0%} of V "
            "within two standard errors."
        )
    return tuple(out)


def picture(problem: Problem, fit: LargeFit) -> go.Figure:
    """Truth, fit, error and error bar, side by side on the states' positions."""
    coordinates = problem.kernel.coordinates
    assert coordinates is not None
    truth = centred(problem.potential, problem.kernel)
    panels = [
        ("true V", truth, "Cividis"),
        ("fitted V", fit.potential, "Cividis"),
        ("error", fit.potential - truth, "PuOr"),
        ("standard error", fit.potential_stderr, "Viridis"),
    ]
    reach = float(np.abs(truth).max())
    wrong = float(np.quantile(np.abs(fit.potential - truth), 0.995))
    limits = [(-reach, reach), (-reach, reach), (-wrong, wrong), (0.0, wrong)]
    figure = make_subplots(
        rows=1, cols=4, subplot_titles=[name for name, _, _ in panels], horizontal_spacing=0.06
    )
    size = 7 if problem.kernel.n_states < 3000 else 3
    source, target, _ = problem.kernel.edges
    gap = np.full(source.size, np.nan)
    lines = [
        np.column_stack([coordinates[source, axis], coordinates[target, axis], gap]).ravel()
        for axis in (0, 1)
    ]
    for column, ((name, values, scale), (low, high)) in enumerate(
        zip(panels, limits, strict=True), start=1
    ):
        figure.add_trace(
            go.Scattergl(
                x=lines[0],
                y=lines[1],
                mode="lines",
                line={"color": "#bbbbbb", "width": 0.7},
                hoverinfo="skip",
                showlegend=False,
            ),
            row=1,
            col=column,
        )
        marker = {
            "color": values,
            "colorscale": scale,
            "cmin": low,
            "cmax": high,
            "size": size,
            "showscale": True,
            "colorbar": {"x": 0.265 * (column - 1) + 0.205, "len": 0.8, "thickness": 8},
        }
        figure.add_trace(
            go.Scattergl(
                x=coordinates[:, 0],
                y=coordinates[:, 1],
                mode="markers",
                marker=marker,
                name=name,
                showlegend=False,
                hovertemplate=f"{name}: %{{marker.color:.3f}}<extra></extra>",
            ),
            row=1,
            col=column,
        )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.update_layout(
        title=f"{problem.kernel.n_states} states: landscape recovered from snapshots",
        width=1400,
        height=420,
        template="plotly_white",
    )
    return figure
