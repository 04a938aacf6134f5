"""Kernels: laws of the constructors, and one sentence for each kind of bad input."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from scipy import sparse

from strategies import generators, kernels, random_kernel
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel

PATH = np.array([[0, 1, 0], [1, 0, 3], [0, 3, 0]], dtype=float)


@given(kernels())
def test_the_matrix_is_stochastic_and_reversible(kernel):
    k, pi = kernel.matrix.toarray(), kernel.stationary
    np.testing.assert_allclose(k.sum(axis=1), 1, rtol=0, atol=1e-14)
    np.testing.assert_allclose(pi[:, None] * k, (pi[:, None] * k).T, atol=1e-15)
    np.testing.assert_allclose(pi @ k, pi, atol=1e-14)
    assert pi.sum() == pytest.approx(1, abs=1e-14)


@given(kernels())
def test_from_matrix_undoes_matrix(kernel):
    again = MarkovKernel.from_matrix(kernel.matrix)
    np.testing.assert_allclose(again.stationary, kernel.stationary, rtol=1e-12)
    np.testing.assert_allclose(again.edges.conductance, kernel.edges.conductance, rtol=1e-12)
    np.testing.assert_array_equal(again.edges.source, kernel.edges.source)


@given(kernels(), generators)
def test_relabelling_the_states_relabels_the_kernel(kernel, rng):
    order = rng.permutation(kernel.n_states)
    shuffled = MarkovKernel.from_weights(kernel.flow_matrix.toarray()[np.ix_(order, order)])
    flow = kernel.flow_matrix.toarray()
    np.testing.assert_allclose(
        shuffled.flow_matrix.toarray(), flow[np.ix_(order, order)] / flow.sum(), atol=1e-15
    )


@given(kernels())
def test_adjacency_lists_every_edge_from_both_ends(kernel):
    a = kernel.adjacency
    source, target, _ = kernel.edges
    for x in range(kernel.n_states):
        span = slice(a.indptr[x], a.indptr[x + 1])
        for y, e in zip(a.neighbor[span], a.edge[span], strict=True):
            assert {x, int(y)} == {int(source[e]), int(target[e])}
        assert np.all(np.diff(a.neighbor[span]) > 0)
    assert a.neighbor.size == 2 * kernel.n_edges


@pytest.mark.parametrize(
    "make",
    [
        np.asarray,
        sparse.csr_array,
        sparse.coo_matrix,
        sparse.csc_array,
        sparse.lil_array,
        sparse.dok_array,
    ],
)
def test_any_matrix_format(make):
    kernel = MarkovKernel.from_weights(make(PATH))
    np.testing.assert_allclose(kernel.stationary, [1 / 8, 1 / 2, 3 / 8])


def test_self_loops_slow_the_walk_and_carry_no_transport():
    kernel = MarkovKernel.from_weights([[2.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(kernel.matrix.toarray(), [[2 / 3, 1 / 3], [1, 0]])
    assert kernel.n_edges == 1


def test_from_networkx_keeps_names_weights_and_positions():
    graph = nx.path_graph(["a", "b", "c"])
    graph["b"]["c"]["weight"] = 3.0
    nx.set_node_attributes(graph, {"a": (0, 0), "b": (1, 0), "c": (2, 1)}, "pos")
    kernel = MarkovKernel.from_networkx(graph)
    assert kernel.names == ("a", "b", "c")
    assert kernel.coordinates is not None
    np.testing.assert_allclose(kernel.coordinates[2], [2, 1])
    np.testing.assert_allclose(kernel.stationary, [1 / 8, 1 / 2, 3 / 8])
    with pytest.raises(InputError, match="directed"):
        MarkovKernel.from_networkx(nx.DiGraph([(0, 1)]))
    with pytest.raises(InputError, match="no nodes"):
        MarkovKernel.from_networkx(nx.Graph())


CYCLE = np.array([[0, 0.9, 0.1], [0.1, 0, 0.9], [0.9, 0.1, 0]])


@pytest.mark.parametrize("how", ["additive", "metropolis"])
def test_reversibilisations_keep_the_stationary_distribution(how):
    rng = np.random.default_rng(1)
    k = rng.random((5, 5)) + 0.1
    k /= k.sum(axis=1, keepdims=True)
    values, vectors = np.linalg.eig(k.T)
    pi = np.real(vectors[:, np.argmax(np.real(values))])
    pi /= pi.sum()
    kernel = MarkovKernel.from_matrix(k, reversible=how)
    np.testing.assert_allclose(kernel.stationary, pi, rtol=1e-11)
    flow = pi[:, None] * k
    expected = (flow + flow.T) / 2 if how == "additive" else np.minimum(flow, flow.T)
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(kernel.flow_matrix.toarray(), expected, rtol=1e-11)


def test_a_stationary_distribution_over_many_decades():
    n = 60
    weights = sparse.diags_array([10.0 ** np.linspace(-18, 0, n - 1)], offsets=[1]).toarray()
    kernel = MarkovKernel.from_weights(weights + weights.T)
    again = MarkovKernel.from_matrix(kernel.matrix)
    np.testing.assert_allclose(again.stationary, kernel.stationary, rtol=1e-11)


def _with(matrix, x, y, value):
    changed = np.array(matrix, dtype=float)
    changed[x, y] = value
    return changed


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: MarkovKernel.from_weights(_with(PATH, 0, 1, np.nan)), "nan at position 0, 1"),
        (
            lambda: MarkovKernel.from_weights(sparse.csr_array(_with(PATH, 0, 1, np.nan))),
            "nan between 0 and 1",
        ),
        (lambda: MarkovKernel.from_weights(-PATH), "-1 between 0 and 1"),
        (
            lambda: MarkovKernel.from_weights(_with(PATH, 0, 1, 2)),
            "not symmetric: 2 from 0 to 1 but 1 back",
        ),
        (lambda: MarkovKernel.from_weights(PATH[:2]), r"shape \(2, 3\)"),
        (lambda: MarkovKernel.from_weights([1, 2]), "square"),
        (lambda: MarkovKernel.from_weights([[1.0]]), "at least two"),
        (lambda: MarkovKernel.from_weights(np.kron(np.eye(2), PATH)), "2 components of sizes 3, 3"),
        (lambda: MarkovKernel.from_matrix(PATH), "row 1 of the matrix sums to 4"),
        (lambda: MarkovKernel.from_matrix([[0, 1], [0, 1]]), "2 components"),
        (lambda: MarkovKernel.from_matrix(CYCLE), r"pi\(0\) K\(0, 1\) = 0.3 .* 0.0333333"),
        (lambda: MarkovKernel.from_matrix(CYCLE, reversible="yes"), "'additive'"),
        (lambda: MarkovKernel.from_weights(PATH, names=["a", "b"]), "2 names"),
        (lambda: MarkovKernel.from_weights(PATH, names=["a", "b", "a"]), "2 different"),
        (lambda: MarkovKernel.from_weights(PATH, coordinates=[0, 1, 2]), "one row per state"),
        (lambda: MarkovKernel.from_weights("abc"), "holds text, not numbers"),
    ],
)
def test_bad_kernels_get_one_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("p", "sentence"),
    [
        ([0.5, 0.5], r"shape \(2,\), but the kernel has 3"),
        ([0.5, 0.6, -0.1], "-0.1 at state 2"),
        ([0.5, 0.5, 0.5], "sums to 1.5"),
        ([0.5, 0.5, np.nan], "nan at position 2"),
        ("abc", "holds text, not numbers"),
    ],
)
def test_bad_probabilities_get_one_sentence(p, sentence):
    with pytest.raises(InputError, match=sentence):
        MarkovKernel.from_weights(PATH).density(p)


def test_density_and_probability_are_inverse():
    kernel = random_kernel(7, np.random.default_rng(0))
    p = np.random.default_rng(1).dirichlet(np.ones(7))
    np.testing.assert_allclose(kernel.probability(kernel.density(p)), p, rtol=1e-14)


@pytest.mark.slow
def test_ten_million_edges_in_linear_memory():
    import tracemalloc

    rng = np.random.default_rng(0)
    n, count = 1_000_000, 10_000_000
    x, y = rng.integers(0, n, (2, count))
    w = sparse.coo_array((rng.random(count), (x, y)), shape=(n, n))
    ring = sparse.coo_array((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))
    w = sparse.csr_array(w + w.T + ring + ring.T)
    tracemalloc.start()
    kernel = MarkovKernel.from_weights(w)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kernel.n_edges > 0.99 * count
    # A handful of passes over 2.2e7 entries of at most 16 bytes; quadratic memory would be 8e12.
    assert peak < 400 * kernel.n_edges


def test_networkx_and_back():
    kernel = MarkovKernel.from_weights([[1, 1, 0], [1, 0, 3], [0, 3, 0]], names=["a", "b", "c"])
    again = MarkovKernel.from_networkx(kernel.to_networkx())
    assert again.names == kernel.names
    np.testing.assert_allclose(again.matrix.toarray(), kernel.matrix.toarray(), atol=1e-15)
