"""Laplacian solves: laws on random graphs, agreement of the methods, extremes of the weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from thalweg.errors import ConvergenceError, InputError
from thalweg.graphs import GRAPH_FAMILIES, make_graph
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver, cholmod
from thalweg.laplacian.approxchol import ApproxCholAnalysis, eliminate
from thalweg.laplacian.policy import is_flat
from thalweg.status import Status

pytestmark = pytest.mark.numerics

Array = NDArray[np.float64]
FAMILIES = GRAPH_FAMILIES
LAWS = ("uniform", "log-uniform", "smooth")
METHODS = ["dense", "approxchol", "superlu"] + ["cholmod"] * cholmod.available()


def law_weights(law: str, kernel: MarkovKernel, rng: np.random.Generator) -> Array:
    """Ones; log-uniform over 8 decades; smooth along the graph over 12 decades."""
    source, target, _ = kernel.edges
    if law == "uniform":
        return np.ones(source.size)
    if law == "log-uniform":
        return 10 ** rng.uniform(-8, 0, source.size)
    height = rng.normal(size=kernel.n_states)
    for _ in range(15):
        height = (height + kernel.matrix @ height) / 2
    height = 12 * (height - height.min()) / np.ptp(height) - 12
    return np.asarray(10 ** ((height[source] + height[target]) / 2))


def energy(kernel_edges: tuple[Array, Array], weights: Array, x: Array) -> float:
    source, target = kernel_edges
    return float(np.sum(weights * (x[source] - x[target]) ** 2))


def manufactured(
    kernel: MarkovKernel, weights: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """A known `x` and `b = B^T (w * (B x))`, made in extended precision and rounded once."""
    source, target, _ = kernel.edges
    x = rng.normal(size=kernel.n_states).astype(np.longdouble)
    flux = weights * (x[source] - x[target])
    b = np.zeros(kernel.n_states, dtype=np.longdouble)
    np.add.at(b, source, flux)
    np.subtract.at(b, target, flux)
    return x.astype(np.float64), b.astype(np.float64)


def dense_matrix(n: int, source: Array, target: Array, weights: Array) -> Array:
    m = np.zeros((n, n))
    for x, y, w in zip(source, target, weights, strict=True):
        m[[x, y], [x, y]] += w
        m[[x, y], [y, x]] -= w
    return m


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("law", LAWS)
def test_energy_error_on_every_family(family: str, law: str) -> None:
    rng = np.random.default_rng(5)
    kernel = make_graph(family, 1000 if family not in ("complete", "k_partite") else 300, rng=rng)
    weights = law_weights(law, kernel, rng)
    x, b = manufactured(kernel, weights, rng)
    ends = (kernel.edges.source, kernel.edges.target)
    for method in ("auto", "approxchol"):
        solution = LaplacianSolver.for_kernel(kernel, method=method).factor(weights).solve(b)
        assert solution.status is Status.CONVERGED
        error = np.sqrt(energy(ends, weights, solution.x - x) / energy(ends, weights, x))
        assert error < 1e-8
        assert error < 30 * solution.energy_error + 1e-9  # the estimate can be trusted
        assert abs(solution.x.mean()) < 1e-12 * np.abs(solution.x).max()


@pytest.mark.slow
@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("complete", "k_partite")])
@pytest.mark.parametrize("law", LAWS)
def test_energy_error_on_large_sparse_families(family: str, law: str) -> None:
    rng = np.random.default_rng(6)
    kernel = make_graph(family, 100_000, rng=rng)
    weights = law_weights(law, kernel, rng)
    x, b = manufactured(kernel, weights, rng)
    ends = (kernel.edges.source, kernel.edges.target)
    solver = LaplacianSolver.for_kernel(kernel, method="approxchol")
    solution = solver.factor(weights).solve(b)
    assert np.sqrt(energy(ends, weights, solution.x - x) / energy(ends, weights, x)) < 1e-8


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, Array, Array, Array, Array]:
    """A connected multigraph with weights over 12 decades, and a balanced right-hand side."""
    n = draw(st.integers(2, 14))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    extra = draw(st.integers(0, 2 * n))
    source = np.concatenate([np.arange(1, n), rng.integers(0, n, extra)])
    target = np.concatenate([rng.integers(0, np.arange(1, n)), rng.integers(0, n, extra)])
    loop = source == target
    source, target = source[~loop], target[~loop]
    weights = 10 ** rng.uniform(-draw(st.integers(0, 12)), 0, source.size)
    b = rng.normal(size=n)
    return n, source, target, weights, b - b.mean()


@settings(max_examples=40, deadline=None)
@given(problems())
def test_methods_agree(problem: tuple[int, Array, Array, Array, Array]) -> None:
    n, source, target, weights, b = problem
    methods = METHODS + ["tree"] * (source.size == n - 1)
    solutions = [
        LaplacianSolver(n, source, target, method=m).factor(weights).solve(b) for m in methods
    ]
    size = np.sqrt(energy((source, target), weights, solutions[0].x))
    for solution in solutions:
        assert solution.status is Status.CONVERGED
        gap = solution.x - solutions[0].x
        assert np.sqrt(energy((source, target), weights, gap)) < 1e-8 * size


@settings(max_examples=30, deadline=None)
@given(problems())
def test_ground_is_a_diagonal(problem: tuple[int, Array, Array, Array, Array]) -> None:
    n, source, target, weights, b = problem
    diagonal = np.linspace(0, 1, n)
    matrix = dense_matrix(n, source, target, weights) + np.diag(diagonal)
    for method in METHODS:
        solver = LaplacianSolver(n, source, target, method=method, grounded=True)
        x = solver.factor(weights, diagonal).solve(b + 1.0).x
        gap = matrix @ x - (b + 1.0)
        assert np.abs(gap).max() < 1e-9 * np.abs(matrix).max() * max(1, np.abs(x).max())


@settings(max_examples=20, deadline=None)
@given(problems(), st.floats(1e-120, 1e120), st.floats(1e-100, 1e100))
def test_scaling(
    problem: tuple[int, Array, Array, Array, Array], scale: float, load: float
) -> None:
    n, source, target, weights, b = problem
    solver = LaplacianSolver(n, source, target)
    x = solver.factor(weights).solve(b).x
    y = solver.factor(weights * scale).solve(b * load).x
    np.testing.assert_allclose(y / load * scale, x, rtol=1e-6, atol=1e-7 * np.abs(x).max())


def test_columns_are_solved_one_by_one() -> None:
    rng = np.random.default_rng(1)
    kernel = make_graph("delaunay", 400, rng=rng)
    factor = LaplacianSolver.for_kernel(kernel, method="approxchol").factor(
        kernel.edges.conductance
    )
    b = rng.normal(size=(400, 3))
    b -= b.mean(axis=0)
    together = factor.solve(b)
    for k in range(3):
        np.testing.assert_array_equal(together.x[:, k], factor.solve(b[:, k]).x)
    assert factor.solve(np.zeros(400)).energy_error == 0.0


def test_same_input_same_output() -> None:
    rng = np.random.default_rng(2)
    kernel = make_graph("regular", 600, rng=rng)
    b = rng.normal(size=600)
    b -= b.mean()
    first, second = (
        LaplacianSolver.for_kernel(kernel, method="approxchol")
        .factor(kernel.edges.conductance)
        .solve(b)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.x, second.x)


def test_approximate_factor_is_unbiased() -> None:
    """The mean of `L D L^T` over many seeds is `M`: the law behind the method."""
    rng = np.random.default_rng(3)
    kernel = make_graph("complete", 7, rng=rng)
    source, target, _ = kernel.edges
    weights = rng.uniform(0.1, 1, source.size)
    total = np.zeros((7, 7))
    draws = 4000
    for seed in rng.integers(1, 2**60, draws):
        order, start, rows, fractions, pivot = eliminate(7, source, target, weights, int(seed))
        for k in range(6):
            column = np.zeros(7)
            column[order[k]] = 1.0
            column[rows[start[k] : start[k + 1]]] = -fractions[start[k] : start[k + 1]]
            total += pivot[k] * np.outer(column, column)
    expected = dense_matrix(7, source, target, weights)
    assert np.abs(total / draws - expected).max() < 0.02 * expected.max()


def test_memory_of_the_factor_is_near_linear() -> None:
    rng = np.random.default_rng(4)
    fill = []
    for n in (2_000, 16_000):
        pattern = LaplacianSolver.for_kernel(
            make_graph("delaunay", n, rng=rng), method="approxchol"
        ).pattern
        factor = ApproxCholAnalysis.of(pattern).factor(np.ones(pattern.n_edges))
        fill.append(factor.rows.size / pattern.n_edges)
    assert fill[1] < 1.2 * fill[0]


def test_hub_goes_last() -> None:
    """A wheel: eliminated early, its hub would join everything to everything."""
    n = 2000
    rim = np.arange(n)
    solver = LaplacianSolver(
        n + 1,
        np.concatenate([rim, rim]),
        np.concatenate([(rim + 1) % n, np.full(n, n)]),
        method="approxchol",
    )
    b = np.sin(np.arange(n + 1.0))
    b -= b.mean()
    assert solver.factor(np.ones(2 * n)).solve(b).iterations < 40


@pytest.mark.parametrize("method", METHODS)
def test_zero_weights_cut_the_graph(method: str) -> None:
    # A square 0-1-2-3 whose edges 1-2 and 3-0 carry nothing.
    solver = LaplacianSolver(4, [0, 1, 2, 3], [1, 2, 3, 0], method=method)  # type: ignore[arg-type]
    factor = solver.factor([2.0, 0.0, 1.0, 5e-324])
    inside = factor.solve([1.0, -1.0, 3.0, -3.0])
    assert inside.status is Status.CONVERGED
    np.testing.assert_allclose(inside.x[[0, 2]] - inside.x[[1, 3]], [0.5, 3.0])
    across = factor.solve([1.0, 0.0, -1.0, 0.0])
    assert across.status is Status.DISCONNECTED
    with pytest.raises(ConvergenceError, match="zero weight"):
        factor.solve([1.0, 0.0, -1.0, 0.0], throw=True)


@pytest.mark.parametrize("method", METHODS)
def test_thirty_decades(method: str) -> None:
    """Beyond the digits of a Cholesky factor the elimination of edges takes over."""
    rng = np.random.default_rng(7)
    n = 60
    source = np.concatenate([np.arange(n - 1), rng.integers(0, n - 1, 100)])
    target = np.concatenate([np.arange(1, n), np.full(100, n - 1)])
    weights = 10 ** rng.uniform(-30, 0, source.size)
    weights[: n - 1] = 10 ** np.linspace(-30, 0, n - 1)
    x = np.concatenate([np.zeros(n // 2), np.ones(n - n // 2)])
    flux = weights * (x[source] - x[target])
    b = np.bincount(source, flux, n) - np.bincount(target, flux, n)
    solution = LaplacianSolver(n, source, target, method=method).factor(weights).solve(b)  # type: ignore[arg-type]
    ends = (source, target)
    error = np.sqrt(energy(ends, weights, solution.x - x) / energy(ends, weights, x))
    assert error < 1e-8


def test_policy() -> None:
    rng = np.random.default_rng(8)
    method = {f: LaplacianSolver.for_kernel(make_graph(f, 900, rng=rng)).method for f in FAMILIES}
    assert method["spanning_tree"] == "tree"
    assert method["complete"] == "dense"
    assert method["regular"] == "approxchol"
    assert method["delaunay"] == ("cholmod" if cholmod.available() else "approxchol")
    large = LaplacianSolver.for_kernel(make_graph("barabasi_albert", 3000, rng=rng))
    assert not is_flat(large.pattern.matrix)


def test_input_errors() -> None:
    path = LaplacianSolver(3, [0, 1], [1, 2])
    for call, message in (
        (lambda: LaplacianSolver(3, [0], [1]), "2 components"),
        (lambda: LaplacianSolver(3, [0, 1], [1, 3]), r"target\[1\] is 3"),
        (lambda: LaplacianSolver(3, [0, 1, 1], [1, 2, 1]), "to itself"),
        (lambda: LaplacianSolver(3, [0, 1], [1, 2], method="magic"), "method is 'magic'"),
        (lambda: LaplacianSolver(3, [0, 1, 2], [1, 2, 0], method="tree"), "3 edges on 3 nodes"),
        (lambda: path.factor([1.0, -2.0]), "weights is -2 at edge 1"),
        (lambda: path.factor([0.0, 0.0]), "all weights are zero"),
        (lambda: path.factor([1.0, np.nan]), "nan"),
        (lambda: path.factor([1.0, 1.0], diagonal=[1, 1, 1]), "grounded=True"),
        (lambda: path.factor([1.0, 1.0]).solve([1.0, 1.0, -1.0]), "b sums to 1"),
        (lambda: path.factor([1.0, 1.0]).solve([1.0, -1.0]), "shape"),
    ):
        with pytest.raises(InputError, match=message):
            call()  # type: ignore[no-untyped-call]
