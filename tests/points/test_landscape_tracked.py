"""A potential on R^d from individuals that were followed, and steps that may be a flow."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg import PointLandscape
from thalweg_bench.potentials import POTENTIALS, Particles, gradient

Array = np.ndarray


def test_followed_individuals_are_recognised_and_give_the_field_itself() -> None:
    rng = np.random.default_rng(0)
    x, tau, clouds = rng.uniform(-2, 2, (300, 2)), 0.05, []
    for _ in range(4):
        clouds.append(rng.permutation(x))
        x = x - tau * np.stack([x[:, 0] ** 3 - x[:, 0], 2 * x[:, 1]], axis=1)
    model = PointLandscape(n_centers=0, steps=1).fit(tau * np.arange(4), clouds)
    y = clouds[1]
    truth = np.stack([y[:, 0] ** 3 - y[:, 0], 2 * y[:, 1]], axis=1)
    assert model.tracked_
    assert np.abs(model.gradient(y) - truth).max() < 0.02
    assert model.beta_ < 0.02
    assert not model.goodness_.rejected


def followed(
    beta: float, rng: np.random.Generator, *, permuted: bool = True
) -> tuple[Array, list[Array]]:
    """Individuals that take explicit steps in a quadratic well, seen in random order or by row."""
    x, tau, clouds = rng.uniform(-2, 2, (400, 2)), 0.05, []
    for _ in range(5):
        clouds.append(rng.permutation(x) if permuted else x)
        x = x - tau * x * [1.0, 2.0] + np.sqrt(2 * beta * tau) * rng.normal(size=x.shape)
    return tau * np.arange(5), clouds


@pytest.mark.parametrize("permuted", [True, False])
def test_noise_of_followed_individuals_is_neither_hidden_by_couplings_nor_too_sure(
    permuted: bool,
) -> None:
    """Steps of half of the distance between neighbours: optimal couplings see 0.7 of the noise."""
    times, clouds = followed(0.02, np.random.default_rng(11), permuted=permuted)
    model = PointLandscape(n_centers=20, steps=1).fit(times, clouds)
    assert model.tracked_
    assert abs(model.beta_ - 0.02) < 4 * model.beta_stderr_
    assert model.beta_stderr_ < 0.006
    x = clouds[-1]
    error, stderr = model.gradient(x) - x * [1.0, 2.0], model.gradient_stderr(x)
    assert np.mean(np.abs(error) < 3 * stderr) > 0.8
    assert np.median(stderr) < 0.5


def test_equal_intervals_leave_one_step_or_the_flow_in_doubt() -> None:
    """Without noise both fit; `x` and `log(1 - tau) x / tau` are the gradients of the two."""
    rng = np.random.default_rng(12)
    x, tau = rng.uniform(-2, 2, (300, 2)), 0.2
    clouds = [rng.permutation((1 - tau) ** k * x) for k in range(4)]
    model = PointLandscape(n_centers=0).fit(tau * np.arange(4), clouds)
    assert "cannot decide" in model.why_
    for slope in (1.0, -np.log(1 - tau) / tau):
        error = model.gradient(clouds[0]) - slope * clouds[0]
        assert np.mean(np.abs(error) < 2 * model.gradient_stderr(clouds[0]) + 1e-3) > 0.9


@pytest.mark.parametrize("by_flow", [False, True])
def test_noise_of_contracting_steps_is_in_doubt_between_one_step_and_the_flow(
    by_flow: bool,
) -> None:
    """The same spread is a third more noise of a flow, which contracts it, than of one step."""
    rng = np.random.default_rng(21)
    x, tau, shrink, beta, clouds = rng.uniform(-2, 2, (500, 2)), 0.05, 0.75, 0.02, []
    rate = -np.log(shrink) / tau
    spread = np.sqrt(beta / rate * (1 - shrink**2) if by_flow else 2 * beta * tau)
    for _ in range(5):
        clouds.append(rng.permutation(x))
        x = shrink * x + spread * rng.normal(size=x.shape)
    times = tau * np.arange(5)
    model = PointLandscape(n_centers=0).fit(times, clouds)
    assert model.tracked_
    assert "cannot decide" in model.why_
    assert abs(model.beta_ - beta) < 1.96 * model.beta_stderr_
    asked = PointLandscape(n_centers=0, steps=1).fit(times, clouds)
    assert model.beta_stderr_ > 1.2 * asked.beta_stderr_


def test_functions_that_hardly_fail_are_in_the_error_bars_too() -> None:
    """What they leave, a thousandth of the velocity, looks like noise, and is none."""
    particles = Particles(POTENTIALS["wavy_plateau"])
    times, clouds = particles.snapshots(tracked=True, rng=np.random.default_rng(22))
    model, x = PointLandscape().fit(times[:-1], clouds[:-1]), clouds[-1]
    slope = gradient(particles.potential, x)
    error = np.abs(model.gradient(x) - slope)
    assert np.sqrt((error**2).mean()) < 0.003 * np.sqrt((slope**2).mean())
    assert np.mean(error < 1.96 * model.gradient_stderr(x)) > 0.85


def test_fresh_snapshots_at_equal_intervals_leave_one_step_or_the_flow_in_doubt() -> None:
    """A linear map is that of either: the bars include the difference, and `push` does not."""
    rng = np.random.default_rng(14)
    tau, shrink = 0.3, 0.7
    clouds = [shrink**k * rng.normal([3.0, 0.0], 1.0, size=(1500, 2)) for k in range(5)]
    model = PointLandscape(n_centers=0, beta=0.0).fit(tau * np.arange(5), clouds)
    assert not model.tracked_
    assert "does not decide" in model.why_
    x = clouds[1]
    for slope in ((1 - shrink) / tau, -np.log(shrink) / tau):
        error = model.gradient(x) - slope * x
        assert np.mean(np.abs(error) < 2 * model.gradient_stderr(x) + 1e-3) > 0.85
    assert np.median(model.drift_stderr(x)) < 0.7 * np.median(model.gradient_stderr(x))


def test_what_functions_cannot_resolve_is_in_the_error_bars() -> None:
    """A kink without noise: a polynomial is wrong near it, and says so."""
    rng = np.random.default_rng(13)
    x, tau, clouds = rng.uniform(-2, 2, (400, 2)), 0.02, []
    for _ in range(4):
        clouds.append(rng.permutation(x))
        x = x + tau * np.sign(x)
    model = PointLandscape(n_centers=0, steps=1).fit(tau * np.arange(4), clouds)
    error = model.gradient(clouds[-1]) + np.sign(clouds[-1])
    assert np.sqrt((error**2).mean()) > 0.1
    assert np.mean(np.abs(error) < 1.96 * model.gradient_stderr(clouds[-1])) > 0.85


def test_a_kink_that_individuals_jump_over_is_not_taken_for_noise() -> None:
    """Steps of 0.14 across the bottom of a valley: in all, noise of 0.1 looks like 0.23."""
    rng = np.random.default_rng(16)
    x, tau, clouds = rng.uniform(-2, 2, (500, 2)), 0.01, []
    for _ in range(5):
        clouds.append(rng.permutation(x))
        slope = np.stack([14 * np.sign(x[:, 0]) * (np.abs(x[:, 1]) < 1), x[:, 1]], axis=1)
        x = x - tau * slope + np.sqrt(2 * 0.1 * tau) * rng.normal(size=x.shape)
    model = PointLandscape(n_centers=30, steps=1).fit(tau * np.arange(5), clouds)
    assert model.tracked_
    assert model.status_.name == "UNRESOLVED"
    assert "passes for noise" in model.warning_
    assert "different places" in model.why_
    assert abs(model.beta_ - 0.1) < 1.96 * model.beta_stderr_
