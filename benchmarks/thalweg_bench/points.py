"""Points that descend known potentials: forecasts against the truth, gradients, and warnings."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from thalweg.points import PointLandscape, leave_one_time_out
from thalweg.points.baselines import even
from thalweg.points.coupling import wasserstein1
from thalweg.points.landscape.tracked import coupled_gradient
from thalweg.points.methods import Methods
from thalweg.snapshots import WeightedPoints
from thalweg_bench import BenchResult, BenchSettings
from thalweg_bench.potentials import POTENTIALS, Particles, gradient
from thalweg_bench.realdata_sets import blood_cells, data_folder

__all__ = ["run"]

Array = NDArray[np.float64]
Row = dict[str, Any]

_QUICK = ("styblinski_tang", "oakley_ohagan")
_MOST = 4000
_AIMS = {"tracked": 1.02, "fresh": 1.12}
_WARNED = 20  # true gradient flows that should not be warned about


def run(settings: BenchSettings) -> BenchResult:
    """Every potential tracked and fresh, with and without noise; then what must be warned about."""
    names = _QUICK if settings.quick else tuple(POTENTIALS)
    cases = [(name, 2, beta) for name in names for beta in (0.0, 0.1)]
    if not settings.quick:
        cases += [("styblinski_tang", 5, 0.0), ("styblinski_tang", 5, 0.1)]
    rows: list[Row] = []
    for done, (name, dimension, beta) in enumerate(cases):
        for mode in ("tracked", "fresh"):
            settings.progress(f"{name}, {mode}", done, len(cases))
            particles = Particles(POTENTIALS[name], dimension, beta)
            rng = np.random.default_rng([settings.seed, done, mode == "fresh"])
            rows.append({"potential": name, "d": dimension, "beta": beta, "particles": mode}
                        | _forecast(particles, mode == "tracked", rng))  # fmt: skip
    table = pd.DataFrame(rows)
    notes = [_verdict(table, mode) for mode in _AIMS]
    notes += _warnings(settings)
    notes += _blood(settings)
    return BenchResult(table, {}, tuple(notes))


def _forecast(particles: Particles, tracked: bool, rng: np.random.Generator) -> Row:
    times, clouds = particles.snapshots(tracked=tracked, rng=rng)
    truth = even(particles.snapshots(tracked=False, rng=rng)[1][-1])
    floor = even(particles.snapshots(tracked=False, rng=rng)[1][-1])
    began = time.process_time()
    inner = Methods(times[:-1], tuple(clouds[:-1]), n_states=10)
    guess = inner.guess("landscape", float(times[-1])).points
    cpu = time.process_time() - began
    model, last = inner.landscape, clouds[-2]
    slope = gradient(particles.potential, last)
    error = model.gradient(last) - slope
    other = coupled_gradient(times[:-1], tuple(clouds[:-1]))
    rival = last - particles.tau * other(last)
    size = float(np.sqrt((slope**2).sum()))
    oracle = _w1(even(particles.step(last, rng)), truth)
    ours = _w1(guess, truth)
    return {
        "ours": ours, "oracle": oracle, "ratio": ours / oracle, "none": _w1(even(last), truth),
        "floor": _w1(floor, truth), "couplings": _w1(even(rival), truth),
        "gradient_error": float(np.sqrt((error**2).sum())) / size,
        "couplings_error": float(np.sqrt(((other(last) - slope) ** 2).sum())) / size,
        "covered": float((np.abs(error) < 1.96 * model.gradient_stderr(last)).mean()),
        "beta_fit": model.beta_, "beta_stderr": model.beta_stderr_, "seen_as": "tracked" if
        model.tracked_ else "fresh", "p": model.goodness_.p_value, "cpu": cpu,
    }  # fmt: skip


def _w1(guess: WeightedPoints, truth: WeightedPoints) -> float:
    return wasserstein1(guess, truth, most=_MOST, rng=np.random.default_rng(0))


def _verdict(table: pd.DataFrame, mode: str) -> str:
    part = table[table["particles"] == mode]
    moves = part[part["none"] > 1.05 * part["floor"]]
    beaten = int((moves["ours"] < moves["none"]).sum())
    return (
        f"{mode}: median W1 / oracle {part['ratio'].median():.3f} (aim {_AIMS[mode]}), below no "
        f"movement on {beaten} of {len(moves)} that move, median error of the gradient "
        f"{part['gradient_error'].median():.3f} (regression on couplings, as JKOnet* does, "
        f"{part['couplings_error'].median():.3f}), most CPU {part['cpu'].max():.0f} s (aim 20); "
        f"true flows rejected: {int((part['p'] < 0.01).sum())} of {len(part)}."
    )


def _warnings(settings: BenchSettings) -> list[str]:
    rng = np.random.default_rng([settings.seed, 100])
    times = np.linspace(0, 2, 6)
    turned, grown = [], []
    for t in times:
        turn = np.array([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]])
        turned.append(rng.normal(size=(1000, 2)) * [2.0, 0.6] @ turn.T)
        far = rng.random(1000) < 0.1 + 0.3 * t
        grown.append(rng.normal(size=(1000, 2)) * 0.5 + np.where(far, 4.0, 0.0)[:, None])
    said = []
    for what, clouds in (("rotating flow", turned), ("growth far away", grown)):
        warning = PointLandscape().fit(times, clouds).warning_
        said.append(f"{what}: {warning or 'NO WARNING'}.")
    count = 3 if settings.quick else _WARNED
    warned = 0
    for k in range(count):
        settings.progress("true flows", k, count)
        rng = np.random.default_rng([settings.seed, 200, k])
        well = Particles(POTENTIALS["oakley_ohagan"], 2, 0.1 * (k % 2), n=600)
        when, clouds = well.snapshots(tracked=False, rng=rng)
        warned += bool(PointLandscape(n_centers=0).fit(when, clouds).warning_)
    return [*said, f"true gradient flows: {warned} of {count} warned about (aim 5 %)."]


def _blood(settings: BenchSettings) -> list[str]:
    folder = data_folder("hematopoiesis")
    if folder is None:
        return ["hematopoiesis: no such folder in $THALWEG_DATA or ../shared/data; left out."]
    times, clouds = blood_cells(folder)
    most = 1500 if settings.quick else None
    table = leave_one_time_out(
        times, clouds, methods=("auto",), baselines=(), most=most, seed=settings.seed
    )
    return [f"hematopoiesis, automatic settings: W1 {table['w1'].iloc[0]:.3f} (aim 0.125)."]
