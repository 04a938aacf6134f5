"""Laplacian solves: approximate Cholesky against scipy's SuperLU and CHOLMOD.

`thalweg bench laplacian`. Each row is one graph and one law of weights. Times are processor seconds
of one factorisation and one solve to the default tolerance, after the symbolic analysis; `ratio`
columns divide the other solver's time by that of approximate Cholesky. The energy error is measured
against a known solution whose right-hand side was made in flux form and extended precision.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from thalweg._types import Array
from thalweg.graphs import GRAPH_FAMILIES, make_graph
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver, Method, cholmod
from thalweg.laplacian.approxchol import ApproxCholFactor
from thalweg_bench import BenchResult, BenchSettings

__all__ = ["run"]

LAWS = ("uniform", "log-uniform 8 decades", "smooth 12 decades")
"""Laws of the weights."""
FLAT = ("delaunay", "grid", "torus")
EXPANDERS = ("regular", "watts_strogatz", "barabasi_albert", "knn 10-d")
_DENSE_FAMILIES = ("complete", "k_partite")


@dataclass(frozen=True)
class Case:
    """One row: a graph, a law of weights, and the solvers to run."""

    part: str
    family: str
    n_states: int
    law: str
    methods: tuple[Method, ...]


def run(settings: BenchSettings) -> BenchResult:
    """The table; `quick` takes about a minute, the whole several (CHOLMOD on expanders)."""
    cases = list(_cases(settings.quick))
    _measure(Case("warm-up", "regular", 300, LAWS[0], _with_cholmod("superlu")), 0)
    rows = []
    for k, case in enumerate(cases):
        settings.progress(f"{case.family} {case.n_states} {case.law}", k, len(cases))
        rows.append(_measure(case, settings.seed))
    settings.progress("done", len(cases), len(cases))
    table = pd.DataFrame(rows)
    return BenchResult(table, notes=tuple(_notes(table)))


def _with_cholmod(*methods: Method) -> tuple[Method, ...]:
    return ("approxchol", *methods, *(("cholmod",) if cholmod.available() else ()))


def _cases(quick: bool) -> Iterator[Case]:
    for family in GRAPH_FAMILIES:
        for law in LAWS:
            yield Case("families", family, 1_000, law, _with_cholmod("superlu"))
    for family in FLAT:
        for law in LAWS:
            yield Case("flat", family, 20_000, law, _with_cholmod("superlu"))
    for family in EXPANDERS:
        size = 4_000 if quick else 20_000
        yield Case("expanders", family, size, LAWS[0], _with_cholmod())
    if not quick:
        for family in GRAPH_FAMILIES:
            if family not in _DENSE_FAMILIES:
                for law in LAWS:
                    yield Case("large", family, 100_000, law, ("approxchol",))
    for size in (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000):
        yield Case("growth", "knn 2-d", size, LAWS[1], ("approxchol",))


def _measure(case: Case, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    kernel = _graph(case.family, case.n_states, rng)
    weights = _weights(case.law, kernel, rng)
    x, b = _known(kernel, weights, rng)
    row: dict[str, Any] = {
        "part": case.part,
        "graph": case.family,
        "n_states": kernel.n_states,
        "n_edges": kernel.n_edges,
        "weights": case.law,
    }
    seconds: dict[str, float] = {}
    for method in case.methods:
        start = time.process_time()
        solver = LaplacianSolver.for_kernel(kernel, method=method)
        analysed = time.process_time()
        factor = solver.factor(weights)
        factored = time.process_time()
        solution = factor.solve(b)
        end = time.process_time()
        seconds[method] = end - analysed
        row[f"{method} s"] = end - analysed
        row[f"{method} error"] = _energy_error(kernel, weights, solution.x, x)
        row[f"{method} status"] = solution.status.name
        if method == "approxchol":
            row["analysis s"] = analysed - start
            row["factor s"] = factored - analysed
            row["iterations"] = solution.iterations
            row["us per edge"] = 1e6 * (end - analysed) / kernel.n_edges
            if factor.prepared and isinstance(factor.prepared.preconditioner, ApproxCholFactor):
                found = factor.prepared.preconditioner
                size = found.rows.nbytes + found.fractions.nbytes + 20 * kernel.n_states
                row["bytes per edge"] = size / kernel.n_edges
                row["fill"] = found.rows.size / kernel.n_edges
        else:
            row[f"{method} ratio"] = seconds[method] / seconds["approxchol"]
    return row


def _graph(family: str, n: int, rng: np.random.Generator) -> MarkovKernel:
    if family == "knn 2-d":
        return MarkovKernel.from_points(rng.uniform(size=(n, 2)), n_neighbors=8)
    if family == "knn 10-d":
        return MarkovKernel.from_points(rng.normal(size=(n, 10)), n_neighbors=10)
    return make_graph(family, n, rng=rng)


def _weights(law: str, kernel: MarkovKernel, rng: np.random.Generator) -> Array:
    source, target, _ = kernel.edges
    if law == LAWS[0]:
        return np.ones(source.size)
    if law == LAWS[1]:
        return np.asarray(10 ** rng.uniform(-8, 0, source.size))
    height = rng.normal(size=kernel.n_states)
    for _ in range(20):
        height = (height + kernel.matrix @ height) / 2
    height = 12 * (height - height.min()) / np.ptp(height) - 12
    return np.asarray(10 ** ((height[source] + height[target]) / 2))


def _known(kernel: MarkovKernel, weights: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """The potential of random loads, taken as exact, and the `b` that belongs to it.

    A potential drawn at random would be an easy one: its energy lies in the short waves.
    """
    loads = rng.normal(size=kernel.n_states)
    loads -= loads.mean()
    solver = LaplacianSolver.for_kernel(kernel, method="approxchol")
    x = solver.factor(weights).solve(loads, tolerance=1e-6).x
    source, target, _ = kernel.edges
    exact = x.astype(np.longdouble)
    flux = weights * (exact[source] - exact[target])
    b = np.zeros(kernel.n_states, dtype=np.longdouble)
    np.add.at(b, source, flux)
    np.subtract.at(b, target, flux)
    return x, b.astype(np.float64)


def _energy_error(kernel: MarkovKernel, weights: Array, x: Array, exact: Array) -> float:
    source, target, _ = kernel.edges
    gap = x - exact
    wrong = np.sum(weights * (gap[source] - gap[target]) ** 2)
    return float(np.sqrt(wrong / np.sum(weights * (exact[source] - exact[target]) ** 2)))


def _notes(table: pd.DataFrame) -> Iterator[str]:
    sparse = table[~table["graph"].isin(_DENSE_FAMILIES)]
    worst = sparse.loc[sparse["approxchol error"].idxmax()]
    yield (
        f"approximate Cholesky: largest energy error {worst['approxchol error']:.1e} "
        f"({worst['graph']}, {worst['weights']}, n = {worst['n_states']}); "
        f"{table['iterations'].min()} to {table['iterations'].max()} iterations."
    )
    flat = table[table["part"] == "flat"]
    yield f"2-D graphs: SuperLU takes {_span(flat['superlu ratio'])} times as long."
    if "cholmod ratio" in table:
        yield (
            "2-D graphs: approximate Cholesky takes "
            f"{_span(1 / flat['cholmod ratio'])} times as long as CHOLMOD."
        )
        far = table[table["part"] == "expanders"]
        yield (
            f"expanders, n = {far['n_states'].max()}: CHOLMOD takes "
            f"{_span(far['cholmod ratio'])} times as long (its speed there is that of its BLAS)."
        )
    growth = table[table["part"] == "growth"]
    grown = ", ".join(
        f"{us:.2f} us at n = {n}"
        for us, n in zip(growth["us per edge"], growth["n_states"], strict=True)
    )
    yield f"2-D neighbour graphs, factor and solve per edge: {grown}."


def _span(values: pd.Series[float]) -> str:
    return f"{values.min():.2g} to {values.max():.2g}"
