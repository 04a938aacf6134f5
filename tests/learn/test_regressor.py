"""The estimator: scikit-learn's conventions, forecasts, scores, tables and files."""

from __future__ import annotations

from io import StringIO
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

from literal_flow import gradient_flow, random_kernel
from thalweg.energy import PowerEnergy, centred
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor, TimeBasis, load
from thalweg.learn.limits import Printed, as_progress
from thalweg.learn.model_file import read_model, write_model
from thalweg.mobility import GeometricMean
from thalweg.report.findings import findings
from thalweg.snapshots import Dirichlet, HeatKernel, Snapshots, hellinger
from thalweg.status import Status

TIMES = np.linspace(0, 3, 16)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(11)
    kernel = random_kernel(rng, 6).with_labels(names=list("abcdef"), coordinates=rng.random((6, 2)))
    v = centred(rng.uniform(-1, 1, 6), kernel)
    p = gradient_flow(kernel, v, 0.3, rng.dirichlet(np.full(6, 2.0)), TIMES)
    counts = np.array([rng.multinomial(20_000, row) for row in p])
    return kernel, v, p, Snapshots.from_counts(TIMES, counts)


@pytest.fixture(scope="module")
def fits(data):
    kernel, _, _, seen = data
    return {m: FreeEnergyRegressor(method=m).fit(kernel, seen) for m in ("weak", "likelihood")}


@pytest.mark.parametrize("method", ["weak", "likelihood"])
def test_recovers_the_landscape_and_forecasts(data, fits, method) -> None:
    kernel, v, p, _ = data
    model = fits[method]
    assert model.status_ is Status.CONVERGED
    assert np.abs(model.potential_ - v).max() < 0.1
    assert model.beta_ == pytest.approx(0.3, abs=0.05)
    assert kernel.stationary @ model.potential_ == pytest.approx(0, abs=1e-12)
    path = model.predict(p[0], TIMES)
    assert hellinger(path.probabilities, p).mean() < 0.01
    late = model.predict(None, [1.0, 2.0])
    assert hellinger(late.probabilities, p[[5, 10]]).max() < 0.02


def test_likelihood_gives_errors_that_fit(data, fits) -> None:
    _, v, _, _ = data
    model = fits["likelihood"]
    z = (model.potential_ - v) / model.potential_stderr_
    assert np.abs(z).max() < 5
    assert abs(model.beta_ - 0.3) < 5 * model.beta_stderr_
    assert abs(fits["weak"].beta_ - 0.3) < 5 * fits["weak"].beta_stderr_


def test_parameters_follow_scikit_learn(data) -> None:
    kernel, _, _, seen = data
    smoother = Dirichlet(0.1)
    model = FreeEnergyRegressor(method="weak", smoother=smoother, ridge=0.5)
    assert model.get_params()["smoother"] is smoother
    copy = clone(model)
    assert copy.get_params().keys() == model.get_params().keys()
    assert copy.ridge == 0.5
    assert not hasattr(copy, "fitted_")
    assert model.set_params(ridge=0.0).fit(kernel, seen) is model
    assert model.diagnostics_["ridge"] == 0
    assert model.smoother is smoother
    assert "method='weak'" in repr(model)
    with pytest.raises(InputError, match="not fitted"):
        _ = copy.energy_


def test_score_is_best_for_the_truth(data, fits) -> None:
    kernel, _, p, seen = data
    fitted = fits["likelihood"].score(seen)
    entropy = float((p * np.log(p)).sum(axis=1).mean())
    assert fitted == pytest.approx(entropy, abs=0.02)
    wrong = FreeEnergyRegressor(method="weak", potential=np.zeros(6)).fit(kernel, seen)
    assert wrong.score(seen) < fitted
    with pytest.raises(InputError, match="before the first snapshot"):
        fits["weak"].score(Snapshots.from_counts([-1.0], np.ones((1, 6))))


def test_forecast_bands_hold_the_truth(data, fits) -> None:
    _, _, p, _ = data
    band = fits["likelihood"].forecast(TIMES, n_draws=60)
    assert np.all(band.lower <= band.probabilities)
    assert np.all(band.probabilities <= band.upper)
    inside = (band.lower <= p) & (p <= band.upper)
    assert inside.mean() > 0.7
    assert (band.upper - band.lower).mean() < 0.02
    assert len(band.to_frame()) == 16 * 6
    with pytest.raises(InputError, match="no covariance"):
        fits["weak"].forecast(TIMES)
    with pytest.raises(InputError, match="level"):
        fits["likelihood"].forecast(TIMES, level=95)


def test_sample_looks_like_the_forecast(data, fits) -> None:
    _, _, p, _ = data
    drawn = fits["likelihood"].sample(TIMES, 50_000)
    assert drawn.names == tuple("abcdef")
    assert np.array_equal(drawn.counts, fits["likelihood"].sample(TIMES, 50_000).counts)
    assert hellinger(drawn.frequencies, p).max() < 0.02


def test_frame_has_a_row_per_state(fits) -> None:
    frame = fits["likelihood"].to_frame()
    assert list(frame["name"]) == list("abcdef")
    assert frame["equilibrium"].sum() == pytest.approx(1)
    assert frame["visited"].all()
    assert (frame["stderr"] > 0).all()


def test_unseen_states_are_named(data) -> None:
    kernel, _, _, seen = data
    counts = np.array(seen.counts)
    counts[:, 4] = 0
    for method in ("weak", "likelihood"):
        model = FreeEnergyRegressor(method=method).fit(kernel, Snapshots.from_counts(TIMES, counts))
        assert model.diagnostics_["never_visited"] == [4]
        assert np.isfinite(model.potential_).all()


def test_features_carry_over_to_other_states(data) -> None:
    kernel, v, _, seen = data
    features = np.column_stack([v, v**2])
    for method in ("weak", "likelihood"):
        model = FreeEnergyRegressor(method=method, features=features).fit(kernel, seen)
        carried = model.predict_potential(np.array([[1.0, 1.0], [0.0, 0.0]]))
        assert carried[0] - carried[1] == pytest.approx(1.0, abs=0.15)
        with pytest.raises(InputError, match="columns"):
            model.predict_potential(np.ones((2, 3)))
    with pytest.raises(InputError, match="features"):
        FreeEnergyRegressor(method="weak").fit(kernel, seen).predict_potential(features)


def test_potential_varying_in_time_is_predicted_piece_by_piece() -> None:
    rng = np.random.default_rng(4)
    kernel = random_kernel(rng, 5)
    before, after = (centred(rng.uniform(-1, 1, 5), kernel) for _ in range(2))
    times = np.linspace(0, 2, 41)
    first = gradient_flow(kernel, before, 0.3, rng.dirichlet(np.full(5, 3.0)), times[:21])
    p = np.concatenate([first, gradient_flow(kernel, after, 0.3, first[-1], times[20:])[1:]])
    seen = Snapshots.from_counts(times, 1e6 * p)
    model = FreeEnergyRegressor(method="weak", time_basis=TimeBasis.piecewise([1.0]))
    model.fit(kernel, seen)
    assert hellinger(model.predict(p[0], times).probabilities, p).max() < 0.01
    fixed = FreeEnergyRegressor(method="weak").fit(kernel, seen)
    assert hellinger(fixed.predict(p[0], times).probabilities, p).max() > 0.02


def test_frozen_rates_are_predicted_as_frozen(data) -> None:
    kernel, _, p, seen = data
    model = FreeEnergyRegressor(method="weak", discretization="frozen").fit(kernel, seen)
    coarse = model.predict(p[0], TIMES[::5]).probabilities
    fine = model.predict(p[0], np.linspace(0, 3, 601)).probabilities[::200]
    exact = gradient_flow(kernel, model.potential_, model.beta_, p[0], TIMES[::5])
    assert np.abs(fine - exact).max() < 4e-3 < np.abs(coarse - exact).max()


# ------------------------------------------------------------------------ files


def roundtrip(model: FreeEnergyRegressor, path: Path) -> FreeEnergyRegressor:
    model.save(path)
    return load(path)


def test_save_and_load_give_the_same_model(fits, tmp_path) -> None:
    for method, model in fits.items():
        again = roundtrip(model, tmp_path / method)
        assert np.array_equal(again.potential_, model.potential_)
        assert again.beta_ == model.beta_
        assert again.kernel_.names == model.kernel_.names
        assert np.array_equal(again.kernel_.coordinates, model.kernel_.coordinates)
        assert np.array_equal(again.initial_, model.initial_)
        assert np.array_equal(again.potential_stderr_, model.potential_stderr_, equal_nan=True)
        assert again.diagnostics_ == model.diagnostics_
        assert again.get_params()["method"] == method
        ours, theirs = (m.predict(None, TIMES).probabilities for m in (model, again))
        assert np.array_equal(ours, theirs)
    ours, theirs = (m.forecast(TIMES[:3], n_draws=5).upper for m in (fits["likelihood"], again))
    assert np.array_equal(ours, theirs)


def test_every_setting_survives_the_file(data, tmp_path) -> None:
    kernel, v, _, seen = data
    model = FreeEnergyRegressor(
        method="weak",
        mobility=GeometricMean(),
        internal=PowerEnergy(1.5),
        features=np.column_stack([v, v**2]),
        interactions=[np.eye(6)],
        time_basis=TimeBasis.piecewise([1.5]),
        smoother=HeatKernel(0.1),
        seed=np.int64(5),
    ).fit(kernel, seen)
    again = roundtrip(model, tmp_path / "m")
    assert again.mobility == GeometricMean()
    assert again.internal == PowerEnergy(1.5)
    assert again.smoother == HeatKernel(0.1)
    assert again.seed == 5
    assert again.time_basis.breaks == (1.5,)
    assert np.array_equal(again.energy_.interaction, model.energy_.interaction)
    ours, theirs = (m.predict(None, TIMES).probabilities for m in (model, again))
    assert np.array_equal(ours, theirs)
    assert np.array_equal(
        again.predict_potential(again.features), model.predict_potential(model.features)
    )


def test_names_of_all_kinds_survive_and_others_are_refused(data, tmp_path) -> None:
    kernel, _, _, seen = data
    seen = Snapshots.from_counts(TIMES, seen.counts)
    names = ["ü", 3, 2.5, (1, "a"), ("x", (2, 3)), True]
    model = FreeEnergyRegressor(method="weak").fit(kernel.with_labels(names=names), seen)
    assert roundtrip(model, tmp_path / "m").kernel_.names == tuple(names)
    strange = [frozenset({i}) for i in range(6)]
    model = FreeEnergyRegressor(method="weak").fit(kernel.with_labels(names=strange), seen)
    with pytest.raises(InputError, match="frozenset"):
        model.save(tmp_path / "m")
    smooth = FreeEnergyRegressor(method="weak", time_basis=TimeBasis.of(np.cos)).fit(kernel, seen)
    with pytest.raises(InputError, match="piecewise"):
        smooth.save(tmp_path / "m")


def test_files_with_impossible_graphs_are_refused(fits, tmp_path) -> None:
    path = tmp_path / "m"
    fits["weak"].save(path)
    header, arrays = read_model(path)
    header = {k: v for k, v in header.items() if k not in ("format", "version", "arrays")}
    changes = {
        "edge_target": arrays["edge_target"] + 1000,
        "conductance": -arrays["conductance"],
        "stationary": 2 * arrays["stationary"],
        "potential": arrays["potential"][:-1],
        "initial": -arrays["initial"],
        "potentials": arrays["potentials"][0],
        "times": arrays["times"][::-1].copy(),
    }
    for name, value in changes.items():
        write_model(path, header, {**arrays, name: value})
        with pytest.raises(InputError):
            load(path)
    for name in ("potential", "visits", "edge_source"):
        write_model(path, header, {k: v for k, v in arrays.items() if k != name})
        with pytest.raises(InputError, match="lacks"):
            load(path)
    for broken in (
        {"status": "MAGIC"},
        {"settings": {}},
        {"beta": -1},
        {"internal": {"type": "X"}},
    ):
        write_model(path, {**header, **broken}, arrays)
        with pytest.raises(InputError):
            load(path)
    odd = {**header, "settings": {**header["settings"], "colour": 1}}
    write_model(path, odd, arrays)
    with pytest.raises(InputError, match="colour"):
        load(path)


# ------------------------------------------------------------------------ bad input


def test_bad_input_is_refused_with_a_sentence(data) -> None:
    kernel, _, _, seen = data
    fit = FreeEnergyRegressor(method="weak").fit
    with pytest.raises(InputError, match="one snapshot"):
        fit(kernel, seen.select([0]))
    with pytest.raises(InputError, match="7 states"):
        fit(kernel, Snapshots.from_counts([0, 1], np.ones((2, 7))))
    with pytest.raises(InputError, match="falls into 6 components"):
        fit(np.eye(6), seen)
    shuffled = Snapshots.from_counts([0, 1], np.ones((2, 6)), names=list("bacdef"))
    with pytest.raises(InputError, match="states=kernel"):
        fit(kernel, shuffled)
    with pytest.raises(InputError, match="choose"):
        FreeEnergyRegressor(method="magic").fit(kernel, seen)


def test_networks_through_the_estimator(data, tmp_path) -> None:
    pytest.importorskip("torch")
    kernel, v, _, seen = data
    few = Snapshots.from_counts(TIMES, np.array(seen.counts) // 100)
    paper = FreeEnergyRegressor(method="neural", seed=3).fit(kernel, few)
    assert paper.diagnostics_["n_steps"] > 10
    features = np.column_stack([v, kernel.coordinates])
    model = FreeEnergyRegressor(method="neural", features=features).fit(kernel, seen)
    assert np.corrcoef(model.potential_, v)[0, 1] > 0.95
    again = roundtrip(model, tmp_path / "net")
    assert np.array_equal(again.predict_potential(features), model.predict_potential(features))
    with pytest.raises(InputError, match="fixed potential"):
        FreeEnergyRegressor(method="neural", potential=v).fit(kernel, seen)


def test_diagnostics_say_whether_the_model_fits(data, fits) -> None:
    kernel, _, p, _ = data
    found = fits["likelihood"].diagnostics_
    assert found["p_value"] > 1e-3
    assert found["undetermined"] == []
    assert "fits" in found["goodness_of_fit"]
    backwards = Snapshots.from_counts(TIMES, np.rint(20_000 * p[::-1]))
    wrong = FreeEnergyRegressor().fit(kernel, backwards)
    assert wrong.diagnostics_["p_value"] < 1e-3
    # Error bars hold what the flow leaves over: variances grow by the deviance per degree.
    factor = wrong.diagnostics_["errors_widened_by"]
    assert factor**2 == pytest.approx(wrong.diagnostics_["deviance_per_degree"])
    assert factor > 2
    assert "times as wide" in " ".join(findings(wrong))
    assert "errors_widened_by" not in found


def test_tracked_population_is_sampled_as_one(data) -> None:
    kernel, _, _, seen = data
    model = FreeEnergyRegressor(method="weak", observation="tracked", discretization="frozen")
    drawn = model.fit(kernel, seen).sample(TIMES, 500, rng=np.random.default_rng(0))
    assert np.all(drawn.sizes == 500)


def test_likelihood_of_many_states_refuses_what_it_cannot(data) -> None:
    rng = np.random.default_rng(0)
    kernel = MarkovKernel.from_points(rng.random((600, 2)), n_neighbors=8)
    seen = Snapshots.from_counts([0, 1], rng.integers(1, 9, (2, 600)))
    with pytest.raises(InputError, match="features, observation='tracked'"):
        FreeEnergyRegressor(features=kernel.coordinates, observation="tracked").fit(kernel, seen)


def test_large_graphs_fit_by_the_weak_form() -> None:
    rng = np.random.default_rng(0)
    kernel = MarkovKernel.from_points(rng.random((500, 2)), n_neighbors=8)
    counts = np.array([rng.multinomial(5000, kernel.stationary) for _ in range(4)])
    model = FreeEnergyRegressor(method="weak").fit(kernel, Snapshots.from_counts(range(4), counts))
    # A population at rest says nothing about beta, and the search may not end.
    assert not model.beta_verdict_.determined
    assert model.status_ in (Status.CONVERGED, Status.MAX_ITERATIONS)
    assert model.beta_ > 0  # never zero, where no forecast would end


def test_progress_is_reported_by_the_dense_likelihood() -> None:
    kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    counts = [[800, 150, 50], [600, 290, 110], [470, 370, 160], [400, 410, 190]]
    seen = Snapshots.from_counts([0.0, 0.5, 1.0, 1.5], counts)
    calls: list[tuple[str, int, int]] = []
    FreeEnergyRegressor(progress=lambda *call: calls.append(call)).fit(kernel, seen)
    climbed = [call[1:] for call in calls if call[0] == "likelihood"]
    assert len(climbed) >= 3
    assert climbed[0][0] == 0
    assert climbed[-1][0] == climbed[-1][1] > 0
    assert [done for done, _ in climbed] == sorted(done for done, _ in climbed)
    assert isinstance(as_progress(True), Printed)
    brief, slow, clock = StringIO(), StringIO(), count(step=3)
    FreeEnergyRegressor(progress=Printed(brief, lambda: 0.0)).fit(kernel, seen)
    assert brief.getvalue() == ""  # what takes less than two seconds needs no lines
    FreeEnergyRegressor(progress=Printed(slow, lambda: float(next(clock)))).fit(kernel, seen)
    assert "likelihood: done in" in slow.getvalue()
