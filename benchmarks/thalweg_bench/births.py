"""Populations that also multiply and die: coverage of rates, V and beta, and left-out times.

Populations on small graphs follow a landscape and multiply at a rate per state. The fit learns
both, with and without the totals; beside it, transport alone on the same counts. A time between two
snapshots and one after the last are left out. Where nothing grows, the share of fits that find that
growth is needed should be 5 %.
"""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import numpy as np

from thalweg import FreeEnergyRegressor, Snapshots, hellinger, make_graph
from thalweg._types import Array
from thalweg.energy import FreeEnergy, centred
from thalweg.flow import growth_flow
from thalweg.kernel import MarkovKernel
from thalweg.learn.growth import Growth
from thalweg_bench import BenchResult, BenchSettings
from thalweg_bench.sweep import Cell, swept

__all__ = ["run"]

_STATES, _SIZES = (6, 12, 20), (1000, 10_000)
"""Numbers of states, and of individuals per snapshot."""
_LEARNED = ("shares", "totals", "feature", "nothing grows")
"""How growth is learned: from shares or with totals, a rate per state; with totals, along one
feature; from shares, where nothing grows."""
_SPREAD, _TRANSPORT, _BETA = 0.3, 0.8, 0.4
"""Standard deviations of the rates and of the potential, and beta."""
_TIMES = np.linspace(0.0, 4.0, 9)
_ASKED = np.array([1.75, 4.5])
"""The times left out: between two snapshots, and after the last."""
_INSTANCES = 10
"""Populations per row of the table."""


def run(settings: BenchSettings) -> BenchResult:
    """Coverage, left-out times and CPU time, averaged over populations."""
    count = settings.instances or (2 if settings.quick else _INSTANCES)
    states = _STATES[:1] if settings.quick else _STATES
    cells = [
        {"learned": learned, "n_states": n, "size": size, "index": index}
        for index, learned, n, size in product(range(count), _LEARNED, states, _SIZES)
    ]
    sweep = swept(settings, "births", one_population, cells)
    keys = ["learned", "n_states", "size"]
    table = sweep.table.drop(columns=["index", "seconds", "status"])
    rows = table.groupby(keys, sort=False).mean().reset_index()
    worse = table["left out, over alone"]
    growing = table["learned"] != "nothing grows"
    notes = [
        *sweep.notes,
        f"{count} populations per row; nominal coverage 0.95; where nothing grows, growth should "
        "be needed in 5 %.",
        f"distance to the truth at left-out times over that of transport alone: median "
        f"{worse[growing].median():.2f} where states multiply (1.1 times worse in "
        f"{(worse[growing] > 1.1).sum()} of {growing.sum()}), {worse[~growing].median():.2f} where "
        f"nothing grows.",
    ]
    return BenchResult(rows, notes=tuple(notes))


def one_population(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """Both fits to one population, and what their intervals hold."""
    kernel, energy, start, rates, feature = _truth(cell, rng)
    grid = np.union1d(_TIMES, _ASKED)
    masses = growth_flow(kernel, energy, start, grid, rates=rates)
    shares = masses / masses.sum(axis=1, keepdims=True)
    seen = np.isin(grid, _TIMES)
    counts = np.array([rng.multinomial(int(cell["size"]), p) for p in shares[seen]])
    totals = masses[seen].sum(axis=1) if cell["learned"] in ("totals", "feature") else None
    data = Snapshots.from_counts(_TIMES, counts)
    begun = time.process_time()
    model = FreeEnergyRegressor(growth=Growth(features=feature, totals=totals)).fit(kernel, data)
    seconds = time.process_time() - begun
    found = model.growth_
    assert found is not None
    if not found.anchored:
        rates = rates - counts.sum(axis=0) / counts.sum() @ rates
    apart = np.abs(model.potential_ - energy.potential)
    alone = FreeEnergyRegressor().fit(kernel, data)
    verdict = model.beta_verdict_
    return {
        "rates covered": np.mean(np.abs(found.rates - rates) <= 1.96 * found.stderr),
        "V covered": np.mean(apart <= 1.96 * model.potential_stderr_),
        "beta covered": float(verdict.lower <= energy.beta <= verdict.upper),
        "beta determined": float(verdict.kind == "determined"),
        "growth needed": float(found.p_value < 0.05),
        "confounded": found.confounded,
        "error of rates": float(np.sqrt(np.mean((found.rates - rates) ** 2))),
        "left out, over alone": _left_out(model, shares[~seen]) / _left_out(alone, shares[~seen]),
        "finished": float(model.status_.name in ("CONVERGED", "UNDETERMINED")),
        "CPU seconds": seconds,
    }


def _truth(
    cell: Cell, rng: np.random.Generator
) -> tuple[MarkovKernel, FreeEnergy, Array, Array, Array | None]:
    """A graph, a landscape, a start, rates, and the feature in which they are linear, if any."""
    n, learned = int(cell["n_states"]), str(cell["learned"])
    kernel = make_graph("delaunay", n, rng=rng)
    potential = centred(rng.normal(size=n), kernel)
    energy = FreeEnergy(potential * (_TRANSPORT / potential.std()), _BETA)
    start = rng.dirichlet(np.full(n, 2.0)) + 0.2 / n
    rates, feature = _SPREAD * rng.normal(size=n), None
    if learned == "feature":
        feature = rng.normal(size=n)
        rates = _SPREAD * feature
    if learned == "nothing grows":
        rates = np.zeros(n)
    return kernel, energy, start / start.sum(), rates, feature


def _left_out(model: FreeEnergyRegressor, truth: Array) -> float:
    """Mean Hellinger distance to the truth at the times that were left out."""
    return float(np.mean(hellinger(model.predict(None, _ASKED).probabilities, truth)))
