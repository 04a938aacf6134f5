"""Data sets of the sizes that users have, and every method on one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh, expm

from thalweg import (
    FreeEnergy,
    FreeEnergyRegressor,
    MarkovKernel,
    Snapshots,
    gradient_flow,
    hellinger,
    make_graph,
)
from thalweg._types import Array
from thalweg.learn.rivals import no_movement
from thalweg.status import Status
from thalweg_bench.sweep import Cell
from thalweg_bench.typical_rivals import ReversibleChain, fokker_planck, free_reversible

__all__ = ["KINDS", "METHODS", "DataSet", "make_data", "one_data_set"]

Row = dict[str, Any]

KINDS = ("delaunay", "path", "knn", "watts_strogatz")
SPREAD = 0.6
"""Standard deviation of the potential under the stationary distribution."""
_STEEPEST = 1.5
"""Largest standard deviation of the linear chain's `u`: steeper ones are stuck at once."""
_MOST_STEPS = 20_000
"""Steps after which a forecast is given up and counted as missing."""
MOST_SECONDS = 600.0
"""Bound on the seconds that pass during one of our fits; its forecast and test come on top."""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Counts, the truth behind them, and two distributions that were not observed."""

    kernel: MarkovKernel
    potential: Array
    beta: float
    times: Array
    counts: Array
    asked: Array
    """A time between two snapshots, and one after the last."""
    truth: Array
    """Probabilities at those times."""


def make_data(cell: Cell, rng: np.random.Generator) -> DataSet:
    """A graph, a landscape, a start, and 4, 6 or 8 snapshots of its population."""
    n, beta = int(cell["n_states"]), float(cell["beta"])
    kernel = _graph(str(cell["graph"]), n, rng)
    potential = _landscape(kernel, str(cell["potential"]), rng)
    initial = _start(kernel, rng)
    times = np.linspace(0.0, float(rng.choice([3.0, 6.0])), int(rng.choice([4, 6, 8])))
    half = times.size // 2
    asked = np.array([0.5 * (times[half - 1] + times[half]), times[-1] + times[1]])
    grid = np.sort(np.concatenate([times, asked]))
    if cell["source"] == "flow":
        path = gradient_flow(kernel, FreeEnergy(potential, beta), initial, grid).probabilities
    else:
        u = potential / max(beta, SPREAD / _STEEPEST)
        log_mobility = np.full(kernel.n_edges, np.log(beta))
        path = ReversibleChain(kernel, u, log_mobility, initial, 0.0).predict(grid)
    path = np.maximum(path, 0.0)
    path /= path.sum(axis=1, keepdims=True)
    seen = np.isin(grid, times)
    counts = np.array([rng.multinomial(int(cell["size"]), p) for p in path[seen]])
    return DataSet(kernel, potential, beta, times, counts.astype(np.float64), asked, path[~seen])


def _graph(kind: str, n: int, rng: np.random.Generator) -> MarkovKernel:
    if kind == "path":
        return MarkovKernel.from_weights(np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1))
    if kind == "knn":
        return MarkovKernel.from_points(
            rng.normal(size=(n, 5)), n_neighbors=min(15, max(3, n // 3))
        )
    return make_graph(kind, n, rng=rng)


def _landscape(kernel: MarkovKernel, kind: str, rng: np.random.Generator) -> Array:
    """Independent values, or a mixture of the slowest modes of the walk; centred."""
    n, pi = kernel.n_states, kernel.stationary
    v = rng.normal(size=n)
    if kind == "smooth":
        root = np.sqrt(pi)
        symmetric = root[:, None] * kernel.matrix.toarray() / root
        slow = min(6, n // 3)
        vectors = eigh(0.5 * (symmetric + symmetric.T), subset_by_index=(n - 1 - slow, n - 2))[1]
        v = (vectors / root[:, None]) @ rng.normal(size=slow)
    v = v - pi @ v
    return np.asarray(SPREAD * v / np.sqrt(pi @ v**2))


def _start(kernel: MarkovKernel, rng: np.random.Generator) -> Array:
    """Two spreading spots; in a quarter of the data sets, a rough distribution."""
    n, pi = kernel.n_states, kernel.stationary
    p = (
        rng.dirichlet([2.0, 2.0])
        @ expm(6.0 * (kernel.matrix.toarray() - np.eye(n)))[rng.choice(n, size=2, replace=False)]
    )
    if rng.random() < 0.25:
        p = rng.dirichlet(np.ones(n))
    return np.asarray(0.98 * p / p.sum() + 0.02 * pi)


# ------------------------------------------------------------------------ methods


def _ours(data: DataSet) -> Row:
    seen = Snapshots.from_counts(data.times, data.counts)
    began = time.process_time()
    model = FreeEnergyRegressor(max_seconds=MOST_SECONDS).fit(data.kernel, seen)
    spent = time.process_time() - began
    if model.status_ is Status.INTERRUPTED:
        raise KeyboardInterrupt  # half a fit is no result
    verdict, error = model.beta_verdict_, model.potential_stderr_
    gap = np.abs(model.potential_ - data.potential)
    spread = np.sqrt(data.kernel.stationary @ model.potential_**2)
    return {
        "cpu": round(spent, 3),
        "beta_found": model.beta_,
        "beta_lower": verdict.lower,
        "beta_upper": min(verdict.upper, 1e300),
        "determined": verdict.kind == "determined",
        "averaged": model.fitted_.members is not None,
        "v_covered": float(np.mean(gap < 1.96 * error)),
        "v_error": float(np.sqrt(np.mean(gap**2))),
        "v_stderr": float(np.sqrt(np.mean(error**2))),
        "flattened": bool(spread < 0.1 * SPREAD and np.sqrt(np.mean(error**2)) < 0.5 * SPREAD),
        "fit_status": model.status_.name,
        "p_value": model.diagnostics_.get("p_value"),
        "predicted": model.predict(None, data.asked).probabilities,
    }


def _weak(data: DataSet) -> Row:
    seen = Snapshots.from_counts(data.times, data.counts)
    model = FreeEnergyRegressor(method="weak").fit(data.kernel, seen)
    path = gradient_flow(
        data.kernel, model.energy_, model.initial_, np.r_[data.times[0], data.asked],
        max_steps=_MOST_STEPS,
    )  # fmt: skip
    return {"beta_found": model.beta_, "predicted": path.probabilities[1:]}


def _fokker_planck(data: DataSet) -> Row:
    chain = fokker_planck(data.kernel, data.times, data.counts)
    return {"predicted": chain.predict(data.asked)}


def _free(data: DataSet) -> Row:
    chain = free_reversible(data.kernel, data.times, data.counts)
    return {"predicted": chain.predict(data.asked)}


def _interpolation(data: DataSet) -> Row:
    """Halfway between the neighbours; after the last snapshot, the last one again."""
    p = data.counts + 0.5
    p /= p.sum(axis=1, keepdims=True)
    half = data.times.size // 2
    return {"predicted": np.array([0.5 * (p[half - 1] + p[half]), p[-1]])}


def _nothing(data: DataSet) -> Row:
    return {"predicted": no_movement(data.kernel, data.times, data.counts, at=data.asked)}


METHODS: dict[str, Callable[[DataSet], Row]] = {
    "ours": _ours,
    "weak": _weak,
    "fp": _fokker_planck,
    "free": _free,
    "linear": _interpolation,
    "still": _nothing,
}
"""By name; `fp` is the Fokker-Planck chain, `still` the pooled distribution."""


def one_data_set(
    cell: Cell, rng: np.random.Generator, methods: tuple[str, ...] = tuple(METHODS)
) -> Row:
    """Every method on one data set; a method that fails leaves its sentence."""
    data = make_data(cell, rng)
    row: Row = {"n_times": data.times.size}
    for name in methods:
        began = time.process_time()
        try:
            found = METHODS[name](data)
        except Exception as error:  # a method that fails is a result
            row[f"{name}_failed"] = f"{type(error).__name__}: {error}"[:200]
            continue
        row[f"{name}_cpu"] = found.pop("cpu", round(time.process_time() - began, 3))
        predicted = found.pop("predicted")
        for k, what in enumerate(("inside", "ahead")):
            row[f"{name}_{what}"] = float(hellinger(predicted[k], data.truth[k]))
        row.update({key if name == "ours" else f"{name}_{key}": v for key, v in found.items()})
    return row
