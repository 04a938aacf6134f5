"""What the data do not say is named; wrong models are rejected, right ones are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest

from thalweg import FreeEnergy, FreeEnergyRegressor, Snapshots, gradient_flow, make_graph
from thalweg.flow import simulate
from thalweg.kernel import MarkovKernel
from thalweg.learn.diagnostics import (
    cycle_forces,
    goodness_of_fit,
    undetermined,
)
from thalweg.learn.likelihood.deviance import expected_deviance
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg_bench import accuracy_cases as cases

GRID = np.linspace(0, 2, 21)


def test_unseen_states_are_named() -> None:
    weights = np.diag(np.ones(4), 1)
    kernel = MarkovKernel.from_weights(weights + weights.T)
    counts = np.array([[900, 100, 0, 0, 0], [850, 150, 0, 0, 0], [830, 170, 0, 0, 0]])
    verdict = undetermined(fit_likelihood(kernel, [0.0, 0.1, 0.2], counts))
    assert verdict.never_seen == (2, 3, 4)
    assert verdict
    touched = {x for c in verdict.contrasts for x in (*c.raised, *c.lowered)}
    assert {3, 4} <= touched
    assert "never seen: 2, 3, 4" in str(verdict)


def test_rich_data_determine_everything() -> None:
    rng = np.random.default_rng(0)
    problem = cases.draw_problem(0, rng, n_states=5, beta=0.2, times=np.linspace(0, 5, 51))
    counts = problem.sample(100_000, rng)
    assert not undetermined(fit_likelihood(problem.kernel, problem.model.times, counts))


def test_true_flows_fit_and_p_values_are_uniform() -> None:
    p = np.array([cases.gof_run(i, 1, 0.2, GRID, 2000, 0.0) for i in range(40)])
    # A binomial bound: at the 5 % level, more than 7 of 40 happens once in 500 times.
    assert np.sum(p < 0.05) <= 7
    # Two tests by Bonferroni: the smaller of two uniform numbers, doubled, has mean 7 / 12 or more.
    assert 0.4 < p.mean() < 0.85


def test_cyclic_drift_is_found_out() -> None:
    p = np.array([cases.gof_run(i, 2, 0.2, GRID, 10_000, 1.0) for i in (0, 1, 2)])
    assert np.nanmax(p) < 0.05


def test_tracked_goodness_of_fit() -> None:
    rng = np.random.default_rng(4)
    problem = cases.draw_problem(0, rng, n_states=4, beta=0.2, times=np.linspace(0, 2, 11))
    options = LikelihoodOptions(observation="tracked", discretization="frozen")
    seen = simulate(
        problem.kernel, problem.energy, problem.probabilities[0], problem.model.times, 5000,
        rng=rng, rates="empirical",
    )  # fmt: skip
    fit = fit_likelihood(
        problem.kernel, problem.model.times, np.asarray(seen.counts), options=options
    )
    assert goodness_of_fit(fit, rng=rng, n_draws=40).p_value > 0.01


def test_expected_deviance_matches_draws() -> None:
    rng = np.random.default_rng(0)
    p = np.array([[0.9, 0.09, 0.009, 0.001], [0.25, 0.25, 0.25, 0.25]])
    sizes = np.array([300.0, 50.0])
    draws = []
    for _ in range(4000):
        c = np.array([rng.multinomial(int(n), q) for n, q in zip(sizes, p, strict=True)])
        expected = sizes[:, None] * p
        draws.append(2 * np.sum(c * np.log(np.where(c > 0, c, 1) / expected)))
    mean, variance = expected_deviance(sizes, p)
    assert np.mean(draws) == pytest.approx(mean, rel=0.05)
    assert np.var(draws) == pytest.approx(variance, rel=0.25)


def test_cycle_forces_are_no_gradients() -> None:
    rng = np.random.default_rng(6)
    kernel = cases.draw_problem(0, rng, n_states=6, beta=0.1, times=GRID).kernel
    forces = cycle_forces(kernel, rng)
    source, target, conductance = kernel.edges
    gradient = rng.normal(size=6)
    np.testing.assert_allclose(
        forces.T @ (conductance * (gradient[source] - gradient[target])), 0, atol=1e-12
    )
    tree = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    assert cycle_forces(tree, rng).shape == (2, 0)


def _p_values(size: int, count: int) -> np.ndarray:
    """P-values of fits to data of the model: five states, all joined, six snapshots of `size`."""
    kernel = make_graph("complete", 5, rng=np.random.default_rng(0))
    times = np.linspace(0.0, 2.0, 6)
    energy = FreeEnergy(np.array([0.5, -0.5, 0.3, -0.4, 0.2]), 0.3)
    path = gradient_flow(kernel, energy, [0.6, 0.1, 0.1, 0.1, 0.1], times).probabilities
    out = []
    for i in range(count):
        rng = np.random.default_rng([size, i])
        counts = [rng.multinomial(size, p / p.sum()) for p in path]
        fit = fit_likelihood(kernel, times, counts)
        out.append(goodness_of_fit(fit, rng=rng, n_draws=200).p_value)
    return np.array(out)


def test_p_values_of_true_models_do_not_pile_up_at_one() -> None:
    p = _p_values(200, 25)
    assert np.mean(p > 0.99) < 0.2
    assert 0.2 < p.mean() < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 5000])
def test_p_values_of_true_models_are_uniform(size: int) -> None:
    assert kstest(_p_values(size, 500), "uniform").pvalue > 1e-3


def test_a_weak_fit_that_is_rejected_says_so() -> None:
    """A cloud that moves on without spreading: no landscape, whatever the status says."""
    rng = np.random.default_rng(3)
    times = [0.0, 1.0, 2.0, 3.0]
    clouds = [rng.normal([[1.2 * t, np.sin(1.2 * t)]], [0.5, 0.35], size=(300, 2)) for t in times]
    seen = Snapshots.from_points(times, clouds, n_states=16)
    model = FreeEnergyRegressor(method="weak").fit(seen.kernel, seen)
    assert model.diagnostics_["p_value"] < 1e-12
    assert "does not describe these snapshots (p < 1e-12)" in model.diagnostics_["advice"]


@pytest.mark.parametrize(("surprises", "fits"), [(1, True), (40, False)])
def test_one_individual_where_none_is_expected_is_no_proof(surprises: int, fits: bool) -> None:
    """State 3 empties at once: how rare it is later, the data do not say to a factor of 20."""
    ring = np.roll(np.eye(6), 1, axis=0)
    kernel, times = MarkovKernel.from_weights(ring + ring.T), np.linspace(0.0, 8.0, 5)
    energy = FreeEnergy(1.5 * np.array([0.0, 1.0, 2.0, 4.0, 2.0, 1.5]), beta=0.1)
    p = gradient_flow(kernel, energy, np.full(6, 1 / 6), times).probabilities
    rng = np.random.default_rng(0)
    fit = fit_likelihood(kernel, times, np.array([rng.multinomial(1000, row) for row in p]))
    assert 1000 * fit.probabilities[-1, 3] < 0.01
    counts = fit.counts.copy()
    counts[-1, 3] += surprises
    deviance = fit.noise.deviance(counts, fit.probabilities)
    verdict = goodness_of_fit(replace(fit, counts=counts, deviance=deviance), rng=rng)
    assert (verdict.p_value > 0.05) == fits
