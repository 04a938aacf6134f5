"""The compiled flow: right, of its order, and differentiated exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from thalweg.energy import FreeEnergy, PowerEnergy
from thalweg.flow import gradient_flow, jump_rates
from thalweg.graphs import path
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.learn.likelihood.frozen import FrozenObjective, frozen_chain
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import IndependentObjective
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.likelihood.tracked import TrackedObjective
from thalweg.learn.time_basis import TimeBasis
from thalweg.mobility import ArithmeticMean, GeometricMean, PorousMediumMean
from thalweg.status import Status


def random_kernel(n: int, rng: np.random.Generator) -> MarkovKernel:
    weights = np.triu(rng.uniform(0.1, 1, (n, n)) * (rng.random((n, n)) < 0.5), 1)
    weights += np.diag(np.full(n - 1, 0.2), 1)
    return MarkovKernel.from_weights(weights + weights.T)


def even(count: int, steps: int, levels: int = 3) -> Mesh:
    return Mesh(np.full(count, steps, dtype=np.int64), levels)


def draw(model: FlowModel, rng: np.random.Generator, beta: float = 0.2) -> np.ndarray:
    theta = np.zeros(model.n_parameters)
    theta[model.potential_slice] = rng.uniform(-1, 1, model.n_potential)
    theta[model.interaction_slice] = rng.uniform(-1, 1, model.n_interactions)
    if model.learns_beta:
        theta[model.beta_index] = np.log(beta)
    if model.n_initial:
        p0 = rng.dirichlet(np.full(model.n_states, 2.0))
        theta[model.initial_slice] = np.log(p0 / model.kernel.stationary)
    return theta


@pytest.mark.parametrize("beta", [0.05, 0.5])
def test_agrees_with_gradient_flow(beta: float) -> None:
    rng = np.random.default_rng(1)
    model = FlowModel(random_kernel(6, rng), np.linspace(0, 2, 9))
    theta = draw(model, rng, beta)
    ours = model.probabilities(theta, even(8, 64))
    energy = FreeEnergy(theta[:6], beta)
    other = gradient_flow(model.kernel, energy, ours[0], model.times).probabilities
    np.testing.assert_allclose(ours, other, atol=2e-6)


@pytest.mark.parametrize("depth", [100.0, 300.0])
def test_states_that_start_empty_are_filled(depth: float) -> None:
    """Newton's method, left to itself, empties them further without end: the flow was not found."""
    rng = np.random.default_rng(5)
    model = FlowModel(random_kernel(8, rng), np.linspace(0.0, 1.0, 3))
    theta = draw(model, rng, 0.1)
    theta[model.potential_slice][3:6] -= 2.0  # where the potential is low
    theta[model.initial_slice][3:6] -= depth
    ours = model.probabilities(theta, even(2, 64))
    assert ours is not None
    energy = FreeEnergy(theta[:8], 0.1)
    other = gradient_flow(model.kernel, energy, ours[0], model.times, rtol=1e-9).probabilities
    np.testing.assert_allclose(ours, other, atol=2e-5)


def test_heat_flow() -> None:
    rng = np.random.default_rng(2)
    model = FlowModel(random_kernel(5, rng), np.array([0.0, 0.3, 1.0]))
    theta = draw(model, rng, 1.0)
    theta[:5] = 0.0
    p = model.probabilities(theta, even(2, 64))
    generator = model.kernel.matrix.toarray() - np.eye(5)
    np.testing.assert_allclose(p[2], p[0] @ expm(generator), atol=1e-6)


@pytest.mark.parametrize(("levels", "slope"), [(1, 1.0), (2, 2.0), (3, 3.0)])
def test_order(levels: int, slope: float) -> None:
    rng = np.random.default_rng(3)
    model = FlowModel(random_kernel(6, rng), np.array([0.0, 1.0]))
    theta = draw(model, rng, 0.3)
    exact = model.probabilities(theta, even(1, 512))[1]
    steps = np.array([8, 16, 32])
    errors = [abs(model.probabilities(theta, even(1, s, levels))[1] - exact).max() for s in steps]
    assert -np.polyfit(np.log(steps), np.log(errors), 1)[0] == pytest.approx(slope, abs=0.25)


def check_gradient(objective: object, theta: np.ndarray, mesh: Mesh, tolerance: float) -> None:
    found = objective.evaluate(theta, mesh)
    numeric = np.empty(theta.size)
    for i in range(theta.size):
        step = np.zeros(theta.size)
        step[i] = 1e-5
        up, down = objective.evaluate(theta + step, mesh), objective.evaluate(theta - step, mesh)
        numeric[i] = (up.value - down.value) / 2e-5
    scale = abs(found.gradient).max()
    np.testing.assert_allclose(found.gradient, numeric, atol=tolerance * scale)


def general_models(rng: np.random.Generator) -> dict[str, FlowModel]:
    kernel, times = random_kernel(5, rng), np.array([0.0, 0.2, 0.5, 1.1])
    w = rng.normal(size=(2, 5, 5))
    waves = TimeBasis.of(lambda t: 1.0, lambda t: np.sin(3 * t))
    return {
        "plain": FlowModel(kernel, times),
        "features": FlowModel(kernel, times, features=rng.normal(size=(5, 2))),
        "interactions": FlowModel(kernel, times, interactions=w + w.transpose(0, 2, 1)),
        "pieces": FlowModel(kernel, times, time_basis=TimeBasis.piecewise([0.3])),
        "waves": FlowModel(kernel, times, time_basis=waves, features=rng.normal(size=(5, 3))),
        "known beta": FlowModel(kernel, times, fixed_beta=0.3),
        "known initial": FlowModel(kernel, times, fixed_initial=np.full(5, 0.2)),
        "known potential": FlowModel(
            kernel, times, features=np.zeros((5, 0)), fixed_potential=rng.normal(size=5)
        ),
        "geometric": FlowModel(kernel, times, mobility=GeometricMean()),
        "arithmetic": FlowModel(kernel, times, mobility=ArithmeticMean()),
        "porous": FlowModel(
            kernel, times, mobility=PorousMediumMean(2.0), internal=PowerEnergy(2.0)
        ),
    }


@pytest.mark.parametrize("name", list(general_models(np.random.default_rng(0))))
def test_gradient_is_that_of_the_scheme(name: str) -> None:
    rng = np.random.default_rng(4)
    model = general_models(rng)[name]
    counts = rng.multinomial(500, np.full(5, 0.2), size=4).astype(float)
    theta = draw(model, rng)
    check_gradient(IndependentObjective(model, counts), theta, even(3, 2), 1e-5)
    check_gradient(FrozenObjective(model, counts), theta, even(3, 2), 1e-5)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("empirical", [True, False])
def test_gradient_of_increments(frozen: bool, empirical: bool) -> None:
    rng = np.random.default_rng(5)
    kernel, times = random_kernel(5, rng), np.array([0.0, 0.2, 0.5, 1.1])
    counts = rng.multinomial(500, np.full(5, 0.2), size=4).astype(float)
    model = FlowModel(kernel, times, fixed_initial=counts[0] / 500 if empirical else None)
    theta = draw(model, rng)
    objective = TrackedObjective(model, counts, frozen, empirical).reweighted(theta, even(3, 2))
    check_gradient(objective, theta, even(3, 2), 2e-4)


def test_frozen_is_the_exponential_of_the_rates() -> None:
    rng = np.random.default_rng(6)
    model = FlowModel(random_kernel(5, rng), np.array([0.0, 0.4, 0.7]))
    theta = draw(model, rng)
    p = frozen_chain(model, theta).probabilities
    energy = FreeEnergy(theta[:5], 0.2)
    for k, dt in enumerate([0.4, 0.3]):
        rates = jump_rates(model.kernel, energy, p[k] / p[k].sum()).toarray()
        np.testing.assert_allclose(p[k + 1], p[k] @ expm(dt * rates), atol=1e-13)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(-3, 1), st.floats(0.1, 4), st.integers(3, 8))
def test_never_breaks_at_depth(seed: int, log_beta: float, size: float, n: int) -> None:
    rng = np.random.default_rng(seed)
    model = FlowModel(random_kernel(n, rng), np.linspace(0, 5, 26))
    theta = draw(model, rng, 10**log_beta)
    theta[:n] *= size
    found = model.sensitivities(theta, even(25, 1))
    assert found is not None
    log_p, slopes = found
    assert np.isfinite(log_p).all()
    assert np.isfinite(slopes).all()
    np.testing.assert_allclose(np.exp(log_p).sum(axis=1), 1, atol=1e-12)
    energy = FreeEnergy(theta[:n], 10**log_beta)
    values = [energy(model.kernel, p) for p in np.exp(log_p)]
    assert np.diff(values).max() < 1e-2 * (1 + np.ptp(values))


def test_large_systems_use_the_same_equations() -> None:
    """Beyond the size where LAPACK takes over, derivatives still agree with differences."""
    rng = np.random.default_rng(7)
    model = FlowModel(random_kernel(30, rng), np.array([0.0, 0.5, 1.0]))
    theta = draw(model, rng)
    _, slopes = model.sensitivities(theta, even(2, 2))
    direction = rng.normal(size=theta.size)
    up = model.sensitivities(theta + 1e-5 * direction, even(2, 2))[0]
    down = model.sensitivities(theta - 1e-5 * direction, even(2, 2))[0]
    np.testing.assert_allclose(slopes @ direction, (up - down) / 2e-5, atol=1e-4)


@pytest.mark.parametrize("seed", [2, 4])
def test_a_potential_that_changes_steeply_is_fitted_to_the_end(seed: int) -> None:
    """States that emptied under the first potential fill under the second."""
    rng = np.random.default_rng(seed)
    kernel, times, start = path(6), np.linspace(0.0, 3.0, 7), np.full(6, 1 / 6)
    before, after = (FreeEnergy(v, 0.05) for v in 3.0 * rng.normal(size=(2, 6)))
    first = gradient_flow(kernel, before, start, times[:4]).probabilities
    second = gradient_flow(kernel, after, first[-1], times[3:]).probabilities
    p = np.vstack([first, second[1:]])
    counts = np.array([rng.multinomial(300, row / row.sum()) for row in p])
    options = LikelihoodOptions(time_basis=TimeBasis.piecewise([1.5]))
    fit = fit_likelihood(kernel, times, counts, options=options)
    assert fit.status is Status.CONVERGED
