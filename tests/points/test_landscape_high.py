"""Landscapes in many dimensions: the directions that move, and what is said of the others."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg import PointLandscape
from thalweg.points.landscape.chart import Chart

Array = np.ndarray

TIMES = np.array([0.0, 0.3, 0.6, 0.9])


@pytest.fixture(scope="module")
def relaxing() -> tuple[list[Array], Array, PointLandscape]:
    """A wide cloud in 14 dimensions that relaxes along one oblique direction, `V = 2 u^2`."""
    rng = np.random.default_rng(3)
    along = rng.normal(size=14)
    along /= np.linalg.norm(along)
    clouds = []
    for t in TIMES:
        x = 0.4 * rng.normal(size=(500, 14))
        u = np.exp(-2 * t) * rng.normal(2.0, 1.0, 500)
        clouds.append(x - (x @ along)[:, None] * along + u[:, None] * along)
    return clouds, along, PointLandscape(n_centers=0, beta=0.0).fit(TIMES, clouds)


def test_the_gradient_lies_along_the_direction_that_moves(relaxing: tuple) -> None:
    clouds, along, model = relaxing
    slope, x = model.gradient(clouds[1]), clouds[1]
    wanted = 2 * (x @ along)[:, None] * along
    assert np.linalg.norm(slope - wanted) < 0.25 * np.linalg.norm(wanted)
    assert "2 of 14 principal components" in model.why_
    stderr = model.gradient_stderr(x)
    assert stderr.shape == x.shape
    assert np.mean(np.abs(slope - wanted) < 3 * stderr) > 0.8


def test_other_directions_stay_as_they_are(relaxing: tuple) -> None:
    clouds, _, model = relaxing
    chart = model._chart
    there = model.push(clouds[0], 0.0, 0.9)
    still = np.eye(14) - chart.axes @ chart.axes.T
    np.testing.assert_allclose(there @ still, clouds[0] @ still, atol=1e-12)
    np.testing.assert_allclose(there.mean(axis=0), clouds[-1].mean(axis=0), atol=0.2)
    assert model.extrapolates(clouds[0], 0.0, 0.9).mean() < 0.1
    assert model.potential(clouds[0]).shape == (500,)
    np.testing.assert_allclose(
        model.potential(clouds[0] + 3.0 * still[0]), model.potential(clouds[0]), atol=1e-9
    )


def test_a_turned_cloud_gives_turned_directions() -> None:
    rng = np.random.default_rng(1)
    clouds = tuple(rng.normal(size=(300, 12)) * np.arange(12, 0, -1) + 6 * t for t in TIMES)
    turn = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    one, other = Chart.of(clouds), Chart.of(tuple(x @ turn for x in clouds))
    np.testing.assert_allclose(
        other.axes @ other.axes.T, turn.T @ one.axes @ one.axes.T @ turn, atol=1e-8
    )


def test_directions_that_move_and_are_left_are_in_the_warning() -> None:
    rng = np.random.default_rng(2)
    clouds = [rng.normal(size=(200, 12)) + np.linspace(1.0, 3.0, 12) * t for t in TIMES]
    turned = [
        x * np.exp(-np.linspace(0.3, 1.5, 12) * t) for x, t in zip(clouds, TIMES, strict=True)
    ]
    assert Chart.of(tuple(turned)).left > 0
    model = PointLandscape(n_centers=0, beta=0.0, steps=1).fit(TIMES, turned)
    assert "others move as well" in model.warning_
    at_rest = [rng.normal(size=(200, 12)) for _ in TIMES]
    assert Chart.of(tuple(at_rest)).left == 0


def test_the_reason_does_not_doubt_the_chosen_functions_with_themselves() -> None:
    """Where an explicit step would overshoot, the functions are chosen again."""
    rng, clouds = np.random.default_rng(14), []
    for t in (0.0, 2.0, 4.0):
        x, h = rng.normal(0.3, 1.0, size=(150, 12)), t / 20
        for _ in range(20 if t else 0):
            slope = np.column_stack([x[:, 0] ** 3 - x[:, 0], x[:, 1:]])
            x = x - h * slope + np.sqrt(0.4 * h) * rng.standard_normal(x.shape)
        clouds.append(x)
    why = PointLandscape().fit([0.0, 2.0, 4.0], clouds).why_
    chosen = why.split(" had the largest")[0]
    assert "perhaps as right" in why
    assert f"with {chosen}," not in why
