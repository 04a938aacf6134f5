"""Flows over long times and without noise: every call ends, and says how."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.energy import FreeEnergy
from thalweg.flow import gradient_flow
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.mobility import ArithmeticMean
from thalweg.status import Status

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize("n", [6, 20])
def test_heat_flow_to_a_million(n: int) -> None:
    rng = np.random.default_rng(n)
    kernel = make_graph("delaunay", n, rng=rng)
    p = rng.dirichlet(np.ones(n))
    flow = gradient_flow(kernel, FreeEnergy(np.zeros(n), beta=1.0), p, [0, 1, 1e3, 1e6])
    assert flow.status
    assert flow.n_steps < 10_000
    np.testing.assert_allclose(flow.probabilities[2:], [kernel.stationary] * 2, atol=1e-8)


def _without_noise(seed: int) -> tuple[MarkovKernel, FreeEnergy, np.ndarray]:
    rng = np.random.default_rng(seed)
    n = (6, 10, 30)[seed % 3]
    kernel = make_graph("watts_strogatz", n, rng=rng)
    energy = FreeEnergy((1, 5, 30)[seed % 3] * rng.normal(size=n), beta=0.0)
    return kernel, energy, rng.dirichlet(np.full(n, 0.3))


@pytest.mark.parametrize("seed", [1, 2, 5, 6, 9, 14])
def test_without_noise_the_flow_ends_in_bounded_work(seed: int) -> None:
    kernel, energy, p = _without_noise(seed)
    flow = gradient_flow(kernel, energy, p, np.linspace(0, 5, 6), rtol=1e-6)
    assert flow.status
    assert flow.n_steps < 5000
    np.testing.assert_allclose(flow.probabilities.sum(axis=1), 1.0, atol=1e-9)
    falls = np.diff([energy(kernel, row) for row in flow.probabilities])
    assert falls.max() <= 1e-9 * np.abs(energy.potential).max()
    # A little noise changes little.
    near = gradient_flow(kernel, FreeEnergy(energy.potential, beta=1e-4), p, [0.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(near.probabilities[1], flow.probabilities[1], atol=0.02)


def test_rounding_does_not_end_a_steep_flow_without_noise() -> None:
    # States between emptying ones: a linear step once sent one of them from nothing to all mass.
    kernel, energy, p = _without_noise(5)
    rng = np.random.default_rng(0)
    ends = []
    for _ in range(3):
        nudged = FreeEnergy(energy.potential * (1 + 1e-15 * rng.normal(size=p.size)), beta=0.0)
        flow = gradient_flow(kernel, nudged, p, [0.0, 1.0], rtol=1e-6)
        assert flow.status
        ends.append(flow.probabilities[1])
    np.testing.assert_allclose(ends, ends[:1] * 3, atol=1e-4)


def test_a_mean_that_takes_from_empty_states_says_that_it_cannot_go_on() -> None:
    # The arithmetic mean does not vanish at an empty state: without noise nothing stops the flow
    # from leaving the simplex, and no flow goes on from there.
    kernel = make_graph("delaunay", 6, rng=np.random.default_rng(1))
    energy = FreeEnergy(np.random.default_rng(0).normal(size=6), beta=0.0)
    flow = gradient_flow(kernel, energy, np.full(6, 1 / 6), [0, 20], mobility=ArithmeticMean())
    assert flow.status is Status.STEP_TOO_SMALL
    assert flow.n_steps < 5000
