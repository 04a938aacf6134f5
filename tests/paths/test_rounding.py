"""The last bit of the matrices decides nothing: statuses are the same whatever a processor rounds.

BLAS kernels differ between processors in the order of their sums. Here the matrices that the
solvers see are perturbed by a unit in the last place at random, which needs no other processor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from thalweg.energy import FreeEnergy
from thalweg.flow import gradient_flow, jko_step
from thalweg.flow.implicit_euler import ImplicitEuler
from thalweg.geometry import TransportGeometry
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.mobility import GeometricMean, HarmonicMean, LogMean, Mobility
from thalweg.paths.boundary import incomplete, positive_newton
from thalweg.paths.interior import system
from thalweg.status import Status

pytestmark = pytest.mark.numerics

Array = NDArray[np.float64]
SEEDS = (0, 1, 2)


class LastBit:
    """Multiplies by `1 + e`, where `e` is one unit in the last place up or down, or zero."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.calls = 0

    def __call__(self, values: Array) -> Array:
        self.calls += 1
        unit = np.finfo(values.dtype).eps
        return np.asarray(
            values * (1 + unit * self.rng.integers(-1, 2, values.shape)), values.dtype
        )


@pytest.fixture
def perturb(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], LastBit]:
    """Installs the perturbation in every place where a solver meets a matrix."""
    factor, cholesky = LaplacianSolver.factor, positive_newton._cholesky
    direction = ImplicitEuler.direction

    def install(seed: int) -> LastBit:
        bit = LastBit(seed)

        def rough_factor(self: LaplacianSolver, weights: Array, *args: Any, **kw: Any) -> Any:
            return factor(self, bit(np.asarray(weights)), *args, **kw)

        def rough_cholesky(matrix: Array) -> Array | None:
            return cholesky(bit(np.tril(matrix)))

        def rough_direction(self: ImplicitEuler, *args: Any) -> Array | None:
            found = direction(self, *args)
            return None if found is None else bit(found)

        monkeypatch.setattr(LaplacianSolver, "factor", rough_factor)
        monkeypatch.setattr(positive_newton, "_cholesky", rough_cholesky)
        monkeypatch.setattr(ImplicitEuler, "direction", rough_direction)
        for module in (system, incomplete):
            monkeypatch.setattr(module, "gmres", rough_gmres(module.gmres, bit))
        return bit

    return install


def rough_gmres(gmres: Callable[..., Any], bit: LastBit) -> Callable[..., Any]:
    def rough(operator: Callable[[Array], Array], right: Array, **kw: Any) -> Any:
        return gmres(lambda y: bit(operator(y)), right, **kw)

    return rough


def path(n: int) -> tuple[MarkovKernel, Array, Array]:
    kernel = MarkovKernel.from_weights(np.eye(n, k=1) + np.eye(n, k=-1))
    return kernel, np.eye(n)[0], np.eye(n)[-1]


def grid(n: int) -> tuple[MarkovKernel, Array, Array]:
    kernel = make_graph("grid", n, rng=np.random.default_rng(0))
    return kernel, np.eye(n)[0], np.eye(n)[-1]


def inside(n: int) -> tuple[MarkovKernel, Array, Array]:
    rng = np.random.default_rng(3)
    kernel = make_graph("delaunay", n, rng=rng)
    p, q = (kernel.stationary * np.exp(rng.normal(size=n)) for _ in range(2))
    return kernel, p / p.sum(), q / q.sum()


PAIRS = [
    pytest.param(path(2), HarmonicMean(), 1e-10, id="two states, harmonic"),
    pytest.param(path(2), LogMean(), 1e-10, id="two states, logarithmic"),
    pytest.param(path(5), HarmonicMean(), 1e-8, id="path, harmonic"),
    pytest.param(grid(16), GeometricMean(), 1e-8, id="grid, geometric"),
    pytest.param(grid(144), LogMean(), 1e-2, id="large grid"),
    pytest.param(inside(30), LogMean(), 1e-8, id="inside"),
]


@pytest.mark.parametrize(("pair", "mobility", "tolerance"), PAIRS)
def test_distances_end_alike(
    pair: tuple[MarkovKernel, Array, Array],
    mobility: Mobility,
    tolerance: float,
    perturb: Callable[[int], LastBit],
) -> None:
    kernel, p, q = pair
    plain = TransportGeometry(kernel, mobility).geodesic(p, q, tolerance=tolerance, n_steps=1)
    assert plain.status
    for seed in SEEDS:
        bit = perturb(seed)
        rough = TransportGeometry(kernel, mobility).geodesic(p, q, tolerance=tolerance, n_steps=1)
        assert bit.calls > 0
        assert rough.status is plain.status
        assert rough.distance == pytest.approx(plain.distance, rel=tolerance)


@pytest.mark.parametrize("beta", [0.01, 1.0])
def test_flows_and_steps_end_alike(beta: float, perturb: Callable[[int], LastBit]) -> None:
    kernel, p, _ = inside(12)
    energy = FreeEnergy(np.random.default_rng(1).normal(size=12), beta=beta)

    def run() -> tuple[Status, Status, Array]:
        flow = gradient_flow(kernel, energy, p, [0.0, 1.0, 5.0], method="implicit")
        return flow.status, jko_step(kernel, energy, p, 0.3).status, flow.probabilities[-1]

    flow, step, last = run()
    assert flow
    assert step
    for seed in SEEDS:
        perturb(seed)
        rough_flow, rough_step, rough_last = run()
        assert (rough_flow, rough_step) == (flow, step)
        # Other steps are chosen: both keep the tolerance per step, and were seen 2e-7 apart.
        np.testing.assert_allclose(rough_last, last, atol=3e-6)
