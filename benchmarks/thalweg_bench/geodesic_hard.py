"""The hard rows of the geodesic benchmark: point masses, far bumps, a conic program, JKO steps.

Costs are CPU seconds of one process. Errors are against the same solver on a mesh at least four
times finer, and against the closed form where there is one.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.flow.jko import jko_step
from thalweg.geometry import TransportGeometry
from thalweg.graphs import GRAPH_FAMILIES, make_graph
from thalweg.kernel import MarkovKernel
from thalweg.mobility import GeometricMean, HarmonicMean, LogMean
from thalweg_bench import BenchSettings
from thalweg_bench.conic import conic_distance

__all__ = ["bumps", "conic_rows", "far_rows", "jko_rows"]

Row = dict[str, Any]
FAMILIES = ("grid", "delaunay", "knn", "regular", "watts_strogatz")


def bumps(side: int) -> tuple[MarkovKernel, Array, Array]:
    """A square grid and two bumps in opposite corners, with negligible tails."""
    kernel = make_graph("grid", side * side, rng=np.random.default_rng(0), weights=None)
    xy = np.array(np.unravel_index(np.arange(side * side), (side, side))).T / (side - 1)
    p, q = (np.exp(-((xy - c) ** 2).sum(axis=1) / (2 * 0.12**2)) for c in (0.15, 0.85))
    return kernel, p / p.sum(), q / q.sum()


def conic_rows(settings: BenchSettings) -> list[Row]:
    """Corner to corner at a relative error of 1e-4, against a conic solver at a lower accuracy."""
    side = 6 if settings.quick else 16
    kernel, p, q = bumps(side)
    case = f"bumps {side} x {side}, error 1e-4"
    geometry = TransportGeometry(kernel)
    geometry.geodesic(p, q, tolerance=0.5)  # compiles
    start = time.process_time()
    found = geometry.geodesic(p, q, tolerance=1e-4)
    seconds = time.process_time() - start
    exact = geometry.geodesic(p, q, tolerance=1e-6).distance
    error = abs(found.distance / exact - 1)
    note = f"{found.status.name}, {seconds:.2g} s CPU, {found.steps} steps, W = {exact:.6f}"
    rows = [_row(case, "relative error", error, 1e-4, note)]
    conic = conic_distance(kernel, p, q, n_steps=10)
    if conic is None:
        note = "cvxpy or Clarabel is missing: pip install 'thalweg[bench]'"
        missing = {"case": case, "measure": "times faster than conic", "value": np.nan}
        return [*rows, {**missing, "note": note}]
    speedup = conic.seconds / seconds
    row = _row(case, "times faster than conic", speedup, 20.0)
    row["met"] = bool(speedup >= 20 and found.status)
    row["note"] = (
        f"{conic.seconds:.3g} s CPU for {conic.n_cones} cones ({conic.status}), "
        f"relative error {abs(conic.distance / exact - 1):.1e}"
    )
    return [*rows, row]


def far_rows(settings: BenchSettings) -> list[Row]:
    """Point mass to point mass: convergence, and whether the estimated error is right."""
    rows = []
    for n in (9, 25) if settings.quick else (9, 25, 100):
        for family in FAMILIES[:1] if settings.quick else FAMILIES:
            rows.append(_estimate_row(family, n, settings.seed))
    for n in (100,) if settings.quick else (100, 400, 1000, 2000, 5000):
        for family in FAMILIES:
            kernel, p, q = _point_masses(family, n, settings.seed)
            start = time.process_time()
            found = TransportGeometry(kernel).geodesic(p, q, tolerance=1e-2)
            seconds = time.process_time() - start
            note = f"{found.status.name}, {seconds:.3g} s CPU, {found.steps} steps"
            case = f"point masses, {family}, N = {n}"
            value = found.error_estimate / found.distance
            row = _row(case, "estimated relative error", value, 1e-2, note)
            row["met"] = row["met"] and bool(found.status)
            rows.append(row)
    return rows


def _estimate_row(family: str, n: int, seed: int) -> Row:
    kernel, p, q = _point_masses(family, n, seed)
    geometry = TransportGeometry(kernel)
    found = geometry.geodesic(p, q, tolerance=1e-3)
    fine = geometry.geodesic(p, q, tolerance=1e-5)
    error = abs(found.distance - fine.distance)
    ratio = found.error_estimate / max(error, 1e-300)
    case = f"point masses, {family}, N = {n}, tolerance 1e-3"
    return _row(
        case,
        "estimate over error, or inverse",
        max(ratio, 1 / max(ratio, 1e-300)),
        3.0,
        f"{found.status.name}, W = {found.distance:.5f}, estimate / error = {ratio:.2g}, "
        f"relative error {error / fine.distance:.1e}",
    )


def _point_masses(family: str, n: int, seed: int) -> tuple[MarkovKernel, Array, Array]:
    rng = np.random.default_rng(seed)
    if family == "knn":
        kernel = MarkovKernel.from_points(rng.normal(size=(n, 3)), n_neighbors=min(8, n - 1))
    else:
        kernel = make_graph(family, n, rng=rng)
    p, q = np.zeros(kernel.n_states), np.zeros(kernel.n_states)
    p[0], q[-1] = 1.0, 1.0
    return kernel, p, q


def jko_rows(settings: BenchSettings) -> list[Row]:
    """JKO steps from short to long: the first-order condition and the factorisations."""
    rows = []
    for n in (1000,) if settings.quick else (1000, 10_000, 100_000):
        rng = np.random.default_rng(settings.seed)
        kernel = make_graph("delaunay", n, rng=rng)
        p = kernel.stationary * np.exp(0.7 * rng.normal(size=kernel.n_states))
        p /= p.sum()
        energy = FreeEnergy(rng.normal(size=kernel.n_states), 0.5)
        for tau in (0.01, 0.1, 1.0, 10.0, 100.0):
            start = time.process_time()
            step = jko_step(kernel, energy, p, tau)
            seconds = time.process_time() - start
            case = f"JKO step, tau = {tau:g}, N = {n}"
            note = f"{step.status.name}, W = {step.distance:.4f}, {seconds:.3g} s CPU"
            rows.append(_row(case, "first-order residual", step.first_order_residual, 1e-8, note))
            rows.append(_row(case, "factorisations", step.factorisations, 80, note))
    return rows + _boundary_steps(settings) + _random_steps(settings)


def _boundary_steps(settings: BenchSettings) -> list[Row]:
    """The same where densities nearly vanish, at the start or, with little noise, at the end.

    A third of the states starts with a density of 1e-12, or `beta` is 0.01."""
    rows = []
    n = 100 if settings.quick else 1000
    rng = np.random.default_rng(settings.seed)
    kernel = make_graph("delaunay", n, rng=rng)
    p = kernel.stationary * np.exp(0.7 * rng.normal(size=kernel.n_states))
    v = rng.normal(size=kernel.n_states)
    sparse = np.where(np.arange(kernel.n_states) % 3 == 0, 1e-12 * kernel.stationary, p)
    for name, start, beta in (("densities of 1e-12", sparse, 0.5), ("beta = 0.01", p, 0.01)):
        for tau in (1.0, 10.0, 100.0):
            step = jko_step(kernel, FreeEnergy(v, beta), start / start.sum(), tau)
            case = f"JKO step, {name}, tau = {tau:g}, N = {n}"
            note = (
                f"{step.status.name}, W = {step.distance:.4f}, its estimated relative error "
                f"{step.path_error:.1e}"
            )
            rows.append(_row(case, "first-order residual", step.first_order_residual, 1e-8, note))
            rows.append(_row(case, "factorisations", step.factorisations, 80, note))
    return rows


def _random_steps(settings: BenchSettings) -> list[Row]:
    """Random steps from point masses, empty states and densities of 1e-12, for every mean.

    Graphs of 6 to 30 states of all families, `beta` from 0.003 to 1 or none, `tau` from 0.01 to
    100.
    """
    count = 40 if settings.quick else 400
    families, means = list(GRAPH_FAMILIES), (LogMean(), GeometricMean(), HarmonicMean())
    failed, residual, most = 0, 0.0, []
    for i in range(count):
        rng = np.random.default_rng([settings.seed, i])
        kernel = make_graph(families[i % len(families)], int(rng.integers(6, 31)), rng=rng)
        n = kernel.n_states
        p = rng.dirichlet(np.ones(n))
        if i % 3 == 0:
            p = np.eye(n)[rng.integers(n)]
        else:
            p[rng.permutation(n)[: n // 2]] = 0.0 if i % 3 == 1 else 1e-12
        beta = 0.0 if i % 10 == 0 else 10 ** rng.uniform(-2.5, 0)
        energy, tau = FreeEnergy(rng.uniform(-1, 1, n), beta), 10 ** rng.uniform(-2, 2)
        mean = means[0] if i % 4 else means[1 + i % 8 // 4]
        step = jko_step(kernel, energy, p / p.sum(), tau, mobility=mean)
        failed += not step.status
        residual = max(residual, step.first_order_residual)
        most.append(step.factorisations)
    case = f"{count} random JKO steps from the boundary"
    note = f"factorisations: median {np.median(most):.0f}, most {max(most)}"
    return [
        _row(case, "not converged", failed, 0, note),
        _row(case, "largest first-order residual", residual, 1e-8, note),
        _row(case, "factorisations, 95 %", float(np.quantile(most, 0.95)), 80, note),
    ]


def _row(case: str, measure: str, value: float, target: float, note: str = "") -> Row:
    met = bool(value <= target)
    return {
        "case": case,
        "measure": measure,
        "value": value,
        "target": target,
        "met": met,
        "note": note,
    }
