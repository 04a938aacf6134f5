"""A hundred thousand cells in fifty dimensions: states, kernel, fit and interpolation.

Two coordinates follow a double well with noise, the others are noise of falling size, as principal
components are. Each stage is timed in processor seconds; memory is the peak of the whole process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import numpy as np
import pandas as pd

from thalweg._types import Array, Progress
from thalweg.learn import FreeEnergyRegressor
from thalweg.points import PointInterpolator, wasserstein1
from thalweg.points.baselines import even
from thalweg.snapshots import Snapshots
from thalweg_bench import BenchResult, BenchSettings

__all__ = ["cells", "run", "verdict"]

TIMES = np.array([0.0, 0.3, 0.6, 1.0, 1.5, 2.0])
ASKED = 0.8
"""The time of the interpolation."""
_CELLS, _QUICK_CELLS, _DIMENSION, _BETA = 100_000, 6000, 50, 0.15
_STEP = 0.02
"""Step of Euler's method for the truth."""
_STAGES = ("states and kernel", "fit on the graph", "interpolation")
_AIM_MINUTES, _AIM_GB = 10, 8
"""CPU minutes and memory to be met by the full run."""


def cells(count: int, times: Array, rng: np.random.Generator) -> list[Array]:
    """Fresh cells at each time, `V = (a^2 - 1)^2 + b^2 - a / 4` in the first two coordinates."""
    sizes = 0.5 / np.sqrt(1 + np.arange(_DIMENSION - 2))
    clouds = []
    for t in times:
        x = rng.normal([0.0, 1.5], 0.3, size=(count, 2))
        for _ in range(round(t / _STEP)):
            a, b = x[:, 0], x[:, 1]
            slope = np.stack([4 * a * (a**2 - 1) - 0.25, 2 * b], axis=1)
            x = x - _STEP * slope + np.sqrt(2 * _BETA * _STEP) * rng.standard_normal(x.shape)
        clouds.append(np.concatenate([x, rng.normal(size=(count, sizes.size)) * sizes], axis=1))
    return clouds


def _stages(clouds: list[Array], truth: Array, seed: int, progress: Progress) -> Iterator[str]:
    seen = Snapshots.from_points(TIMES, clouds, rng=np.random.default_rng(seed))
    yield f"{seen.n_states} states"
    fit = FreeEnergyRegressor().fit(seen.kernel, seen)
    yield f"beta {fit.energy_.beta:.3g}"
    guess = PointInterpolator(seed=seed, progress=progress).fit(TIMES, clouds).interpolate(ASKED)
    w1 = {
        name: wasserstein1(cloud, even(truth), most=1000, rng=np.random.default_rng(0))
        for name, cloud in {"W1": guess.points, **guess.baselines}.items()
    }
    yield f"{guess.method}; " + ", ".join(f"{name} {value:.3f}" for name, value in w1.items())


def run(settings: BenchSettings) -> BenchResult:
    """One row per stage."""
    count = _QUICK_CELLS if settings.quick else _CELLS
    rng = np.random.default_rng([settings.seed, 50])
    clouds = cells(count // TIMES.size, TIMES, rng)
    (truth,) = cells(1000, np.array([ASKED]), rng)
    rows = []
    began = time.process_time()
    for done, what in enumerate(_stages(clouds, truth, settings.seed, settings.progress)):
        now = time.process_time()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        rows.append({"stage": _STAGES[done], "cpu": now - began, "peak GB": peak, "found": what})
        settings.progress(f"cells: {_STAGES[done]}", done + 1, len(_STAGES))
        began = now
    table = pd.DataFrame(rows)
    return BenchResult(table, {}, (verdict(table, count),))


def verdict(table: pd.DataFrame, count: int) -> str:
    minutes = table["cpu"].sum() / 60
    stages = ", ".join(f"{row.stage} {row.cpu:.0f} s" for row in table.itertuples())
    return (
        f"{count} cells in {_DIMENSION} dimensions, {TIMES.size} times: "
        f"{minutes:.1f} CPU minutes (aim {_AIM_MINUTES}; {stages}), peak "
        f"{table['peak GB'].max():.1f} GB (aim "
        f"{_AIM_GB}); {table['found'].iloc[-1]}."
    )
