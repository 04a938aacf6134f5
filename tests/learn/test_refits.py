"""Errors by refitting, for any method of the regressor."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from sklearn.base import clone

from thalweg.energy import FreeEnergy, centred
from thalweg.errors import InputError
from thalweg.flow import gradient_flow, simulate
from thalweg.graphs import make_graph
from thalweg.learn import FreeEnergyRegressor
from thalweg.snapshots import Dirichlet, Snapshots


@pytest.mark.parametrize("method", ["weak", "likelihood"])
def test_bootstrap_errors_are_those_of_repeated_experiments(
    method: Literal["weak", "likelihood"],
) -> None:
    rng = np.random.default_rng(5)
    kernel = make_graph("grid", 6, rng=rng)
    energy = FreeEnergy(centred(rng.uniform(-1, 1, kernel.n_states), kernel), 0.2)
    times = np.linspace(0, 2, 11)
    p = gradient_flow(kernel, energy, rng.dirichlet(np.ones(kernel.n_states)), times).probabilities
    p = p / p.sum(axis=1, keepdims=True)

    def experiment() -> Snapshots:
        return Snapshots.from_counts(times, [rng.multinomial(5000, row) for row in p])

    # With a smoother of one's own the closed form has no errors of its own to compute.
    model = FreeEnergyRegressor(method=method, smoother=Dirichlet())
    found = [clone(model).fit(kernel, experiment()) for _ in range(60)]
    spread = np.std([m.potential_ for m in found], axis=0)
    seen = experiment()
    draws = model.fit(kernel, seen).bootstrap(seen, 60, rng=rng)
    # Two standard deviations from 60 draws each differ by 13 % on average; averaged over states.
    assert np.mean(draws.potential_stderr / spread) == pytest.approx(1.0, abs=0.25)
    assert draws.beta_stderr == pytest.approx(np.std([m.beta_ for m in found]), rel=0.4)


def test_bootstrap_of_a_tracked_population_follows_it() -> None:
    rng = np.random.default_rng(6)
    kernel = make_graph("complete", 4, rng=rng)
    energy = FreeEnergy(centred(rng.uniform(-1, 1, 4), kernel), 0.3)
    seen = simulate(kernel, energy, np.array([0.4, 0.3, 0.2, 0.1]), [0.0, 0.5, 1.0], 400, rng=rng)
    model = FreeEnergyRegressor(method="weak", observation="tracked").fit(kernel, seen)
    draws = model.bootstrap(seen, 12, rng=rng)
    # The draws are those of the model: their mean is near it, and they differ.
    gap = np.abs(draws.potentials.mean(axis=0) - model.potential_)
    assert (gap < 4 * draws.potential_stderr + 0.1).all()
    assert (draws.potential_stderr > 1e-3).all()
    assert draws.potential_stderr.max() < 2.0
    with pytest.raises(InputError, match="n_refits is 1"):
        model.bootstrap(seen, 1)
    with pytest.raises(InputError, match="not fitted yet"):
        FreeEnergyRegressor().bootstrap(seen)
