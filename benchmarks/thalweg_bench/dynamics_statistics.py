"""Are the intervals of `thalweg.dynamics` right, and does `compare` reject as often as it says?

*Coverage.* A landscape is drawn, snapshots of its flow are drawn and fitted, and the intervals of
fates and passage times are compared with the true values. *Level.* Two data sets of one
landscape, and how often `compare` calls them different. *Power.* The same with one state pushed.
Each data set has a graph, a landscape and starts of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kstest

from thalweg import (
    FreeEnergy,
    FreeEnergyRegressor,
    MarkovKernel,
    Snapshots,
    gradient_flow,
    make_graph,
)
from thalweg.dynamics import (
    Estimate,
    Landscape,
    as_landscape,
    compare,
    compare_globally,
    fate_probabilities,
    mean_first_passage_time,
)
from thalweg_bench import BenchSettings
from thalweg_bench.sweep import Cell, swept

__all__ = [
    "coverage_rows",
    "level_rows",
    "one_coverage",
    "one_naming",
    "one_test",
    "power_rows",
    "sweep",
]


BETA, AMPLITUDE = 0.3, 0.7
"""The true noise, and the standard deviation of the potential."""
TIMES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
SIZES = ((10, 3000), (10, 100), (50, 10_000), (50, 150))
"""States, and individuals per snapshot: many and few."""
PUSHES = (0.1, 0.2, 0.4, 0.8)
"""By how much one state is raised in the second data set, in units of V."""


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


def _pair(cell: Cell, rng: np.random.Generator) -> tuple[MarkovKernel, list[Snapshots], int]:
    """Two data sets, the second of a landscape pushed by `push` at one state."""
    kernel, energy = landscape(cell["states"], rng)
    v = energy.potential.copy()
    state = int(rng.integers(kernel.n_states))
    v[state] += cell["push"]
    both = (energy, FreeEnergy(v, BETA))
    return kernel, [drawn(kernel, e, cell["individuals"], rng) for e in both], state


def one_test(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """The p-values of one comparison."""
    kernel, (one, other), _ = _pair(cell, rng)
    found = compare_globally(one, other, kernel)
    names = ("same", "landscape", "beta")
    return {f"p_{name}": test.p_value for name, test in zip(names, found, strict=True) if test}


def one_naming(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """Which states a comparison names, where one was pushed."""
    kernel, (one, other), state = _pair(cell, rng)
    named = compare(one, other, kernel).states.significant()
    return {"named_right": int(state in named), "named_wrong": int(np.sum(named != state))}


def sweep(settings: BenchSettings, name: str, work: Any, cells: list[dict[str, Any]]) -> Any:
    """The finished cells of this benchmark's sweep `name`."""
    return swept(settings, f"dynamics-{name}", work, cells).table


def coverage_rows(settings: BenchSettings) -> Iterator[dict[str, Any]]:
    """Coverage of the 95 % intervals of fates and passage times."""
    # Intervals from few individuals are averages over priors, and cost ten times as much.
    for states, individuals, count in ((8, 5000, 300), (8, 500, 100)):
        count = 12 if settings.quick else count
        cells = [
            {"states": states, "individuals": individuals, "index": k} for k in range(count)
        ]  # fmt: skip
        table = sweep(settings, f"coverage-{individuals}", one_coverage, cells)
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


def _comparisons(
    settings: BenchSettings, size: tuple[int, int], push: float, count: int
) -> pd.DataFrame:
    """P-values of `count` pairs of data sets; a journal that grows keeps what it has."""
    states, individuals = size
    name = f"comparison-{states}-{individuals}-{push:g}"
    cells = [
        {"states": states, "individuals": individuals, "push": push, "index": k}
        for k in range(count)
    ]
    table: pd.DataFrame = sweep(settings, name, one_test, cells)
    return table[table["status"] == "ok"]


def level_rows(settings: BenchSettings) -> Iterator[dict[str, Any]]:
    """How often data sets of one landscape are called different at 5 %; are p-values uniform?"""
    count = settings.instances or (20 if settings.quick else 500)
    for size in SIZES[:2] if settings.quick else SIZES:
        good = _comparisons(settings, size, 0.0, count)
        for name in ("same", "landscape", "beta"):
            p = good[f"p_{name}"].to_numpy()
            share = float(np.mean(p <= 0.05))
            error = np.sqrt(max(share * (1 - share), 1e-4) / len(p))
            yield {
                "case": f"{size[0]} states, {size[1]} individuals per snapshot",
                "figure": f"level of compare, {name}",
                "measured": f"{100 * share:.1f} % +- {100 * error:.1f} ({len(good)} of {count} "
                f"data sets; p-values against uniform: p = {kstest(p, 'uniform').pvalue:.2f})",
                "target": "4-6 %",
                "met": bool(0.04 <= share <= 0.06 and len(good) == count),
            }


def power_rows(settings: BenchSettings) -> Iterator[dict[str, Any]]:
    """How often a pushed state is noticed; where counts are many, whether it is named."""
    count = 5 if settings.quick else 100
    for size in SIZES[:2] if settings.quick else SIZES:
        for push in PUSHES:
            good = _comparisons(settings, size, push, count if size[0] == 10 else count // 4)
            seen = ", ".join(
                f"{name} {100 * np.mean(good[f'p_{name}'] <= 0.05):.0f} %"
                for name in ("same", "landscape", "beta")
            )
            yield {
                "case": f"{size[0]} states, {size[1]} individuals per snapshot",
                "figure": f"power of compare, one state pushed by {push / BETA:.1f} beta",
                "measured": f"rejected: {seen} ({len(good)} data sets)",
                "target": "",
                "met": None,
            }
    states, individuals = SIZES[0]
    for push in PUSHES[1:]:
        cells = [
            {"states": states, "individuals": individuals, "push": push, "index": k}
            for k in range(count // 5)
        ]
        table = sweep(settings, f"naming-{states}-{individuals}-{push:g}", one_naming, cells)
        named = table[table["status"] == "ok"]
        yield {
            "case": f"{states} states, {individuals} individuals per snapshot",
            "figure": f"naming the state pushed by {push / BETA:.1f} beta",
            "measured": f"named {100 * named['named_right'].mean():.0f} %, "
            f"others named {named['named_wrong'].mean():.2f} ({len(named)} data sets)",
            "target": "",
            "met": None,
        }
