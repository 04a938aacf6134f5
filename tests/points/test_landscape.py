"""A potential on R^d: derivatives, recovery, error bars, and its warnings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg import FreeEnergy, InputError, MarkovKernel, PointLandscape, gradient_flow
from thalweg.points.landscape.features import (
    Basis,
    Gaussians,
    Given,
    Moments,
    OnAxis,
    Polynomials,
)
from thalweg.points.landscape.least_squares import Whitening, covariance
from thalweg.points.landscape.model import PushModel
from thalweg.points.landscape.on_graph import graph_energy, graph_gradient
from thalweg.points.landscape.shrinkage import solution

Array = np.ndarray


def blocks(d: int, rng: np.random.Generator) -> list[object]:
    mean, scale = rng.normal(size=d), rng.uniform(0.5, 2.0, d)
    return [
        Polynomials(mean, scale, 4),
        Polynomials(mean, scale, 2, cross=False),
        Gaussians(rng.normal(size=(4, d)), rng.uniform(0.5, 1.5, 4)),
        OnAxis(Gaussians(rng.normal(size=(3, 1)), rng.uniform(0.5, 1.5, 3)), d - 1),
    ]


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 3), st.integers(0, 10**6))
def test_derivatives_of_every_block_agree_with_differences(d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, step = rng.normal(size=(5, d)), 1e-4
    for block in blocks(d, rng):
        weights = rng.normal(size=block.size)
        for i in range(d):
            e = step * np.eye(d)[i]
            slope = (block.value(x + e) - block.value(x - e)) / (2 * step)
            assert np.allclose(block.gradient(x)[:, i], slope, rtol=1e-4, atol=1e-4)
            bend = (block.gradient(x + e) - block.gradient(x - e)) @ weights / (2 * step)
            assert np.allclose(block.hessian(x, weights)[:, i], bend, rtol=1e-3, atol=1e-3)
        slope = block.gradient(x) @ weights
        assert np.allclose(block.slope(x, weights), slope, rtol=1e-10, atol=1e-10)
        trace = np.trace(block.hessian(x, weights), axis1=1, axis2=2)
        assert np.allclose(block.laplacian(x) @ weights, trace, rtol=1e-8, atol=1e-8)


def test_averages_over_noise_agree_with_quadrature() -> None:
    rng = np.random.default_rng(0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    weights = weights / weights.sum()
    x, spread = rng.normal(size=(4, 1)), 0.3
    for block in (
        Polynomials(np.zeros(1), np.full(1, 1.3), 4),
        Gaussians(rng.normal(size=(3, 1)), rng.uniform(0.5, 1.5, 3)),
    ):
        for name in ("value", "gradient", "laplacian"):
            exact = sum(
                w * getattr(block, name)(x + np.sqrt(spread) * s)
                for s, w in zip(nodes, weights, strict=True)
            )
            assert np.allclose(getattr(block, name)(x, spread), exact, atol=1e-7)


def small_model(steps: int, order: int, seed: int = 0) -> tuple[PushModel, Array]:
    rng = np.random.default_rng(seed)
    clouds = tuple(rng.normal(0.2 * k, 1.0, size=(60, 2)) for k in range(3))
    basis = Basis((
        Polynomials(np.zeros(2), np.ones(2), 2),
        Gaussians(rng.normal(size=(3, 2)), np.ones(3)),
    ))  # fmt: skip
    moments = Moments.of(np.concatenate(clouds), 12, rng)
    model = PushModel(np.array([0.0, 0.3, 0.7]), clouds, basis, moments, order, None, steps)
    return model, np.append(0.3 * rng.normal(size=model.n_weights), 0.2)


@pytest.mark.parametrize(("steps", "order"), [(1, 0), (1, 1), (3, 0), (2, 1)])
def test_jacobian_of_the_push_agrees_with_differences(steps: int, order: int) -> None:
    model, z = small_model(steps, order)
    jacobian, step = model.jacobian(z), 1e-5
    for p in range(z.size):
        e = step * np.eye(z.size)[p]
        ends = [model.residual(z + s * e) for s in (1, -1)]
        assert np.allclose(jacobian[:, p], (ends[0] - ends[1]) / (2 * step), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 2])
def test_points_that_are_stopped_far_outside_no_longer_follow_the_parameters(steps: int) -> None:
    model, z = small_model(steps, 0)
    push = {1: 200.0, 2: 18.0}[steps]
    z = np.append(np.r_[0.0, 0.0, -push, 0.0, -push, 0.0, 0.0, 0.0], 0.2)
    ends = np.concatenate([model._carry(k, 0, z, False)[0] for k in range(2)])
    stopped = (ends == model._far[0]) | (ends == model._far[1])
    assert 0.05 < stopped.any(axis=1).mean() < 0.95
    jacobian, step = model.jacobian(z), 1e-6
    for p in range(z.size):
        e = step * np.eye(z.size)[p]
        both = [model.residual(z + s * e) for s in (1, -1)]
        assert np.allclose(jacobian[:, p], (both[0] - both[1]) / (2 * step), rtol=1e-3, atol=1e-4)


def test_covariance_is_that_of_the_moments_over_repeated_samples() -> None:
    """Without movement the residual is a difference of two means, which can be simulated."""
    rng = np.random.default_rng(1)
    base, _ = small_model(1, 0)
    draws = []
    for _ in range(400):
        clouds = tuple(rng.normal(size=(60, 2)) for _ in range(3))
        model = PushModel(base.times, clouds, base.basis, base.moments)
        draws.append(model.residual(np.zeros(model.size)))
    seen = np.cov(np.array(draws).T)
    clouds = tuple(rng.normal(size=(3000, 2)) for _ in range(3))
    model = PushModel(base.times, clouds, base.basis, base.moments)
    computed = covariance(model, None) * 3000 / 60
    scale = np.sqrt(np.outer(np.diag(computed), np.diag(computed)))
    assert np.abs((seen - computed) / scale).max() < 0.35


def quadratic(n: int, times: Array, rng: np.random.Generator, beta: float) -> list[Array]:
    """Exact samples of `dX = -X dt + sqrt(2 beta) dW` from a wide normal cloud about (2, 0)."""
    clouds = []
    for t in times:
        shrink, spread = np.exp(-t), np.sqrt(beta * (1 - np.exp(-2 * t)))
        start = rng.normal([2.0, 0.0], 1.2, size=(n, 2))
        clouds.append(shrink * start + spread * rng.normal(size=(n, 2)))
    return clouds


@pytest.fixture(scope="module")
def relaxing() -> tuple[Array, list[Array], PointLandscape]:
    times = np.array([0.0, 0.25, 0.5, 0.75])
    clouds = quadratic(1000, times, np.random.default_rng(3), 0.3)
    return times, clouds, PointLandscape(n_centers=0).fit(times, clouds)


def test_fresh_samples_of_a_quadratic_well(relaxing: tuple) -> None:
    _, clouds, model = relaxing
    assert not model.tracked_
    assert abs(model.beta_ - 0.3) < 4 * model.beta_stderr_
    assert model.beta_stderr_ < 0.35
    x = clouds[-1]
    error, stderr = model.gradient(x) - x, model.gradient_stderr(x)
    assert np.sqrt(np.mean(error**2)) < 0.35
    assert np.mean(np.abs(error) < 1.96 * stderr) > 0.75
    v, half = model.potential(x), 0.5 * (x**2).sum(axis=1)
    assert np.corrcoef(v, half)[0, 1] > 0.97
    assert (model.potential_stderr(x) > 0).all()
    assert not model.goodness_.rejected
    assert model.warning_ == ""


def test_shared_individuals_bias_neither_the_noise_nor_its_error() -> None:
    """A Newton step from the truth: derivatives and residuals hold the same individuals."""
    times, steps, plain = np.array([0.0, 0.25, 0.5]), [], []
    basis = Basis((Polynomials(np.zeros(2), np.ones(2), 2),))
    for seed in range(30):
        rng = np.random.default_rng([seed, 1])
        clouds = tuple(0.75**k * rng.uniform(-1, 1, (150, 2)) for k in range(3))
        moments = Moments.of(np.concatenate(clouds), 30, np.random.default_rng(0))
        model = PushModel(times, clouds, basis, moments)
        z = np.zeros(model.size)
        z[[2, 4]] = 0.5 * model.scale[[2, 4]]  # x - tau x
        white = Whitening.at(model, z)
        m, r = white(model.jacobian(z)), white(model.residual(z))
        bias, _ = model.score_noise(z, white.inverse())
        spread = np.linalg.inv(m.T @ m)
        unit = np.sqrt(spread[-1, -1])
        plain.append((spread @ (-m.T @ r))[-1] / unit)
        steps.append((spread @ (bias - m.T @ r))[-1] / unit)
    assert np.mean(plain) > 0.8
    assert abs(np.mean(steps)) < 0.6
    assert np.std(steps) < 1.6


def test_push_forwards_and_back_is_the_identity_without_noise(relaxing: tuple) -> None:
    _, clouds, model = relaxing
    x = clouds[2][:50]
    there = PointLandscape(n_centers=0, steps=4, beta=0.3)
    there.__dict__.update(
        {k: v for k, v in model.__dict__.items() if k.endswith("_") or k[0] == "_"}
    )
    ahead = x
    for a in np.linspace(0.5, 0.7, 9)[:-1]:
        ahead = there.push(ahead, a, a + 0.025)
    for a in np.linspace(0.7, 0.5, 9)[:-1]:
        ahead = there.push(ahead, a, a - 0.025)
    assert np.abs(ahead - x).max() < 0.05
    assert np.array_equal(model.push(x, 0.3, 0.3), x)
    noisy = [model.push(x, 0.0, 0.2, np.random.default_rng(5)) for _ in range(2)]
    assert np.array_equal(*noisy)
    assert not np.array_equal(noisy[0], model.push(x, 0.0, 0.2))


@pytest.mark.slow
def test_many_moments_determine_the_noise_where_clouds_have_edges() -> None:
    """Thirty moments left the noise to functions that follow the scatter: 3.7 +- 1.2 for 0.1."""
    rng = np.random.default_rng([11, 5])

    def cloud(steps: int) -> Array:
        x = rng.uniform(-4, 4, (1000, 2))
        for _ in range(steps):
            x = x - 0.005 * (4 * x**3 - 32 * x + 5) + np.sqrt(0.002) * rng.normal(size=x.shape)
        return x

    model = PointLandscape().fit(0.01 * np.arange(5), [cloud(k) for k in range(5)])
    assert abs(model.beta_ - 0.1) < 3 * model.beta_stderr_
    assert model.beta_stderr_ < 0.5


def test_error_bars_grow_where_nobody_was_seen(relaxing: tuple) -> None:
    times, clouds, model = relaxing
    inside, outside = clouds[1][:50], clouds[1][:50] + [12.0, 0.0]
    assert model.gradient_stderr(outside).min() > 4 * np.median(model.gradient_stderr(inside))
    end = float(times[-1])
    assert model.extrapolates(inside, 0.0, end).mean() < 0.1
    assert model.extrapolates(outside, 0.0, end).all()


def test_the_last_bit_does_not_choose_the_functions() -> None:
    """A cloud that leaves its own support in every interval, where local functions are alike."""
    rng = np.random.default_rng(0)
    times = np.arange(4.0)
    clouds = [rng.normal([3 * t, 0.3 * t], 0.4, size=(70, 2)) for t in times]
    models = [PointLandscape().fit(times, [x * (1 + e) for x in clouds]) for e in (0.0, 3e-16)]
    ends = [model.push(clouds[-1], 3.0, 4.0) for model in models]
    np.testing.assert_allclose(*ends, atol=1e-6)
    assert "polynomials" in models[0].why_


def test_a_rotating_cloud_is_rejected_in_words() -> None:
    rng = np.random.default_rng(0)
    times = np.linspace(0.0, 2.0, 6)
    clouds = []
    for t in times:
        turn = np.array([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]])
        clouds.append(rng.normal(size=(400, 2)) * [2.0, 0.6] @ turn.T)
    model = PointLandscape(n_centers=0, steps=1).fit(times, clouds)
    assert model.goodness_.rejected
    assert "contradict" in model.warning_
    assert "chi-square" in model.warning_


def test_clouds_at_rest_determine_nothing() -> None:
    rng = np.random.default_rng(5)
    clouds = [rng.normal(size=(400, 2)) for _ in range(4)]
    model = PointLandscape(n_centers=0).fit([0.0, 1.0, 2.0, 3.0], clouds)
    assert model.status_.name == "UNDETERMINED"
    assert model.beta_stderr_ == np.inf
    assert "do not determine beta" in model.warning_


def test_long_intervals_are_a_flow_and_not_one_step() -> None:
    """Intervals four times as long as the well takes: one step gives 0.03 instead of 0.15."""
    rng = np.random.default_rng(6)
    times, x, clouds = np.linspace(0, 2, 6), rng.normal([0.0, 1.5], 0.3, size=(5, 300, 2)), []
    clouds.append(rng.normal([0.0, 1.5], 0.3, size=(300, 2)))
    for k, cloud in enumerate(x):
        for _ in range(40 * (k + 1)):
            slope = np.stack([4 * cloud[:, 0] ** 3 - 4 * cloud[:, 0], 2 * cloud[:, 1]], axis=1)
            cloud = cloud - 0.01 * slope + np.sqrt(0.003) * rng.normal(size=cloud.shape)
        clouds.append(cloud)
    model = PointLandscape(n_centers=0).fit(times, clouds)
    assert "would overshoot" in model.why_
    assert abs(model.beta_ - 0.15) < 3 * model.beta_stderr_
    assert not model.goodness_.rejected


def test_births_far_away_are_rejected_in_words() -> None:
    rng = np.random.default_rng(1)
    times = np.arange(5.0)
    clouds = []
    for k in range(5):
        far = rng.random(600) < 0.1 + 0.15 * k
        clouds.append(rng.normal(size=(600, 2)) * 0.5 + np.where(far, 4.0, 0.0)[:, None])
    model = PointLandscape(n_centers=10, steps=1).fit(times, clouds)
    assert model.goodness_.rejected
    assert model.warning_ != ""
    grown = [x[: 200 + 100 * k] for k, x in enumerate(clouds)]
    assert (
        "number of individuals" in PointLandscape(n_centers=0, steps=1).fit(times, grown).warning_
    )


def test_a_potential_that_moves_needs_time() -> None:
    rng = np.random.default_rng(2)
    times = np.linspace(0, 1, 6)
    # A well that travels: the mean follows 3 t^2, faster and faster.
    clouds = [rng.normal([3 * t * t, 0.0], 0.5, size=(500, 2)) for t in times]
    moving = PointLandscape(n_centers=0, time_order=1, beta=0.0, steps=1).fit(times, clouds)
    drift = [-moving.gradient([[3 * t * t, 0.0]], time=t)[0, 0] for t in (0.1, 0.5, 0.9)]
    assert np.allclose(drift, [0.6, 3.0, 5.4], atol=1.2)
    assert moving.gradient_stderr([[0.0, 0.0]], time=0.0).shape == (1, 2)


def test_given_features_are_used() -> None:
    rng = np.random.default_rng(4)
    wave = Given((lambda x: np.sin(3 * x[:, 0]),), np.ones(2))
    x = rng.normal(size=(5, 2))
    assert np.allclose(wave.gradient(x)[:, 0, 0], 3 * np.cos(3 * x[:, 0]), atol=1e-5)
    assert np.allclose(wave.laplacian(x)[:, 0], -9 * np.sin(3 * x[:, 0]), atol=1e-4)
    times = np.array([0.0, 0.05, 0.1])
    clouds = [rng.normal(size=(200, 2)) for _ in times]
    model = PointLandscape(0, features=[lambda x: np.sin(3 * x[:, 0])]).fit(times, clouds)
    assert model._field.basis.size == 15
    with pytest.raises(InputError, match=r"features\[0\]"):
        PointLandscape(0, features=[lambda x: x]).fit(times, clouds)


def test_from_space_to_a_graph_and_back() -> None:
    """Diffusion in a well on a graph of points relaxes as the well in space does: exp(-t)."""
    rng = np.random.default_rng(0)
    side = np.linspace(-2, 2, 15)
    points = np.array([[a, b] for a in side for b in side]) + 1e-6 * rng.normal(size=(225, 2))
    kernel = MarkovKernel.from_points(points, n_neighbors=8)
    energy = graph_energy(kernel, 0.5 * (points**2).sum(axis=1), 0.4)
    p0 = np.exp(-((points - [0.8, 0.0]) ** 2).sum(axis=1) / 0.2) + 1e-6
    path = gradient_flow(kernel, energy, p0 / p0.sum(), [0.0, 0.5], rtol=1e-4).probabilities
    assert np.allclose(path[-1] @ points, [0.8 * np.exp(-0.5), 0.0], atol=0.1)
    slope = graph_gradient(kernel, energy)
    inside = points[np.abs(points).max(axis=1) < 1.5]
    assert np.abs(slope(inside) - inside).mean() < 0.25


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_centers": -1}, "n_centers is -1"),
        ({"time_order": 5}, "time_order is 5"),
        ({"beta": -0.1}, "beta is -0.1"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_wrong_options_are_named(options: dict, said: str) -> None:
    clouds = [np.random.default_rng(0).normal(size=(30, 2)) for _ in range(3)]
    with pytest.raises(InputError, match=said):
        PointLandscape(**options).fit([0, 1, 2], clouds)


def test_wrong_clouds_are_named() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="at least 20"):
        PointLandscape().fit([0, 1], [rng.normal(size=(5, 2))] * 2)
    with pytest.raises(InputError, match="coincide"):
        PointLandscape().fit([0, 1], [np.ones((50, 2))] * 2)
    model = PointLandscape(n_centers=0, beta=0.0, steps=1)
    model.fit([0, 1], [rng.normal(size=(40, 2)) for _ in range(2)])
    with pytest.raises(InputError, match="one row per point"):
        model.gradient([1.0, 2.0])
    with pytest.raises(InputError, match="no coordinates in 2 dimensions"):
        model.energy_on(MarkovKernel.from_weights([[0, 1], [1, 0]]))
    assert isinstance(
        model.energy_on(MarkovKernel.from_points(rng.normal(size=(9, 2)), n_neighbors=3)),
        FreeEnergy,
    )


@pytest.mark.slow
def test_beta_is_unbiased_at_zero() -> None:
    """The score's correction: without it the mean of these is above 1.5."""
    scores = []
    for seed in range(12):
        rng = np.random.default_rng([seed, 1])
        clouds = [np.exp(-t) * rng.uniform(-2, 2, (500, 2)) for t in (0.0, 0.1, 0.2, 0.3)]
        model = PushModel(
            np.array([0.0, 0.1, 0.2, 0.3]), tuple(clouds),
            Basis((Polynomials(np.zeros(2), np.ones(2), 2),)),
            Moments.of(np.concatenate(clouds), 60, rng),
        )  # fmt: skip
        z = np.zeros(model.size)
        z[[2, 4]] = 0.5 * (1 - np.exp(-0.1)) / 0.1 * model.scale[[2, 4]]
        white = Whitening.at(model, z)
        m, r = white(model.jacobian(z)), white(model.residual(z))
        spread = np.linalg.inv(m.T @ m)
        score = m.T @ r - model.score_noise(z, white.inverse())[0]
        scores.append(-(spread @ score)[-1] / np.sqrt(spread[-1, -1]))
    assert abs(np.mean(scores)) < 0.9


def test_parameters_known_to_many_digits_do_not_end_the_fit() -> None:
    """Precisions over twenty decades: the product of the rows is no longer positive."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    rows = np.logspace(8, -2, 30)[:, None] * axes
    truth = rng.normal(size=30)
    z = solution(rows, rows.T @ (rows @ truth), np.full(30, 1e-8), free_beta=False)
    known = np.logspace(8, -2, 30) > 100.0
    np.testing.assert_allclose((axes @ z)[known], (axes @ truth)[known], atol=0.01)
