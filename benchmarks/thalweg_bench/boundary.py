"""Distances from or to empty states on small graphs: CPU time, error, and whether estimates hold.

CPU seconds are those of the second of two runs, when everything is compiled. The true error of a
random pair is its difference from the distance at a hundredth of the tolerance or better.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd

from thalweg._types import Array
from thalweg.geometry import TransportGeometry
from thalweg.geometry.geodesic import Geodesic
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.mobility import ArithmeticMean, GeometricMean, HarmonicMean, LogMean
from thalweg_bench import BenchResult, BenchSettings

__all__ = ["run"]

Row = dict[str, Any]
MEANS = (LogMean(), GeometricMean(), ArithmeticMean(), HarmonicMean())
POINT_MASSES = (2.204345217618, 2.396280469471, 2.0, np.pi)
"""The distance between the point masses of two states with `K = 1/2`, for each mean."""
FINEST = 1e-9
"""Smallest relative error of the distance asked for."""


def run(settings: BenchSettings) -> BenchResult:
    """One row per case: CPU seconds and error against their targets."""
    rows = [*_two_states(), *_point_masses(settings)]
    rows += _estimates(settings) + _harmonic(settings)
    table = pd.DataFrame(rows)
    met = int(table["met"].sum())
    return BenchResult(table, notes=(f"{met} of {len(table)} rows meet their target.",))


def _timed(geometry: TransportGeometry, p: Array, q: Array, tolerance: float) -> Row:
    geometry.geodesic(p, q, tolerance=max(tolerance, 1e-3))  # compiles
    begun = time.process_time()
    found = geometry.geodesic(p, q, tolerance=tolerance)
    seconds = time.process_time() - begun
    error = found.error_estimate / found.distance
    note = f"{found.status.name}, W = {found.distance:.10f}, estimated relative error {error:.1e}"
    return {"measure": "CPU seconds", "value": seconds, "note": note, "met": bool(found.status)}


def _row(case: str, target: float, found: Row) -> Row:
    met = found["met"] and found["value"] <= target
    return {"case": case, **found, "target": target, "met": bool(met)}


def _two_states() -> list[Row]:
    kernel = MarkovKernel.from_matrix([[0.5, 0.5], [0.5, 0.5]])
    p, q = np.eye(2)
    rows = []
    for mean, exact in zip(MEANS, POINT_MASSES, strict=True):
        geometry = TransportGeometry(kernel, mean)
        rows.append(_row(f"two states, {mean!r}, 1e-10", 0.3, _timed(geometry, p, q, 1e-10)))
        error = abs(geometry.distance(p, q, tolerance=1e-10) / exact - 1)
        wrong = {"measure": "relative error", "value": error, "note": "closed form", "met": True}
        rows.append(_row(f"two states, {mean!r}, 1e-10", 1e-10, wrong))
    return rows


def _point_masses(settings: BenchSettings) -> list[Row]:
    grid = make_graph("grid", 64, rng=np.random.default_rng(0), weights=None)
    cases = [("grid 8 x 8, corners", grid, 1e-6, 2.5), ("grid 8 x 8, corners", grid, 1e-8, 6.0)]
    rng = np.random.default_rng(settings.seed)
    cases.append(("Delaunay 100", make_graph("delaunay", 100, rng=rng), 1e-6, 8.0))
    rows = []
    for name, kernel, tolerance, target in cases:
        p, q = np.eye(kernel.n_states)[[0, -1]]
        found = _timed(TransportGeometry(kernel), p, q, tolerance)
        rows.append(_row(f"{name}, {tolerance:g}", target, found))
    return rows


def random_pair(seed: int, number: int) -> tuple[TransportGeometry, Array, Array]:
    """5 to 12 states, half of them empty at either end, conductances over up to eight decades."""
    rng = np.random.default_rng([seed, number])
    n = int(rng.integers(5, 13))
    linked = (rng.random((n, n)) < 0.4) | np.eye(n, k=1, dtype=bool)
    spread = (0, 2, 4, 8)[number % 4]
    weights = np.triu(linked * 10 ** (spread * (rng.random((n, n)) - 0.5)), 1)
    p, q = rng.random((2, n)) * (rng.random((2, n)) < 0.5)
    p[0] += 0.1
    q[-1] += 0.1
    kernel = MarkovKernel.from_weights(weights + weights.T)
    return TransportGeometry(kernel, MEANS[number // 4 % 4]), p / p.sum(), q / q.sum()


def _estimates(settings: BenchSettings) -> list[Row]:
    """Over random graphs: errors above the estimate, and how far estimates are above errors."""
    count = 8 if settings.quick else 50
    worst: dict[float, list[float]] = {1e-4: [], 1e-6: []}
    high: dict[float, list[float]] = {1e-4: [], 1e-6: []}
    undone = 0
    for number in range(count):
        geometry, p, q = random_pair(settings.seed, number)
        fine = geometry.geodesic(p, q, tolerance=FINEST)
        for tolerance in worst:
            found = geometry.geodesic(p, q, tolerance=tolerance)
            if not found.status:
                undone += 1
                continue
            error = abs(found.distance - fine.distance)
            worst[tolerance].append(max(error - fine.error_estimate, 0.0) / found.error_estimate)
            high[tolerance].append(found.error_estimate / (error + fine.error_estimate))
    rows = []
    for tolerance, ratios in worst.items():
        over = high[tolerance]
        note = (
            f"estimate over error: median {np.median(over):.1f}, nine in ten below "
            f"{np.quantile(over, 0.9):.1f}, most {max(over):.1f}; {undone} not converged"
        )
        seen = {"measure": "error over estimate", "value": max(ratios), "note": note, "met": True}
        rows.append(_row(f"{count} random graphs, {tolerance:g}, largest", 3.0, seen))
    return rows


def _harmonic(settings: BenchSettings) -> list[Row]:
    """Harmonic means, half the states empty at either end, 1e-9: how they end, and the longest."""
    found: list[Geodesic] = []
    seconds = []
    count = 4 if settings.quick else 12
    for number in range(count):
        geometry, p, q = random_pair(settings.seed + 1, 16 * (number // 4) + 12 + number % 4)
        begun = time.process_time()
        found.append(geometry.geodesic(p, q, tolerance=FINEST))
        seconds.append(time.process_time() - begun)
    ended = pd.Series([path.status.name for path in found]).value_counts().to_dict()
    errors = [path.error_estimate / path.distance for path in found]
    note = f"{ended}; estimated relative errors to {max(errors):.1e}"
    honest = all(bool(path.status) == (e <= FINEST) for path, e in zip(found, errors, strict=True))
    row = {"measure": "most CPU seconds", "value": max(seconds), "note": note, "met": honest}
    return [_row(f"{count} harmonic pairs, half empty, 1e-9", 10.0, row)]
