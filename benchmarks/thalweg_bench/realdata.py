"""Real data: held-out times, known answers, and where the model loses.

The data are read from `$THALWEG_DATA`, or from `../shared/data` beside the repository; a set that
is absent is noted and left out.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from thalweg._types import Array
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.growth import Growth
from thalweg.points import (
    METHODS,
    design_effect,
    grouped_bootstrap,
    leave_one_time_out,
    relaxation_times,
)
from thalweg.points.evaluation import BASELINES
from thalweg.snapshots import Snapshots, hellinger
from thalweg_bench import BenchResult, BenchSettings
from thalweg_bench.realdata_sets import AlanineDipeptide, UsStates, blood_cells, data_folder

__all__ = ["run"]

Row = dict[str, Any]

KNOWN_LAGS = np.array([0, 10, 20, 50, 100, 200, 500])
"""Times after a frame in alpha_R, in ps, with the kernel of transitions,"""
TORUS_LAGS = np.array([0, 20, 50, 100, 200, 500, 1000])
"""and with the kernel of the torus, which knows no dynamics."""
SLOWEST = (230.0, 250.0)
"""The known slowest relaxation time of alanine dipeptide, in ps: from and to."""
TRAINING_YEARS = [1980, 1990, 2000, 2010]


def run(settings: BenchSettings) -> BenchResult:
    """Every figure on real data, each row with its aim."""
    parts = {
        "hematopoiesis": _blood,
        "alanine_dipeptide": _alanine,
        "us_states": _states,
    }
    rows: list[Row] = []
    notes: list[str] = []
    for done, (name, part) in enumerate(parts.items()):
        settings.progress(name, done, len(parts))
        folder = data_folder(name)
        if folder is None:
            notes.append(f"{name}: no such folder in $THALWEG_DATA or ../shared/data; left out.")
            continue
        part(settings, folder, rows, notes)
    settings.progress("done", len(parts), len(parts))
    columns = ["data", "what", "value", "aim", "met", "note"]
    return BenchResult(pd.DataFrame(rows, columns=columns), {}, tuple(notes))


def _row(
    data: str, what: str, value: float, aim: float | None = None, met: bool | None = None,
    note: str = "",
) -> Row:  # fmt: skip
    if met is None and aim is not None:
        met = bool(value <= aim)
    return {
        "data": data, "what": what, "value": float(value), "aim": aim,
        "met": "" if met is None else "yes" if met else "no", "note": note,
    }  # fmt: skip


# ------------------------------------------------------------------------ blood cells


def _blood(settings: BenchSettings, folder: Any, rows: list[Row], notes: list[str]) -> None:
    times, clouds = blood_cells(folder)
    most = 1500 if settings.quick else None
    for n_states in (30, 50, 100):
        first = n_states == 30
        started = time.perf_counter()
        table = leave_one_time_out(
            times, clouds, n_states=n_states, seed=settings.seed, most=most,
            methods=("auto", *METHODS[1:]) if first else ("auto",),
            baselines=tuple(BASELINES) if first else (),
        )  # fmt: skip
        seconds = time.perf_counter() - started
        for record in table.to_dict("records"):
            w1 = float(record.get("w1", np.nan))
            aim = 0.17 if record["method"] == "auto" else None
            what = f"W1 of day 4, {record['method']}"
            if record["kind"] == "model":
                what += f", {n_states} states"
            note = f"Hellinger {record['hellinger']:.3f}, mean off by {record['mean_error']:.3f}"
            if record["method"] == "auto":
                note += f"; {record['chosen']}: {record['why']}"
                took = float(record["seconds"])
                rows.append(_row("hematopoiesis", what, w1, aim, note=note))
                what = f"seconds of that run, {n_states} states"
                rows.append(_row("hematopoiesis", what, took, 20.0))
                continue
            rows.append(_row("hematopoiesis", what, w1, aim, note=note))
        if not first:
            notes.append(
                f"hematopoiesis, {n_states} states: {seconds:.0f} s with the distance itself."
            )


# ------------------------------------------------------------------------ alanine dipeptide


def _alanine(settings: BenchSettings, folder: Any, rows: list[Row], notes: list[str]) -> None:
    data = AlanineDipeptide.read(folder)
    rng = np.random.default_rng(settings.seed)
    _known_kernel(data, rows, rng)
    _torus(data, rows, rng)


def _known_kernel(data: AlanineDipeptide, rows: list[Row], rng: np.random.Generator) -> None:
    """The kernel holds the dynamics: the answer is a flat potential and one step in 10 ps."""
    name = "alanine, 10 ps kernel"
    train, test = range(5), range(5, 10)
    kernel = data.transition_kernel(10, train)
    groups = data.snapshots(KNOWN_LAGS, train)
    effect = design_effect(groups)
    counts = groups.sum(axis=0)
    model = FreeEnergyRegressor().fit(kernel, Snapshots.from_counts(KNOWN_LAGS, counts / effect))
    draws = grouped_bootstrap(model.fitted_.source, groups, rng=rng)
    low, high = draws.interval(draws.betas, model.beta_)
    rows.append(
        _row(
            name, "beta * 10 ps", 10 * model.beta_, 1.0, 10 * low <= 1 <= 10 * high,
            f"95 % interval {10 * low:.3f} to {10 * high:.3f}, bootstrap over runs",
        )
    )  # fmt: skip
    # Five runs: Student's quantile with four degrees of freedom.
    z = np.abs(model.potential_) / draws.potential_stderr / float(student.ppf(0.975, 4))
    inside = float((z <= 1).mean())
    rows.append(
        _row(
            name, "share of states whose 95 % interval of V holds 0", inside, 0.95, inside >= 0.94,
            f"V / beta spread {np.std(model.potential_) / model.beta_:.3f}; bootstrap over runs; "
            f"design effect of frames {effect:.1f}",
        )
    )  # fmt: skip
    path = model.predict(None, KNOWN_LAGS).probabilities[1:]
    seen, held = _shares(counts)[1:], _shares(data.snapshots(KNOWN_LAGS, test).sum(axis=0))[1:]
    ours, noise = hellinger(path, held), hellinger(seen, held)
    ratio = float(np.mean(ours) / np.mean(noise))
    rows.append(
        _row(
            name, "Hellinger to runs 5-9 / train-test noise", ratio, 1.1,
            note=f"{np.mean(ours):.4f} against {np.mean(noise):.4f}, mean of lags 10 to 500 ps",
        )
    )  # fmt: skip


def _torus(data: AlanineDipeptide, rows: list[Row], rng: np.random.Generator) -> None:
    """The kernel knows nothing: equilibrium and slowest time must come from the snapshots."""
    name = "alanine, uniform torus"
    kernel = data.torus_kernel()
    groups = data.snapshots(TORUS_LAGS, range(10))
    counts = groups.sum(axis=0) / design_effect(groups)
    model = FreeEnergyRegressor().fit(kernel, Snapshots.from_counts(TORUS_LAGS, counts))
    gap = hellinger(model.energy_.equilibrium(kernel), data.histogram())
    rows.append(_row(name, "Hellinger of the equilibrium to the long run", float(gap), 0.04))
    draws = grouped_bootstrap(model.fitted_.source, groups, n_draws=400, rng=rng)
    slowest = float(relaxation_times(kernel, model.energy_)[0])
    spread = [float(relaxation_times(kernel, energy)[0]) for energy in draws.energies()]
    low, high = draws.interval(spread, slowest)
    known = 0.5 * sum(SLOWEST)
    near = 0.85 * SLOWEST[0] <= slowest <= 1.15 * SLOWEST[1]
    rows.append(
        _row(
            name, "slowest relaxation time, ps", slowest, known, near and low <= known <= high,
            f"known {SLOWEST[0]:g} to {SLOWEST[1]:g}; 95 % interval {low:.0f} to {high:.0f}, "
            "bootstrap over runs",
        )
    )  # fmt: skip


def _shares(counts: Array) -> Array:
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


# ------------------------------------------------------------------------ US states


def _states(settings: BenchSettings, folder: Any, rows: list[Row], notes: list[str]) -> None:
    """Births and immigration are not transport; persistence and log-linear trends do well."""
    name = "US states, 2010 to 2025"
    data = UsStates.read(folder)
    people, last = data.at(TRAINING_YEARS), data.at([2025])[0]
    p, truth = _shares(people), last / last.sum()
    kernel = data.kernel
    seen = Snapshots.from_counts(TRAINING_YEARS, people / 1e4, names=data.names)
    model = FreeEnergyRegressor().fit(kernel, seen)
    flow = model.predict(p[-1], [2010, 2025]).probabilities[-1]
    still = float(hellinger(p[-1], truth))
    rows.append(_row(name, "Hellinger, flow", float(hellinger(flow, truth)), still))
    rows.append(_row(name, "Hellinger, persistence", still))
    line = p[-1] * (p[-1] / p[-2]) ** 1.5
    rows.append(_row(name, "Hellinger, log-linear", float(hellinger(line / line.sum(), truth))))
    weak = FreeEnergyRegressor(method="weak").fit(kernel, seen)
    guess = weak.predict(p[-1], [2010, 2025]).probabilities[-1]
    rows.append(_row(name, "Hellinger, weak form", float(hellinger(guess, truth))))
    growing = FreeEnergyRegressor(growth=Growth(totals=people.sum(axis=1) / 1e4)).fit(kernel, seen)
    both = growing.predict(p[-1], [2010, 2025]).probabilities[-1]
    rows.append(_row(name, "Hellinger, flow, births and deaths", float(hellinger(both, truth))))
    notes.append(f"US states: {growing.growth_}")
