"""Counts that are not multinomial: how often intervals hold the truth, by model of counts.

Populations on Delaunay graphs of 10 to 20 states, 8 snapshots of 5000 individuals. `clumps`: the
distribution behind each snapshot scatters with a concentration of 100 (design effect 50).
`replicates`: five samples of 1000 per time, each with a scatter of its own (design effect 10).
`runs`: five runs seen at all times, each with a tilt of its own. `plain`: independent individuals.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from thalweg._types import Array
from thalweg.energy import FreeEnergy, centred
from thalweg.flow import gradient_flow
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.observation import Multinomial, Overdispersed
from thalweg.snapshots import Snapshots
from thalweg_bench import BenchResult, BenchSettings

__all__ = ["run"]


_TIMES = np.linspace(0.0, 4.0, 8)
_SIZE, _CONCENTRATION, _RUNS, _TILT = 5000, 100.0, 5, 0.15
"""Individuals per snapshot, concentration, number of runs, and the spread of their log tilts."""
_CASES = ("plain", "clumps", "replicates", "runs")


def _problem(seed: int) -> tuple[MarkovKernel, FreeEnergy, Array, np.random.Generator]:
    rng = np.random.default_rng([seed, 41])
    n = int(rng.integers(10, 21))
    kernel = make_graph("delaunay", n, rng=rng)
    assert kernel.coordinates is not None
    x, y = kernel.coordinates.T
    energy = FreeEnergy(centred(1.5 * np.sin(4 * x + 1) * np.cos(3 * y), kernel), 0.4)
    start = rng.dirichlet(np.full(n, 0.5)) + 0.01
    p = gradient_flow(kernel, energy, start / start.sum(), _TIMES).probabilities
    return kernel, energy, p / p.sum(axis=1, keepdims=True), rng


def _seen(case: str, p: Array, rng: np.random.Generator) -> Snapshots:
    if case == "plain":
        return Snapshots.from_counts(_TIMES, Multinomial().draw(_SIZE * p, p, rng))
    if case == "clumps":
        return Snapshots.from_counts(_TIMES, Overdispersed(_CONCENTRATION).draw(_SIZE * p, p, rng))
    rows, names = [], []
    for run_ in range(_RUNS):
        tilted = p * np.exp(_TILT * rng.normal(size=p.shape[1])) if case == "runs" else p
        tilted = tilted / tilted.sum(axis=1, keepdims=True)
        model = Multinomial() if case == "runs" else Overdispersed(_CONCENTRATION)
        rows.append(model.draw(_SIZE / _RUNS * tilted, tilted, rng))
        names += [run_ if case == "runs" else (run_, k) for k in range(_TIMES.size)]
    times = np.tile(_TIMES, _RUNS)
    return Snapshots.from_counts(times, np.concatenate(rows), replicates=names)


def _row(case: str, observation: str, seed: int) -> dict[str, Any]:
    kernel, energy, p, rng = _problem(seed)
    seen = _seen(case, p, rng)
    label = observation
    if observation == "replicates":
        observation = "independent"
    elif seen.replicates is not None:
        seen = Snapshots.from_counts(seen.times, seen.counts)
    start = time.process_time()
    model = FreeEnergyRegressor(observation=observation).fit(kernel, seen)  # type: ignore[arg-type]
    seconds = time.process_time() - start
    verdict = model.beta_verdict_
    error = np.abs(model.potential_ - energy.potential)
    p_value = model.diagnostics_.get("p_value")
    return {
        "case": case,
        "model of counts": label,
        "V covered": float(np.mean(error <= 1.96 * model.potential_stderr_)),
        "beta covered": float(verdict.lower <= energy.beta <= verdict.upper),
        "beta determined": float(verdict.kind == "determined"),
        "rejected at 5 %": np.nan if p_value is None else float(p_value < 0.05),
        "error of V over stderr": float(
            np.sqrt(np.mean(error**2) / np.mean(model.potential_stderr_**2))
        ),
        "CPU seconds": seconds,
    }


def run(settings: BenchSettings) -> BenchResult:
    """Coverage of V and beta under each model of counts, averaged over populations."""
    count = 10 if settings.quick else 60
    jobs = [
        (case, observation, settings.seed * 1000 + i)
        for case in _CASES
        for observation in ("independent", "overdispersed", "replicates")
        if observation != "replicates" or case in ("replicates", "runs")
        for i in range(count)
    ]
    rows = []
    for done, row in enumerate(
        Parallel(n_jobs=settings.jobs, return_as="generator")(delayed(_row)(*job) for job in jobs)
    ):
        rows.append(row)
        settings.progress("fits", done + 1, len(jobs))
    table = pd.DataFrame(rows)
    keys = ["case", "model of counts"]
    table = table.groupby(keys, sort=False).mean().reset_index()
    return BenchResult(table, notes=(f"{count} populations per row; nominal coverage 0.95.",))
