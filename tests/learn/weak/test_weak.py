"""The weak form equals a literal dense least squares, and recovers what made the data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from literal_flow import flow, gradient_flow, random_kernel
from thalweg.energy import Entropy, PowerEnergy, centred
from thalweg.errors import InputError
from thalweg.geometry.operators import transport_laplacian
from thalweg.kernel import MarkovKernel
from thalweg.learn.time_basis import TimeBasis
from thalweg.learn.weak import solve
from thalweg.learn.weak.fit import fit_weak
from thalweg.learn.weak.options import WeakOptions
from thalweg.mobility import ArithmeticMean, GeometricMean, LogMean, Mobility
from thalweg.status import Status

LOG = LogMean()
QUADRATURES = ["trapezoid", "right", "midpoint"]
WEIGHTINGS = ["metric", "paper", "paper-edges"]


def random_data(seed: int, n: int = 5, m: int = 4) -> tuple[MarkovKernel, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.uniform(0.1, 0.6, m + 1))
    return random_kernel(rng, n), times, rng.dirichlet(np.full(n, 3.0), m + 1)


def dense_least_squares(kernel, times, p, quadrature, weighting, mobility=LOG):
    """The paper's loss, written out: one row per node and pair of states, columns V and beta."""
    n, pi = kernel.n_states, kernel.stationary
    k_matrix = kernel.matrix.toarray()
    rows, right = [], []
    for k in range(1, times.size):
        tau = times[k] - times[k - 1]
        at = {
            "right": [(p[k], tau)],
            "trapezoid": [(p[k - 1], tau / 2), (p[k], tau / 2)],
            "midpoint": [((p[k - 1] + p[k]) / 2, tau)],
        }[quadrature]
        for here, w in at:
            rho = here / pi
            theta = np.array([[float(mobility(a, b)) for b in rho] for a in rho])
            conductance = pi[:, None] * k_matrix * theta
            np.fill_diagonal(conductance, 0.0)
            laplacian = np.diag(conductance.sum(axis=1)) - conductance
            velocity = np.linalg.pinv(laplacian, rcond=1e-13) @ ((p[k - 1] - p[k]) / tau)
            for x in range(n):
                for y in range(n):
                    edge = k_matrix[x, y] > 0
                    size = {
                        "metric": 0.5 * conductance[x, y],
                        "paper": here[x],
                        "paper-edges": here[x] * edge,
                    }[weighting]
                    if x == y or size == 0:
                        continue
                    row = np.zeros(n + 1)
                    row[x] += 1
                    row[y] -= 1
                    row[n] = np.log(rho[x]) - np.log(rho[y])
                    rows.append(np.sqrt(w * size) * row)
                    right.append(np.sqrt(w * size) * (velocity[x] - velocity[y]))
    solution = np.linalg.lstsq(np.array(rows), np.array(right), rcond=None)[0]
    if solution[-1] < 0:
        solution = np.append(
            np.linalg.lstsq(np.array(rows)[:, :-1], np.array(right), rcond=None)[0], 0.0
        )
    return centred(solution[:-1], kernel), solution[-1]


@pytest.mark.parametrize("quadrature", QUADRATURES)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_equals_the_dense_least_squares_of_the_same_loss(quadrature, weighting, seed) -> None:
    kernel, times, p = random_data(seed)
    fit = fit_weak(
        kernel, times, p, options=WeakOptions(quadrature=quadrature, weighting=weighting)
    )
    v, beta = dense_least_squares(kernel, times, p, quadrature, weighting)
    assert fit.beta == pytest.approx(beta, abs=1e-9)
    assert np.allclose(fit.potential, v, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("mobility", [GeometricMean(), ArithmeticMean()])
def test_equals_dense_least_squares_for_other_mobilities(mobility: Mobility) -> None:
    kernel, times, p = random_data(7)
    fit = fit_weak(kernel, times, p, options=WeakOptions(mobility=mobility))
    v, beta = dense_least_squares(kernel, times, p, "trapezoid", "metric", mobility)
    assert np.allclose(np.append(fit.potential, fit.beta), np.append(v, beta), atol=1e-9)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("ridge", [0.0, 0.02])
def test_iterative_solves_agree_with_dense_ones(weighting, ridge, monkeypatch) -> None:
    kernel, times, p = random_data(3, n=12, m=6)
    dense = fit_weak(kernel, times, p, options=WeakOptions(weighting=weighting, ridge=ridge))
    monkeypatch.setattr(solve, "DENSE_SIZE", 2)
    sparse_fit = fit_weak(kernel, times, p, options=WeakOptions(weighting=weighting, ridge=ridge))
    assert np.allclose(dense.potential, sparse_fit.potential, atol=1e-8)
    assert dense.beta == pytest.approx(sparse_fit.beta, abs=1e-8)


@pytest.mark.parametrize(
    ("quadrature", "order"), [("trapezoid", 2.0), ("midpoint", 2.0), ("right", 1.0)]
)
def test_converges_to_the_truth_at_its_order(quadrature, order) -> None:
    rng = np.random.default_rng(0)
    kernel = random_kernel(rng, 6)
    v = centred(rng.uniform(-1, 1, 6), kernel)
    p0 = rng.dirichlet(np.full(6, 3.0))
    errors = []
    for m in (10, 20, 40):
        times = np.linspace(0, 2, m + 1)
        p = gradient_flow(kernel, v, 0.3, p0, times)
        fit = fit_weak(kernel, times, p, options=WeakOptions(quadrature=quadrature))
        errors.append(np.abs(np.append(fit.potential - v, fit.beta - 0.3)).max())
    slopes = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(slopes - order) < 0.4), (errors, slopes)


@pytest.fixture(scope="module")
def example():
    rng = np.random.default_rng(5)
    kernel = random_kernel(rng, 6)
    v = centred(rng.uniform(-1, 1, 6), kernel)
    times = np.linspace(0, 2, 81)
    p = gradient_flow(kernel, v, 0.3, rng.dirichlet(np.full(6, 3.0)), times)
    return kernel, v, times, p


def test_known_beta_and_known_potential_are_kept(example) -> None:
    kernel, v, times, p = example
    with_beta = fit_weak(kernel, times, p, beta=0.3)
    assert with_beta.beta == 0.3
    assert np.allclose(with_beta.potential, v, atol=2e-3)
    with_potential = fit_weak(kernel, times, p, potential=v)
    assert with_potential.beta == pytest.approx(0.3, abs=1e-3)
    assert np.allclose(with_potential.potential, v)
    with pytest.raises(InputError, match="both given"):
        fit_weak(kernel, times, p, potential=v, beta=0.3)


def test_beta_zero_allows_empty_states(example) -> None:
    kernel, _, _, _ = example
    p = np.array([[0.5, 0.5, 0, 0, 0, 0], [0.4, 0.6, 0, 0, 0, 0]])
    assert np.isfinite(
        fit_weak(kernel, [0, 1], p, beta=0, options=WeakOptions(ridge=0.1)).potential
    ).all()
    with pytest.raises(InputError, match="state 2"):
        fit_weak(kernel, [0, 1], p)


def test_linear_potentials_in_features(example) -> None:
    kernel, v, times, p = example
    features = np.column_stack([v, np.ones(6), np.arange(6.0)])
    fit = fit_weak(kernel, times, p, options=WeakOptions(features=features))
    assert np.allclose(fit.potential, v, atol=2e-3)
    full = fit_weak(kernel, times, p, options=WeakOptions(features=np.eye(6)))
    assert np.allclose(full.potential, fit_weak(kernel, times, p).potential, atol=1e-8)


def test_interactions_are_learned_in_their_basis() -> None:
    rng = np.random.default_rng(2)
    kernel = random_kernel(rng, 6)
    source, target, _ = kernel.edges
    v = centred(rng.uniform(-1, 1, 6), kernel)
    basis = [np.eye(6), np.abs(np.subtract.outer(np.arange(6.0), np.arange(6.0)))]
    w = 0.7 * basis[0] - 0.2 * basis[1]

    def rate(t, p):
        rho = p / kernel.stationary
        return v + w @ p + 0.2 * np.log(rho), LogMean()(rho[source], rho[target])

    times = np.linspace(0, 3, 301)
    p = flow(kernel, rate, rng.dirichlet(np.full(6, 2.0)), times)
    fit = fit_weak(kernel, times, p, options=WeakOptions(interactions=basis))
    assert np.allclose(fit.interactions, [0.7, -0.2], atol=0.01)
    assert fit.beta == pytest.approx(0.2, abs=0.005)
    assert fit.residual < 1e-3
    known = fit_weak(
        kernel, times, p, beta=0.2, potential=v, options=WeakOptions(interactions=basis)
    )
    assert np.allclose(known.interactions, [0.7, -0.2], atol=2e-3)


@pytest.mark.parametrize("dense_size", [400, 2])
def test_potential_varying_in_time(dense_size, monkeypatch) -> None:
    monkeypatch.setattr(solve, "DENSE_SIZE", dense_size)
    rng = np.random.default_rng(4)
    kernel = random_kernel(rng, 6)
    before, after = (centred(rng.uniform(-1, 1, 6), kernel) for _ in range(2))
    times = np.linspace(0, 2, 81)
    p0 = rng.dirichlet(np.full(6, 3.0))
    first = gradient_flow(kernel, before, 0.3, p0, times[:41])
    second = gradient_flow(kernel, after, 0.3, first[-1], times[40:])
    p = np.concatenate([first, second[1:]])
    fit = fit_weak(kernel, times, p, options=WeakOptions(time_basis=TimeBasis.piecewise([1.0])))
    assert np.allclose(fit.potentials, [before, after], atol=0.01)
    assert np.allclose(fit.energy_at(0.5).potential, before, atol=0.01)
    assert np.allclose(fit.potential, (before + after) / 2, atol=0.01)
    smooth = TimeBasis.of(lambda t: 1.0, np.sin)
    p = gradient_flow(kernel, lambda t: before + np.sin(t) * after, 0.3, p0, times)
    fit = fit_weak(kernel, times, p, options=WeakOptions(time_basis=smooth))
    assert np.allclose(fit.potentials, [before, after], atol=0.03)
    with pytest.raises(InputError, match="dependent"):
        fit_weak(kernel, times, p, options=WeakOptions(time_basis=TimeBasis.piecewise([1.0, 5.0])))


def test_other_internal_energies() -> None:
    rng = np.random.default_rng(8)
    kernel = random_kernel(rng, 5)
    source, target, _ = kernel.edges
    v = centred(rng.uniform(-0.5, 0.5, 5), kernel)
    internal = PowerEnergy(2.0)
    mobility = internal.porous_mobility

    def rate(t, p):
        rho = p / kernel.stationary
        return v + 0.3 * internal.derivative(np.log(rho)), mobility(rho[source], rho[target])

    times = np.linspace(0, 1, 161)
    p = flow(kernel, rate, rng.dirichlet(np.full(5, 4.0)), times)
    fit = fit_weak(kernel, times, p, options=WeakOptions(internal=internal, mobility=mobility))
    assert np.allclose(fit.potential, v, atol=1e-3)
    assert fit.beta == pytest.approx(0.3, abs=1e-3)
    assert isinstance(fit_weak(kernel, times, p).energy.internal, Entropy)


@pytest.mark.parametrize("quadrature", QUADRATURES)
@pytest.mark.parametrize("mobility", [LogMean(), GeometricMean()])
def test_residual_is_what_the_master_equation_leaves(quadrature, mobility) -> None:
    kernel, times, p = random_data(5, m=11)
    fit = fit_weak(kernel, times, p, options=WeakOptions(quadrature=quadrature, mobility=mobility))

    def rate(here):
        f = fit.potential + fit.beta * np.log(here / kernel.stationary)
        return transport_laplacian(kernel, here, mobility) @ f

    left = 0.0
    for k in range(11):
        rates = {
            "trapezoid": (rate(p[k]) + rate(p[k + 1])) / 2,
            "right": rate(p[k + 1]),
            "midpoint": rate((p[k] + p[k + 1]) / 2),
        }
        step = times[k + 1] - times[k]
        left += np.abs(p[k] - p[k + 1] - step * rates[quadrature]).sum()
    assert fit.residual == pytest.approx(left / np.abs(np.diff(p, axis=0)).sum(), rel=1e-9)


def test_beta_is_never_negative() -> None:
    hit = 0
    for seed in range(20):
        kernel, times, p = random_data(seed, m=2)
        fit = fit_weak(kernel, times, p)
        assert fit.beta >= 0
        hit += fit.beta == 0
    assert hit  # some of these data ask for a negative beta


def test_one_right_end_does_not_determine_beta() -> None:
    kernel, _, p = random_data(1)
    fit = fit_weak(kernel, [0, 1], p[:2], options=WeakOptions(quadrature="right"))
    assert fit.status is Status.UNDETERMINED
    assert fit_weak(kernel, [0, 1], p[:2], beta=0.1, options=WeakOptions(quadrature="right")).status


def smooth_problem(n: int, sizes: int, seed: int):
    """A path with a smooth landscape, observed through counts."""
    rng = np.random.default_rng(seed)
    w = np.diag(np.ones(n - 1), 1)
    kernel = MarkovKernel.from_weights(w + w.T)
    v = centred(0.5 * np.sin(np.linspace(0, 2 * np.pi, n)), kernel)
    times = np.linspace(0, 5, 11)
    p = gradient_flow(kernel, v, 0.2, kernel.stationary, times)
    counts = np.array([rng.multinomial(sizes, row) for row in p])
    smoothed = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
    return kernel, v, times, smoothed, np.full(11, sizes)


@pytest.mark.parametrize("dense_size", [400, 2])
def test_automatic_ridge_is_near_the_best_one(dense_size, monkeypatch) -> None:
    monkeypatch.setattr(solve, "DENSE_SIZE", dense_size)
    monkeypatch.setattr("thalweg.learn.weak.fit.DENSE_SIZE", dense_size)
    ratios, gains = [], []
    for seed in range(4):
        kernel, v, times, p, sizes = smooth_problem(40, 500, seed)
        auto = fit_weak(kernel, times, p, sizes=sizes, beta=0.2)

        def error(ridge):
            fit = fit_weak(kernel, times, p, beta=0.2, options=WeakOptions(ridge=ridge))
            return np.linalg.norm(fit.potential - v)

        grid = [error(r) for r in np.geomspace(1e-5, 10, 13)]
        ratios.append(np.linalg.norm(auto.potential - v) / min(grid))
        gains.append(error(0.0) / np.linalg.norm(auto.potential - v))
    assert np.median(ratios) < 1.6, ratios
    assert np.median(gains) > 1.3, gains


@pytest.mark.parametrize("dense_size", [400, 2])
def test_noise_no_longer_shrinks_beta(dense_size, monkeypatch) -> None:
    monkeypatch.setattr(solve, "DENSE_SIZE", dense_size)
    monkeypatch.setattr("thalweg.learn.weak.fit.DENSE_SIZE", dense_size)
    plain, corrected, exact = [], [], []
    times = np.linspace(0, 5, 51)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        kernel = random_kernel(rng, 8)
        p0 = rng.dirichlet(np.ones(8))
        p = gradient_flow(kernel, rng.uniform(-1, 1, 8), 1.0, p0, times)
        counts = np.array([rng.multinomial(500, row / row.sum()) for row in p]) + 0.5
        noisy = counts / counts.sum(axis=1, keepdims=True)
        sizes = np.full(51, 500)
        exact.append(fit_weak(kernel, times, p / p.sum(axis=1, keepdims=True)).beta)
        plain.append(
            fit_weak(kernel, times, noisy, sizes=sizes, options=WeakOptions(ridge=0.0)).beta
        )
        fit = fit_weak(
            kernel, times, noisy, sizes=sizes, pseudo_count=0.5, options=WeakOptions(ridge=0.0)
        )
        corrected.append(fit.beta)
    gap, left = np.mean(exact) - np.mean(plain), np.mean(exact) - np.mean(corrected)
    assert gap > 0.1
    assert abs(left) < 0.5 * gap, (plain, corrected, exact)


def test_exact_probabilities_get_no_ridge(example) -> None:
    kernel, _, times, p = example
    assert fit_weak(kernel, times, p).ridge == 0
    many = fit_weak(kernel, times, p, sizes=np.full(81, 10**9))
    few = fit_weak(kernel, times, p, sizes=np.full(81, 20))
    assert many.ridge < few.ridge


def test_bad_input_is_refused_with_a_sentence(example) -> None:
    kernel, v, times, p = example
    outside = sparse.csr_array(np.eye(6))
    outside.indices[1] = 9
    for options, message in [
        ({"quadrature": "simpson"}, "trapezoid"),
        ({"weighting": "none"}, "metric"),
        ({"features": np.ones((5, 2))}, "one row per state"),
        ({"features": np.ones((6, 1))}, "constant"),
        ({"features": np.ones((6, 0))}, "one row per state"),
        ({"interactions": [np.triu(np.ones((6, 6)))]}, "symmetric"),
        ({"interactions": [outside]}, "column 9 of entry 1 is outside"),
        ({"ridge": -1.0}, "ridge"),
        ({"mobility": 3}, "mobility"),
        ({"tolerance": "fine"}, "tolerance"),
    ]:
        with pytest.raises(InputError, match=message):
            fit_weak(kernel, times, p, options=WeakOptions(**options))
    for change, message in [
        ({"sizes": [1, 2]}, "sizes"),
        ({"beta": -1.0}, "beta"),
        ({"options": {"ridge": 1.0}}, "options"),
    ]:
        with pytest.raises(InputError, match=message):
            fit_weak(kernel, times, p, **change)
    with pytest.raises(InputError, match="cannot vary"):
        options = WeakOptions(time_basis=TimeBasis.piecewise([1.0]))
        fit_weak(kernel, times, p, potential=v, options=options)
    with pytest.raises(InputError, match="rows"):
        fit_weak(kernel, times, p[:-1])
    with pytest.raises(InputError, match="at least 2"):
        fit_weak(kernel, [0.0], p[:1])
