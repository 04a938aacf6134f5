"""Barycentres, gradients and many distances at once."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from thalweg.errors import InputError
from thalweg.geometry import TransportGeometry
from thalweg.graphs import make_graph
from thalweg.kernel import Edges, MarkovKernel
from thalweg.mobility import GeometricMean
from thalweg.status import Status

Array = NDArray[np.float64]


def setting(n: int, count: int, seed: int = 0) -> tuple[TransportGeometry, Array]:
    rng = np.random.default_rng(seed)
    kernel = make_graph("regular", n, rng=rng)
    ps = kernel.stationary * np.exp(0.4 * rng.normal(size=(count, n)))
    return TransportGeometry(kernel), ps / ps.sum(axis=1, keepdims=True)


def test_barycenter_of_two_lies_on_the_geodesic() -> None:
    geometry, ps = setting(10, 2)
    found = geometry.barycenter(ps, [0.25, 0.75], tolerance=1e-9)
    assert found.status
    d = geometry.distance(ps[0], ps[1])
    np.testing.assert_allclose(found.distances, [0.75 * d, 0.25 * d], rtol=1e-6)
    on_path = geometry.geodesic(ps[0], ps[1], tolerance=1e-10).at([0.75]).probabilities[0]
    np.testing.assert_allclose(found.probability, on_path, atol=1e-7)


def test_barycenter_of_three_is_stationary() -> None:
    geometry, ps = setting(8, 3)
    found = geometry.barycenter(ps)
    assert found.status
    mean = sum(geometry.log(found.probability, q) for q in ps) / 3
    assert geometry.norm(found.probability, mean) < 1e-7


@pytest.mark.parametrize("mobility", [None, GeometricMean()])
def test_gradients_against_differences(mobility: GeometricMean | None) -> None:
    geometry, ps = setting(9, 2, seed=4)
    if mobility is not None:
        geometry = TransportGeometry(geometry.kernel, mobility)
    rng = np.random.default_rng(1)
    p, q = ps
    gradient = geometry.distance_gradient(p, q, tolerance=1e-11)
    step = rng.normal(size=9)
    step = 1e-5 * (step - step.mean())

    def square(p: Array, q: Array, geometry: TransportGeometry = geometry) -> float:
        return geometry.distance(p, q, tolerance=1e-11) ** 2

    first = (square(p + step, q) - square(p - step, q)) / 2
    assert first == pytest.approx(gradient.first @ step, rel=1e-5)
    second = (square(p, q + step) - square(p, q - step)) / 2
    assert second == pytest.approx(gradient.second @ step, rel=1e-5)
    edges = geometry.kernel.edges
    change = 1e-4 * edges.conductance * rng.normal(size=edges.source.size)

    def with_edges(sign: float) -> float:
        new = Edges(edges.source, edges.target, edges.conductance + sign * change)
        kernel = MarkovKernel(geometry.kernel.stationary, new)
        return square(p, q, TransportGeometry(kernel, geometry.mobility))

    by_edges = (with_edges(1) - with_edges(-1)) / 2
    assert by_edges == pytest.approx(gradient.conductance @ change, rel=1e-5)


def test_matrix_and_neighbours() -> None:
    geometry, ps = setting(8, 5)
    calls: list[tuple[int, int]] = []
    matrix = geometry.distance_matrix(
        ps, jobs=1, progress=lambda done, total: calls.append((done, total))
    )
    assert calls[-1] == (10, 10)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert matrix[1, 3] == pytest.approx(geometry.distance(ps[1], ps[3]), rel=1e-5)
    cross = geometry.distance_matrix(ps[:2], ps[2:], jobs=2)
    np.testing.assert_allclose(cross, matrix[:2, 2:], rtol=1e-5)
    near = geometry.knn(ps, 2, jobs=1)
    np.fill_diagonal(matrix, np.inf)
    np.testing.assert_array_equal(near.indices, np.argsort(matrix, axis=1)[:, :2])


def test_a_barycenter_that_is_not_reached_is_given_with_its_own_distances() -> None:
    geometry, ps = setting(8, 3)
    found = geometry.barycenter(ps, max_iterations=2)
    assert found.status is Status.MAX_ITERATIONS
    expected = [geometry.distance(found.probability, p) for p in ps]
    assert found.distances == pytest.approx(expected, rel=1e-7)
    with pytest.raises(InputError, match="max_iterations is 0"):
        geometry.barycenter(ps, max_iterations=0)
