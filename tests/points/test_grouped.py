"""Error bars from groups."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg import FreeEnergy, InputError, MarkovKernel, gradient_flow
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.points import (
    design_effect,
    grouped_bootstrap,
    relaxation_times,
)

KERNEL = MarkovKernel.from_weights([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])
ENERGY = FreeEnergy([0.3, 0.0, -0.2, -0.4], 0.5)


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
