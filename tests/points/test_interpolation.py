"""Relaxation fits, bridges, displacement, and the choice among them."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg import ConvergenceError, FreeEnergy, InputError, MarkovKernel, Snapshots, gradient_flow
from thalweg.points import (
    Displacement,
    PointInterpolator,
    displace,
    fit_relaxation,
    leave_one_time_out,
    schroedinger_bridge,
    walk_generator,
    wasserstein1,
)
from thalweg.points.coupling import Couplings, unbalanced_coupling
from thalweg.points.goodness import GoodnessOfFit
from thalweg.points.methods import Guess
from thalweg.points.relaxation import path_entropy
from thalweg.points.trials import Choice, Trial, choose, combine
from thalweg.snapshots import WeightedPoints


def even(x: np.ndarray) -> WeightedPoints:
    return WeightedPoints(x, np.full(x.shape[0], 1 / x.shape[0]))


def ring(n: int) -> MarkovKernel:
    w = np.roll(np.eye(n), 1, axis=1)
    return MarkovKernel.from_weights(w + w.T)


def test_with_several_snapshots_the_likelihood_sets_the_clock() -> None:
    kernel, beta = ring(10), 0.6
    v = 0.8 * np.sin(2 * np.pi * np.arange(10) / 10)
    p0 = np.r_[0.6, 0.3, np.full(8, 0.0125)]
    times = np.array([0.0, 0.7, 1.5, 3.0, 5.0])
    path = gradient_flow(kernel, FreeEnergy(v, beta), p0, times).probabilities
    rng = np.random.default_rng(0)
    seen = Snapshots.from_counts(times, [rng.multinomial(20_000, p / p.sum()) for p in path])
    fit = fit_relaxation(kernel, seen)
    assert abs(np.log(fit.energy.beta / beta)) < 0.35
    assert abs(fit.predict(kernel, [1.0])[0] - np.asarray(
        gradient_flow(kernel, FreeEnergy(v, beta), p0, [0.0, 1.0]).probabilities[-1]
    )).sum() < 0.05  # fmt: skip


def test_the_clock_follows_the_unit_of_time() -> None:
    kernel = ring(8)
    counts = [[700, 200, 50, 10, 10, 10, 10, 10], [100, 100, 150, 250, 200, 100, 50, 50]]
    one = fit_relaxation(kernel, Snapshots.from_counts([0.0, 1.0], counts))
    ten = fit_relaxation(kernel, Snapshots.from_counts([0.0, 10.0], counts))
    assert np.isclose(one.energy.beta, 10 * ten.energy.beta, rtol=1e-6)
    half = one.predict(kernel, [0.5])[0]
    assert np.allclose(half, ten.predict(kernel, [5.0])[0], atol=1e-4)


def test_a_fitted_flow_does_not_run_backwards() -> None:
    seen = Snapshots.from_counts([1.0, 2.0], [[70, 20, 10], [10, 30, 60]])
    fit = fit_relaxation(ring(3), seen)
    with pytest.raises(InputError, match="before the first snapshot"):
        fit.predict(ring(3), [0.5, 1.5])


def test_path_entropy_of_free_diffusion_is_zero_and_else_positive() -> None:
    kernel = ring(5)
    ps, times = np.tile(kernel.stationary, (4, 1)), np.linspace(0, 1, 4)
    assert path_entropy(kernel, 1.0, np.zeros(5), times, ps) == 0
    u = np.array([0.0, 1.0, 0.3, -0.2, 0.5])
    one = path_entropy(kernel, 1.0, u, times, ps)
    assert one > 0
    assert np.isclose(path_entropy(kernel, 2.0, u, times, ps), 2 * one)


def test_bridge_meets_its_ends_and_is_the_walk_where_the_walk_does() -> None:
    kernel = ring(6)
    energy = FreeEnergy(np.array([0.0, 0.4, 0.1, -0.3, 0.2, 0.0]), 0.7)
    walk = walk_generator(kernel, energy)
    assert np.allclose(walk.sum(axis=1), 0)
    assert np.allclose(energy.equilibrium(kernel) @ walk, 0, atol=1e-12)
    from scipy.linalg import expm

    p = np.r_[0.7, np.full(5, 0.06)]
    q = p @ expm(2.0 * walk)
    path = schroedinger_bridge(walk, p, q, 2.0, np.array([0.0, 0.8, 2.0]))
    assert np.allclose(path, [p, p @ expm(0.8 * walk), q], atol=1e-8)
    other = np.random.default_rng(0).dirichlet(np.ones(6))
    ends = schroedinger_bridge(walk, p, other, 2.0, np.array([0.0, 2.0]))
    assert np.allclose(ends, [p, other], atol=1e-7)


def test_displacement_of_a_shift_is_the_shift_and_curves_follow_a_parabola() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=(60, 2))
    times = np.array([0.0, 1.0, 2.0, 3.0])
    straight = tuple(base + [t, 0.0] for t in times)
    cloud = displace(times, straight, 1.5, Displacement(), rng=rng)
    assert wasserstein1(cloud, even(base + [1.5, 0.0])) < 1e-7
    bent = tuple(base + [t, t * t] for t in times)
    truth = even(base + [1.5, 2.25])
    curved = displace(times, bent, 1.5, Displacement(curvature=1.0), rng=rng)
    assert wasserstein1(curved, truth) < 1e-7
    assert wasserstein1(displace(times, bent, 1.5, Displacement(), rng=rng), truth) > 0.2


def test_individuals_with_entropic_partners_follow_the_curve_of_their_own_past() -> None:
    times, x = np.array([0.0, 1.0, 2.0]), np.random.default_rng(0).normal(size=(900, 1))
    clouds = (x, x + 5.0, x + 10.0)
    straight, curved = (
        displace(
            times, clouds, 0.5, Displacement(curvature=bend, entropic=True),
            rng=np.random.default_rng(1),
        ).points.std()
        for bend in (0.0, 1.0)
    )  # fmt: skip
    assert abs(curved / straight - 1) < 0.02


def test_wasserstein_against_the_line() -> None:
    rng = np.random.default_rng(1)
    x, y = np.sort(rng.normal(size=50)), np.sort(rng.normal(1.0, 2.0, size=50))
    exact = abs(x - y).mean()
    assert np.isclose(wasserstein1(even(x[:, None]), even(y[:, None])), exact)


@pytest.fixture(scope="module")
def moving() -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    times = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    return times, [rng.normal([3 * t, 0.3 * t], 0.4, size=(70, 2)) for t in times]


def test_auto_moves_individuals_where_the_cloud_travels_and_says_why(moving: tuple) -> None:
    times, clouds = moving
    keep = [0, 1, 3, 4]
    model = PointInterpolator(n_states=16, n_partitions=1)
    model.fit(times[keep], [clouds[k] for k in keep])
    guess = model.interpolate(2.0)
    assert "flow" not in guess.method
    assert guess.method in guess.why
    assert "W1" in guess.why
    assert set(model.scores_) > {"flow", "bridge", "geodesic", "displacement", "landscape"}
    assert set(guess.baselines) > {"nearest snapshot", "mixture of neighbours"}
    assert guess.scores == model.scores_
    low, high = guess.w1_interval
    assert 0 < low < high
    assert wasserstein1(guess.points, even(clouds[2])) < 0.3


def test_forecast_beats_persistence_on_a_travelling_cloud(moving: tuple) -> None:
    times, clouds = moving
    model = PointInterpolator(n_states=16, n_partitions=1).fit(times[:4], clouds[:4])
    ahead = model.forecast(4.0)
    assert "flow" not in ahead.method
    assert "persistence" not in ahead.method
    assert wasserstein1(ahead.points, even(clouds[4])) < 0.5
    with pytest.raises(InputError, match="use forecast"):
        model.interpolate(4.0)
    with pytest.raises(InputError, match="use interpolate"):
        model.forecast(1.0)


@pytest.mark.parametrize("time", [np.nan, np.inf])
def test_a_time_that_is_not_finite_is_rejected(moving: tuple, time: float) -> None:
    model = PointInterpolator(n_states=10, n_partitions=1).fit(*moving)
    for ask in (model.interpolate, model.forecast):
        with pytest.raises(InputError, match=f"time is {time}"):
            ask(time, method="persistence")


def test_two_snapshots_use_the_documented_default(moving: tuple) -> None:
    times, clouds = moving
    model = PointInterpolator(n_states=12, n_partitions=1).fit(times[:2], clouds[:2])
    guess = model.interpolate(0.5)
    assert guess.method == "flow"
    assert "two snapshots" in guess.why


def test_nothing_leaks_from_the_left_out_time(moving: tuple) -> None:
    """Whatever the left-out snapshot holds, the guess for its time is the same."""
    times, clouds = moving
    three, options = [clouds[0], clouds[1], clouds[2]], {"n_states": 12, "n_partitions": 1}
    other = [clouds[0], clouds[1] + 100.0, clouds[2]]
    tables = [
        leave_one_time_out(times[:3], x, methods=["flow"], baselines=["log-linear"], **options)
        for x in (three, other)
    ]
    # All points are far from the moved snapshot, so W1 grows by the shift alone.
    gap = tables[1]["mean_error"] - tables[0]["mean_error"]
    assert (gap > 130).all()
    one, two = (
        PointInterpolator(**options).fit(times[[0, 2]], [x[0], x[2]]).interpolate(1.0)
        for x in (three, other)
    )
    assert np.array_equal(one.points.weights, two.points.weights)


def test_births_and_deaths_instead_of_long_ways() -> None:
    """A quarter dies here and is born there: nobody is found in between."""
    rng = np.random.default_rng(0)
    stay = rng.normal(size=(60, 2)) * 0.2
    x = np.vstack([stay, rng.normal(size=(20, 2)) * 0.2 + [5, 0]])
    y = np.vstack([stay + 0.05, rng.normal(size=(20, 2)) * 0.2 + [0, 5]])
    times = np.array([0.0, 1.0])
    i, j, mass = unbalanced_coupling(x, y)
    born, dying = i == len(x), j == len(y)
    assert np.isclose(mass[~born].sum(), 1)
    assert np.isclose(mass[~dying].sum(), 1)
    assert dying.any()
    assert set(i[dying]) <= set(range(60, 80))
    cloud = displace(times, (x, y), 0.5, Displacement(unbalanced=True), rng=rng)
    between = np.linalg.norm(cloud.points - [2.5, 2.5], axis=1) < 1.5
    assert cloud.weights[between].sum() < 1e-9
    straight = displace(times, (x, y), 0.5, Displacement(), rng=rng)
    middle = np.linalg.norm(straight.points - [2.5, 2.5], axis=1) < 1.5
    assert straight.weights[middle].sum() > 0.05


@pytest.fixture(scope="module")
def multiplying() -> tuple[np.ndarray, list[np.ndarray]]:
    """A group that rests far from another one and multiplies: its share is 0.1, 0.2, ... 0.5."""
    rng, clouds = np.random.default_rng(0), []
    for k in range(5):
        far = np.arange(400) < 40 + 40 * k
        clouds.append(rng.normal(size=(400, 2)) * 0.4 + np.where(far, 4.0, 0.0)[:, None])
    return np.arange(5.0), clouds


def test_a_group_that_multiplies_grows_and_nobody_crosses(multiplying: tuple) -> None:
    times, clouds = multiplying
    keep = [0, 1, 3, 4]
    model = PointInterpolator(n_states=10, n_partitions=1)
    model.fit(times[keep], [clouds[k] for k in keep])
    guess = model.interpolate(2.0, method="growing")
    far = guess.points.points.min(axis=1) > 2
    assert abs(guess.points.weights[far].sum() - 0.3) < 0.06
    between = np.abs(guess.points.points.sum(axis=1) - 4.0) < 1.5
    assert guess.points.weights[between].sum() < 0.02
    assert wasserstein1(guess.points, even(clouds[2])) < 0.35
    assert guess.goodness is not None
    assert "growth" in str(guess.goodness)
    assert "Growth lowers the deviance" in guess.warning
    ahead = model.forecast(5.0, method="growing")
    assert ahead.points.weights[ahead.points.points.min(axis=1) > 2].sum() > 0.5


def test_growth_is_tried_where_transport_is_rejected_and_only_there(moving: tuple) -> None:
    times, clouds = moving
    calm = PointInterpolator(n_states=10, n_partitions=1).fit(times[:2], clouds[:2])
    assert "growing" not in calm._methods.worthwhile(("flow", "growing"))
    trial = Trial(even(clouds[0]), {}, {"a": 1.0, "b": 2.0}, 100)
    other = Trial(even(clouds[0]), {}, {"a": 1.0}, 100)
    assert choose([trial, other], "times").scores == {"a": 1.0}


def test_clouds_larger_than_a_coupling_are_pooled_from_samples() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=(90, 2))
    some = Couplings((base, base + [1.0, 0.0]), rng, most=40)
    cloud = displace(np.array([0.0, 1.0]), some, 0.5, Displacement(), rng=rng)
    assert len(cloud.weights) >= 80
    assert np.allclose(cloud.mean, base.mean(axis=0) + [0.5, 0.0], atol=0.35)


def test_the_landscape_interpolates_and_forecasts_beyond_what_was_seen(moving: tuple) -> None:
    times, clouds = moving
    model = PointInterpolator(n_states=12, n_partitions=1).fit(times[:4], clouds[:4])
    between = model.interpolate(1.5, method="landscape")
    assert wasserstein1(between.points, even(clouds[1] + [1.5, 0.15])) < 0.2  # the nearest: 1.5
    assert "extrapolates" not in between.warning
    ahead = model.forecast(4.0, method="landscape")
    assert abs(ahead.points.mean[0] - 12.0) < 0.4
    assert "100% of the individuals" in ahead.warning
    assert "extrapolates" in ahead.warning
    assert ahead.goodness is not None
    assert "moves all points" in str(ahead.goodness)
    with pytest.raises(InputError, match="choose 'auto' or one of"):
        model.interpolate(1.5, method="magic")


def test_a_rejected_model_says_so_with_the_cloud() -> None:
    rng = np.random.default_rng(0)
    times = np.linspace(0.0, 2.5, 6)
    clouds = []
    for t in times:
        turn = np.array([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]])
        clouds.append(rng.normal(size=(300, 2)) * [2.0, 0.5] @ turn.T)
    model = PointInterpolator(n_states=20, n_partitions=1).fit(times, clouds)
    flow = model.interpolate(1.2, method="flow")
    assert flow.goodness.rejected
    assert "contradict" in flow.warning
    moving = model.interpolate(1.2, method="landscape")  # of a potential that changes in time
    assert "constant in time" in moving.warning
    choice = Choice(("displacement",), np.ones(1), False, {}, "asked", None)
    straight = model._chosen(1.2, choice)  # what auto says of a method without a model
    assert straight.goodness is not None
    assert straight.goodness.rejected
    assert "made without that assumption" in straight.warning
    assert model.interpolate(1.2, method="displacement").warning == ""


def test_clouds_at_rest_are_pooled_and_not_moved() -> None:
    rng = np.random.default_rng(5)
    clouds = [rng.normal(size=(100, 2)) for _ in range(4)]
    model = PointInterpolator(n_states=10, n_partitions=1).fit([0.0, 1.0, 2.0, 3.0], clouds)
    ahead = model.forecast(4.0, method="landscape")
    assert np.array_equal(np.sort(ahead.points.points, axis=0), np.sort(np.vstack(clouds), axis=0))
    assert "do not determine beta" in ahead.warning


def test_mixtures_are_weighed_by_their_trials_and_named() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 1))
    truth, left, right = even(x), even(x[:100] - 0.5), even(x[100:] + 0.5)
    trial = Trial(truth, {"a": left, "b": right}, {}, 100)
    trial.scores.update({n: wasserstein1(c, truth) for n, c in trial.clouds.items()})
    choice = choose([trial, trial], "times")
    assert set(choice.parts) == {"a", "b"}
    assert "a" in choice.why
    assert choice.interval is not None
    low, high = choice.interval
    assert high > 2 * low  # two trials that agree to all digits are no certainty
    single = choose([trial], "times").interval
    assert single is not None
    assert single[1] / single[0] > high / low
    guess = combine(choice, lambda name: Guess(trial.clouds[name]))
    assert wasserstein1(guess.points, truth) < 0.5 * min(trial.scores.values())


@pytest.mark.parametrize("order", [1, -1])
def test_a_mixture_carries_the_test_that_rejects_not_the_one_that_could_not_be_made(
    order: int,
) -> None:
    cloud = even(np.zeros((2, 1)))
    tests = [GoodnessOfFit(0.0, 0, "untested"), GoodnessOfFit(100.0, 5, "rejected")][::order]
    guesses = dict(zip("ab", tests, strict=True))
    choice = Choice(("a", "b"), np.full(2, 0.5), False, {}, "", None)
    found = combine(choice, lambda name: Guess(cloud, guesses[name])).goodness
    assert found is not None
    assert found.rejected


def test_a_choice_that_fails_on_all_snapshots_gives_way_to_the_next(
    moving: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, clouds = moving
    model = PointInterpolator(n_states=12, n_partitions=1).fit(times, clouds)
    known = model._methods.guess

    def guess(name: str, time: float) -> Guess:
        if name == "flow":
            raise ConvergenceError("it overflowed.")
        return known(name, time)

    monkeypatch.setattr(model._methods, "guess", guess)
    scores = {"flow": 0.1, "displacement": 0.2, "growing": np.inf}
    found = model._chosen(1.5, Choice(("flow",), np.ones(1), False, scores, "best", (0.1, 0.2)))
    assert found.method == "displacement"
    assert "it overflowed" in found.why
    assert found.w1_interval is None
    alone = Choice(("flow",), np.ones(1), False, {"flow": 0.1}, "best", None)
    with pytest.raises(ConvergenceError, match="overflowed"):
        model._chosen(1.5, alone)


def test_no_weightless_atoms(moving: tuple) -> None:
    times, clouds = moving
    model = PointInterpolator(n_states=12, n_partitions=2).fit(times, clouds)
    weights = model.interpolate(2.5, method="flow").points.weights
    assert weights.min() > 1e-5 / weights.size / 10
    assert np.isclose(weights.sum(), 1)
