"""From points to states and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg import InputError, Snapshots
from thalweg.snapshots import PointSnapshots, WeightedPoints
from thalweg.snapshots.clouds import default_neighbors, default_states, time_weights


def clouds(seed: int = 0, sizes: tuple[int, ...] = (80, 120, 60)) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal([2 * k, 0, 1], 1.0, size=(n, 3)) for k, n in enumerate(sizes)]


@pytest.mark.parametrize("states", ["kmeans", "farthest", "points"])
def test_every_point_is_counted_once(states: str) -> None:
    seen = Snapshots.from_points([0, 1, 3], clouds(), n_states=20, states=states)
    assert isinstance(seen, PointSnapshots)
    assert seen.sizes.tolist() == [80, 120, 60]
    assert seen.n_states == (260 if states == "points" else 20)
    for k, labels in enumerate(seen.labels):
        assert np.array_equal(np.bincount(labels, minlength=seen.n_states), seen.counts[k])
        gaps = np.linalg.norm(seen.points[k][:, None] - seen.kernel.coordinates[None], axis=2)
        assert np.allclose(gaps.min(axis=1), gaps[np.arange(labels.size), labels])


@given(st.integers(0, 2), st.integers(2, 40), st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_a_snapshots_own_frequencies_give_it_back(k: int, n_states: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    seen = Snapshots.from_points([0, 1, 3], clouds(seed), n_states=n_states, rng=rng)
    back = seen.to_points(seen.frequencies[k], time=float(seen.times[k]))
    start = sum(x.shape[0] for x in seen.points[:k])
    own = back.weights[start : start + seen.points[k].shape[0]]
    assert np.allclose(own, 1 / own.size, rtol=1e-3)
    assert abs(back.weights.sum() - 1) < 1e-12


def test_mass_of_a_state_stays_in_the_state() -> None:
    seen = Snapshots.from_points([0, 1, 3], clouds(), n_states=15)
    p = np.random.default_rng(1).dirichlet(np.ones(15))
    for time in (None, 0.0, 0.4, 2.0, 5.0):
        back = seen.to_points(p, time=time)
        labels = np.concatenate(seen.labels)
        assert np.allclose(np.bincount(labels, weights=back.weights, minlength=15), p)


def test_new_samples_lie_near_the_cloud_and_are_new() -> None:
    seen = Snapshots.from_points([0, 1, 3], clouds(), n_states=15)
    rng = np.random.default_rng(2)
    new = seen.sample(seen.frequencies[1], 4000, time=1.0, rng=rng)
    assert new.shape == (4000, 3)
    assert np.linalg.norm(new.mean(axis=0) - seen.points[1].mean(axis=0)) < 0.15
    assert np.allclose(new.std(axis=0), seen.points[1].std(axis=0), rtol=0.15)
    assert not (new[:, None, :1] == seen.pooled[None, :, :1]).any(axis=1).all()


def test_systematic_resampling_keeps_integer_shares() -> None:
    cloud = WeightedPoints(np.array([[0.0], [1.0], [2.0]]), np.array([0.5, 0.25, 0.25]))
    drawn = cloud.resample(8, rng=np.random.default_rng(0)).ravel()
    assert np.unique(drawn, return_counts=True)[1].tolist() == [4, 2, 2]


def test_dropping_a_time_keeps_points_and_labels_together() -> None:
    seen = Snapshots.from_points([0, 1, 3], clouds(), n_states=15).drop(1)
    assert isinstance(seen, PointSnapshots)
    assert [x.shape[0] for x in seen.points] == [80, 60]
    assert seen.times.tolist() == [0, 3]


def test_time_weights_are_linear_between_neighbours() -> None:
    w = time_weights(np.array([0.0, 1.0, 3.0, 4.0]), 1.5)
    assert np.allclose(w, [0, 0.75, 0.25, 0], atol=1e-5)
    assert np.argmax(time_weights(np.array([0.0, 1.0]), 9.0)) == 1


def test_sizes_chosen_unless_told() -> None:
    assert default_states(10_000) == 100
    assert default_states(400) == 20
    assert [default_neighbors(n) for n in (30, 50, 100, 1000)] == [8, 11, 15, 15]


def test_messages() -> None:
    with pytest.raises(InputError, match="one cloud per time"):
        Snapshots.from_points([0, 1], clouds())
    with pytest.raises(InputError, match="n_states is 500"):
        Snapshots.from_points([0, 1, 2], clouds(), n_states=500)
    with pytest.raises(InputError, match="same number of coordinates"):
        Snapshots.from_points([0, 1], [np.zeros((3, 2)), np.zeros((3, 1))])
    with pytest.raises(InputError, match="states is"):
        Snapshots.from_points([0, 1, 2], clouds(), states="grid")  # type: ignore[arg-type]
