"""One cell of the paper's comparisons: a problem, its data, and every method on them.

The population is the paper's: `n` individuals, rates frozen over each interval, mean field. Each
method forecasts from the true initial distribution; its error is the time-averaged Hellinger
distance to the true probabilities. `sampled` errors compare `n` individuals simulated from the
method's energy, as the paper does: they contain sampling noise that no method can avoid, which the
row of the true energy shows. `cramer_rao_limit` is the least root mean square of the error that the
snapshots allow: the bound for counts of individuals seen again at every time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import gradient_flow, simulate
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.rivals import free_ctmc, no_movement, reversible_msm
from thalweg.snapshots import Snapshots, hellinger
from thalweg_bench.population import follow, frozen_chain
from thalweg_bench.statistical_limit import hellinger_limit
from thalweg_bench.sweep import Cell

__all__ = ["LIMIT", "METHODS", "Data", "compare", "draw", "grid", "melt", "summary"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Data:
    """A problem with known energy and the snapshots that the methods see."""

    kernel: MarkovKernel
    energy: FreeEnergy
    p0: Array
    times: Array
    truth: Array
    seen: Snapshots
    transitions: NDArray[np.int64] | None
    """Counted between each time and the next, where individuals were followed."""

    @property
    def frozen(self) -> bool:
        return self.transitions is not None


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
    states = kernel.n_states
    energy = FreeEnergy(rng.uniform(-amplitude, amplitude, states), float(cell["beta"]))
    p0 = np.maximum(rng.dirichlet(np.ones(states)), 1e-9)
    p0 /= p0.sum()
    times = grid(cell.get("grid", "uniform"), int(cell["steps"]), float(cell["horizon"]), rng)
    n = int(cell["n"])
    if cell.get("frozen", True):
        truth, matrices = frozen_chain(kernel, energy, p0, times)
        counts, transitions = follow(p0, matrices, n, rng)
        seen = Snapshots.from_counts(times, counts)
        return Data(kernel, energy, p0, times, truth, seen, transitions)
    truth = gradient_flow(kernel, energy, p0, times, rtol=1e-7).probabilities
    seen = Snapshots.from_counts(times, [rng.multinomial(n, p / p.sum()) for p in truth])
    return Data(kernel, energy, p0, times, truth, seen, None)


def _forecast(data: Data, energy: FreeEnergy, rng: np.random.Generator) -> tuple[Array, Array]:
    """The infinite population, and the histograms of as many individuals as were seen."""
    kernel, p0, times, n = data.kernel, data.p0, data.times, int(data.seen.sizes[0])
    if data.frozen:
        curve, matrices = frozen_chain(kernel, energy, p0, times)
        return curve, follow(p0, matrices, n, rng)[0] / n
    flow = gradient_flow(kernel, energy, p0, times, rtol=1e-7)
    drawn = simulate(kernel, energy, p0, times, n, method="tau-leap", rng=rng)
    return flow.probabilities, np.asarray(drawn.frequencies)


def _regressor(**options: Any) -> Callable[[Data], tuple[FreeEnergy, str]]:
    def fit(data: Data) -> tuple[FreeEnergy, str]:
        model = FreeEnergyRegressor(**options).fit(data.kernel, data.seen)
        return model.energy_, model.status_.name

    return fit


def _likelihood(data: Data) -> tuple[FreeEnergy, str]:
    if not data.frozen:
        return _regressor()(data)
    # The rates at the density that was seen: intervals decouple, where the chain of the infinite
    # population is unstable in nearly empty states.
    return _regressor(observation="tracked", discretization="frozen", environment="empirical")(data)


def _markov_states(data: Data) -> Array:
    if data.transitions is None:
        raise InputError("only snapshots exist; a Markov-state model needs trajectories.")
    steps = np.diff(data.times)
    if np.ptp(steps) > 1e-9 * steps.max():
        raise InputError("intervals differ; a Markov-state model has one lag time.")
    matrix = reversible_msm(data.transitions.sum(axis=0))
    rows = [data.p0]
    for _ in steps:
        rows.append(rows[-1] @ matrix)
    return np.array(rows)


ENERGY_METHODS: dict[str, Callable[[Data], tuple[FreeEnergy, str]]] = {
    "likelihood": _likelihood,
    "weak": _regressor(method="weak"),
    "paper": _regressor(method="neural"),
    "truth": lambda data: (data.energy, "CONVERGED"),
}
CURVE_METHODS: dict[str, Callable[[Data], Array]] = {
    "ctmc_least_squares": lambda d: free_ctmc(
        d.kernel, d.times, d.seen.counts, method="least-squares"
    ),
    "ctmc_likelihood": lambda d: free_ctmc(d.kernel, d.times, d.seen.counts),
    "markov_state_model": _markov_states,
    "no_movement": lambda d: no_movement(d.kernel, d.times, d.seen.counts),
    "histograms": lambda d: np.asarray(d.seen.frequencies),
}
METHODS = (*ENERGY_METHODS, *CURVE_METHODS)
LIMIT = "cramer_rao_limit"


def compare(cell: Cell, rng: np.random.Generator) -> Mapping[str, Any]:
    """Errors and seconds of the cell's methods; a method that fails says so in its own column."""
    data = draw(cell, rng)
    row: dict[str, Any] = {}
    streams = dict(zip(METHODS, rng.spawn(len(METHODS)), strict=True))
    for name in cell.get("methods", METHODS):
        started = time.perf_counter()
        try:
            if name in ENERGY_METHODS:
                energy, row[f"status_{name}"] = ENERGY_METHODS[name](data)
                curve, sampled = _forecast(data, energy, streams[name])
                row[f"sampled_{name}"] = float(np.mean(hellinger(data.truth, sampled)))
                row[f"collapsed_{name}"] = bool(curve[-1].max() > 0.999 > data.truth[-1].max())
            else:
                curve = CURVE_METHODS[name](data)
            row[f"error_{name}"] = float(np.mean(hellinger(data.truth, curve)))
        except Exception as error:  # one method's failure must not hide the others' results
            row[f"error_{name}"] = None
            row[f"failure_{name}"] = f"{type(error).__name__}: {error}"[:200]
        row[f"seconds_{name}"] = round(time.perf_counter() - started, 4)
    if cell.get("limit", True):
        started = time.perf_counter()
        row[f"error_{LIMIT}"] = hellinger_limit(
            data.kernel, data.energy, data.p0, data.times, int(cell["n"]), tracked=data.frozen
        )
        row[f"seconds_{LIMIT}"] = round(time.perf_counter() - started, 4)
    return row


def melt(table: pd.DataFrame, coordinates: Sequence[str]) -> pd.DataFrame:
    """One row per cell and method that it ran: `method, error, sampled, seconds`."""
    parts = []
    whole = table["status"] == "ok"
    for name in (*METHODS, LIMIT):
        if f"error_{name}" not in table:
            continue
        part = table[list(coordinates)].copy()
        part["method"] = name
        # No Hellinger distance exceeds one, whatever the linear theory of the limit says.
        part["error"] = pd.to_numeric(table[f"error_{name}"], errors="coerce").clip(upper=1.0)
        part["sampled"] = table.get(f"sampled_{name}", np.nan)
        part["seconds"] = table[f"seconds_{name}"]
        # A cell that failed lost all its methods; in any other a method without a time was not run.
        parts.append(part[part["seconds"].notna() | ~whole])
    return pd.concat(parts, ignore_index=True)


def summary(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Mean, standard deviation and median of the errors, over all but `by` and the method.

    The median is what to read for the limit: where the snapshots hardly tell the energy, its
    linear theory exceeds every bound of a distance, and one such cell fills the mean.
    """
    long = melt(table, by)
    groups = long.groupby([*by, "method"], sort=False)
    out = groups.agg(
        error=("error", "mean"),
        deviation=("error", "std"),
        median=("error", "median"),
        sampled=("sampled", "mean"),
        seconds=("seconds", "median"),
        runs=("error", "size"),
        failed=("error", lambda values: int(values.isna().sum())),
    )
    return out.reset_index()
