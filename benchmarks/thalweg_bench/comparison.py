"""One cell of the paper's comparisons: a problem, its data, and every method on them.

The population is the paper's: `n` individuals, rates frozen over each interval. The paper's
description has two readings, one of which is a cell's `reading`:

- `"empirical"`: the rates are those of the population's own density, as the paper writes;
- `"mean-field"`: the rates are those of the infinite population, so individuals are independent.

Each method forecasts the infinite population from the true initial distribution, which the
likelihood knows too, as in the paper (`likelihood_free` does not); the error is the time-averaged
Hellinger distance to the truth. `sampled` errors compare `n` individuals simulated from the
method's energy, as the paper does: they contain sampling noise that no method can avoid, which the
row of the true energy shows. `cramer_rao_limit` is the least root mean square of the error that the
snapshots allow in that reading. The deviance per degree of freedom is that of the snapshots under
each method's energy: about one where it describes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import gradient_flow, simulate
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.learn.likelihood.tracked import TrackedObjective
from thalweg.learn.network.paper import Training, fit_neural
from thalweg.learn.rivals import free_ctmc, no_movement
from thalweg.snapshots import Dirichlet, Snapshots, hellinger
from thalweg_bench.markov_states import reversible_msm
from thalweg_bench.network_steps import MOST_GROUPED, grouped_steps
from thalweg_bench.population import follow, follow_itself, frozen_chain
from thalweg_bench.statistical_limit import Reading, chain_limit, hellinger_limit
from thalweg_bench.sweep import Cell, was_interrupted

__all__ = ["LIMITS", "METHODS", "Data", "compare", "draw", "grid", "melt", "summary"]


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
    reading: Reading = "empirical"

    @property
    def frozen(self) -> bool:
        return self.transitions is not None

    @property
    def size(self) -> int:
        """Individuals per snapshot."""
        return int(self.seen.sizes[0])

    def population(self, energy: FreeEnergy, rng: np.random.Generator) -> tuple[Any, Any]:
        """Counts and transitions of as many individuals as were seen, moved by an energy."""
        if self.reading == "empirical":
            return follow_itself(self.kernel, energy, self.p0, self.times, self.size, rng)
        matrices = frozen_chain(self.kernel, energy, self.p0, self.times)[1]
        return follow(self.p0, matrices, self.size, rng)

    def deviance_per_degree(self, energy: FreeEnergy) -> float:
        """Deviance per degree of freedom of followed individuals under an energy."""
        model = FlowModel(self.kernel, self.times, fixed_initial=self.p0)
        theta = np.append(energy.potential, np.log(max(energy.beta, 1e-12)))
        counts = np.asarray(self.seen.counts, dtype=np.float64)
        objective = TrackedObjective(model, counts, True, self.reading == "empirical")
        found = objective.judge(theta, Mesh(np.ones(self.times.size - 1, dtype=np.int64)))
        return found.deviance / max(found.expected, 1.0)


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
        reading: Reading = cell.get("reading", "empirical")
        if reading == "empirical":
            counts, transitions = follow_itself(kernel, energy, p0, times, n, rng)
        else:
            counts, transitions = follow(p0, matrices, n, rng)
        seen = Snapshots.from_counts(times, counts)
        return Data(kernel, energy, p0, times, truth, seen, transitions, reading)
    truth = gradient_flow(kernel, energy, p0, times, rtol=1e-7).probabilities
    seen = Snapshots.from_counts(times, [rng.multinomial(n, p / p.sum()) for p in truth])
    return Data(kernel, energy, p0, times, truth, seen, None)


def _forecast(data: Data, energy: FreeEnergy, rng: np.random.Generator) -> tuple[Array, Array]:
    """The infinite population, and the histograms of as many individuals as were seen."""
    kernel, p0, times, n = data.kernel, data.p0, data.times, data.size
    if data.frozen:
        curve = frozen_chain(kernel, energy, p0, times)[0]
        return curve, data.population(energy, rng)[0] / n
    flow = gradient_flow(kernel, energy, p0, times, rtol=1e-7)
    drawn = simulate(kernel, energy, p0, times, n, method="tau-leap", rng=rng)
    return flow.probabilities, np.asarray(drawn.frequencies)


class _Fit(NamedTuple):
    energy: FreeEnergy
    status: str = "CONVERGED"
    likelihood: LikelihoodFit | None = None


def _weak(data: Data) -> _Fit:
    # A tracked population's counts are no fresh samples, whose noise the weak form subtracts.
    model = FreeEnergyRegressor(
        method="weak", observation="tracked" if data.frozen else "independent"
    ).fit(data.kernel, data.seen)
    return _Fit(model.energy_, model.status_.name)


def _network(data: Data) -> _Fit:
    engine = grouped_steps if data.kernel.n_states <= MOST_GROUPED else None
    p, counts = Dirichlet().smooth(data.kernel, data.seen)[0], np.asarray(data.seen.counts)
    fit = fit_neural(data.kernel, data.times, counts, p, training=Training(engine=engine))
    return _Fit(fit.energy, fit.status.name)


def _likelihood(data: Data, *, known_start: bool) -> _Fit:
    if not data.frozen:
        options = LikelihoodOptions(initial=data.p0 if known_start else None)
    elif data.reading == "empirical" and not known_start:
        raise InputError("with empirical rates the fit does not need the start.")
    else:
        options = LikelihoodOptions(
            observation="tracked",
            discretization="frozen",
            environment=data.reading,
            initial=data.p0 if known_start else None,
        )
    counts = np.asarray(data.seen.counts)
    fit = fit_likelihood(data.kernel, data.times, counts, options=options)
    return _Fit(fit.energy, fit.status.name, fit)


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


ENERGY_METHODS: dict[str, Callable[[Data], _Fit]] = {
    "likelihood": partial(_likelihood, known_start=True),
    "likelihood_free": partial(_likelihood, known_start=False),
    "weak": _weak,
    "paper": _network,
    "truth": lambda data: _Fit(data.energy),
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
LIMITS = {"cramer_rao_limit": True, "cramer_rao_limit_free": False}
"""By name, whether the initial distribution is known."""


def compare(cell: Cell, rng: np.random.Generator) -> Mapping[str, Any]:
    """Errors and seconds of the cell's methods; failures are noted in their own columns."""
    data = draw(cell, rng)
    row: dict[str, Any] = {}
    streams = dict(zip(METHODS, rng.spawn(len(METHODS)), strict=True))
    for name in cell.get("methods", METHODS):
        started = time.process_time()
        try:
            if name in ENERGY_METHODS:
                fit = ENERGY_METHODS[name](data)
                if fit.status == "INTERRUPTED":  # an unfinished cell is not a result
                    raise KeyboardInterrupt
                row[f"seconds_{name}"] = round(time.process_time() - started, 4)
                curve = _judge_energy(row, name, data, fit, streams[name])
            else:
                curve = CURVE_METHODS[name](data)
            distance = hellinger(data.truth, curve)
            row[f"error_{name}"] = float(np.mean(distance))
            row[f"rms_{name}"] = float(np.sqrt(np.mean(distance**2)))
        except Exception as error:  # one method's failure must not hide the others' results
            if was_interrupted(error):
                raise KeyboardInterrupt from error
            row[f"error_{name}"] = None
            row[f"failure_{name}"] = f"{type(error).__name__}: {error}"[:200]
        row.setdefault(f"seconds_{name}", round(time.process_time() - started, 4))
    if cell.get("limit", True):
        _add_limits(row, data, cell.get("methods", METHODS))
    return row


def _judge_energy(
    row: dict[str, Any], name: str, data: Data, fit: _Fit, rng: np.random.Generator
) -> Array:
    """Status, sampled error, collapse and deviance of a learned energy; its forecast."""
    row[f"status_{name}"] = fit.status
    curve, sampled = _forecast(data, fit.energy, rng)
    row[f"sampled_{name}"] = float(np.mean(hellinger(data.truth, sampled)))
    row[f"collapsed_{name}"] = bool(curve[-1].max() > 0.999 > data.truth[-1].max())
    if fit.likelihood is not None:
        row[f"deviance_{name}"] = fit.likelihood.deviance_per_degree
        row[f"rejected_{name}"] = fit.likelihood.rejected
    elif data.frozen:
        row[f"deviance_{name}"] = data.deviance_per_degree(fit.energy)
    return curve


def _add_limits(row: dict[str, Any], data: Data, methods: Sequence[str]) -> None:
    problem = (data.kernel, data.energy, data.p0, data.times, data.size)
    for name, known in LIMITS.items():
        asked = "likelihood_free" in methods and data.reading != "empirical"
        if not known and not (data.frozen and asked):
            continue
        started = time.process_time()
        if data.frozen:
            seen = np.asarray(data.seen.counts) if data.reading == "empirical" else None
            limit, chaotic = chain_limit(*problem, counts=seen, known_start=known)
            row[f"chaotic_{name}"] = chaotic
        else:
            limit = hellinger_limit(*problem)
        row[f"error_{name}"] = row[f"rms_{name}"] = limit
        row[f"seconds_{name}"] = round(time.process_time() - started, 4)


def melt(table: pd.DataFrame, coordinates: Sequence[str]) -> pd.DataFrame:
    """One row per cell and method that it ran: errors, seconds, deviance, status."""
    parts = []
    whole = table["status"] == "ok"
    for name in (*METHODS, *LIMITS):
        if f"error_{name}" not in table:
            continue
        part = table[list(coordinates)].copy()
        part["method"] = name
        # No Hellinger distance exceeds one, whatever the linear theory of the limit says.
        for kind in ("error", "rms"):
            values = table.get(f"{kind}_{name}", table[f"error_{name}"])
            part[kind] = pd.to_numeric(values, errors="coerce").clip(upper=1.0)
        own = "cramer_rao_limit_free" if name == "likelihood_free" else "cramer_rao_limit"
        limit = table.get(f"rms_{own}", pd.Series(np.nan, table.index))
        part["limit"] = pd.to_numeric(limit, errors="coerce").clip(upper=1.0)
        for kind in ("sampled", "deviance"):
            part[kind] = pd.to_numeric(table.get(f"{kind}_{name}", np.nan), errors="coerce")
        part["rejected"] = table.get(f"rejected_{name}", pd.Series(False, table.index)) == True  # noqa: E712
        status = table.get(f"status_{name}", pd.Series("CONVERGED", table.index))
        part["unconverged"] = status.notna() & (status != "CONVERGED")
        part["seconds"] = table[f"seconds_{name}"]
        # A cell that failed lost all its methods; in any other a method without a time was not run,
        # and one that has no meaning in the cell's reading is not a failure.
        reading = table.get("reading", pd.Series("", table.index))
        unasked = (reading == "empirical") & (name == "likelihood_free")
        parts.append(part[(part["seconds"].notna() | ~whole) & ~unasked])
    return pd.concat(parts, ignore_index=True)


def summary(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Errors over all but `by` and the method, and how far they are from the limit.

    `over_limit`: root mean square error over that of the limits, `over_limit_stderr` its standard
    error over the cells; `median_over_limit`: the median of the cells' own ratios. `deviance`: the
    median deviance per degree of freedom; `rejected`: fits whose deviance rejects them. The median
    is what to read for the limit itself: where the snapshots hardly determine the energy, one cell
    dominates the mean.
    """
    long = melt(table, by)
    long["square"], long["limit_square"] = long["rms"] ** 2, long["limit"] ** 2
    long["ratio"] = long["rms"] / long["limit"]
    groups = long.groupby([*by, "method"], sort=False)
    out = groups.agg(
        error=("error", "mean"),
        deviation=("error", "std"),
        median=("error", "median"),
        square=("square", "mean"),
        limit_square=("limit_square", "mean"),
        median_over_limit=("ratio", "median"),
        deviance=("deviance", "median"),
        rejected=("rejected", "sum"),
        unconverged=("unconverged", "sum"),
        sampled=("sampled", "mean"),
        seconds=("seconds", "median"),
        runs=("error", "size"),
        failed=("error", lambda values: int(values.isna().sum())),
    )
    limits = out.pop("limit_square")
    out.insert(3, "over_limit", np.sqrt(out.pop("square") / limits))
    # The delta method for the root of a ratio of means.
    ratio = groups["square"].transform("mean") / groups["limit_square"].transform("mean")
    long["excess"] = long["square"] - ratio * long["limit_square"]
    spread = long.groupby([*by, "method"], sort=False)["excess"].sem()
    out.insert(4, "over_limit_stderr", spread / (2 * out["over_limit"] * limits))
    return out.reset_index()
