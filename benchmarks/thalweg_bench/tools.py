"""Other tools on the questions that they share with us: one population, known answers.

Individuals descend a double well in the plane under noise. Snapshots of fresh individuals at four
times are what thalweg, moscot and CellRank see; deeptime sees as many individuals followed through
all of them. Asked: a snapshot that was left out, the fate of each individual of the first snapshot,
and the population at a later time. Tools that are not installed are left out, and named.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from thalweg._types import Array
from thalweg.learn import FreeEnergyRegressor
from thalweg.points import PointInterpolator
from thalweg.points.baselines import even
from thalweg.points.coupling import wasserstein1
from thalweg.snapshots import Snapshots, WeightedPoints, hellinger
from thalweg_bench import BenchResult, BenchSettings

__all__ = ["Population", "run"]


_TIMES = np.array([0.0, 0.4, 0.8, 1.2])
_LATER = 2.0
"""The time of the forecast."""
_BETA, _HEIGHT, _CORE = 0.15, 0.5, 0.25
"""Noise, height of the barrier, and half-width of the cores around the two minima."""
_STATES = 40
"""States for thalweg and deeptime."""
_STEP = 0.002
"""Step of Euler's method for the truth."""
_OTHERS = ("moscot", "cellrank", "deeptime")


@dataclass(frozen=True, eq=False)
class Population:
    """Individuals in `V(x, y) = h (x^2 - 1)^2 + y^2 / 2` under noise `beta`."""

    size: int
    rng: np.random.Generator

    def start(self) -> Array:
        return np.asarray(self.rng.normal([-0.1, 0.0], [0.25, 0.3], size=(self.size, 2)))

    def moved(self, points: Array, duration: float) -> Array:
        """The points after a given time, by Euler's method in small steps."""
        steps = max(1, round(duration / _STEP)) if duration > 0 else 0
        for _ in range(steps):
            slope = np.column_stack(
                [4 * _HEIGHT * points[:, 0] * (points[:, 0] ** 2 - 1), points[:, 1]]
            )
            noise = self.rng.normal(size=points.shape) * np.sqrt(2 * _BETA * duration / steps)
            points = points - slope * duration / steps + noise
        return points

    def fresh(self, when: float) -> Array:
        return self.moved(self.start(), when)

    def followed(self) -> list[Array]:
        """The same individuals at all times."""
        clouds = [self.start()]
        for duration in np.diff(_TIMES):
            clouds.append(self.moved(clouds[-1], float(duration)))
        return clouds


def right_fate(x: Array) -> Array:
    """The probability to reach the right core before the left: the potential is separable."""
    grid = np.linspace(-1 + _CORE, 1 - _CORE, 4001)
    scale = np.exp(_HEIGHT * (grid**2 - 1) ** 2 / _BETA)
    total = np.concatenate([[0.0], np.cumsum(0.5 * (scale[1:] + scale[:-1]))])
    return np.interp(x, grid, total / total[-1])


@dataclass(frozen=True, eq=False)
class _Task:
    clouds: list[Array]
    followed: list[Array]
    held: Array
    """Another cloud at the second time."""
    later: Array
    seed: int

    @property
    def undecided(self) -> NDArray[np.bool_]:
        return abs(abs(self.clouds[0][:, 0]) - 1) > _CORE

    def fate_error(self, fates: Array) -> float:
        """Root mean square over the first snapshot's individuals outside the cores."""
        away = fates - right_fate(self.clouds[0][:, 0])
        return float(np.sqrt(np.mean(away[self.undecided] ** 2)))

    def gap(self, guess: Any) -> float:
        cloud = guess if isinstance(guess, WeightedPoints) else even(guess)
        return float(wasserstein1(cloud, even(self.held)))


Answers = dict[str, float]


def _thalweg(task: _Task) -> Answers:
    kept = [0, 2, 3]
    model = PointInterpolator(seed=task.seed).fit(_TIMES[kept], [task.clouds[k] for k in kept])
    out = {"left out: W1": task.gap(model.interpolate(float(_TIMES[1])).points)}
    began = time.process_time()
    seen = Snapshots.from_points(_TIMES, task.clouds, n_states=_STATES)
    fit = FreeEnergyRegressor().fit(seen.kernel, seen)
    centres = np.asarray(seen.kernel.coordinates)
    cores = {
        name: np.flatnonzero(abs(centres[:, 0] - side) < _CORE)
        for name, side in (("left", -1), ("right", 1))
    }
    fates = fit.fate_probabilities(cores).probabilities.value[:, 1]
    out["fates: rms error"] = task.fate_error(fates[seen.labels[0]])
    forecast = fit.predict(None, [_TIMES[0], _LATER]).probabilities[-1]
    out["later: Hellinger"] = _on_states(centres, task.later, forecast)
    out["seconds"] = time.process_time() - began
    return out


def _on_states(centres: Array, cloud: Array, p: Array) -> float:
    nearest = ((cloud[:, None, :] - centres) ** 2).sum(axis=-1).argmin(axis=1)
    truth = np.bincount(nearest, minlength=len(centres)) / len(cloud)
    return float(hellinger(truth, p / p.sum()))


def _couplings(task: _Task, kept: list[int]) -> Any:
    """moscot's temporal problem on some of the snapshots, with its defaults."""
    anndata, moscot = import_module("anndata"), import_module("moscot.problems.time")
    cells = np.concatenate([task.clouds[k] for k in kept])
    table = anndata.AnnData(X=cells.astype(np.float32))
    days = np.repeat(_TIMES[kept], [len(task.clouds[k]) for k in kept])
    table.obs["day"] = pd.Categorical(days)
    table.obsm["X_plane"] = cells
    problem = moscot.TemporalProblem(table).prepare(time_key="day", joint_attr="X_plane")
    return problem.solve(epsilon=1e-2)


def _moscot(task: _Task) -> Answers:
    began = time.process_time()
    problem = _couplings(task, [0, 2])
    plan = np.asarray(problem[_TIMES[0], _TIMES[2]].solution.transport_matrix, dtype=np.float64)
    rng = np.random.default_rng(task.seed)
    pairs = rng.choice(plan.size, size=2000, p=(plan / plan.sum()).ravel())
    i, j = np.unravel_index(pairs, plan.shape)
    share = (_TIMES[1] - _TIMES[0]) / (_TIMES[2] - _TIMES[0])
    cloud = (1 - share) * task.clouds[0][i] + share * task.clouds[2][j]
    return {"left out: W1": task.gap(cloud), "seconds": time.process_time() - began}


def _cellrank(task: _Task) -> Answers:
    cellrank = import_module("cellrank")
    began = time.process_time()
    problem = _couplings(task, [0, 1, 2, 3])
    table = problem.adata
    import_module("scanpy").pp.neighbors(table, use_rep="X_plane")
    kernel = cellrank.kernels.RealTimeKernel.from_moscot(problem)
    kernel.compute_transition_matrix(self_transitions="all", conn_weight=0.2, threshold="auto")
    walk = cellrank.estimators.GPCCA(kernel)
    last = table.obs["day"].astype(float).to_numpy() == _TIMES[-1]
    x = table.obsm["X_plane"][:, 0]
    sides = (("left", -1), ("right", 1))
    ends = {name: list(table.obs_names[last & (abs(x - at) < _CORE)]) for name, at in sides}
    walk.set_terminal_states(ends)
    walk.compute_fate_probabilities(solver="direct", use_petsc=False)
    fates = np.asarray(walk.fate_probabilities[:, "right"]).ravel()[: len(task.clouds[0])]
    return {"fates: rms error": task.fate_error(fates), "seconds": time.process_time() - began}


def _deeptime(task: _Task) -> Answers:
    began = time.process_time()
    seen = Snapshots.from_points(_TIMES, task.followed, n_states=_STATES)
    centres = np.asarray(seen.kernel.coordinates)
    msm = import_module("deeptime.markov.msm")
    trajectories = [np.asarray(path) for path in np.stack(seen.labels, axis=1)]
    lag = import_module("deeptime.markov").TransitionCountEstimator(1, "sliding")
    counts = lag.fit(trajectories).fetch_model().submodel_largest()
    chain = msm.MaximumLikelihoodMSM().fit(counts).fetch_model()
    where = np.asarray(counts.state_symbols)
    a, b = (np.flatnonzero(abs(centres[where, 0] - at) < _CORE) for at in (-1, 1))
    fates = np.full(_STATES, np.nan)
    fates[where] = chain.committor_forward(a, b)
    nearest = ((task.clouds[0][:, None, :] - centres) ** 2).sum(axis=-1).argmin(axis=1)
    out = {"fates: rms error": task.fate_error(np.nan_to_num(fates, nan=0.5)[nearest])}
    p = np.bincount(seen.labels[0], minlength=_STATES)[where].astype(np.float64)
    p = p / p.sum() @ np.linalg.matrix_power(chain.transition_matrix, round(_LATER / 0.4))
    whole = np.zeros(_STATES)
    whole[where] = p
    out["later: Hellinger"] = _on_states(centres, task.later, whole)
    out["seconds"] = time.process_time() - began
    return out


_TOOLS: dict[str, tuple[tuple[str, ...], Callable[[_Task], Answers]]] = {
    "thalweg": ((), _thalweg),
    "moscot": (("moscot",), _moscot),
    "CellRank, moscot's couplings": (("moscot", "cellrank"), _cellrank),
    "deeptime, individuals followed": (("deeptime",), _deeptime),
}


def run(settings: BenchSettings) -> BenchResult:
    """Means and standard errors over populations of 400 individuals per snapshot."""
    count = settings.instances or (2 if settings.quick else 8)
    missing = [name for name in _OTHERS if find_spec(name) is None]
    rows = []
    for k in range(count):
        task = _task(settings.seed + k)
        for name, (needs, answer) in _TOOLS.items():
            if not set(needs) & set(missing):
                rows.append({"tool": name, "population": k, **answer(task)})
        settings.progress("populations", k + 1, count)
    long = pd.DataFrame(rows)
    mean = long.drop(columns="population").groupby("tool", sort=False)
    table = mean.mean().round(4).join((mean.std() / np.sqrt(count)).round(4).add_suffix(" ±"))
    # The first population compiles.
    table["seconds"] = mean["seconds"].median()
    table = table.drop(columns="seconds ±")
    notes = [f"{name} is not installed; left out." for name in missing]
    used = [f"{name} {version(name)}" for name in _OTHERS if name not in missing]
    notes.append(f"with {', '.join(used) or 'no other tool'}; {count} populations.")
    notes.append(
        "deeptime's individuals are followed; moscot's cloud is the displacement along its "
        "couplings; none of these answers is what CellRank or moscot are mainly made for."
    )
    return BenchResult(table.reset_index(), {}, tuple(notes))


def _task(seed: int) -> _Task:
    people = Population(400, np.random.default_rng(seed))
    many = Population(4000, np.random.default_rng(seed + 10**6))
    clouds = [people.fresh(float(when)) for when in _TIMES]
    return _Task(
        clouds,
        people.followed(),
        people.fresh(float(_TIMES[1])),
        many.fresh(_LATER),
        seed,
    )
