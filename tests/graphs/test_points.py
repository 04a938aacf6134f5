"""Graphs of points against dense distances and the complete minimum spanning tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial.distance import cdist, pdist, squareform

from thalweg.errors import InputError
from thalweg.graphs import neighbor_weights
from thalweg.graphs.points import _bridges
from thalweg.graphs.topology import components
from thalweg.kernel import MarkovKernel


def literal_weights(x: np.ndarray, k: int) -> np.ndarray:
    d = cdist(x, x)
    np.fill_diagonal(d, np.inf)
    order = np.argsort(d, axis=1)[:, :k]
    s = np.sort(d, axis=1)[:, k - 1]
    w = np.zeros(d.shape)
    for a in range(len(x)):
        for b in order[a]:
            w[a, b] = w[b, a] = max(np.exp(-(d[a, b] ** 2) / (s[a] * s[b])), 1e-3)
    return w


@pytest.mark.parametrize("dimension", [1, 3, 30])
def test_weights_are_those_of_the_formula(dimension: int) -> None:
    x = np.random.default_rng(dimension).normal(size=(80, dimension))
    w = neighbor_weights(x, 7).toarray()
    expected = literal_weights(x, 7)
    assert connected_components(expected)[0] == 1
    np.testing.assert_allclose(w, expected, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4), st.sampled_from([2, 20]))
def test_components_are_joined_by_the_minimum_spanning_tree(
    seed: int, k: int, n_clusters: int, dimension: int
) -> None:
    rng = np.random.default_rng(seed)
    centre = 20 * rng.normal(size=(n_clusters, dimension))
    x = centre[rng.integers(0, n_clusters, 90)] + rng.normal(size=(90, dimension))
    order = np.argsort(squareform(pdist(x)) + 1e9 * np.eye(90), axis=1)[:, :k]
    row = np.repeat(np.arange(90), k)
    count, label = components(90, row, order.ravel())
    a, b = _bridges(x, count, label)
    assert a.size == count - 1
    # Contract the components: the tree over them must be as short as scipy's.
    quotient = np.full((count, count), np.inf)
    np.minimum.at(quotient, (label[:, None], label[None, :]), cdist(x, x))
    np.fill_diagonal(quotient, 0)
    best = minimum_spanning_tree(quotient).sum()
    assert abs(np.linalg.norm(x[a] - x[b], axis=1).sum() - best) < 1e-9
    assert connected_components(neighbor_weights(x, k), directed=False)[0] == 1


@pytest.mark.parametrize("dimension", [2, 15])
def test_duplicates_and_outliers_keep_the_graph_whole(dimension: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, dimension))
    x[:20] = x[0]
    x[-1] = 1e6
    w = neighbor_weights(x, 5)
    assert np.isfinite(w.data).all()
    assert w.data.min() >= 1e-3
    assert w.data.max() <= 1
    assert w.diagonal().max() == 0
    kernel = MarkovKernel.from_points(x, n_neighbors=5)
    assert kernel.n_states == 50
    same = neighbor_weights(np.zeros((9, dimension)), 2)
    assert connected_components(same, directed=False)[0] == 1


def test_two_far_clusters_are_joined_once() -> None:
    rng = np.random.default_rng(0)
    x = np.vstack([rng.normal(size=(300, 2)), rng.normal(size=(400, 2)) + 100])
    w = neighbor_weights(x, 10).tocoo()
    assert ((w.row < 300) & (w.col >= 300)).sum() == 1


@pytest.mark.slow
@pytest.mark.parametrize(("n", "dimension"), [(1_000_000, 3), (100_000, 50)])
def test_large_clouds(n: int, dimension: int) -> None:
    w = neighbor_weights(np.random.default_rng(0).normal(size=(n, dimension)), 10)
    assert connected_components(w, directed=False)[0] == 1


@pytest.mark.parametrize(
    ("points", "k", "message"),
    [
        (np.zeros((5, 2)), 5, "n_neighbors is 5, but there are 5 points"),
        (np.zeros((5, 2)), 0, "from 1 to 4"),
        (np.zeros((5, 2)), 2.5, "must be a whole number"),
        (np.array([[0.0], [np.nan], [1.0]]), 1, "points is nan at position 1, 0"),
        (np.zeros(5), 1, "one row per point"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(points: np.ndarray, k: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        neighbor_weights(points, k)
