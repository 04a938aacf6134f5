"""Which mean drove the data? The same snapshots fitted under every mean, judged on held-out ones.

A flow under each of four means, snapshots at 21 times of independent individuals. Every second
snapshot is fitted by maximum likelihood under every mean; the snapshots between are held out, and
the mean under which they are likeliest is chosen. The table is the confusion of true and chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from thalweg._version import __version__
from thalweg.energy import FreeEnergy, centred
from thalweg.flow import gradient_flow
from thalweg.graphs import GRAPH_FAMILIES, make_graph
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.mobility import ArithmeticMean, GeometricMean, HarmonicMean, LogMean, Mobility
from thalweg_bench import BenchResult, BenchSettings
from thalweg_bench.sweep import Cell, swept

__all__ = ["MEANS", "choose", "run"]

MEANS: dict[str, Mobility] = {
    "logarithmic": LogMean(),
    "geometric": GeometricMean(),
    "arithmetic": ArithmeticMean(),
    "harmonic": HarmonicMean(),
}


def choose(cell: Cell, rng: np.random.Generator) -> Mapping[str, Any]:
    """Fit one problem under every mean: log likelihoods per held-out individual, and the choice."""
    kernel = make_graph(cell["family"], int(cell["n_states"]), rng=rng)
    energy = FreeEnergy(rng.uniform(-1, 1, kernel.n_states), float(cell["beta"]))
    p0 = rng.dirichlet(np.ones(kernel.n_states))
    times = np.linspace(0, float(cell["horizon"]), 21)
    true = MEANS[cell["true"]]
    p = gradient_flow(kernel, energy, p0, times, mobility=true, throw=True).probabilities
    counts = np.array([rng.multinomial(int(cell["n"]), row / row.sum()) for row in p])
    unseen = counts[1::2]
    v = centred(energy.potential, kernel)
    row: dict[str, Any] = {}
    for name, mean in MEANS.items():
        fit = fit_likelihood(
            kernel, times[::2], counts[::2], options=LikelihoodOptions(mobility=mean)
        )
        flow = gradient_flow(kernel, fit.energy, fit.initial, times, mobility=mean)
        q = flow.probabilities[1::2]
        row[f"status_{name}"] = fit.status.name
        row[f"deviance_{name}"] = fit.deviance_per_degree
        row[f"heldout_{name}"] = float(np.sum(unseen * np.log(np.maximum(q, 1e-300))))
        row[f"error_{name}"] = float(np.sqrt(kernel.stationary @ (fit.potential - v) ** 2))
    scores = {name: row[f"heldout_{name}"] for name in MEANS}
    row["chosen"] = max(scores, key=lambda name: scores[name])
    best_wrong = max(value for name, value in scores.items() if name != cell["true"])
    row["margin"] = scores[cell["true"]] - best_wrong
    return row


def run(settings: BenchSettings) -> BenchResult:
    """The confusion tables, by the number of individuals per snapshot."""
    families = GRAPH_FAMILIES[::4] if settings.quick else GRAPH_FAMILIES
    instances = range(settings.instances or (1 if settings.quick else 3))
    sizes = (10_000, 1_000_000)
    names = ("instance", "family", "true", "n")
    cells = [
        {**dict(zip(names, values, strict=True)), "n_states": 6, "beta": 0.2, "horizon": 4.0}
        for values in product(instances, families, MEANS, sizes)
    ]
    version = f"{__version__}|{'quick' if settings.quick else 'full'}"
    sweep = swept(settings, "mobility", choose, cells, fingerprint=version)
    done = sweep.table[sweep.table["status"] == "ok"]
    rows = []
    for (n, true), part in done.groupby(["n", "true"], sort=False):
        chosen = part["chosen"].value_counts()
        rows.append(
            {
                "individuals": n,
                "true mean": true,
                **{f"chose {name}": int(chosen.get(name, 0)) for name in MEANS},
                "right": round(float((part["chosen"] == true).mean()), 3),
                "median margin (nats)": float(part["margin"].median()),
                "error of V, true mean": float(part[f"error_{true}"].median()),
                "error of V, logarithmic": float(part["error_logarithmic"].median()),
                "deviance per degree, true mean": float(part[f"deviance_{true}"].median()),
                "the same, logarithmic": float(part["deviance_logarithmic"].median()),
                "runs": len(part),
            }
        )
    table = pd.DataFrame(rows)
    notes = [*sweep.notes]
    for n, part in table.groupby("individuals"):
        share = float(np.average(part["right"], weights=part["runs"]))
        notes.append(
            f"{n} individuals per snapshot: the held-out likelihood chooses the right mean in "
            f"{100 * share:.0f} % of {int(part['runs'].sum())} runs (chance: 25 %)."
        )
    failed = sweep.failed
    if len(failed):
        notes.append(f"{len(failed)} cells failed: {failed['status'].iloc[0]}")
    return BenchResult(table, {"confusion": _figure(table)}, tuple(notes))


def _figure(table: pd.DataFrame) -> go.Figure:
    part = table[table["individuals"] == table["individuals"].max()]
    z = part[[f"chose {name}" for name in MEANS]].to_numpy(dtype=float)
    z /= np.maximum(z.sum(axis=1, keepdims=True), 1)
    figure = go.Figure(
        go.Heatmap(
            z=z, x=list(MEANS), y=part["true mean"], zmin=0, zmax=1, colorscale="Blues",
            text=np.round(z, 2), texttemplate="%{text}", colorbar={"title": "share"},
        )
    )  # fmt: skip
    figure.update_layout(
        template="plotly_white",
        title=f"Mean chosen by the held-out likelihood, n = {part['individuals'].iloc[0]}",
        xaxis={"title": "chosen"},
        yaxis={"title": "true", "autorange": "reversed"},
    )
    return figure
