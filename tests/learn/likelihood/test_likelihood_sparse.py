"""The sparse likelihood: against the dense one, against differences, within its limits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from thalweg import FreeEnergy, FreeEnergyRegressor, MarkovKernel, Snapshots, gradient_flow
from thalweg.errors import InputError
from thalweg.graphs import make_graph
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import IndependentObjective
from thalweg.learn.likelihood.optimize import minimise
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.likelihood.priors import make_prior
from thalweg.learn.likelihood.sparse.elimination import make_plan
from thalweg.learn.likelihood.sparse.flow import SparseFlow, probabilities
from thalweg.learn.likelihood.sparse.search import minimise_likelihood
from thalweg.learn.limits import work_limit
from thalweg.status import Status

TIMES = np.array([0.0, 0.7, 1.5, 3.0])


def graph(kind: str, n: int = 24) -> MarkovKernel:
    rng = np.random.default_rng(5)
    if kind == "path":
        return MarkovKernel.from_weights(np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1))
    return make_graph(kind, n, rng=rng)


def population(kernel: MarkovKernel, size: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    n = kernel.n_states
    potential, start = 0.5 * np.sin(np.arange(n)), rng.dirichlet(np.ones(n))
    path = gradient_flow(kernel, FreeEnergy(potential, 0.3), start, TIMES).probabilities
    return np.array([rng.multinomial(size, p / p.sum()) for p in path], dtype=np.float64)


def somewhere(model: FlowModel, seed: int = 1) -> np.ndarray:
    theta = 0.4 * np.random.default_rng(seed).normal(size=model.n_parameters)
    if model.learns_beta:
        theta[model.beta_index] = np.log(0.2)
    return theta


@pytest.mark.parametrize("kind", ["path", "delaunay", "complete"])
@pytest.mark.parametrize("beta", [None, 0.2])
def test_sparse_and_dense_likelihood_agree(kind: str, beta: float | None) -> None:
    kernel = graph(kind)
    counts = population(kernel, 400)
    model = FlowModel(kernel, TIMES, fixed_beta=beta)
    theta, mesh = somewhere(model), Mesh(np.array([2, 2, 3]), 3)
    dense = IndependentObjective(model, counts).evaluate(theta, mesh)
    point = SparseFlow(model, counts, mesh).at(theta)
    assert dense is not None
    assert point is not None
    assert point.value == pytest.approx(dense.value, rel=1e-8)
    scale = np.abs(dense.gradient).max()
    np.testing.assert_allclose(point.gradient, dense.gradient, atol=2e-3 * scale)
    size = np.abs(dense.information).max()
    np.testing.assert_allclose(point.information, dense.information, atol=2e-3 * size)
    assert point.mesh_error == pytest.approx(dense.mesh_error, rel=1e-3)
    np.testing.assert_allclose(point.probabilities, model.probabilities(theta, mesh), atol=1e-8)
    np.testing.assert_allclose(probabilities(model, theta, mesh), point.probabilities, atol=1e-12)


def test_a_tail_of_several_blocks_gives_the_dense_information() -> None:
    kernel = graph("complete", 60)
    counts = population(kernel, 900)
    model, mesh = FlowModel(kernel, TIMES, fixed_beta=0.2), Mesh(np.array([1, 1, 2]), 2)
    theta = somewhere(model)
    dense = IndependentObjective(model, counts).evaluate(theta, mesh)
    point = SparseFlow(model, counts, mesh).at(theta)
    assert dense is not None
    assert point is not None
    size = np.abs(dense.information).max()
    np.testing.assert_allclose(point.information, dense.information, atol=2e-3 * size)


@pytest.mark.parametrize("length", [0.02, 0.6])
def test_a_value_with_factors_from_nearby_is_the_value(length: float) -> None:
    """Also where the old factors do not lead to the solution and new ones are needed."""
    kernel = graph("delaunay")
    model = FlowModel(kernel, TIMES, fixed_beta=0.2)
    flow = SparseFlow(model, population(kernel, 400), Mesh(np.array([1, 1, 2]), 2))
    near = flow.at(somewhere(model))
    assert near is not None
    theta = near.theta + length * np.random.default_rng(2).normal(size=near.theta.size)
    there = flow.at(theta)
    assert there is not None
    assert abs(there.value - near.value) > 0.1
    assert flow.value_near(theta, near) == pytest.approx(there.value, abs=1e-3)


def test_a_known_beta_still_shows_how_the_flow_depends_on_it() -> None:
    kernel = graph("delaunay")
    counts, mesh = population(kernel, 400), Mesh(np.array([1, 1, 2]), 2)
    learned, known = FlowModel(kernel, TIMES), FlowModel(kernel, TIMES, fixed_beta=0.2)
    theta, i = somewhere(learned), learned.beta_index
    whole = SparseFlow(learned, counts, mesh).at(theta)
    point = SparseFlow(known, counts, mesh).at(np.delete(theta, i))
    assert whole is not None
    assert point is not None
    own, mixed = point.about_beta
    row = whole.information[i]
    assert own == pytest.approx(row[i], rel=1e-3)
    np.testing.assert_allclose(mixed, np.delete(row, i), atol=1e-3 * np.abs(row).max())


def test_gradient_is_the_derivative_and_products_those_of_the_matrix() -> None:
    kernel = graph("delaunay")
    model = FlowModel(kernel, TIMES)
    flow = SparseFlow(model, population(kernel, 400), Mesh(np.array([1, 1, 2]), 2))
    theta = somewhere(model)
    point = flow.at(theta)
    assert point is not None
    direction = np.random.default_rng(2).normal(size=theta.size)
    ahead, behind = flow.at(theta + 1e-4 * direction), flow.at(theta - 1e-4 * direction)
    assert ahead is not None
    assert behind is not None
    slope = (ahead.value - behind.value) / 2e-4
    assert slope == pytest.approx(point.gradient @ direction, rel=1e-3)
    product = point.product(direction, point.expected)
    expected = point.information @ direction
    np.testing.assert_allclose(product, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())
    # A prediction from a neighbour leads to the same flow.
    near = flow.at(theta + 1e-4 * direction, point)
    assert near is not None
    assert near.value == pytest.approx(ahead.value, abs=1e-5)


def test_elimination_needs_no_more_than_the_graph_on_a_path() -> None:
    plan = make_plan(graph("path", 40))
    assert plan.later.size <= 2 * 40
    assert sorted(plan.order.tolist()) == list(range(40))


@pytest.mark.parametrize("kind", ["path", "delaunay"])
def test_both_searches_find_the_same_minimum(kind: str) -> None:
    kernel = graph(kind)
    counts = population(kernel, 3000)
    model = FlowModel(kernel, TIMES)
    objective, mesh = IndependentObjective(model, counts), Mesh(np.array([2, 2, 3]), 3)
    prior = make_prior(model, 0.3, 0.5, 1e-2)
    theta = np.zeros(model.n_parameters)
    theta[model.beta_index] = np.log(0.3)
    dense = minimise(objective, prior, theta, mesh)
    sparse = minimise_likelihood(objective, prior, theta, mesh)
    assert dense is not None
    assert sparse is not None
    assert sparse.status is dense.status is Status.CONVERGED
    assert sparse.value == pytest.approx(dense.value, abs=2e-3)
    near = SimpleNamespace(point=sparse.point, information=sparse.evaluation.information)
    again = minimise_likelihood(objective, prior, sparse.theta + 0.02, mesh, near=near)
    assert again is not None
    assert again.status is Status.CONVERGED
    assert again.value == pytest.approx(dense.value, abs=2e-3)


def test_limits_stop_a_search_at_its_best() -> None:
    kernel = graph("delaunay")
    counts = population(kernel, 3000)
    model = FlowModel(kernel, TIMES)
    objective, mesh = IndependentObjective(model, counts), Mesh(np.array([2, 2, 3]), 3)
    prior, theta = make_prior(model, 0.3, 0.5, 1e-2), somewhere(model)
    first = objective.evaluate(theta, mesh)
    assert first is not None
    with work_limit(iterations=2):
        stopped = minimise_likelihood(objective, prior, theta, mesh)
    assert stopped is not None
    assert stopped.status is Status.MAX_ITERATIONS
    assert stopped.evaluation.value < first.value
    with work_limit(seconds=0.0):
        late = minimise_likelihood(objective, prior, theta, mesh)
    assert late is not None
    assert late.status is Status.TIME_LIMIT


def test_a_steep_start_does_not_ask_for_thousands_of_time_steps() -> None:
    # Where few were seen the weak form makes a potential that is far too steep: 79 steps per
    # interval, before anything was fitted.
    kernel, rng = graph("path", 60), np.random.default_rng(14)
    times = np.linspace(0.0, 6.0, 4)
    energy = FreeEnergy(0.6 * rng.normal(size=60), 1.0)
    start = np.full(60, 1e-4)
    start[20:24] = 1.0
    path = gradient_flow(kernel, energy, start / start.sum(), times).probabilities
    counts = np.array([rng.multinomial(10_000, p / p.sum()) for p in path], dtype=np.float64)
    fit = fit_likelihood(kernel, times, counts, options=LikelihoodOptions(hurried=True))
    assert fit.mesh.substeps.max() <= 32


@pytest.mark.parametrize("method", ["likelihood", "weak"])
def test_a_regressor_keeps_to_its_limits(method: str) -> None:
    kernel = graph("path")
    seen = Snapshots.from_counts(TIMES, population(kernel, 60))
    model = FreeEnergyRegressor(method=method, max_iterations=3, max_seconds=600.0)  # type: ignore[arg-type]
    model.fit(kernel, seen)
    assert np.isfinite(model.potential_).all()
    if method == "likelihood":
        assert model.status_ is Status.MAX_ITERATIONS
        assert not model.beta_verdict_.determined
        assert np.isnan(model.potential_stderr_).all()
        with pytest.raises(InputError, match="no covariance"):
            model.forecast([9.0])
    with pytest.raises(InputError, match="max_seconds is -1"):
        FreeEnergyRegressor(max_seconds=-1.0).fit(kernel, seen)
