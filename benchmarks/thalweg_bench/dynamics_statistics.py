"""Are the intervals of `thalweg.dynamics` right, and does `compare` reject as often as it says?

*Coverage.* A landscape is drawn, snapshots of its flow are drawn and fitted, and the intervals of
fates and passage times are asked whether they hold the true values. *Level.* Two data sets of one
landscape, and how often `compare` calls them different. *Power.* The same with one state pushed.
Each data set has a graph, a landscape and starts of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from thalweg import (
    FreeEnergy,
    FreeEnergyRegressor,
    MarkovKernel,
    Snapshots,
    gradient_flow,
    make_graph,
)
from thalweg._version import __version__
from thalweg.dynamics import (
    Estimate,
    Landscape,
    as_landscape,
    compare,
    fate_probabilities,
    mean_first_passage_time,
)
from thalweg_bench import BenchSettings
from thalweg_bench.sweep import Cell, run_sweep

__all__ = ["coverage_rows", "level_rows", "one_comparison", "one_coverage", "power_rows"]

Array = NDArray[np.float64]

BETA, AMPLITUDE = 0.3, 0.7
TIMES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
SIZES = ((10, 3000), (50, 10_000), (10, 100), (50, 500))
"""States, and individuals per snapshot: many and few."""
PUSHES = (0.1, 0.2, 0.4, 0.8)


def drawn(kernel: MarkovKernel, energy: FreeEnergy, n: int, rng: np.random.Generator) -> Snapshots:
    """Independent snapshots of `n` individuals from a start of their own."""
    p0 = rng.dirichlet(np.full(kernel.n_states, 2.0))
    flow = gradient_flow(kernel, energy, p0, TIMES).probabilities
    return Snapshots.from_counts(TIMES, [rng.multinomial(n, p / p.sum()) for p in flow])


def landscape(n_states: int, rng: np.random.Generator) -> tuple[MarkovKernel, FreeEnergy]:
    """A Delaunay graph with a rough landscape."""
    kernel = make_graph("delaunay", n_states, rng=rng)
    return kernel, FreeEnergy(AMPLITUDE * rng.normal(size=n_states), BETA)


def one_coverage(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """How many of the intervals of one fit hold the truth, and how many there are."""
    kernel, energy = landscape(cell["states"], rng)
    model = FreeEnergyRegressor().fit(kernel, drawn(kernel, energy, cell["individuals"], rng))
    low = np.argsort(energy.potential)[:2].tolist()
    truth, land = Landscape(kernel, energy), as_landscape(model)
    out: dict[str, Any] = {"fit": model.status_.name}
    for name in ("fates", "passage"):
        right, found = (_asked(where, name, low) for where in (truth, land))
        value = right.value
        asked = (value > 0) & (value < 1) if name == "fates" else value > 0
        if name == "fates":
            asked[:, 1] = False  # one minus the first
        held = (found.lower <= value) & (value <= found.upper) & asked
        out[f"{name}_held"], out[f"{name}_asked"] = int(held.sum()), int(asked.sum())
    return out


def _asked(where: Landscape, name: str, low: list[int]) -> Estimate:
    if name == "fates":
        return fate_probabilities(where, low).probabilities
    return mean_first_passage_time(where, low[0])


def one_comparison(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """The p-values of one comparison; the second landscape is pushed by `push` at one state."""
    kernel, energy = landscape(cell["states"], rng)
    v = energy.potential.copy()
    state = int(rng.integers(kernel.n_states))
    v[state] += cell["push"]
    one = drawn(kernel, energy, cell["individuals"], rng)
    other = drawn(kernel, FreeEnergy(v, BETA), cell["individuals"], rng)
    answer = compare(one, other, kernel, n_draws=999, seed=int(cell["index"]))
    named = answer.states.significant()
    return {
        "p_same": answer.p_value,
        "p_landscape": answer.same_landscape.p_value if answer.same_landscape else np.nan,
        "p_beta": answer.same_beta.p_value if answer.same_beta else np.nan,
        "named_right": int(state in named),
        "named_wrong": int(np.sum(named != state)),
        "answer": answer.status.name,
    }


def _sweep(settings: BenchSettings, name: str, work: Any, cells: list[dict[str, Any]]) -> Any:
    return run_sweep(
        name, work, cells, seed=settings.seed, jobs=settings.jobs, folder=settings.folder,
        fingerprint=__version__, progress=settings.progress,
    ).table  # fmt: skip


def coverage_rows(settings: BenchSettings) -> Iterator[dict[str, Any]]:
    """Coverage of the 95 % intervals of fates and passage times."""
    count = 20 if settings.quick else 300
    for states, individuals in ((8, 5000), (8, 500)):
        cells = [
            {"states": states, "individuals": individuals, "index": k} for k in range(count)
        ]  # fmt: skip
        table = _sweep(settings, f"coverage-{individuals}", one_coverage, cells)
        good = table[table["status"] == "ok"]
        for name in ("fates", "passage"):
            held = good[f"{name}_held"].sum() / max(good[f"{name}_asked"].sum(), 1)
            share = good[f"{name}_held"] / good[f"{name}_asked"]
            yield {
                "case": f"{states} states, {individuals} individuals per snapshot",
                "figure": f"coverage of 95 % intervals of {name}",
                "measured": f"{100 * held:.1f} % +- {100 * share.std() / np.sqrt(len(good)):.1f} "
                f"({len(good)} of {count} data sets)",
                "target": "93-97 %",
                "met": bool(0.93 <= held <= 0.97 and len(good) == count),
            }


def level_rows(settings: BenchSettings) -> Iterator[dict[str, Any]]:
    """How often data sets of one landscape are called different at 5 %."""
    for states, individuals in SIZES:
        if settings.quick and states > 10:
            continue
        count = 20 if settings.quick else 500
        cells = [
            {"states": states, "individuals": individuals, "push": 0.0, "index": k}
            for k in range(count)
        ]
        table = _sweep(settings, f"level-{states}-{individuals}", one_comparison, cells)
        good = table[table["status"] == "ok"]
        for name in ("same", "landscape", "beta"):
            share = float(np.mean(good[f"p_{name}"] <= 0.05))
            yield {
                "case": f"{states} states, {individuals} individuals per snapshot",
                "figure": f"level of compare, {name}",
                "measured": f"{100 * share:.1f} % ({len(good)} of {count} data sets)",
                "target": "4-6 %",
                "met": bool(0.04 <= share <= 0.06 and len(good) == count),
            }


def power_rows(settings: BenchSettings) -> Iterator[dict[str, Any]]:
    """How often a pushed state is noticed, named, and others named with it."""
    count = 5 if settings.quick else 60
    for states, individuals in (SIZES[0], SIZES[2]):
        for push in PUSHES:
            cells = [
                {"states": states, "individuals": individuals, "push": push, "index": k}
                for k in range(count)
            ]
            table = _sweep(settings, f"power-{states}-{individuals}-{push}", one_comparison, cells)
            good: pd.DataFrame = table[table["status"] == "ok"]
            yield {
                "case": f"{states} states, {individuals} individuals per snapshot",
                "figure": f"power of compare, one state pushed by {push / BETA:.1f} beta",
                "measured": f"rejected {100 * np.mean(good['p_same'] <= 0.05):.0f} %, "
                f"state named {100 * good['named_right'].mean():.0f} %, "
                f"others named {good['named_wrong'].mean():.2f}",
                "target": "",
                "met": True,
            }
