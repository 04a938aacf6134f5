"""Speed: the weak form and the likelihood against the paper's network, and against one solve.

Small: `N = 6`, horizon 5, 50 intervals, 10^4 individuals per snapshot, `V` uniform in [-1, 1]. The
network is trained in the same process, once, as the paper says; the others are timed as the median
of repeated fits. All run on one thread, and processor time is what is counted. The error is the
Hellinger distance between the forecast from the true start and the truth, averaged over the times.

Growing: `N = 6 .. 2000` Delaunay triangulations, 20 intervals: the weak form, the likelihood, the
paper's dense double Cholesky alone (one an interval), and its whole method. The network is trained
as printed, every sample through torch; at `N = 6` also by the compiled steps, which are the same.

Large: the weak form on the graph of 15 nearest neighbours of 10^6 points (3 10^4 in the quick run),
20 snapshots, against one solve with the same Laplacian (analysis, factorisation and solve) and
against one pass over the data (the assembly of the normal equations).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.energy import FreeEnergy, centred
from thalweg.errors import MissingDependencyError
from thalweg.flow import gradient_flow
from thalweg.graphs import GRAPH_FAMILIES, make_graph
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.learn.network.paper import Engine, Training, fit_neural, geodesic_velocity
from thalweg.learn.regressor import FreeEnergyRegressor
from thalweg.learn.weak.fit import fit_weak
from thalweg.learn.weak.terms import Nodes, Setting, assemble
from thalweg.mobility import LogMean
from thalweg.plots.layout import PALETTE
from thalweg.snapshots import Snapshots, hellinger
from thalweg_bench import BenchResult, BenchSettings
from thalweg_bench.network_steps import grouped_steps
from thalweg_bench.scale import N_NEIGHBORS, N_SNAPSHOTS, smooth_population

__all__ = ["compare_small", "run"]


N_STATES, HORIZON, N_INTERVALS, N_SAMPLES = 6, 5.0, 50, 10_000
BETAS = (0.01, 0.1, 0.2)
_FORECAST = 1e-4
"""The network's beta comes out near zero on large graphs: its flows empty states one by one, and
more digits than the comparison shows would take longer than the training."""


def run(settings: BenchSettings) -> BenchResult:
    """The table of both comparisons, and the ratios in sentences."""
    families = list(GRAPH_FAMILIES)[: 1 if settings.quick else 3]
    betas = (0.1,) if settings.quick else BETAS
    rows: list[dict[str, Any]] = []
    for i, family in enumerate(families):
        for j, beta in enumerate(betas):
            settings.progress("small fits", i * len(betas) + j, len(families) * len(betas))
            rng = np.random.default_rng([settings.seed, i, j])
            rows += compare_small(family, beta, rng)
    growing: list[dict[str, Any]] = []
    sizes = (6, 50) if settings.quick else (6, 20, 50, 100, 200, 500, 1000, 2000)
    for done, n in enumerate(sizes):
        settings.progress("growing graphs", done, len(sizes))
        growing += _growing(n, np.random.default_rng([settings.seed, n]))
    n_states = 30_000 if settings.quick else 1_000_000
    settings.progress("large fit", 0, 1)
    large = _large(n_states, np.random.default_rng(settings.seed))
    table = pd.concat(
        [pd.DataFrame(rows), pd.DataFrame(growing), pd.DataFrame([large])], ignore_index=True
    )
    notes = (*_small_notes(pd.DataFrame(rows)), *_growth_notes(table), _large_note(large))
    return BenchResult(table, {"growth": _growth_figure(table)}, notes)


# ------------------------------------------------------------------------ small


@single_threaded
def compare_small(
    family: str,
    beta: float,
    rng: np.random.Generator,
    *,
    n_samples: int = N_SAMPLES,
    repeats: int = 100,
) -> list[dict[str, Any]]:
    """One problem, all three methods: a row each."""
    kernel = make_graph(family, N_STATES, rng=rng)
    energy = FreeEnergy(centred(rng.uniform(-1, 1, N_STATES), kernel), beta)
    p0 = rng.dirichlet(np.ones(N_STATES))
    times = np.linspace(0, HORIZON, N_INTERVALS + 1)
    truth = gradient_flow(kernel, energy, p0, times).probabilities
    truth = truth / truth.sum(axis=1, keepdims=True)
    seen = Snapshots.from_counts(times, [rng.multinomial(n_samples, p) for p in truth])
    rows = []
    case = f"{family}, beta = {beta:g}"
    for method, count in (("weak", repeats), ("likelihood", 5)):
        model = FreeEnergyRegressor(method=method)  # type: ignore[arg-type]
        model.fit(kernel, seen)  # compiles, if this is the first
        seconds = _median(partial(model.fit, kernel, seen), count)
        forecast = model.predict(p0, times)
        rows.append(
            {
                "case": case,
                "method": method,
                "seconds": seconds,
                "hellinger": float(hellinger(forecast.probabilities, truth).mean()),
                "status": model.status_.name,
            }
        )
    with suppress(MissingDependencyError):
        rows.append(_network(kernel, seen, truth, case))
        _network(kernel, seen, truth, case, grouped_steps)  # compiles
        fast = _network(kernel, seen, truth, case, grouped_steps)
        rows.append({**fast, "method": "neural, compiled"})
    return rows


def _network(
    kernel: MarkovKernel, seen: Snapshots, truth: Array, case: str, engine: Engine | None = None
) -> dict[str, Any]:
    """The paper's method, by default as printed: every sample of every batch through torch."""
    p = (seen.counts + 0.5) / (seen.counts + 0.5).sum(axis=1, keepdims=True)
    start = time.process_time()
    found = fit_neural(kernel, seen.times, seen.counts, p, training=Training(engine=engine))
    seconds = time.process_time() - start
    forecast = gradient_flow(kernel, found.energy, truth[0], seen.times, rtol=_FORECAST)
    return {
        "case": case,
        "method": "neural",
        "seconds": seconds,
        "hellinger": float(hellinger(forecast.probabilities, truth).mean()),
        "status": found.status.name,
    }


# ------------------------------------------------------------------------ growing


@single_threaded
def _growing(n_states: int, rng: np.random.Generator, *, n_samples: int = 10_000) -> list[Any]:
    """One Delaunay problem of that size under every method: a row each."""
    kernel = make_graph("delaunay", n_states, rng=rng)
    energy = FreeEnergy(centred(rng.uniform(-1, 1, n_states), kernel), 0.2)
    p0, times = rng.dirichlet(np.full(n_states, 5.0)), np.linspace(0, 2, 21)
    truth = gradient_flow(kernel, energy, p0, times).probabilities
    truth = truth / truth.sum(axis=1, keepdims=True)
    seen = Snapshots.from_counts(times, [rng.multinomial(n_samples, p) for p in truth])
    case = f"growing, N = {n_states}"
    rows: list[dict[str, Any]] = []
    for method, count in (("weak", 3), ("likelihood", 1)):
        model = FreeEnergyRegressor(method=method)  # type: ignore[arg-type]
        if method == "weak" or n_states <= 20:
            model.fit(kernel, seen)  # compiles, if this is the first
        seconds = _median(partial(model.fit, kernel, seen), count)
        error = float(hellinger(model.predict(p0, times).probabilities, truth).mean())
        rows.append({"case": case, "method": method, "seconds": seconds, "hellinger": error,
                     "status": model.status_.name})  # fmt: skip
    p = (seen.counts + 0.5) / (seen.counts + 0.5).sum(axis=1, keepdims=True)
    started = time.process_time()
    for k in range(1, times.size):
        geodesic_velocity(kernel, p[k], p[k - 1] - p[k])
    dense = time.process_time() - started
    rows.append({"case": case, "method": "double Cholesky", "seconds": dense})
    with suppress(MissingDependencyError):
        rows.append(_network(kernel, seen, truth, case))
    return rows


def _growth_figure(table: pd.DataFrame) -> go.Figure:
    part = table[table["case"].str.startswith("growing")]
    sizes = part["case"].str.extract(r"= (\d+)")[0].astype(int)
    figure = go.Figure()
    for color, (method, rows) in zip(PALETTE, part.groupby("method", sort=False), strict=False):
        figure.add_scatter(
            x=sizes[rows.index], y=rows["seconds"], name=str(method), line={"color": color}
        )
    figure.update_layout(
        template="plotly_white",
        title="The whole fit: ours, the paper's network, its dense routine alone",
        xaxis={"title": "states", "type": "log"},
        yaxis={"title": "processor seconds", "type": "log"},
    )
    return figure


def _growth_notes(table: pd.DataFrame) -> list[str]:
    part = table[table["case"].str.startswith("growing")]
    seconds = part.pivot(index="case", columns="method", values="seconds")
    last = part["case"].iloc[-1]
    notes = []
    for rival in ("double Cholesky", "neural"):
        if rival in seconds:
            ratio = seconds.loc[last, rival] / seconds.loc[last, "weak"]
            notes.append(f"{last}: the weak form is {ratio:.0f} times faster than {rival}.")
    return notes


def _median(action: Callable[[], object], count: int) -> float:
    seconds = []
    for _ in range(count):
        start = time.process_time()
        action()
        seconds.append(time.process_time() - start)
    return float(np.median(seconds))


def _small_notes(table: pd.DataFrame) -> list[str]:
    if "neural" not in set(table["method"]):
        return ["torch is missing, so no network was trained; pip install 'thalweg[neural]'."]
    seconds = table.pivot(index="case", columns="method", values="seconds")
    errors = table.pivot(index="case", columns="method", values="hellinger")
    notes = []
    for method in ("weak", "likelihood"):
        ratio = seconds["neural"] / seconds[method]
        better = int((errors[method] < errors["neural"]).sum())
        notes.append(
            f"N = {N_STATES}: {method} is {ratio.median():.0f} times faster than the paper's "
            f"network (least {ratio.min():.0f}); Hellinger {errors[method].mean():.4f} against "
            f"{errors['neural'].mean():.4f}, lower in {better} of {len(errors)} cases."
        )
        if "neural, compiled" in seconds:
            compiled = (seconds["neural, compiled"] / seconds[method]).median()
            notes.append(
                f"N = {N_STATES}: {method} is {compiled:.0f} times faster than the same training "
                "compiled."
            )
    return notes


# ------------------------------------------------------------------------ large


@single_threaded
def _large(n_states: int, rng: np.random.Generator) -> dict[str, Any]:
    """One weak fit, one solve and one pass, on the same graph."""
    _compile(rng)
    v, kernel, times, p = smooth_population(n_states, rng)
    # Few jumps fit into the horizon of a graph this fine: only huge samples show them.
    sizes = np.full(N_SNAPSHOTS, 1e9 * n_states)
    nodes = Nodes(times, "trapezoid")

    def pass_over_data() -> Any:
        return assemble(kernel, nodes, p, Setting(LogMean()))

    system = pass_over_data()
    one_pass = _median(pass_over_data, 1)
    start = time.process_time()
    solver = LaplacianSolver.for_kernel(kernel)
    solver.factor(system.weights[0, 0]).solve(system.load[0])
    one_solve = time.process_time() - start
    start = time.process_time()
    fit = fit_weak(kernel, times, p, sizes=sizes)
    whole = time.process_time() - start
    return {
        "case": f"{n_states} states, {kernel.n_edges} edges",
        "method": "weak",
        "seconds": whole,
        "status": fit.status.name,
        "one solve": one_solve,
        "one pass": one_pass,
        "ratio": (whole - 2 * one_pass) / one_solve,
        "correlation": float(np.corrcoef(fit.potential, v)[0, 1]),
    }


def _compile(rng: np.random.Generator) -> None:
    """Have everything compiled before the clock runs."""
    kernel = MarkovKernel.from_points(rng.random((2000, 2)), n_neighbors=N_NEIGHBORS)
    p = rng.dirichlet(np.full(2000, 50.0), 2)
    fit_weak(kernel, [0, 1], p, sizes=[1000, 1000])
    for method in ("approxchol", "auto"):
        solver = LaplacianSolver.for_kernel(kernel, method=method)
        solver.factor(kernel.edges.conductance).solve(p[0] - p[1])


def _large_note(row: dict[str, Any]) -> str:
    return (
        f"{row['case']}, {N_SNAPSHOTS} snapshots: the weak form, ridge and all, takes two passes "
        f"over the data and {row['ratio']:.1f} times one Laplacian solve; correlation with the "
        f"true potential {row['correlation']:.4f}."
    )
