"""Draws from a fitted regressor, and its bootstrap: draw, fit again, many times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import ArrayLike
from sklearn.base import clone

from thalweg import _checks
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.flow import simulate
from thalweg.kernel import MarkovKernel
from thalweg.learn.answer import check_match, fit_snapshots
from thalweg.learn.forecast import from_start
from thalweg.learn.observation import Multinomial
from thalweg.snapshots import Snapshots
from thalweg.status import Status

if TYPE_CHECKING:
    from thalweg.learn.regressor import FreeEnergyRegressor


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Refits of data drawn from the fit."""

    potentials: Array
    """Centred potentials, one row per refit."""
    betas: Array
    statuses: tuple[Status, ...]

    @property
    def potential_stderr(self) -> Array:
        return np.asarray(self.potentials.std(axis=0, ddof=1))

    @property
    def beta_stderr(self) -> float:
        return float(self.betas.std(ddof=1))


def sample(
    model: FreeEnergyRegressor,
    times: ArrayLike,
    n_samples: int,
    *,
    p0: ArrayLike | None,
    rng: np.random.Generator | None,
) -> Snapshots:
    """The result of `FreeEnergyRegressor.sample`."""
    draw = np.random.default_rng(model.seed) if rng is None else _checks.generator(rng)
    n_samples = _checks.whole(n_samples, "n_samples", 1)
    when = model._when(times)
    if model.observation == "tracked":
        if model.time_basis is not None:
            raise InputError(
                "a tracked population is simulated in a fixed potential only; use "
                "observation='independent' for one that varies in time."
            )
        grid, early = from_start(when, model.times_[0], p0)
        seen = simulate(
            model.kernel_, model.energy_, model.initial_ if p0 is None else p0, grid, n_samples,
            method="frozen" if model.discretization == "frozen" else "tau-leap",
            rates=model.environment, mobility=model._mobility, rng=draw,
        )  # fmt: skip
        seen = seen.drop(0) if early else seen
    else:
        path = model.predict(p0, when)
        p = path.probabilities / path.probabilities.sum(axis=1, keepdims=True)
        counts = model.fitted_.noise.draw(n_samples * p, p, draw)
        seen = Snapshots.from_counts(path.times, counts, names=model.kernel_.names)
    return replace(seen, scale=model.time_scale_)


def bootstrap(
    model: FreeEnergyRegressor,
    snapshots: Snapshots,
    n_refits: int,
    *,
    rng: np.random.Generator | None,
    jobs: int | None,
) -> Bootstrap:
    """The result of `FreeEnergyRegressor.bootstrap`."""
    kernel, noise = model.kernel_, model.fitted_.noise
    check_match(kernel, snapshots)
    snapshots = snapshots.on(model.time_scale_)
    path = model.predict(None, snapshots.times).probabilities
    n_refits = _checks.whole(n_refits, "n_refits", 2)
    draws = np.random.default_rng(model.seed) if rng is None else _checks.generator(rng)
    generators = draws.spawn(n_refits)
    sizes = np.maximum(snapshots.sizes.round(), 1).astype(np.int64)
    path = path / path.sum(axis=1, keepdims=True)

    def drawn(draw: np.random.Generator) -> Snapshots:
        if model.observation == "tracked":
            return model.sample(snapshots.times, int(sizes[0]), rng=draw)
        counts = noise.draw(sizes[:, None] * path, path, draw)
        return Snapshots.from_counts(snapshots.times, counts, names=kernel.names)

    again = clone(model)
    if not isinstance(noise, Multinomial):
        again.observation = noise.settled()
    results = Parallel(n_jobs=jobs)(
        delayed(_refit)(again, kernel, drawn(generator)) for generator in generators
    )
    return Bootstrap(
        np.array([r[0] for r in results]),
        np.array([r[1] for r in results]),
        tuple(r[2] for r in results),
    )


def _refit(
    model: FreeEnergyRegressor, kernel: MarkovKernel, snapshots: Snapshots
) -> tuple[Array, float, Status]:
    found = fit_snapshots(kernel, snapshots, replace(model._settings(), refit=True))
    return found.energy.potential, found.energy.beta, found.status
