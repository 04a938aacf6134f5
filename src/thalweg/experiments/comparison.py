"""One cell of the paper's comparisons: a problem, its data, and every method on them.

The population is the paper's: `n` individuals, rates frozen over each interval, mean field. Each
method forecasts from the true initial distribution; its error is the time-averaged Hellinger
distance to the true probabilities. `sampled` errors compare `n` individuals simulated from the
method's energy, as the paper does: they contain sampling noise that no method can avoid, which the
row of the true energy shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import expm

from thalweg.energy import FreeEnergy
from thalweg.experiments.sweep import Cell
from thalweg.flow import gradient_flow, jump_rates, simulate
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.rivals import free_ctmc, no_movement
from thalweg.snapshots import Snapshots, hellinger

__all__ = ["METHODS", "compare", "grid", "melt", "summary"]

Array = NDArray[np.float64]

PUBLISHED = {0.01: (0.066, 0.142), 0.1: (0.059, 0.150), 0.2: (0.069, 0.159)}
"""Table 1 of the paper: beta -> (the paper's method, OpenFIM). Published, not measured here."""


@dataclass(frozen=True, eq=False)
class Data:
    """A problem with known energy and the snapshots that the methods see."""

    kernel: MarkovKernel
    energy: FreeEnergy
    p0: Array
    times: Array
    truth: Array
    seen: Snapshots
    frozen: bool


def grid(kind: str, steps: int, horizon: float, rng: np.random.Generator) -> Array:
    """`steps` intervals on [0, horizon]: `uniform`, `random`, or `logarithmic` (dense at first)."""
    if kind == "uniform":
        return np.linspace(0, horizon, steps + 1)
    if kind == "random":
        inner = np.sort(rng.uniform(0, horizon, steps - 1))
        times = np.concatenate([[0.0], inner, [horizon]])
        gap = 1e-6 * horizon / steps
        return (
            np.maximum.accumulate(times + gap * np.arange(steps + 1))
            * horizon
            / (horizon + gap * steps)
        )
    return np.concatenate([[0.0], np.geomspace(horizon * 1e-2, horizon, steps)])


def draw(cell: Cell, rng: np.random.Generator) -> Data:
    """The problem of a cell: `V` uniform in [-amplitude, amplitude], `p0` from a flat Dirichlet."""
    kernel = make_graph(cell["family"], int(cell["n_states"]), rng=rng)
    amplitude = float(cell.get("amplitude", 1.0))
    n = kernel.n_states
    energy = FreeEnergy(rng.uniform(-amplitude, amplitude, n), float(cell["beta"]))
    p0 = np.maximum(rng.dirichlet(np.ones(n)), 1e-9)
    p0 /= p0.sum()
    times = grid(cell.get("grid", "uniform"), int(cell["steps"]), float(cell["horizon"]), rng)
    frozen = bool(cell.get("frozen", True))
    truth = _forecast(kernel, energy, p0, times, frozen)
    if frozen:
        seen = simulate(kernel, energy, p0, times, int(cell["n"]), method="frozen", rng=rng)
    else:
        counts = [rng.multinomial(int(cell["n"]), p / p.sum()) for p in truth]
        seen = Snapshots.from_counts(times, counts)
    return Data(kernel, energy, p0, times, truth, seen, frozen)


def _forecast(
    kernel: MarkovKernel, energy: FreeEnergy, p0: Array, times: Array, frozen: bool
) -> Array:
    if not frozen:
        return gradient_flow(kernel, energy, p0, times, rtol=1e-7).probabilities
    path = [p0]
    for step in np.diff(times):
        rates = jump_rates(kernel, energy, np.maximum(path[-1], 1e-300)).toarray()
        p = np.maximum(path[-1] @ expm(step * rates), 0.0)
        path.append(p / p.sum())
    return np.array(path)


def _regressor(**options: Any) -> Callable[[Data], FreeEnergy]:
    def fit(data: Data) -> FreeEnergy:
        return FreeEnergyRegressor(**options).fit(data.kernel, data.seen).energy_

    return fit


def _likelihood(data: Data) -> FreeEnergy:
    options = {"observation": "tracked", "discretization": "frozen"} if data.frozen else {}
    return _regressor(**options)(data)


ENERGY_METHODS: dict[str, Callable[[Data], FreeEnergy]] = {
    "likelihood": _likelihood,
    "weak": _regressor(method="weak"),
    "paper": _regressor(method="neural"),
    "truth": lambda data: data.energy,
}
CURVE_METHODS: dict[str, Callable[[Data], Array]] = {
    "ctmc_least_squares": lambda d: free_ctmc(
        d.kernel, d.times, d.seen.counts, method="least-squares"
    ),
    "ctmc_likelihood": lambda d: free_ctmc(d.kernel, d.times, d.seen.counts),
    "no_movement": lambda d: no_movement(d.kernel, d.times, d.seen.counts),
    "histograms": lambda d: np.asarray(d.seen.frequencies),
}
METHODS = (*ENERGY_METHODS, *CURVE_METHODS)


def compare(cell: Cell, rng: np.random.Generator) -> Mapping[str, Any]:
    """Errors and seconds of the cell's methods; a method that fails says so in its own column."""
    data = draw(cell, rng)
    row: dict[str, Any] = {}
    streams = dict(zip(METHODS, rng.spawn(len(METHODS)), strict=True))
    for name in cell.get("methods", METHODS):
        started = time.perf_counter()
        try:
            if name in ENERGY_METHODS:
                energy = ENERGY_METHODS[name](data)
                curve = _forecast(data.kernel, energy, data.p0, data.times, data.frozen)
                row[f"sampled_{name}"] = _sampled_error(data, energy, streams[name])
                row[f"collapsed_{name}"] = bool(curve[-1].max() > 0.999 > data.truth[-1].max())
            else:
                curve = CURVE_METHODS[name](data)
            row[f"error_{name}"] = float(np.mean(hellinger(data.truth, curve)))
        except Exception as error:  # one method's failure must not hide the others' results
            row[f"error_{name}"] = None
            row[f"failure_{name}"] = f"{type(error).__name__}: {error}"[:200]
        row[f"seconds_{name}"] = round(time.perf_counter() - started, 4)
    return row


def _sampled_error(data: Data, energy: FreeEnergy, rng: np.random.Generator) -> float:
    n = int(data.seen.sizes[0])
    method: Literal["frozen", "tau-leap"] = "frozen" if data.frozen else "tau-leap"
    drawn = simulate(data.kernel, energy, data.p0, data.times, n, method=method, rng=rng)
    return float(np.mean(hellinger(data.truth, np.asarray(drawn.frequencies))))


def melt(table: pd.DataFrame, coordinates: Sequence[str]) -> pd.DataFrame:
    """One row per cell and method: `method, error, sampled, seconds`."""
    parts = []
    for name in METHODS:
        if f"error_{name}" not in table:
            continue
        part = table[list(coordinates)].copy()
        part["method"] = name
        part["error"] = pd.to_numeric(table[f"error_{name}"], errors="coerce")
        part["sampled"] = table.get(f"sampled_{name}", np.nan)
        part["seconds"] = table[f"seconds_{name}"]
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def summary(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Mean and standard deviation of the errors over everything but `by` and the method."""
    long = melt(table, by)
    groups = long.groupby([*by, "method"], sort=False)
    out = groups.agg(
        error=("error", "mean"),
        deviation=("error", "std"),
        sampled=("sampled", "mean"),
        seconds=("seconds", "median"),
        runs=("error", "size"),
        failed=("error", lambda values: int(values.isna().sum())),
    )
    return out.reset_index()
