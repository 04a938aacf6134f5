"""Every family, at every size: connected, exact, reversible, and as its name says."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import pdist, squareform

from thalweg.errors import InputError
from thalweg.graphs import GRAPH_FAMILIES, make_graph, topology
from thalweg.kernel import MarkovKernel

SIZES = (6, 7, 10, 50, 1000)


def degrees(kernel: MarkovKernel) -> np.ndarray:
    return np.diff(kernel.adjacency.indptr)


def check_is_a_kernel(kernel: MarkovKernel, n: int) -> None:
    k, pi = kernel.matrix, kernel.stationary
    assert kernel.n_states == n == k.shape[0]
    assert connected_components(k, directed=False)[0] == 1
    np.testing.assert_allclose(k.sum(axis=1), 1, atol=1e-13)
    np.testing.assert_allclose(pi @ k, pi, atol=1e-14)
    assert abs(pi.sum() - 1) < 1e-12
    assert pi.min() > 0
    assert kernel.edges.conductance.min() > 0
    assert np.all(kernel.edges.source < kernel.edges.target)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("family", GRAPH_FAMILIES)
def test_every_family_gives_a_connected_reversible_kernel_of_exactly_n(family: str, n: int) -> None:
    for seed in range(5 if n < 1000 else 1):
        check_is_a_kernel(make_graph(family, n, rng=np.random.default_rng(seed)), n)


@pytest.mark.slow
@pytest.mark.parametrize("family", GRAPH_FAMILIES)
def test_every_family_at_a_hundred_thousand_states(family: str) -> None:
    n = 3000 if family in ("complete", "k_partite") else 100_000
    check_is_a_kernel(make_graph(family, n, rng=np.random.default_rng(0)), n)


@pytest.mark.parametrize("family", GRAPH_FAMILIES)
def test_the_generator_decides_the_graph(family: str) -> None:
    one, again, other = (make_graph(family, 40, rng=np.random.default_rng(s)) for s in (7, 7, 8))
    assert np.array_equal(one.edges.source, again.edges.source)
    assert np.array_equal(one.edges.conductance, again.edges.conductance)
    assert not np.array_equal(one.stationary, other.stationary)


@pytest.mark.parametrize("family", GRAPH_FAMILIES)
def test_the_smallest_sizes_work_and_one_less_is_refused(family: str) -> None:
    smallest = {"delaunay": 3, "watts_strogatz": 3, "k_partite": 3, "torus": 3, "apollonian": 3}
    least = {"regular": 4, **smallest}.get(family, 2)
    for n in range(least, 6):
        check_is_a_kernel(make_graph(family, n, rng=np.random.default_rng(0)), n)
    with pytest.raises(InputError, match=f"n is {least - 1}; a {family} graph needs at least"):
        make_graph(family, least - 1, rng=np.random.default_rng(0))


def test_weights_lie_between_their_bounds() -> None:
    kernel = make_graph("complete", 60, rng=np.random.default_rng(0), weights=(2.0, 3.0))
    ratio = kernel.edges.conductance / kernel.edges.conductance.min()
    assert 1.4 < ratio.max() <= 1.5
    plain = make_graph("delaunay", 60, rng=np.random.default_rng(0), weights=None)
    np.testing.assert_allclose(plain.stationary, degrees(plain) / degrees(plain).sum())


# -------------------------------------------------------------------- what the names promise


@pytest.mark.parametrize(("n", "degree"), [(6, 3), (7, 4), (50, 3), (300, 5), (300, 10)])
def test_regular_graphs_are_regular(n: int, degree: int) -> None:
    kernel = make_graph("regular", n, rng=np.random.default_rng(1), degree=degree)
    assert np.all(degrees(kernel) == degree)


def test_regular_graphs_are_uniform_over_the_labelled_ones() -> None:
    """The 70 labelled connected cubic graphs on six states are equally likely."""
    rng = np.random.default_rng(3)
    seen: dict[bytes, int] = {}
    for _ in range(3500):
        graph = topology.regular(6, rng, 3)
        key = (graph.source * 6 + graph.target).tobytes()
        seen[key] = seen.get(key, 0) + 1
    counts = np.array(list(seen.values()))
    assert counts.size == 70
    assert ((counts - 50) ** 2 / 50).sum() < 110  # chi-square with 69 degrees: mean 69, sd 12


def test_erdos_renyi_draws_each_pair_with_its_probability() -> None:
    rng = np.random.default_rng(0)
    hits = np.zeros((9, 9))
    for _ in range(4000):
        graph = topology.erdos_renyi(9, rng, 0.3)
        assert np.all(graph.source < graph.target)
        hits[graph.source, graph.target] += 1
    observed = hits[np.triu_indices(9, 1)] / 4000
    assert abs(observed - 0.3).max() < 4.5 * np.sqrt(0.21 / 4000)


def test_erdos_renyi_decodes_pairs_of_large_graphs() -> None:
    graph = topology.erdos_renyi(200_000, np.random.default_rng(0), 1e-6)
    keys = graph.source * 200_000 + graph.target
    assert graph.source.min() >= 0
    assert graph.target.max() < 200_000
    assert np.all(graph.source < graph.target)
    assert np.unique(keys).size == keys.size


def test_watts_strogatz_without_rewiring_is_the_ring_and_keeps_its_edges_with_it() -> None:
    ring = make_graph("watts_strogatz", 30, rng=np.random.default_rng(0), rewiring=0.0)
    assert np.all(degrees(ring) == 4)
    mixed = make_graph("watts_strogatz", 300, rng=np.random.default_rng(0), rewiring=1.0)
    assert mixed.n_edges == 600
    lengths = abs(mixed.edges.source - mixed.edges.target)
    assert (np.minimum(lengths, 300 - lengths) > 2).mean() > 0.9


def test_block_model_has_its_mean_degrees() -> None:
    graph = topology.block_model(6000, np.random.default_rng(0), 3, 12.0, 2.0)
    inside = graph.source // 2000 == graph.target // 2000
    assert abs(2 * inside.sum() / 6000 - 12) < 0.3
    assert abs(2 * (~inside).sum() / 6000 - 2) < 0.15


def test_spanning_tree_is_the_shortest() -> None:
    kernel = make_graph("spanning_tree", 40, rng=np.random.default_rng(5))
    points = kernel.coordinates
    assert points is not None
    assert kernel.n_edges == 39
    length = np.linalg.norm(points[kernel.edges.source] - points[kernel.edges.target], axis=1)
    full = nx.from_numpy_array(squareform(pdist(points)))
    best = nx.minimum_spanning_tree(full).size(weight="weight")
    assert abs(length.sum() - best) < 1e-12


@pytest.mark.parametrize("family", ["delaunay", "apollonian", "grid", "spanning_tree"])
def test_planar_families_are_planar(family: str) -> None:
    kernel = make_graph(family, 60, rng=np.random.default_rng(2))
    graph = nx.Graph(zip(kernel.edges.source.tolist(), kernel.edges.target.tolist(), strict=True))
    assert nx.check_planarity(graph)[0]
    if family == "apollonian":
        assert kernel.n_edges == 3 * 60 - 6


def test_k_partite_has_no_edge_inside_a_part() -> None:
    kernel = make_graph("k_partite", 30, rng=np.random.default_rng(0), n_parts=4)
    points = kernel.coordinates
    assert points is not None
    part = points[:, 0]
    assert np.unique(part).size == 4
    assert np.all(part[kernel.edges.source] != part[kernel.edges.target])
    sizes = np.bincount(part.astype(int))
    assert kernel.n_edges == (30**2 - (sizes**2).sum()) / 2


def test_torus_is_homogeneous_and_rectangles_are_square() -> None:
    torus = make_graph("torus", 36, rng=np.random.default_rng(0))
    assert np.all(degrees(torus) == 4)
    grid = make_graph("grid", 37, rng=np.random.default_rng(0))
    assert grid.coordinates is not None
    assert np.ptp(grid.coordinates, axis=0).max() <= 7
    tall = make_graph("grid", 36, rng=np.random.default_rng(0), shape=(12, 3))
    assert tall.coordinates is not None
    assert np.ptp(tall.coordinates, axis=0).tolist() == [2.0, 11.0]


def test_barabasi_albert_prefers_hubs() -> None:
    kernel = make_graph("barabasi_albert", 20_000, rng=np.random.default_rng(0))
    assert kernel.n_edges == 3 + 2 * (20_000 - 3)
    # P(degree >= k) = m (m + 1) / (k (k + 1)) for m = 2 links.
    for k in (3, 5, 10, 20):
        assert abs((degrees(kernel) >= k).mean() - 6 / (k * (k + 1))) < 0.01


# -------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("family", "n", "options", "message"),
    [
        ("erdos-renyi", 10, {}, "did you mean 'erdos_renyi'"),
        ("petersen", 10, {}, "The families are complete"),
        ("grid", 10, {"shape": (3, 4)}, "12 states, not 10"),
        ("grid", 10, {"degree": 3}, "no option 'degree'; it has shape"),
        ("regular", 7, {"degree": 3}, "make one even"),
        ("regular", 7, {"degree": 2}, "from 3 to 6"),
        ("complete", 100_000, {}, "ask for fewer states"),
        ("grid", 10.0, {}, "n is 10.0; it must be a whole number"),
        ("watts_strogatz", 10, {"rewiring": 1.5}, "between 0 and 1"),
        ("grid", 10, {"weights": (0.0, 1.0)}, "0 < lowest"),
        ("grid", 10, {"weights": 1.0}, "give a pair"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    family: str, n: int, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        make_graph(family, n, rng=np.random.default_rng(0), **options)  # type: ignore[arg-type]
