"""Points that descend known potentials: forecasts against the truth, gradients, and warnings.

Finished data sets are kept in the folder's journals, so that an interrupted run resumes where it
stopped. The parts: forecasts of every potential; the level of the warning on true gradient flows
and its appearance if the model is false; blood cells; and a hundred thousand cells, which
`thalweg bench cells` runs alone.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd

from thalweg._types import Array
from thalweg.points import PointLandscape, leave_one_time_out
from thalweg.points.baselines import even
from thalweg.points.coupling import wasserstein1
from thalweg.points.landscape.features import Basis, Gaussians, Polynomials
from thalweg.points.landscape.field import Field
from thalweg.points.landscape.tracked import Normal, Tracks
from thalweg.points.methods import Methods
from thalweg.snapshots import WeightedPoints
from thalweg_bench import BenchResult, BenchSettings, points_scale
from thalweg_bench.potentials import POTENTIALS, Particles, gradient
from thalweg_bench.realdata_sets import blood_cells, data_folder
from thalweg_bench.sweep import Cell, swept

__all__ = ["one_forecast", "one_warning", "run"]

Row = dict[str, Any]

_QUICK = ("styblinski_tang", "oakley_ohagan")
_MOST = 4000
"""Most points per cloud in a distance W1."""
_AIMS = {"tracked": 1.02, "fresh": 1.12}
"""Largest median ratio of our W1 to that of the oracle."""
_LEVELS = 102  # true gradient flows that should not be warned about
_SMOOTH = ("styblinski_tang", "oakley_ohagan", "double_exp", "friedman", "sphere", "ishigami")
_FALSE = 6  # data sets of each kind that should be warned about


def run(settings: BenchSettings) -> BenchResult:
    """Every potential tracked and fresh, with and without noise; then what must be warned about."""
    names = _QUICK if settings.quick else tuple(POTENTIALS)
    cases = [(name, 2) for name in names] + [("styblinski_tang", 5)] * (not settings.quick)
    cells = [
        {"potential": name, "d": d, "beta": beta, "particles": mode}
        for name, d in cases for beta in (0.0, 0.1) for mode in _AIMS
    ]  # fmt: skip
    table = swept(settings, "points", one_forecast, cells).table
    notes = [_verdict(table, mode) for mode in _AIMS]
    notes.append(
        "JKOnet* is research code without a package to install: 'couplings' is its linear variant, "
        "the first-order condition on optimal couplings, written here."
    )
    notes += [*_warnings(settings), *_blood(settings)]
    return BenchResult(table, {}, (*notes, *points_scale.run(settings).notes))


def one_forecast(cell: Cell, rng: np.random.Generator) -> Row:
    """A sixth snapshot forecast from five: distances to an independent one."""
    particles = Particles(POTENTIALS[cell["potential"]], cell["d"], cell["beta"])
    times, clouds = particles.snapshots(tracked=cell["particles"] == "tracked", rng=rng)
    truth = even(particles.snapshots(tracked=False, rng=rng)[1][-1])
    floor = even(particles.snapshots(tracked=False, rng=rng)[1][-1])
    last, held = clouds[-2], clouds[-1]
    oracle = _w1(even(particles.step(last, rng)), truth)
    began = time.process_time()
    inner = Methods(times[:-1], tuple(clouds[:-1]), n_states=10)
    guess = inner.guess("landscape", float(times[-1])).points
    cpu = time.process_time() - began
    model = inner.landscape
    slope = gradient(particles.potential, held)
    error = model.gradient(held) - slope
    other = _coupled(times[:-1], tuple(clouds[:-1]))
    rival = last - particles.tau * other.gradient(last, 0.0)
    size = float(np.sqrt((slope**2).sum()))
    ours = _w1(guess, truth)
    return {
        "ours": ours, "oracle": oracle, "ratio": ours / oracle, "none": _w1(even(last), truth),
        "floor": _w1(floor, truth), "couplings": _w1(even(rival), truth),
        "gradient_error": float(np.sqrt((error**2).sum())) / size,
        "couplings_error": float(np.sqrt(((other.gradient(held, 0.0) - slope) ** 2).sum())) / size,
        "covered": float((np.abs(error) < 1.96 * model.gradient_stderr(held)).mean()),
        "beta_fit": model.beta_, "beta_stderr": model.beta_stderr_, "seen_as": "tracked" if
        model.tracked_ else "fresh", "p": inner.fixed.goodness_.p_value, "fit": model.status_.name,
        "cpu": cpu,
    }  # fmt: skip


def _coupled(times: Array, clouds: tuple[Array, ...]) -> Field:
    """Regression on optimal couplings, with polynomials to degree 4 and 100 Gaussians.

    It is the first-order condition that JKOnet* solves in its linear form, valid for tracked
    individuals only.
    """
    pool = np.concatenate(clouds)
    bumps = Gaussians.over(pool, 100, 1.5, np.random.default_rng(0))
    basis = Basis((Polynomials.over(pool, 4 if pool.shape[1] <= 3 else 2), bumps))
    tracks = Tracks.of(times, clouds)
    fit = Normal(tracks, basis, np.ones(basis.size), 0).solve(tracks.velocities)
    return Field(basis, fit.weights[None], times)


def _w1(guess: WeightedPoints, truth: WeightedPoints) -> float:
    return wasserstein1(guess, truth, most=_MOST, rng=np.random.default_rng(0))


def _verdict(table: pd.DataFrame, mode: str) -> str:
    part = table[table["particles"] == mode]
    moves = part[part["none"] > 1.05 * part["floor"]]
    worse = moves[moves["ours"] >= moves["none"]]
    names = ", ".join(
        f"{row.potential} (beta {row.beta:g}: {row.ours / row.none:.3f} of it, the true gradient "
        f"{row.oracle / row.none:.3f})"
        for row in worse.itertuples()
    )
    noisy = part[(part["beta"] > 0) & np.isfinite(part["beta_stderr"])]  # else undetermined
    near = ((noisy["beta_fit"] - noisy["beta"]).abs() < 1.96 * noisy["beta_stderr"]).sum()
    return (
        f"{mode}: median W1 / oracle {part['ratio'].median():.3f} (aim {_AIMS[mode]}; regression "
        f"on couplings, as JKOnet* does, {(part['couplings'] / part['oracle']).median():.3f}), "
        f"below no movement on {len(moves) - len(worse)} of {len(moves)} that move"
        f"{f' (not on {names})' if names else ''}, median error of the gradient "
        f"{part['gradient_error'].median():.3f} (couplings {part['couplings_error'].median():.3f}),"
        f" gradient covered {part['covered'].mean():.2f}, beta covered {near} of {len(noisy)} that "
        "are determined, "
        f"most CPU {part['cpu'].max():.0f} s (aim 20); true flows rejected: "
        f"{int((part['p'] < 0.01).sum())} of {len(part)}."
    )


def one_warning(cell: Cell, rng: np.random.Generator) -> Row:
    """Whether a landscape with automatic settings warns about a population of one kind."""
    times = np.linspace(0, 2, 6)
    clouds: list[Array] = []
    if cell["kind"] == "gradient flow":
        name = _SMOOTH[cell["index"] % len(_SMOOTH)]
        well = Particles(POTENTIALS[name], 2, 0.1 * (cell["index"] // len(_SMOOTH) % 2), n=600)
        times, clouds = well.snapshots(tracked=False, rng=rng)
    elif cell["kind"] == "rotating flow":
        for t in times:
            turn = np.array([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]])
            clouds.append(rng.normal(size=(1000, 2)) * [2.0, 0.6] @ turn.T)
    else:
        for t in times:
            far = rng.random(1000) < 0.1 + 0.3 * t
            clouds.append(rng.normal(size=(1000, 2)) * 0.5 + np.where(far, 4.0, 0.0)[:, None])
    model = PointLandscape().fit(times, clouds)
    fit = model.goodness_  # that beta is undetermined may be true, and is no rejection
    return {"warned": fit.rejected, "p": fit.p_value, "why": model.warning_}


def _warnings(settings: BenchSettings) -> list[str]:
    counts = {
        "rotating flow": 1 if settings.quick else _FALSE,
        "growth far away": 1 if settings.quick else _FALSE,
        "gradient flow": 3 if settings.quick else _LEVELS,
    }
    cells = [{"kind": kind, "index": k} for kind, n in counts.items() for k in range(n)]
    table = swept(settings, "points-warnings", one_warning, cells).table
    said = []
    for kind, part in table.groupby("kind", sort=False):
        aim = "at most 5 %" if kind == "gradient flow" else "all"
        said.append(f"{kind}: {int(part['warned'].sum())} of {len(part)} warned about ({aim}).")
    return said


def _blood(settings: BenchSettings) -> list[str]:
    folder = data_folder("hematopoiesis")
    if folder is None:
        return ["hematopoiesis: no such folder in $THALWEG_DATA or ../shared/data; left out."]
    times, clouds = blood_cells(folder)
    most = 1500 if settings.quick else None
    table = leave_one_time_out(
        times, clouds, methods=("auto",), baselines=(), most=most, seed=settings.seed
    )
    row = table.iloc[0]
    return [f"hematopoiesis, automatic settings: W1 {row['w1']:.3f} (aim 0.125); {row['why']}."]
