"""Counts smoothed in time: exact where the polynomial is, worth more samples, better for V."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.energy import FreeEnergy, centred
from thalweg.flow import gradient_flow
from thalweg.graphs import make_graph
from thalweg.learn.weak.fit import fit_weak
from thalweg.learn.weak.smooth import smoothed_in_time


def test_what_is_linear_in_the_root_of_time_is_kept() -> None:
    times = np.linspace(0, 4, 9)
    share = 0.3 + 0.1 * np.sqrt(times)
    counts = 1e9 * np.column_stack([share, 1 - share])
    p, sizes = smoothed_in_time(times, counts)
    np.testing.assert_allclose(p[:, 0], share, atol=1e-8)
    # Two coefficients from nine snapshots: the leverages add up to two.
    assert np.sum(1e9 / sizes) == pytest.approx(2.0)


def test_a_curve_takes_a_higher_degree() -> None:
    times = np.linspace(0, 4, 30)
    share = 0.5 + 0.3 * np.cos(2 * times)
    counts = np.round(1e6 * np.column_stack([share, 1 - share]))
    p, sizes = smoothed_in_time(times, counts)
    assert np.sum(1e6 / sizes) > 4
    assert np.abs(p[:, 0] - share).max() < 0.02


def test_sparse_counts_give_a_better_landscape() -> None:
    rng = np.random.default_rng(4)
    kernel = make_graph("delaunay", 300, rng=rng)
    x, y = kernel.coordinates.T
    V = 1.5 * np.sin(9 * x) * np.cos(6 * y)
    p0 = kernel.stationary * np.exp(-4 * ((x - 0.5) ** 2 + (y - 0.5) ** 2))
    times = np.linspace(0, 8, 21)
    p = gradient_flow(kernel, FreeEnergy(V, 0.1), p0 / p0.sum(), times).probabilities
    scores = []
    for _ in range(6):
        counts = np.array([rng.multinomial(1000, row / row.sum()) for row in p], dtype=float)
        plain = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
        pairs = ((plain, counts.sum(axis=1)), smoothed_in_time(times, counts))
        scores.append(
            [
                np.corrcoef(fit_weak(kernel, times, q, sizes=n).potential, centred(V, kernel))[0, 1]
                for q, n in pairs
            ]
        )
    before, after = np.mean(scores, axis=0)
    assert after > before + 0.02
