"""Births beside transport; error bars from groups."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg import FreeEnergy, InputError, MarkovKernel, gradient_flow
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.points import (
    design_effect,
    fit_growth,
    grouped_bootstrap,
    growth_flow,
    relaxation_times,
)

KERNEL = MarkovKernel.from_weights([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])
ENERGY = FreeEnergy([0.3, 0.0, -0.2, -0.4], 0.5)


def test_without_births_growth_flow_is_the_flow() -> None:
    p0, times = [0.7, 0.1, 0.1, 0.1], [0.0, 1.0, 2.0]
    ours = growth_flow(KERNEL, ENERGY, p0, times, rates=np.zeros(4))
    assert np.allclose(ours, gradient_flow(KERNEL, ENERGY, p0, times).probabilities, atol=1e-6)


def test_splitting_is_of_second_order() -> None:
    rates, m0 = np.array([0.5, 0.0, -0.3, 0.2]), [7.0, 1.0, 1.0, 1.0]
    fine = growth_flow(KERNEL, ENERGY, m0, [0.0, 1.0], rates=rates, n_steps=128)[-1]
    errors = [
        abs(growth_flow(KERNEL, ENERGY, m0, [0.0, 1.0], rates=rates, n_steps=n)[-1] - fine).max()
        for n in (4, 8, 16)
    ]
    slopes = np.log2(np.array(errors[:-1]) / errors[1:])
    assert (slopes > 1.7).all()


def test_the_same_rate_everywhere_only_scales_the_whole() -> None:
    ours = growth_flow(KERNEL, ENERGY, [2, 1, 1, 1], [0.0, 1.5], rates=np.full(4, 0.2))[-1]
    assert np.isclose(ours.sum(), 5 * np.exp(0.3))


def test_rates_are_recovered_and_the_diagnosis_says_so() -> None:
    rates, times = np.array([0.4, 0.0, -0.2, 0.1]), np.linspace(0, 2, 9)
    masses = growth_flow(KERNEL, ENERGY, [4.0, 3.0, 2.0, 1.0], times, rates=rates)
    fit = fit_growth(KERNEL, times, masses, energy=ENERGY)
    assert np.allclose(fit.rates, rates, atol=0.01)
    assert fit.error < 0.2 * fit.transport_error
    assert "births and deaths" in fit.diagnosis
    still = fit_growth(KERNEL, times, masses, energy=ENERGY, rates=np.zeros(4))
    assert still.error == still.transport_error
    with pytest.raises(InputError, match="smooth the counts"):
        fit_growth(KERNEL, [0, 1], [[1, 0, 1, 1], [1, 1, 1, 1]])


def test_transport_is_enough_where_nothing_is_born() -> None:
    times = np.linspace(0, 2, 6)
    path = gradient_flow(KERNEL, ENERGY, [0.7, 0.1, 0.1, 0.1], times).probabilities
    assert "explains the shares" in fit_growth(KERNEL, times, path, energy=ENERGY).diagnosis


def grouped_counts(rng: np.random.Generator, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Groups whose own clocks differ by `spread`."""
    times = np.linspace(0, 2, 5)
    rows = []
    for _ in range(12):
        speed = np.exp(spread * rng.normal())
        path = gradient_flow(
            KERNEL, FreeEnergy(speed * ENERGY.potential, speed * ENERGY.beta),
            [0.7, 0.1, 0.1, 0.1], times,
        ).probabilities  # fmt: skip
        rows.append([rng.multinomial(500, p / p.sum()) for p in path])
    return times, np.array(rows)


def test_bootstrap_over_groups_sees_what_individuals_hide() -> None:
    rng = np.random.default_rng(0)
    times, alike = grouped_counts(rng, 0.0)
    _, apart = grouped_counts(rng, 0.5)
    assert design_effect(alike) < 1.5 < design_effect(apart)
    fits = [fit_likelihood(KERNEL, times, g.sum(axis=0)) for g in (alike, apart)]
    same = grouped_bootstrap(fits[0], alike, rng=rng)
    assert 0.5 < same.beta_stderr / fits[0].beta_stderr < 1.8
    wide = grouped_bootstrap(fits[1], apart, rng=rng)
    assert wide.beta_stderr > 2 * same.beta_stderr
    low, high = same.interval(same.betas, fits[0].energy.beta)
    assert low < ENERGY.beta < high


def test_relaxation_time_is_the_decay_of_the_flow() -> None:
    slow = relaxation_times(KERNEL, ENERGY)[0]
    rest = ENERGY.equilibrium(KERNEL)
    start = rest + 0.01 * np.array([1.0, 0.2, -0.4, -0.8]) * rest.min()
    path = gradient_flow(
        KERNEL, ENERGY, start / start.sum(), [0, 3 * slow, 4 * slow], rtol=1e-12, atol=1e-15
    ).probabilities
    gaps = abs(path[1:] - rest).sum(axis=1)
    assert np.isclose(gaps[0] / gaps[1], np.e, rtol=0.02)


def test_groups_need_their_shape() -> None:
    with pytest.raises(InputError, match="two groups or more"):
        design_effect(np.ones((1, 2, 3)))
