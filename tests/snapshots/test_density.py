"""Smoothers against closed forms and matrix exponentials; bandwidths against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from thalweg.errors import InputError
from thalweg.graphs import GRAPH_FAMILIES, lattice, make_graph, path
from thalweg.snapshots import (
    Dirichlet,
    HeatKernel,
    Snapshots,
    estimate_probabilities,
    heat,
    hellinger,
)


@given(st.integers(0, 1000), st.floats(0, 3), st.sampled_from(["uniform", "stationary"]))
def test_dirichlet_is_the_posterior_mean(seed: int, alpha: float, base: str) -> None:
    rng = np.random.default_rng(seed)
    kernel = make_graph("delaunay", 8, rng=rng)
    counts = rng.integers(0, 4, size=(3, 8)) + np.eye(8)[:3]
    seen = Snapshots.from_counts([0, 1, 2], counts)
    estimate = estimate_probabilities(kernel, seen, smoother=Dirichlet(alpha, base))  # type: ignore[arg-type]
    share = alpha * (np.ones(8) if base == "uniform" else 8 * kernel.stationary)
    for row, n, c in zip(estimate.probabilities, seen.sizes, counts, strict=True):
        np.testing.assert_allclose(row, (c + share) / (n + 8 * alpha))
    empty = np.where(counts == 0, estimate.probabilities, 0).sum(axis=1)
    np.testing.assert_allclose(estimate.added_mass, empty)
    assert np.all(estimate.moved_mass >= estimate.added_mass - 1e-14)


@pytest.mark.parametrize("s", [0.0, 0.01, 0.7, 5.0, 300.0])
@pytest.mark.parametrize("family", GRAPH_FAMILIES)
def test_heat_flow_is_the_matrix_exponential(family: str, s: float) -> None:
    rng = np.random.default_rng(0)
    kernel = make_graph(family, 30, rng=rng)
    counts = rng.poisson(0.5, size=(4, 30)) + 1.0 * np.eye(30)[:4]
    expected = counts @ expm(s * (kernel.matrix.toarray() - np.eye(30)))
    np.testing.assert_allclose(heat.heat_flow(kernel, counts, s), expected, atol=1e-12)


def test_fixed_bandwidth_gives_heat_plus_background() -> None:
    kernel = path(6)
    seen = Snapshots.from_counts([0, 1], [[5, 0, 0, 0, 0, 0], [0, 0, 3, 4, 0, 0]])
    estimate = estimate_probabilities(kernel, seen, smoother=HeatKernel(0.8, background=2.0))
    spread = np.asarray(seen.counts) @ expm(0.8 * (kernel.matrix.toarray() - np.eye(6)))
    mass = spread + 2 * kernel.stationary
    np.testing.assert_allclose(estimate.probabilities, mass / (seen.sizes[:, None] + 2))
    assert estimate.bandwidth == 0.8
    assert estimate.probabilities.min() > 0


def literal_score(kernel, counts: np.ndarray, s: float, background: float) -> float:  # type: ignore[no-untyped-def]
    h = expm(s * (kernel.matrix.toarray() - np.eye(kernel.n_states)))
    total = 0.0
    for c in counts:
        for x in np.flatnonzero(c):
            rest = c - np.eye(kernel.n_states)[x]
            mass = rest @ h + background * kernel.stationary
            total += c[x] * np.log(mass[x] / (rest.sum() + background))
    return total


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 0.3, 4.0]))
def test_leave_one_out_really_leaves_one_out(seed: int, s: float) -> None:
    rng = np.random.default_rng(seed)
    kernel = make_graph("watts_strogatz", 12, rng=rng)
    counts = rng.poisson(0.7, size=(3, 12)) + np.eye(12)[:3]
    score = heat._LeaveOneOut(kernel, counts, 0.5)
    assert abs(score.at(s) - literal_score(kernel, counts, s, 0.5)) < 1e-8


def test_folds_share_out_every_individual_once() -> None:
    rng = np.random.default_rng(0)
    counts = rng.poisson(2.0, size=(3, 40)).astype(float)
    score = heat._Folds(path(40), counts, 0.5)
    held = score._held.reshape(heat._FOLDS, 3, 40)
    np.testing.assert_array_equal(held.sum(axis=0), counts)
    kept = score._kept.reshape(heat._FOLDS, 3, 40)
    np.testing.assert_array_equal(kept + held, np.broadcast_to(counts, held.shape))
    assert abs(held.sum(axis=(1, 2)) / counts.sum() - 0.2).max() < 0.1
    assert held.min() >= 0


def smooth_population(side: int, n: int, seed: int):  # type: ignore[no-untyped-def]
    kernel = lattice((side, side))
    x, y = kernel.coordinates.T / side
    truth = np.exp(2 * np.cos(2 * np.pi * x) + np.sin(3 * y))
    truth /= truth.sum()
    counts = np.random.default_rng(seed).multinomial(n, truth, size=3)
    return kernel, truth, Snapshots.from_counts([0, 1, 2], counts)


def test_folds_choose_nearly_the_bandwidth_of_leaving_one_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for n in (200, 1000, 5000):
        kernel, _, seen = smooth_population(20, n, n)
        counts = np.asarray(seen.counts)
        exact = heat.select_bandwidth(kernel, counts, 0.5)
        monkeypatch.setattr(heat, "_EXACT_LIMIT", 0)
        folds = heat.select_bandwidth(kernel, counts, 0.5)
        monkeypatch.undo()
        assert 0.35 <= folds / exact <= 2.9


@pytest.mark.parametrize("side", [20, 40])
def test_automatic_bandwidth_is_close_to_the_best_and_beats_the_others(side: int) -> None:
    kernel, truth, seen = smooth_population(side, 2 * side * side, 1)

    def error(smoother: Dirichlet | HeatKernel) -> float:
        p = estimate_probabilities(kernel, seen, smoother=smoother).probabilities
        return float(hellinger(p, truth).mean())

    best = min(error(HeatKernel(float(s))) for s in 2.0 ** np.arange(-3, 9))
    automatic = error(HeatKernel())
    assert automatic < 1.15 * best
    assert automatic < 0.5 * error(Dirichlet(0.5))


def test_rough_populations_are_left_alone() -> None:
    """Where neighbours have nothing in common, heat would only do harm."""
    kernel = lattice((15, 15))
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.full(225, 0.2))
    seen = Snapshots.from_counts([0], rng.multinomial(20_000, truth)[None])
    estimate = estimate_probabilities(kernel, seen, smoother=HeatKernel())
    assert estimate.bandwidth is not None
    assert estimate.bandwidth < 0.1
    assert estimate.moved_mass[0] < 0.05


def test_one_individual_is_enough() -> None:
    seen = Snapshots.from_counts([0], [[0, 1, 0]])
    estimate = estimate_probabilities(path(3), seen, smoother=HeatKernel())
    assert abs(estimate.probabilities.sum() - 1) < 1e-14
    assert estimate.probabilities.min() > 0


def test_bad_input_is_refused_in_a_sentence() -> None:
    seen = Snapshots.from_counts([0], [[1, 2]])
    with pytest.raises(InputError, match="have 2 states, but the kernel has 3"):
        estimate_probabilities(path(3), seen)
    with pytest.raises(InputError, match="alpha is -1"):
        Dirichlet(-1)
    with pytest.raises(InputError, match="choose 'uniform'"):
        Dirichlet(1, "flat")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="bandwidth must be a number"):
        HeatKernel("wide")  # type: ignore[arg-type]
