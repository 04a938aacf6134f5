"""The JKO step: first-order condition, energy, and convergence to the gradient flow."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from thalweg.energy import FreeEnergy, PowerEnergy
from thalweg.errors import InputError
from thalweg.flow.integrate import gradient_flow
from thalweg.flow.jko import jko_flow, jko_step
from thalweg.geometry import TransportGeometry
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.mobility import GeometricMean

Array = NDArray[np.float64]


def setting(n: int = 12, seed: int = 0) -> tuple[MarkovKernel, Array, Array]:
    rng = np.random.default_rng(seed)
    kernel = make_graph("delaunay", n, rng=rng)
    p = kernel.stationary * np.exp(0.7 * rng.normal(size=n))
    return kernel, rng.normal(size=n), p / p.sum()


@pytest.mark.parametrize("tau", [0.01, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("interaction", [False, True])
def test_first_order_condition_and_falling_energy(tau: float, interaction: bool) -> None:
    kernel, v, p = setting()
    w = kernel.flow_matrix * 10.0 if interaction else None
    energy = FreeEnergy(v, 0.5, interaction=w)
    result = jko_step(kernel, energy, p, tau)
    assert result.status
    assert result.first_order_residual < 1e-8
    assert result.factorisations <= 80
    assert result.energy == pytest.approx(energy(kernel, result.probability), abs=1e-12)
    gain = energy(kernel, p) - result.energy
    assert gain >= result.distance**2 / (2 * tau) > 0


def test_the_reported_distance_is_the_distance() -> None:
    kernel, v, p = setting()
    energy = FreeEnergy(v, 0.5)
    result = jko_step(kernel, energy, p, 1.0)
    geometry = TransportGeometry(kernel)
    geodesic = geometry.geodesic(p, result.probability, tolerance=1e-9)
    assert result.distance == pytest.approx(geodesic.distance, rel=1e-6)
    f = energy.first_variation(kernel, result.probability)
    mismatch = geodesic.final_potential / 1.0 + f
    mismatch -= result.probability @ mismatch
    assert abs(mismatch).max() < 1e-4


def test_two_states_against_a_scalar_minimisation() -> None:
    kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    energy = FreeEnergy([0.0, 1.0], beta=1.0)
    geometry = TransportGeometry(kernel)
    start = np.array([0.3, 0.7])

    def objective(x: float) -> float:
        q = np.array([x, 1 - x])
        return energy(kernel, q) + geometry.distance(start, q, tolerance=1e-10) ** 2 / (2 * 0.4)

    best = minimize_scalar(objective, bounds=(0.31, 0.7), method="bounded", options={"xatol": 1e-8})
    found = jko_step(kernel, energy, start, 0.4).probability[0]
    assert found == pytest.approx(best.x, abs=1e-6)


def test_converges_to_the_flow_with_slope_one() -> None:
    kernel, v, p = setting()
    energy = FreeEnergy(v, 0.5)
    reference = gradient_flow(kernel, energy, p, [0.0, 1.0]).probabilities[-1]
    errors = []
    for n_steps in (8, 16, 32):
        flow = jko_flow(kernel, energy, p, 1.0 / n_steps, n_steps)
        assert flow.status
        values = [energy(kernel, q) for q in flow.probabilities]
        assert np.all(np.diff(values) < 0)
        errors.append(abs(flow.probabilities[-1] - reference).max())
    slopes = np.log2(np.array(errors[:-1]) / errors[1:])
    np.testing.assert_allclose(slopes, 1.0, atol=0.1)


def test_interacting_steps_converge_to_the_flow_with_slope_one() -> None:
    kernel, v, p = setting(8)
    apart = np.subtract.outer(np.arange(8), np.arange(8))
    energy = FreeEnergy(v, 0.3, interaction=4.0 * np.exp(-0.5 * apart**2))
    reference = gradient_flow(kernel, energy, p, [0.0, 1.0]).probabilities[-1]
    errors = []
    for n_steps in (8, 16, 32):
        flow = jko_flow(kernel, energy, p, 1.0 / n_steps, n_steps)
        assert flow.status
        assert np.all(np.diff([energy(kernel, q) for q in flow.probabilities]) < 0)
        errors.append(abs(flow.probabilities[-1] - reference).max())
    slopes = np.log2(np.array(errors[:-1]) / errors[1:])
    np.testing.assert_allclose(slopes, 1.0, atol=0.1)


@pytest.mark.parametrize("strength", [1.0, 20.0])
@pytest.mark.parametrize("tau", [0.1, 10.0])
def test_attraction_ends_lower_or_says_so(strength: float, tau: float) -> None:
    kernel, v, p = setting(8)
    energy = FreeEnergy(v, 0.3, interaction=-strength * np.eye(8))
    step = jko_step(kernel, energy, p, tau)
    if step.status:
        assert step.first_order_residual < 1e-8
        assert step.energy + step.distance**2 / (2 * tau) <= energy(kernel, p) + 1e-9
    assert step.status or strength == 20.0


def test_other_mobilities_internal_energies_and_empty_states() -> None:
    kernel, v, p = setting()
    result = jko_step(
        kernel, FreeEnergy(v, 0.5, internal=PowerEnergy(2.0)), p, 0.2, mobility=GeometricMean()
    )
    assert result.status
    assert result.first_order_residual < 1e-8
    corner = np.zeros(12)
    corner[3] = 1.0
    step = jko_step(kernel, FreeEnergy(v, 0.5), corner, 0.1, smoothing=1e-4)
    assert step.status
    assert step.smoothing == 1e-4
    assert step.probability.min() > 0
    flow = jko_flow(kernel, FreeEnergy(v, 0.5), corner, 0.1, 2, smoothing=1e-4)
    assert flow.status
    np.testing.assert_allclose(flow.probabilities[1], step.probability, atol=1e-12)


@pytest.mark.parametrize("tau", [0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("beta", [0.5, 0.01])
def test_steps_from_and_to_the_boundary(tau: float, beta: float) -> None:
    kernel, v, p = setting()
    empty = np.where(np.arange(12) % 3 == 0, 0.0, p)
    nearly = np.where(np.arange(12) % 3 == 0, 1e-12 * kernel.stationary, p)
    energy = FreeEnergy(v, beta)
    ends = []
    for start in (empty / empty.sum(), nearly / nearly.sum()):
        step = jko_step(kernel, energy, start, tau, path_tolerance=1e-4)
        assert step.status
        assert step.first_order_residual < 1e-8
        assert step.factorisations <= 80
        lost = energy(kernel, start) - step.energy
        assert lost >= step.distance**2 / (2 * tau) * (1 - 1e-3)
        ends.append(step.probability)
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-3)


def test_a_long_step_is_near_the_equilibrium_where_its_densities_underflow() -> None:
    kernel, v, p = setting()
    energy = FreeEnergy(v, 0.003)
    step = jko_step(kernel, energy, p, 1e4)
    assert step.status
    np.testing.assert_allclose(step.probability, energy.equilibrium(kernel), atol=1e-3)
    assert step.probability.min() < 1e-200


@pytest.mark.parametrize("tau", [0.3, 3.0])
def test_without_entropy_the_condition_is_an_inequality(tau: float) -> None:
    kernel, v, p = setting()
    energy = FreeEnergy(v, 0.0)
    step = jko_step(kernel, energy, p, tau)
    assert step.status
    assert step.first_order_residual < 1e-8
    slack = step.final_potential / tau + v
    slack -= step.probability @ slack
    assert slack.min() > -1e-6
    inside = step.probability > 1e-6
    assert np.abs(slack[inside]).max() < 1e-6
    # The entropic steps tend to it.
    near = jko_step(kernel, FreeEnergy(v, 1e-4), p, tau)
    np.testing.assert_allclose(near.probability, step.probability, atol=1e-3)


def test_small_densities_are_not_touched() -> None:
    kernel, v, p = setting()
    p = p.copy()
    p[3] = 1e-5 * kernel.stationary[3]
    p /= p.sum()
    step = jko_step(kernel, FreeEnergy(v, 0.5), p, 0.1)
    assert step.status
    assert step.smoothing == 0
    assert step.first_order_residual < 1e-8


def test_bad_input() -> None:
    kernel, v, p = setting()
    with pytest.raises(InputError, match="tau"):
        jko_step(kernel, FreeEnergy(v, 0.5), p, 0.0)
    with pytest.raises(InputError, match="one number per state"):
        jko_step(kernel, FreeEnergy(v[:5], 0.5), p, 1.0)
