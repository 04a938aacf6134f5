"""The methods of a fitted model are the functions, and held-out snapshots are judged fairly."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from thalweg import (
    FreeEnergy,
    FreeEnergyRegressor,
    InputError,
    Snapshots,
    dynamics,
    gradient_flow,
    make_graph,
)
from thalweg.energy import PowerEnergy
from thalweg.learn.questions import Questions


def seen(kernel, energy, p0, times, n, rng):
    flow = gradient_flow(kernel, energy, p0, np.insert(times, 0, 0.0)).probabilities[1:]
    return Snapshots.from_counts(times, [rng.multinomial(n, p / p.sum()) for p in flow])


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    kernel = make_graph("delaunay", 7, rng=rng)
    energy = FreeEnergy(0.5 * rng.normal(size=7), 0.3)
    p0 = rng.dirichlet(np.full(7, 2.0))
    times = np.array([0.01, 0.5, 1.5, 3.0])
    model = FreeEnergyRegressor().fit(kernel, seen(kernel, energy, p0, times, 4000, rng))
    return model, energy, p0


def test_every_method_answers(problem):
    model, _, _ = problem
    land = model.landscape_
    p = model.population(1.0)
    assert np.allclose(model.transition_rates(1.0).sum(axis=1), 0, atol=1e-12)
    chain = model.transition_matrix(0.5, 2.0)
    assert np.allclose(model.population(0.5) @ chain, model.population(2.0), atol=1e-5)
    both = dynamics.committor(land, 0, 1).value
    assert np.allclose(model.committor(0, 1).value, both)
    fates = model.fate_probabilities()
    assert np.allclose(fates.probabilities.value.sum(axis=1), 1)
    assert np.isfinite(fates.probabilities.stderr).all()
    assert model.mean_first_passage_time(2).value[2] == 0
    assert model.passage_quantiles(2, 0.5).value.shape == (1, 7)
    assert model.relaxation_modes(3).times.stderr.min() > 0
    assert model.basins().bottom.size >= 1
    assert model.descendants(0, 0.5, 1.0).probabilities.value.sum() == pytest.approx(1)
    assert model.ancestors(0, 0.5, 1.0).probabilities.value.sum() == pytest.approx(1)
    assert model.fluxes(1.0).value.size == land.kernel.n_edges
    assert model.reactive_flux(0, 1).routes[0].states[0] == 0
    assert model.velocity(land.kernel.coordinates, 1.0).shape == (7, 2)
    assert model.perturb(potential={0: 1.0}).potential_[0] > model.potential_[0]
    assert model.compare(model).p_value > 0.9
    share = float(p[3]) + 0.2
    assert model.steer(horizon=1.0, raise_mass=(3, share)).cost.stderr > 0
    assert model.push_few((3, share), 1.0, most=1).reached >= share - 1e-6
    with pytest.raises(InputError, match="before the first snapshot"):
        model.population(-1.0)


def test_no_question_is_missing():
    functions = {
        name
        for name in dynamics.__all__
        if inspect.isfunction(getattr(dynamics, name, None))
        or hasattr(getattr(dynamics, name), "__wrapped__")
    }
    elsewhere = {
        "as_landscape",
        "coarse_fluxes",
        "compare_globally",
        "force",
        "transition_operator",
        "without",
    }
    assert functions - elsewhere <= set(dir(Questions))


def test_held_out_snapshots_of_the_same_and_of_another_landscape(problem):
    model, energy, p0 = problem
    rng = np.random.default_rng(5)
    times = np.array([1.0, 2.0])
    same = seen(model.kernel_, energy, p0, times, 3000, rng)
    assert model.held_out(same).p_value.min() > 0.01
    other = FreeEnergy(-energy.potential, energy.beta)
    wrong = seen(model.kernel_, other, p0, times, 3000, rng)
    found = model.held_out(wrong, n_draws=99)
    assert found.p_value.max() == pytest.approx(0.01)
    assert "disagree" in str(found)


def test_level_of_the_held_out_check(problem):
    """60 fresh snapshots of the true landscape: at most 9 below 5 % (binomial, 1e-3 beyond)."""
    model, energy, p0 = problem
    rng = np.random.default_rng(6)
    low = 0
    for k in range(60):
        fresh = seen(model.kernel_, energy, p0, np.array([1.0]), 500, rng)
        low += model.held_out(fresh, n_draws=39, seed=k).p_value[0] <= 0.05
    assert low <= 9


def test_held_out_snapshots_under_another_internal_energy():
    rng = np.random.default_rng(7)
    kernel = make_graph("complete", 4, rng=rng)
    right, wrong = (
        FreeEnergy(v, 1.0, internal=PowerEnergy(3.0))
        for v in ([0.0, 0.5, 1.0, -0.5], [0.6, 0.5, 0.2, -0.5])
    )
    p0 = np.array([0.7, 0.1, 0.1, 0.1])
    fitted = seen(kernel, right, p0, np.array([0.01, 0.5, 1.0, 2.0, 3.0]), 4000, rng)
    model = FreeEnergyRegressor(internal=PowerEnergy(3.0)).fit(kernel, fitted)
    when = np.array([0.25, 0.75, 1.5])
    same, other = (seen(kernel, e, p0, when, 2000, rng) for e in (right, wrong))
    assert model.held_out(same, n_draws=99).p_value.min() > 0.05
    assert model.held_out(other, n_draws=99).p_value.max() < 0.05
