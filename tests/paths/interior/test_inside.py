"""Pairs inside the simplex: the compiled mean, collocation, wide densities, bounds, limits."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from thalweg.edges import kinetic
from thalweg.edges.static import Graph, stage_weights
from thalweg.geometry import TransportGeometry
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.mobility import (
    ArithmeticMean,
    GeometricMean,
    HarmonicMean,
    LogMean,
    PowerProduct,
)
from thalweg.status import Status

Array = NDArray[np.float64]
SPEC = LogMean().spec


def log_normal_pair(
    family: str, n: int, spread: float, seed: int
) -> tuple[MarkovKernel, Array, Array]:
    rng = np.random.default_rng(seed)
    kernel = make_graph(family, n, rng=rng)
    p, q = (kernel.stationary * np.exp(spread * rng.normal(size=n)) for _ in range(2))
    return kernel, p / p.sum(), q / q.sum()


def newton_product(
    source: Array, target: Array, table: Array, psi: Array, change: Array
) -> tuple[Array, Array]:
    """Gain and force of the linearised system, edge by edge."""
    gain, force = np.zeros(psi.shape), np.zeros(psi.shape)
    for i, e in np.ndindex(table.shape[:2]):
        x, y = source[e], target[e]
        weight, a, b, ss, st, tt = table[i, e]
        drop, ds, dt = psi[i, x] - psi[i, y], change[i, x], change[i, y]
        flux = weight * drop + a * ds + b * dt
        gain[i, x] += flux
        gain[i, y] -= flux
        force[i, x] += a * drop + ss * ds + st * dt
        force[i, y] += b * drop + st * ds + tt * dt
    return gain, force


def test_packed_passes_agree_with_the_plain_ones() -> None:
    kernel, p, q = log_normal_pair("delaunay", 30, 0.7, 0)
    rng = np.random.default_rng(1)
    source, target, _ = kernel.edges
    rho = np.array([p, q]) / kernel.stationary
    psi, change = rng.normal(size=(2, 2, 30))
    graph = Graph(*kernel.edges, kernel.stationary, SPEC)
    edge = stage_weights(graph, rho)
    flux = edge * (psi[:, source] - psi[:, target])
    plain, force = kinetic.linearise_stages(graph, rho, psi[:, source] - psi[:, target])
    action = kinetic.flux_action(graph, rho, flux)
    weights = np.array([0.5, 0.5])
    table = np.empty((source.size, 6, 2))
    gain, force2, action2, average = kinetic.linearise(
        graph, rho.T.copy(), psi.T.copy(), weights, table
    )
    np.testing.assert_allclose(force2.T, force, rtol=1e-12)
    again = kinetic.flux_force(graph, rho, flux)
    np.testing.assert_allclose(again, force, rtol=1e-12)
    np.testing.assert_allclose(action2, action, rtol=1e-12)
    np.testing.assert_allclose(average, weights @ edge, rtol=1e-12)
    np.testing.assert_allclose(gain.T, kinetic.flux_gain(source, target, flux, 30), atol=1e-14)
    expected = newton_product(source, target, plain, psi, change)
    out, push = np.empty((30, 2)), np.empty((30, 2))
    kinetic.product(graph, table, psi.T.copy(), (change / rho).T.copy(), out, push)
    np.testing.assert_allclose(out.T, expected[0], atol=1e-12)
    np.testing.assert_allclose(push.T / rho, expected[1], atol=1e-11)


@pytest.mark.parametrize("family", ["grid", "delaunay", "regular", "barabasi_albert"])
def test_wide_pairs_converge_and_two_methods_agree(family: str) -> None:
    kernel, p, q = log_normal_pair(family, 60, 1.0, 3)
    geometry = TransportGeometry(kernel)
    one = geometry.geodesic(p, q, tolerance=1e-6, method="collocation")
    other = geometry.geodesic(p, q, tolerance=1e-6, method="interior-point")
    assert one.status
    assert one.distance == pytest.approx(other.distance, rel=3e-6)


@pytest.mark.parametrize("mobility", [LogMean(), GeometricMean(), ArithmeticMean(), HarmonicMean()])
def test_the_distance_lies_between_its_bounds(mobility: LogMean) -> None:
    kernel, p, q = log_normal_pair("watts_strogatz", 40, 0.4, 5)
    geometry = TransportGeometry(kernel, mobility)
    loose = geometry.geodesic(p, q, tolerance=1e-4)
    exact = geometry.distance(p, q, tolerance=1e-11)
    assert 0.9 * exact < loose.lower_bound <= exact * (1 + 1e-9)
    assert loose.upper_bound >= exact * (1 - 1e-9)
    sharp = geometry.geodesic(p, q, tolerance=1e-10)
    assert exact - sharp.lower_bound < 0.2 * (exact - loose.lower_bound) + 1e-9
    assert TransportGeometry(kernel, PowerProduct(0.3)).geodesic(p, q).lower_bound == 0.0


def test_a_tolerance_below_rounding_ends_and_says_so() -> None:
    kernel, p, q = log_normal_pair("grid", 900, 0.3, 0)
    geodesic = TransportGeometry(kernel).geodesic(p, q, tolerance=1e-17)
    assert geodesic.status is Status.STALLED
    assert geodesic.error_estimate < 1e-10 * geodesic.distance
    assert geodesic.distance == pytest.approx(
        TransportGeometry(kernel).distance(p, q, tolerance=1e-9), rel=1e-9
    )


def test_cost_in_laplacian_solves_does_not_depend_on_size() -> None:
    """Sweeps and inner iterations of near pairs: one solve each."""
    products = []
    for n in (100, 1600):
        kernel, p, q = log_normal_pair("grid", n, 0.3, 1)
        near = 0.95 * p + 0.05 * q
        products.append(TransportGeometry(kernel).geodesic(p, near, tolerance=1e-8).products)
    assert max(products) <= 8
