"""`thalweg bench typical`: fits where users live, beside simpler models, in one run.

Graphs of 10 to 300 states, 4 to 8 snapshots of 100 to 5000 individuals, smooth and rough
potentials, three betas; data from the flow, and from a linear chain (where the model is wrong).
One row per source, number of states and size of a snapshot. Every finished data set is kept in the
folder's journal, and the sets come in an order in which every beginning is a fair sample: a run
that is stopped (Ctrl-C, SIGTERM) prints the table of what it has.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kstest

from thalweg_bench import BenchResult, BenchSettings
from thalweg_bench.sweep import swept
from thalweg_bench.typical_cases import KINDS, METHODS, one_data_set

__all__ = ["run"]

Row = dict[str, Any]

SIZES = (100, 300, 1000, 5000)
"""Individuals per snapshot."""
POTENTIALS = ("smooth", "rough")
BETAS = (0.05, 0.2, 1.0)
SETS = {
    "flow": {10: 96, 30: 96, 100: 48, 300: 8},
    "chain": {10: 24, 30: 24, 100: 12, 300: 4},
}
"""Data sets of a run by source and number of states, of the 96 of the grid: 40 CPU minutes."""
_TOO_LOW, _TOO_HIGH = 0.2, 5.0
"""Ratios of a beta to the truth that count as collapsed and as far too high."""


def cells(settings: BenchSettings) -> list[Row]:
    """The data sets of a run; `quick` takes few small ones, `instances` that many whole grids."""
    copies = range(1 if settings.instances is None else settings.instances)
    order = np.random.default_rng(settings.seed)
    placed: list[tuple[float, Row]] = []
    for source, by_states in SETS.items():
        for n, count in by_states.items():
            grid = list(product(KINDS, SIZES, POTENTIALS, BETAS, copies))
            if settings.quick:
                grid, count = grid[:: 12 * len(copies)], 4 if n < 100 else 0
            elif settings.instances is not None:
                count = len(grid)
            for rank, k in enumerate(order.permutation(len(grid))[:count]):
                graph, size, potential, beta, index = grid[k]
                cell = {
                    "source": source, "n_states": n, "graph": graph, "size": size,
                    "potential": potential, "beta": beta, "index": index,
                }  # fmt: skip
                placed.append(((rank + order.random()) / count, cell))
    return [cell for _, cell in sorted(placed, key=lambda item: item[0])]


def run(settings: BenchSettings) -> BenchResult:
    """Coverage, collapses, forecasts, status and CPU time."""
    sweep = swept(settings, "typical", one_data_set, cells(settings))
    table = sweep.table
    notes = list(sweep.notes)
    notes += [f"failed: {status}" for status in sweep.failed["status"].unique()]
    for name in METHODS:
        if f"{name}_failed" in table:
            for sentence, count in table[f"{name}_failed"].value_counts().items():
                notes.append(f"{name} failed {count} times: {sentence}")
    rows = [
        {"source": source, "states": n, "per snapshot": size, **summary(part)}
        for (source, n, size), part in table.groupby(["source", "n_states", "size"], dropna=False)
    ]
    held = table[table["source"] == "flow"]
    if "p_value" in held and held["p_value"].notna().sum() > 1:
        p = kstest(held["p_value"].dropna(), "uniform").pvalue
        notes.append(f"p-values under the model against a uniform law: p = {p:.3g}.")
    notes += margins(held)
    return BenchResult(pd.DataFrame(rows), notes=tuple(notes))


def summary(part: pd.DataFrame) -> Row:
    """One row of the table: how often intervals cover, what collapses, who forecasts best."""
    row: Row = {"sets": len(part)}
    if "beta_found" not in part or part["beta_found"].isna().all():
        return row
    ours = part[part["beta_found"].notna()]
    covers = (ours["beta_lower"] <= ours["beta"]) & (ours["beta"] <= ours["beta_upper"])
    sure = ours["determined"].astype(bool)
    ratio = ours["beta_found"] / ours["beta"]
    row |= {
        "V covered": ours["v_covered"].mean(),
        "beta covered": covers.mean(),
        "determined": sure.mean(),
        "covered if so": covers[sure].mean() if sure.any() else np.nan,
        "beta too low": (ratio < _TOO_LOW).mean(),
        "determined too low or high": _share((ratio < _TOO_LOW) | (ratio > _TOO_HIGH), sure),
        "V flattened": ours["flattened"].astype(bool).mean(),
        "rejected (p < 0.05)": (ours["p_value"] < 0.05).mean(),
        "finished": ours["fit_status"].isin(["CONVERGED", "UNDETERMINED"]).mean(),
    }
    for what in ("ahead", "inside"):
        for name in METHODS:
            if f"{name}_{what}" in part:
                row[f"{name} {what}"] = part[f"{name}_{what}"].median()
    row["worse than still"] = (ours["ours_ahead"] > ours["still_ahead"]).mean()
    for name in ("ours", "fp"):
        row[f"{name} CPU s"] = part[f"{name}_cpu"].median()
    return row


def _share(bad: pd.Series[bool], among: pd.Series[bool]) -> float:
    return float(bad[among].mean()) if among.any() else float("nan")


def margins(held: pd.DataFrame) -> list[str]:
    """Coverage by graph, potential and beta where the model holds, a sentence each."""
    out: list[str] = []
    if "v_covered" not in held:
        return out
    for name in ("n_states", "graph", "potential", "beta"):
        for value, part in held[held["v_covered"].notna()].groupby(name):
            covers = (part["beta_lower"] <= part["beta"]) & (part["beta"] <= part["beta_upper"])
            out.append(
                f"{name} {value}: V covered {part['v_covered'].mean():.3f}, beta "
                f"{covers.mean():.3f}, determined {part['determined'].astype(bool).mean():.2f} "
                f"({len(part)} sets)."
            )
    return out
