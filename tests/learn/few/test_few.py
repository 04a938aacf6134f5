"""Few individuals: averages over priors, and what the data do not determine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest

from thalweg import FreeEnergy, FreeEnergyRegressor, MarkovKernel, Snapshots, gradient_flow, load
from thalweg.learn.few import inner as few_inner
from thalweg.learn.few.choose import applies, is_few
from thalweg.learn.few.columns import Column, Lattice
from thalweg.learn.few.fit import fit_few
from thalweg.learn.few.inner import Cell, Inner, Place
from thalweg.learn.few.interval import beta_hull
from thalweg.learn.few.shapes import make_shapes
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.sparse import search as sparse_search
from thalweg.learn.verdict import BetaVerdict, movement_p_value
from thalweg.report import findings
from thalweg.status import Status
from thalweg_bench.sweep import cell_generator
from thalweg_bench.typical_cases import make_data


def path(n: int) -> MarkovKernel:
    return MarkovKernel.from_weights(np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1))


def drawn(
    kernel: MarkovKernel, potential: np.ndarray, beta: float, size: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Times and counts of a population that starts at one end."""
    rng = np.random.default_rng(seed)
    times = np.linspace(0.0, 4.0, 5)
    start = np.exp(-0.7 * np.arange(kernel.n_states))
    flow = gradient_flow(kernel, FreeEnergy(potential, beta), start / start.sum(), times)
    counts = [rng.multinomial(size, p / p.sum()) for p in flow.probabilities]
    return times, np.array(counts, dtype=np.float64)


# ---------------------------------------------------------------------- priors and evidence


def test_shapes_have_equal_mean_square_differences_along_edges() -> None:
    kernel = path(7)
    weights = kernel.flow_matrix.toarray()
    laplacian = np.diag(weights.sum(axis=1)) - weights
    centred = np.eye(7) - 1 / 7
    sizes = [
        np.trace(laplacian @ centred @ np.linalg.inv(shape.matrix) @ centred)
        for shape in make_shapes(kernel, (0, 1, 2, 3))
    ]
    np.testing.assert_allclose(sizes, sizes[0], rtol=1e-9)
    for shape in make_shapes(kernel, (0, 3)):
        assert np.linalg.slogdet(shape.matrix)[1] == pytest.approx(shape.log_determinant)


def test_evidence_is_the_integral_over_potential_and_start() -> None:
    """Two states: the integral over both contrasts, by quadrature."""
    kernel = path(2)
    times = np.array([0.0, 0.5, 1.5])
    counts = np.array([[300.0, 100.0], [260.0, 140.0], [220.0, 180.0]])
    model = FlowModel(kernel, times)
    inner = Inner(model, counts, Mesh(np.array([4, 8]), 3), tolerance=1e-8)
    shape, initial = make_shapes(kernel, (1, 1))
    place = Place(np.log(0.3), np.log(2.0), np.log(0.5), shape, initial)
    cell = inner.solve(place, np.zeros(4))
    assert cell is not None
    assert cell.status is Status.CONVERGED

    fixed = replace(model, fixed_beta=0.3)
    half = np.array([1.0, -1.0]) / np.sqrt(2.0)
    rigid, rigid0 = 2.0 * half @ shape.matrix @ half, 0.5 * half @ initial.matrix @ half
    centre = cell.theta[:2] @ half, cell.theta[2:] @ half
    error = np.array([half @ cell.covariance[s, s] @ half for s in (slice(0, 2), slice(2, 4))])
    wide = 6 * np.sqrt(error)
    share = counts / counts.sum(axis=1, keepdims=True)
    top = float(np.sum(counts * np.log(share)))
    v = centre[0] + wide[0] * np.linspace(-1, 1, 61)
    a = centre[1] + wide[1] * np.linspace(-1, 1, 61)
    logs = np.empty((v.size, a.size))
    for i, x in enumerate(v):
        for j, y in enumerate(a):
            p = fixed.probabilities(np.concatenate([x * half, y * half]), cell.mesh)
            if p is None:  # far outside, where the flow is too stiff for this mesh
                logs[i, j] = -np.inf
                continue
            logs[i, j] = np.sum(counts * np.log(p)) - top - 0.5 * (rigid * x**2 + rigid0 * y**2)
    area = (v[1] - v[0]) * (a[1] - a[0])
    log_z = np.log(np.exp(logs - logs.max()).sum() * area) + logs.max()
    log_z += 0.5 * np.log(rigid * rigid0) - np.log(2 * np.pi)
    found = cell.log_evidence - inner.size_prior(place.log_strength)
    assert found == pytest.approx(log_z, abs=0.02)


def quadrature(inner: Inner, cell: Cell) -> float:
    """The log evidence of two states without the hyper-prior, over both contrasts."""
    half = np.array([1.0, -1.0]) / np.sqrt(2.0)
    fixed = replace(inner.model, fixed_beta=float(np.exp(cell.place.log_beta)))
    prior = cell.place.prior
    parts = slice(0, 2), slice(2, 4)
    rigid = [half @ prior.precision[s, s] @ half for s in parts]
    grids = [
        cell.theta[s] @ half
        + 9 * np.sqrt(half @ cell.covariance[s, s] @ half) * np.linspace(-1, 1, 31)
        for s in parts
    ]
    logs = np.full((31, 31), -np.inf)
    for i, x in enumerate(grids[0]):
        for j, y in enumerate(grids[1]):
            p = fixed.probabilities(np.concatenate([x * half, y * half]), cell.mesh)
            if p is not None:
                fall = 0.5 * inner.noise.deviance(inner.counts, p)
                logs[i, j] = -fall - 0.5 * (rigid[0] * x**2 + rigid[1] * y**2)
    area = float(np.prod([grid[1] - grid[0] for grid in grids]))
    top = logs.max()
    log_z = float(np.log(np.exp(logs - top).sum() * area) + top)
    return log_z + 0.5 * float(np.log(np.prod(rigid))) - float(np.log(2 * np.pi))


def test_the_next_order_of_laplaces_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six individuals: curvature alone misses an eighth of the integral."""
    monkeypatch.setattr(sparse_search, "SPARSE_STATES", 2)
    monkeypatch.setattr(few_inner, "_NEARLY_NORMAL", 0.0)
    kernel = path(2)
    counts = np.array([[6.0, 0.0], [2.0, 4.0], [0.0, 6.0]])
    model = FlowModel(kernel, np.array([0.0, 1.0, 4.0]))
    inner = Inner(model, counts, Mesh(np.array([8, 24]), 3), tolerance=1e-8)
    inner.__dict__["normals"] = np.random.default_rng(1).standard_normal((400, 4))
    shape, initial = make_shapes(kernel, (1, 1))
    cell = inner.solve(Place(np.log(0.05), np.log(0.3), np.log(0.5), shape, initial), np.zeros(4))
    assert cell is not None
    exact = quadrature(inner, cell) + inner.size_prior(cell.place.log_strength)
    assert abs(inner.corrected(cell).log_evidence - exact) < 0.5 * abs(cell.log_evidence - exact)


def test_an_expanded_cell_is_the_solved_one_nearby() -> None:
    kernel = path(6)
    times, counts = drawn(kernel, np.linspace(-0.5, 0.5, 6), 0.3, 1000, seed=5)
    inner = Inner(FlowModel(kernel, times), counts, Mesh(np.full(4, 2), 3), tolerance=1e-8)
    shape, initial = make_shapes(kernel, (1, 1))
    place = Place(np.log(0.3), np.log(2.0), np.log(0.5), shape, initial)
    near = inner.solve(place, np.zeros(12))
    assert near is not None
    other = replace(place, log_strength=np.log(6.0), log_initial=np.log(0.2))
    expanded, solved = inner.expand(near, other), inner.solve(other, near.theta)
    assert solved is not None
    assert not expanded.solved
    assert expanded.log_evidence == pytest.approx(solved.log_evidence, abs=0.05)
    assert abs(near.log_evidence - solved.log_evidence) > 0.3
    np.testing.assert_allclose(expanded.theta, solved.theta, atol=0.02)


def test_a_cell_next_to_a_solved_one_is_predicted_along_beta() -> None:
    kernel = path(24)
    times, counts = drawn(kernel, np.linspace(-0.5, 0.5, 24), 0.3, 3000, seed=5)
    inner = Inner(FlowModel(kernel, times), counts, Mesh(np.full(4, 2), 2), tolerance=1e-8)
    shape, initial = make_shapes(kernel, (1, 1))
    place = Place(np.log(0.3), np.log(2.0), np.log(0.5), shape, initial)
    near = inner.solve(place, np.zeros(48))
    assert near is not None
    other = inner.solve(replace(place, log_beta=place.log_beta + 0.1), near.theta)
    assert other is not None
    slope, bend = inner.along_beta(near)
    assert bend > 0.0
    matrix = other.information + other.precision
    left = [  # log likelihood to gain from a start: what a search has to make up for
        0.5 * (start - other.theta) @ matrix @ (start - other.theta)
        for start in (near.theta + 0.1 * slope, near.theta)
    ]
    assert left[0] < 0.3 * left[1]


# ---------------------------------------------------------------------- the interval of beta


def lattice_of(
    value: list[float], half_deviance: list[float], bad: tuple[int, ...] = ()
) -> Lattice:
    columns = []
    shape = make_shapes(path(2), (1,))[0]
    for i, (z, d) in enumerate(zip(value, half_deviance, strict=True)):
        status = Status.MAX_ITERATIONS if i in bad else Status.CONVERGED
        place = Place(float(i), 0.0, 0.0, shape, shape)
        cell = Cell(place, np.zeros(4), np.eye(4), d, z, status, Mesh(np.array([1])))
        columns.append(Column(float(i), {(0, 0): cell}, {0: 1.0}))
    return Lattice(tuple(columns), np.zeros(len(columns)), True)


def test_only_evidence_and_fit_together_exclude_a_beta() -> None:
    falls = [-9.0, -4.0, -1.0, 0.0, -1.0, -4.0, -9.0]
    flat = [5.0] * 7
    _, lower, upper = beta_hull(lattice_of(falls, [5.0 - f for f in falls]))
    assert 1.0 < np.log(lower) < 2.0
    assert 4.0 < np.log(upper) < 5.0
    assert beta_hull(lattice_of(falls, flat))[1:] == (0.0, np.inf)  # the prior alone
    assert beta_hull(lattice_of([0.0] * 7, [5.0 - f for f in falls]))[1:] == (0.0, np.inf)
    # What did not converge closes nothing.
    open_ = beta_hull(lattice_of(falls, [5.0 - f for f in falls], bad=(0, 1)))
    assert open_[1] == 0.0
    assert np.isfinite(open_[2])


def test_evidence_in_doubt_excludes_no_beta_that_fits_under_the_same_prior() -> None:
    """Where Laplace's method misses much, a lower beta takes a stronger prior and fits worse."""
    falls = [-9.0, -6.0, 0.0, -6.0, -9.0]
    kept = lattice_of(falls, [5.0 - f for f in falls])
    assert beta_hull(kept)[1] > 0.0

    def with_stronger(correction: float, deviance: float) -> Lattice:
        lattice = lattice_of(falls, [5.0 - f for f in falls])
        for column in lattice.columns[:2]:
            cell = column.best
            column.cells[0, 0] = replace(cell, half_deviance=deviance, log_evidence=-99.0)
            column.cells[0, 1] = replace(cell, correction=correction)
        return lattice

    # The same prior fits as well there, and what Laplace's method may miss is more than the fall.
    assert beta_hull(with_stronger(20.0, 4.0))[1] == 0.0
    # It misses little; or the same prior fits worse, too.
    assert beta_hull(with_stronger(1.0, 4.0))[1] > 0.0
    assert beta_hull(with_stronger(20.0, 14.0))[1] > 0.0


# ---------------------------------------------------------------------- fits


def test_a_landscape_of_the_right_size_where_an_ordinary_fit_has_none() -> None:
    kernel = path(8)
    potential = 0.8 * np.cos(np.arange(8) / 7 * np.pi)
    potential -= kernel.stationary @ potential
    times, counts = drawn(kernel, potential, 1.0, 150, seed=3)
    fit = fit_likelihood(kernel, times, counts)
    assert not 1 / 3 < np.std(fit.potential) / np.std(potential) < 3
    assert applies(fit)
    assert is_few(fit)
    few = fit_few(fit)
    assert few.status is Status.CONVERGED
    assert 0.2 < few.beta < 5.0
    assert few.verdict.lower < 1.0 < few.verdict.upper
    assert np.mean(np.abs(few.potential - potential) < 1.96 * few.potential_stderr) > 0.7
    assert few.mixture.weights.sum() == pytest.approx(1.0)
    assert np.linalg.eigvalsh(few.joint_covariance).min() > -1e-9


def test_plentiful_data_are_fitted_as_before() -> None:
    kernel = path(5)
    potential = np.array([0.5, -0.5, 0.3, -0.4, 0.2])
    times, counts = drawn(kernel, potential, 0.5, 20_000, seed=4)
    fit = fit_likelihood(kernel, times, counts)
    assert not is_few(fit)
    model = FreeEnergyRegressor().fit(kernel, Snapshots.from_counts(times, counts))
    assert model.fitted_.members is None
    np.testing.assert_array_equal(model.potential_, fit.potential)
    assert model.beta_ == fit.beta
    assert model.beta_stderr_ == fit.beta_stderr
    verdict = model.beta_verdict_
    assert verdict.kind == "determined"
    assert verdict.lower < 0.5 < verdict.upper


def test_an_averaged_model_forecasts_and_survives_its_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    kernel = path(6)
    potential = np.linspace(-0.5, 0.5, 6)
    times, counts = drawn(kernel, potential, 0.3, 100, seed=5)
    model = FreeEnergyRegressor().fit(kernel, Snapshots.from_counts(times, counts))
    assert model.fitted_.members is not None
    ahead = model.predict(None, [2.0, 5.0])
    assert ahead.times.tolist() == [2.0, 5.0]
    np.testing.assert_allclose(ahead.probabilities.sum(axis=1), 1.0, atol=1e-8)
    band = model.forecast(times)
    assert np.all(band.lower <= band.probabilities)
    assert np.all(band.probabilities <= band.upper)
    model.save(tmp_path / "model.thalweg")
    again = load(tmp_path / "model.thalweg")
    assert again.beta_verdict_ == model.beta_verdict_
    assert again.beta_stderr_ == model.beta_stderr_
    np.testing.assert_allclose(
        again.predict(None, [2.0, 5.0]).probabilities, ahead.probabilities, atol=1e-12
    )


# ---------------------------------------------------------------------- what is not determined


def still(kind: str) -> np.ndarray:
    if kind == "identical":
        return np.tile([50.0, 30.0, 10.0, 5.0, 5.0], (4, 1))
    if kind == "one state":
        return np.tile([100.0, 0.0, 0.0, 0.0, 0.0], (4, 1))
    rng = np.random.default_rng(8)
    p = FreeEnergy(np.array([1.0, 0.0, -1.0, 0.0, 1.0]), 0.5).equilibrium(path(5))
    return rng.multinomial(500, p, size=4).astype(np.float64)


@pytest.mark.parametrize("kind", ["identical", "equilibrium", "one state"])
def test_a_population_at_rest_determines_nothing(kind: str) -> None:
    seen = Snapshots.from_counts([0.0, 1.0, 2.0, 3.0], still(kind))
    model = FreeEnergyRegressor().fit(path(5), seen)
    assert model.status_ is Status.UNDETERMINED
    assert model.beta_verdict_.vacuous
    assert np.isinf(model.beta_stderr_)
    assert not model.determined_["beta"]
    assert "p_value" not in model.diagnostics_
    said = " ".join(findings(model, seen))
    assert "No movement was seen" in said
    assert "noise dominates" not in said


def test_two_snapshots_leave_beta_open() -> None:
    counts = [[500, 300, 100, 50, 50], [300, 300, 200, 100, 100]]
    model = FreeEnergyRegressor().fit(path(5), Snapshots.from_counts([0.0, 1.0], counts))
    assert model.status_ is Status.UNDETERMINED
    assert model.beta_verdict_.vacuous
    said = " ".join(findings(model))
    assert "Two snapshots can be joined at any beta" in said
    assert "consistent" not in said  # nothing was tested


def test_a_beta_near_zero_gets_a_bound() -> None:
    kernel = path(6)
    times, counts = drawn(kernel, np.linspace(0.8, -0.8, 6), 0.002, 150, seed=6)
    model = FreeEnergyRegressor().fit(kernel, Snapshots.from_counts(times, counts))
    verdict = model.beta_verdict_
    assert verdict.kind == "undetermined"
    assert verdict.lower == 0.0
    assert 0.002 < verdict.upper < 10
    assert "0 is not excluded" in " ".join(findings(model))
    assert np.isinf(model.beta_stderr_)


def test_a_given_beta_is_kept() -> None:
    kernel = path(6)
    times, counts = drawn(kernel, np.linspace(0.8, -0.8, 6), 0.3, 100, seed=7)
    model = FreeEnergyRegressor(beta=0.3).fit(kernel, Snapshots.from_counts(times, counts))
    assert model.beta_ == 0.3
    assert model.beta_verdict_ == BetaVerdict("given", 0.3, 0.3)


def test_movement_p_values_are_uniform_at_rest() -> None:
    rng = np.random.default_rng(9)
    p = np.array([0.4, 0.3, 0.2, 0.08, 0.02])
    values = [
        movement_p_value(rng.multinomial(40, p, size=4).astype(np.float64), rng=rng, n_draws=99)
        for _ in range(150)
    ]
    assert kstest(values, "uniform").pvalue > 1e-3
    moved = np.array([[90.0, 10.0, 0.0], [50.0, 40.0, 10.0], [20.0, 40.0, 40.0]])
    assert movement_p_value(moved, rng=rng) < 1e-6


def test_a_state_that_empties_between_snapshots_may_be_higher() -> None:
    # The counts show how high it is at least: the prior's height must not come with a small error.
    kernel = MarkovKernel.from_weights(np.ones((5, 5)) - np.eye(5))
    times = np.linspace(0, 6, 5)
    potential = np.array([-0.3, 0.0, 0.2, -0.1, 2.0])
    potential -= kernel.stationary @ potential
    flow = gradient_flow(kernel, FreeEnergy(potential, 0.1), [0.3, 0.2, 0.2, 0.2, 0.1], times)
    rng = np.random.default_rng(1)
    counts = [rng.multinomial(1000, p / p.sum()) for p in flow.probabilities]
    assert np.array(counts)[1:, 4].sum() == 0
    model = FreeEnergyRegressor().fit(kernel, Snapshots.from_counts(times, counts))
    assert np.all(np.abs(model.potential_ - potential) < 2.5 * model.potential_stderr_)


def test_data_that_decide_leave_the_prior_weak() -> None:
    # Strengthened, it shrinks the potential, and beta with it.
    kernel = path(6)
    potential = np.array([0.5, -0.5, 0.3, -0.4, 0.2, -0.1])
    times, counts = drawn(kernel, potential, 0.5, 20_000, seed=4)
    assert fit_likelihood(kernel, times, counts).prior.strength == pytest.approx(0.01)


def test_a_barrier_that_nobody_crossed_may_be_far_higher() -> None:
    """The counts show how high it is at least; the curvature there said 2.6 +- 0.6 for 7.4."""
    rng = np.random.default_rng([0, 19])
    n, barrier = 24, 12
    kernel = path(n)
    potential = 0.6 * rng.normal(size=n)
    potential[barrier] = 8.0
    start = np.full(n, 1e-5)
    start[3:7], start[16:20], start[barrier] = 1.0, 0.5, 1e-9
    times = np.linspace(0.0, 6.0, 5)
    flow = gradient_flow(kernel, FreeEnergy(potential, 1.0), start / start.sum(), times)
    counts = [rng.multinomial(4000, p / p.sum()) for p in flow.probabilities]
    model = FreeEnergyRegressor().fit(kernel, Snapshots.from_counts(times, counts))
    error = np.abs(model.potential_ - (potential - kernel.stationary @ potential))
    assert error[barrier] < 1.96 * model.potential_stderr_[barrier]
    assert np.mean(error < 1.96 * model.potential_stderr_) > 0.9


def test_two_halves_that_hardly_anybody_crosses_between_keep_their_levels() -> None:
    """The likelihood barely minds how far apart they lie: one fit gave 16 times beta too much."""
    cell = {
        "source": "flow", "n_states": 30, "graph": "path", "size": 5000, "potential": "rough",
        "beta": 1.0, "index": 0,
    }  # fmt: skip
    data = make_data(cell, cell_generator("typical", 90901, cell))
    model = FreeEnergyRegressor().fit(data.kernel, Snapshots.from_counts(data.times, data.counts))
    away = abs(model.potential_ - data.potential)
    assert away.max() < 5.0
    assert np.mean(away <= 1.96 * model.potential_stderr_) > 0.8
