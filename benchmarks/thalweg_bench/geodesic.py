"""W_K distances, geodesics and JKO steps: what they cost in Laplacian solves, and their errors.

Every figure is measured in one process, as a ratio of processor times to one Laplacian
factorisation and solve on the same graph, each the shortest of several alternating runs. The
column `tolerance` is the relative error of the distance that was asked for. `quick` keeps to small
graphs; the full run goes to 10^5 states.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pandas as pd

from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.flow.integrate import gradient_flow
from thalweg.geometry import TransportGeometry
from thalweg.geometry.geodesic import Geodesic
from thalweg.graphs import GRAPH_FAMILIES, make_graph
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver, balanced
from thalweg.mobility import (
    ArithmeticMean,
    GeometricMean,
    HarmonicMean,
    LogMean,
    Mobility,
    PorousMediumMean,
    PowerHeatMean,
    PowerProduct,
)
from thalweg_bench import BenchResult, BenchSettings
from thalweg_bench.geodesic_hard import conic_rows, far_rows, jko_rows
from thalweg_bench.sweep import Cell, swept

__all__ = ["run"]

Row = dict[str, Any]
MEANS: tuple[Mobility, ...] = (LogMean(), GeometricMean(), ArithmeticMean(), HarmonicMean())
FAMILIES = ("grid", "delaunay", "regular", "watts_strogatz", "knn")
ORACLES = {
    "two states": (1.015114665012, 1.023098200520, 1.0, 1.047197551197),
    "point masses": (2.204345217618, 2.396280469471, 2.0, np.pi),
}
"""Exact distances of pairs of states, by mean in the order of `MEANS`."""


def run(settings: BenchSettings, only: Collection[str] = ()) -> BenchResult:
    """One row per case: what was measured, the figure, the target, and whether it is met.

    `only`: names of parts of the benchmark (such as "near pairs"); all of them if empty.
    """
    names = [name for name in _parts() if not only or name in only]
    cells = [{"part": name, "quick": settings.quick, "seed": settings.seed} for name in names]
    # Processor times are compared: nothing else may run meanwhile.
    sweep = swept(settings, "geodesic", one_part, cells, jobs=1)
    rows = [
        row for found in sweep.table.get("rows", []) if isinstance(found, list) for row in found
    ]
    failed = [f"{row.part}: {row.status}" for row in sweep.failed.itertuples()]
    table = pd.DataFrame(rows)
    met = int(table["met"].fillna(False).astype(bool).sum())
    return BenchResult(
        table, notes=(f"{met} of {len(table)} rows meet their target.", *failed, *sweep.notes)
    )


def _parts() -> dict[str, Callable[[BenchSettings], list[Row]]]:
    return {
        "oracles": _oracles,
        "conic program": conic_rows,
        "near pairs": _near,
        "mid pairs": _mid,
        "far pairs": far_rows,
        "JKO": jko_rows,
        "random pairs": _random,
    }


def one_part(cell: Cell, _: np.random.Generator) -> dict[str, Any]:
    """The rows of one part, as plain values; a finished part is kept, so a killed run resumes."""
    rows = _parts()[cell["part"]](BenchSettings(quick=cell["quick"], seed=cell["seed"]))
    plain = [
        {
            key: value.item() if isinstance(value, np.generic) else value
            for key, value in row.items()
        }
        for row in rows
    ]
    return {"rows": plain}


def _row(case: str, measure: str, value: float, target: float, note: str = "", **more: Any) -> Row:
    return {
        "case": case,
        "measure": measure,
        "value": value,
        "target": target,
        "met": bool(value <= target),
        "note": note,
        **more,
    }


def _growth(near: list[Row]) -> list[Row]:
    """The exponent with which the time of near pairs grows with the edges, family by family."""
    rows = []
    for family in dict.fromkeys(row["family"] for row in near):
        own = [row for row in near if row["family"] == family]
        x, y = (np.log([row[key] for row in own]) for key in ("edges", "seconds"))
        exponent = float(np.polyfit(x, y, 1)[0])
        note = f"{own[0]['edges']} to {own[-1]['edges']} edges"
        rows.append(
            _row(f"near pairs, {family}", "growth exponent in the edges", exponent, 1.15, note)
        )
    return rows


def _against_one_solve(
    kernel: MarkovKernel, p: Array, q: Array, tolerance: float
) -> tuple[Geodesic, float, float]:
    """A geodesic, its processor time, and that of one factorisation and solve."""
    solver = LaplacianSolver.for_kernel(kernel)
    geometry = TransportGeometry(kernel)
    found = geometry.geodesic(p, q, tolerance=tolerance)  # compiles, analyses the pattern
    seconds, one = [], []
    for _ in range(5 if kernel.n_states <= 20_000 else 3):
        start = time.process_time()
        solver.factor(kernel.edges.conductance).solve(balanced(q - p), tolerance=1e-10)
        middle = time.process_time()
        found = geometry.geodesic(p, q, tolerance=tolerance)
        one.append(middle - start)
        seconds.append(time.process_time() - middle)
    return found, min(seconds), min(one)


def _cost(
    case: str,
    kernel: MarkovKernel,
    p: Array,
    q: Array,
    tolerance: float,
    target: float,
    **more: Any,
) -> Row:
    found, seconds, one = _against_one_solve(kernel, p, q, tolerance)
    error = found.error_estimate / max(found.distance, 1e-300)
    row = _row(
        case,
        "Laplacian solves",
        seconds / one,
        target,
        f"{found.status.name}, W = {found.distance:.6f}, estimated error {error:.1e}",
        tolerance=tolerance,
        edges=kernel.n_edges,
        seconds=seconds,
        **more,
    )
    row["met"] = row["met"] and bool(found.status)
    return row


def _timed(work: Callable[[], Any], repeat: int = 2) -> tuple[Any, float]:
    best = np.inf
    result = None
    for _ in range(repeat):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return result, best


def _log_normal(kernel: MarkovKernel, spread: float, rng: np.random.Generator) -> Array:
    p = kernel.stationary * np.exp(spread * rng.normal(size=kernel.n_states))
    return np.asarray(p / p.sum())


def _oracles(settings: BenchSettings) -> list[Row]:
    kernel = MarkovKernel.from_matrix([[0.5, 0.5], [0.5, 0.5]])
    ends = {"two states": [0.75, 0.25], "point masses": [1.0, 0.0]}
    rows = []
    for name, p in ends.items():
        for mobility, exact in zip(MEANS, ORACLES[name], strict=True):
            found = TransportGeometry(kernel, mobility).geodesic(p, p[::-1], tolerance=1e-10)
            error = abs(found.distance / exact - 1)
            rows.append(
                _row(
                    f"oracle: {name}",
                    "relative error",
                    error,
                    1e-10,
                    repr(mobility),
                    tolerance=1e-10,
                )
            )
    for d, exact in ((3, 1.243256479848), (6, 1.758230175309)):
        n = 2**d
        weights = np.zeros((n, n))
        for x in range(n):
            weights[x, [x ^ (1 << bit) for bit in range(d)]] = 1.0
        high = np.where(np.arange(n) & 1, 1.5, 0.5) / n
        low = np.where(np.arange(n) & 1, 0.5, 1.5) / n
        geometry = TransportGeometry(MarkovKernel.from_weights(weights))
        error = abs(geometry.distance(high, low, tolerance=1e-10) / exact - 1)
        rows.append(
            _row(
                "oracle: lumped cube",
                "relative error",
                error,
                1e-10,
                f"dimension {d}",
                tolerance=1e-10,
            )
        )
    return rows


def _near(settings: BenchSettings) -> list[Row]:
    """Two snapshots of one flow."""
    rows = []
    for family in FAMILIES:
        for n in (1000, 10_000) if settings.quick else (1000, 10_000, 100_000):
            rng = np.random.default_rng(settings.seed)
            kernel = _graph(family, n, rng)
            start = _log_normal(kernel, 0.5, rng)
            energy = FreeEnergy(0.3 * rng.normal(size=n), 1.0)
            p, q = gradient_flow(kernel, energy, start, [0.0, 0.5, 0.6]).probabilities[1:]
            case = f"near pair, {family}, N = {n}"
            rows.append(_cost(case, kernel, p, q, 1e-8, 25.0, family=family))
    return rows + _growth(rows)


def _graph(family: str, n: int, rng: np.random.Generator) -> MarkovKernel:
    if family == "knn":
        return MarkovKernel.from_points(rng.normal(size=(n, 3)), n_neighbors=8)
    return make_graph(family, n, rng=rng)


def _mid(settings: BenchSettings) -> list[Row]:
    """Independent log-normal densities. A spread of one spans four decades, and states all but
    empty on the way."""
    rows = []
    for spread in (0.5, 1.0):
        sizes = (1000, 5000) if settings.quick else (1000, 10_000, 50_000)
        for family in FAMILIES:
            for n in sizes if spread < 1 else sizes[:2]:
                rng = np.random.default_rng(settings.seed)
                kernel = _graph(family, n, rng)
                p, q = _log_normal(kernel, spread, rng), _log_normal(kernel, spread, rng)
                case = f"mid pair, spread {spread:g}, {family}, N = {n}"
                rows.append(_cost(case, kernel, p, q, 1e-4, 90.0))
    return rows


def _random(settings: BenchSettings) -> list[Row]:
    rng = np.random.default_rng(settings.seed)
    mobilities = (*MEANS, PorousMediumMean(1.5), PowerHeatMean(1.5), PowerProduct(0.3))
    total = 42 if settings.quick else 500
    failed = []
    for i in range(total):
        family = list(GRAPH_FAMILIES)[i % len(GRAPH_FAMILIES)]
        kernel = make_graph(family, int(rng.integers(5, 16)), rng=rng)
        n = kernel.n_states
        p, q = 10 ** rng.uniform(-10 * rng.random(), 0, (2, n))
        mobility = mobilities[i % len(mobilities)]
        geometry = TransportGeometry(kernel, mobility)
        found = geometry.geodesic(p / p.sum(), q / q.sum(), tolerance=1e-4)
        if not found.status:
            failed.append(f"pair {i} ({family}, {mobility!r}): {found.status.name}")
    return [
        _row(
            f"{total} random pairs, densities to 1e-10",
            "not converged",
            len(failed),
            0,
            "; ".join(failed),
            tolerance=1e-4,
        )
    ]
