"""Fluxes, routes and velocities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import generators, random_kernel
from thalweg import FreeEnergy, InputError, MarkovKernel, gradient_flow
from thalweg.dynamics import (
    Landscape,
    coarse_fluxes,
    fluxes,
    force,
    mean_first_passage_time,
    reactive_flux,
    transition_rates,
    velocity,
)
from thalweg.flow.rates import velocity as p_dot


@given(st.integers(4, 9), generators)
@settings(max_examples=20)
def test_reactive_flux_by_its_definition(n, rng):
    kernel = random_kernel(n, rng)
    energy = FreeEnergy(rng.normal(size=n), 0.5)
    land = Landscape(kernel, energy)
    found = reactive_flux(land, 0, 1, n_routes=1000)
    p, q = land.equilibrium, found.committor
    rates = transition_rates(kernel, energy).toarray()
    exact = p[:, None] * rates * (q[None, :] - q[:, None])
    x, y = kernel.edges.source, kernel.edges.target
    assert np.allclose(found.edges, exact[x, y], rtol=1e-8, atol=1e-12)
    net = np.bincount(x, found.edges, n) - np.bincount(y, found.edges, n)
    assert np.allclose(net[2:], 0, atol=1e-11)
    assert net[0] == pytest.approx(float(found.total.value), rel=1e-8)
    assert sum(r.share for r in found.routes) == pytest.approx(1, abs=1e-6)
    for route in found.routes:
        assert route.states[0] == 0
        assert route.states[-1] == 1
        assert np.all(np.diff(q[list(route.states)]) > 0)
    widths = [r.flux for r in found.routes]
    assert widths == sorted(widths, reverse=True)


def test_rate_of_two_wells_is_one_over_the_passage_time():
    w = np.diag(np.ones(8), 1)
    kernel = MarkovKernel.from_weights(w + w.T)
    x = np.linspace(-1, 1, 9)
    land = Landscape(kernel, FreeEnergy((x**2 - 0.64) ** 2 * 8, 0.3))
    a, b = 1, 7
    rate = reactive_flux(land, a, b).rate
    # Hill's relation: passages started from a, averaged over the entrance into a (one state).
    assert rate == pytest.approx(1 / mean_first_passage_time(land, b).value[a], rel=0.05)


def test_derivative_of_the_total():
    rng = np.random.default_rng(3)
    kernel = random_kernel(6, rng)
    v, row = rng.normal(size=6), 0.1 * rng.normal(size=(1, 7))
    land = Landscape(kernel, FreeEnergy(v, 0.5), directions=row)
    step = 1e-5
    ends = [
        float(
            reactive_flux(
                Landscape(kernel, FreeEnergy(v + s * row[0, :6], 0.5 + s * row[0, 6])), 0, 1
            ).total.value
        )
        for s in (step, -step)
    ]
    slope = abs(ends[0] - ends[1]) / (2 * step)
    assert float(reactive_flux(land, 0, 1).total.stderr) == pytest.approx(slope, rel=1e-4)


def test_fluxes_move_the_population():
    rng = np.random.default_rng(4)
    kernel = random_kernel(6, rng)
    energy = FreeEnergy(rng.normal(size=6), 0.4)
    p0 = rng.dirichlet(np.full(6, 3.0))
    found = fluxes(Landscape(kernel, energy), p0, (0.0, 0.7))
    now = gradient_flow(kernel, energy, p0, [0.0, 0.7], rtol=1e-10).final
    x, y = kernel.edges.source, kernel.edges.target
    gain = np.bincount(y, found.value, 6) - np.bincount(x, found.value, 6)
    assert np.allclose(gain, p_dot(kernel, energy, now), atol=1e-7)
    labels = np.array([0, 0, 1, 1, 2, 2])
    coarse = coarse_fluxes(kernel, found.value, labels)
    assert np.allclose(coarse, -coarse.T)
    assert np.allclose(-coarse.sum(axis=1), np.bincount(labels, gain), atol=1e-12)


def test_velocity_on_a_lattice_is_the_slope():
    side = 9
    w = np.diag(np.ones(side - 1), 1)
    line = w + w.T
    eye = np.eye(side)
    weights = np.kron(line, eye) + np.kron(eye, line)
    kernel = MarkovKernel.from_weights(weights)
    xy = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1).reshape(-1, 2)
    slope = np.array([0.3, -0.2])
    g = force(kernel, FreeEnergy(xy @ slope, 0.1), xy)
    assert np.allclose(g, -slope)
    v = velocity(kernel, FreeEnergy(xy @ slope, 0.1), xy)
    inner = ((xy > 0) & (xy < side - 1)).all(axis=1)
    # Four neighbours with probability 1/4: variance 1/2 along each axis.
    assert np.allclose(v[inner], -slope / 4)
    p = FreeEnergy(xy @ slope, 0.1).equilibrium(kernel)
    assert np.allclose(velocity(kernel, FreeEnergy(xy @ slope, 0.1), xy, p), 0, atol=1e-12)
    with pytest.raises(InputError, match="one row per state"):
        velocity(kernel, FreeEnergy(xy @ slope, 0.1), xy[:5])
