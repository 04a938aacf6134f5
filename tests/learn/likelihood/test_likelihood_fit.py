"""Fits: at the limit, for every term, and with a sentence for bad input."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from thalweg.energy import FreeEnergy, PowerEnergy
from thalweg.errors import InputError
from thalweg.flow import simulate
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood import stages
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.learn.likelihood.frozen import frozen_chain
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import IndependentObjective, Objective
from thalweg.learn.likelihood.optimize import Minimum, Penalty
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.time_basis import TimeBasis
from thalweg.mobility import PorousMediumMean
from thalweg.status import Status
from thalweg_bench import accuracy_cases as cases

PATH = MarkovKernel.from_weights([[0, 1, 0, 0], [1, 0, 2, 1], [0, 2, 0, 1], [0, 1, 1, 0]])
TIMES = np.linspace(0, 2, 11)


def counts_of(model: FlowModel, theta: np.ndarray, n: int, seed: int = 0) -> np.ndarray:
    p = model.probabilities(theta, Mesh(np.full(model.times.size - 1, 16, dtype=np.int64)))
    rng = np.random.default_rng(seed)
    return np.array([rng.multinomial(n, q / q.sum()) for q in p])


def truth(model: FlowModel, energy: list[float], beta: float) -> np.ndarray:
    p0 = np.array([0.4, 0.3, 0.2, 0.1])
    tail = [] if model.n_initial == 0 else list(np.log(p0 / model.kernel.stationary))
    return np.array([*energy, *([np.log(beta)] if model.learns_beta else []), *tail])


@pytest.mark.parametrize("beta", [0.01, 0.1, 0.2])
def test_reaches_the_limit(beta: float) -> None:
    results = np.array(
        [cases.independent_run(i, 7, 6, beta, np.linspace(0, 2, 21), 10_000) for i in range(8)]
    )
    assert results[:, 2].all()
    assert np.sqrt(results[:, 0].mean() / results[:, 1].mean()) < 1.35
    assert np.sqrt(results[:, 0] / results[:, 1]).max() < 4


def test_relabelling_the_states_changes_nothing() -> None:
    model = FlowModel(PATH, TIMES)
    counts = counts_of(model, truth(model, [0.5, -0.2, 0.3, -0.6], 0.2), 5000)
    order = np.array([2, 0, 3, 1])
    weights = PATH.flow_matrix.toarray()[np.ix_(order, order)]
    ours = fit_likelihood(PATH, TIMES, counts)
    other = fit_likelihood(MarkovKernel.from_weights(weights), TIMES, counts[:, order])
    np.testing.assert_allclose(other.potential, ours.potential[order], atol=0.02)
    assert other.beta == pytest.approx(ours.beta, rel=0.05)


def test_time_unit_changes_nothing_but_the_unit() -> None:
    model = FlowModel(PATH, TIMES)
    counts = counts_of(model, truth(model, [0.5, -0.2, 0.3, -0.6], 0.2), 5000)
    ours = fit_likelihood(PATH, TIMES, counts)
    slow = fit_likelihood(PATH, 60 * TIMES, counts)
    np.testing.assert_allclose(60 * slow.potential, ours.potential, atol=0.02)
    assert 60 * slow.beta == pytest.approx(ours.beta, rel=0.05)


class Scipy:
    """L-BFGS of scipy as an optimiser: one class, handed in."""

    def __init__(self) -> None:
        self.calls = 0

    def minimise(
        self,
        objective: Objective,
        prior: Penalty,
        theta: np.ndarray,
        mesh: Mesh,
        *,
        max_iterations: int,
        tolerance: float,
    ) -> Minimum | None:
        self.calls += 1
        units = prior.units

        def total(x: np.ndarray) -> tuple[float, np.ndarray]:
            found = objective.evaluate(x * units, mesh)
            if found is None:
                return 1e30, np.zeros_like(x)
            extra, slope, _ = prior.quadratic(x * units)
            return found.value + extra, units * (found.gradient + slope)

        if objective.evaluate(theta, mesh) is None:
            return None
        options = {"maxiter": 5 * max_iterations, "gtol": 1e-4, "ftol": 1e-14}
        best = minimize(total, theta / units, jac=True, method="L-BFGS-B", options=options)
        evaluation = objective.evaluate(best.x * units, mesh)
        assert evaluation is not None
        status = Status.CONVERGED if best.success else Status.STALLED
        return Minimum(best.x * units, float(best.fun), evaluation, status, int(best.nit))


def test_an_optimiser_of_ones_own_finds_the_same_minimum() -> None:
    model = FlowModel(PATH, TIMES)
    counts = counts_of(model, truth(model, [0.5, -0.2, 0.3, -0.6], 0.2), 5000)
    own = Scipy()
    ours = fit_likelihood(PATH, TIMES, counts, options=LikelihoodOptions(prior_strength=0.01))
    other = fit_likelihood(
        PATH, TIMES, counts, options=LikelihoodOptions(prior_strength=0.01, optimizer=own)
    )
    assert own.calls > 0
    assert other.status
    share = np.abs(other.potential - ours.potential) / ours.potential_stderr
    assert share.max() < 0.05
    assert other.beta == pytest.approx(ours.beta, rel=0.01)


def test_features() -> None:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(4, 2))
    model = FlowModel(PATH, TIMES, features=features)
    counts = counts_of(model, truth(model, [0.7, -0.4], 0.2), 20_000)
    fit = fit_likelihood(PATH, TIMES, counts, options=LikelihoodOptions(features=features))
    np.testing.assert_allclose(fit.feature_weights[0], [0.7, -0.4], atol=0.06)
    assert fit.potential_stderr.shape == (4,)


def test_interactions() -> None:
    w = np.eye(4)
    model = FlowModel(PATH, TIMES, interactions=w[None])
    counts = counts_of(model, truth(model, [0.5, -0.2, 0.3, -0.6, 1.5], 0.1), 100_000)
    fit = fit_likelihood(PATH, TIMES, counts, options=LikelihoodOptions(interactions=[w]))
    error = np.sqrt(fit.covariance[4, 4])
    assert abs(fit.interaction_strengths[0] - 1.5) < 4 * error
    assert fit.energy.interaction is not None


def test_potential_that_jumps() -> None:
    basis = TimeBasis.piecewise([1.0])
    model = FlowModel(PATH, TIMES, time_basis=basis)
    first, second = [0.5, -0.2, 0.3, -0.6], [-0.5, 0.4, 0.1, 0.0]
    counts = counts_of(model, truth(model, first + second, 0.2), 50_000)
    fit = fit_likelihood(PATH, TIMES, counts, options=LikelihoodOptions(time_basis=basis))
    centred = [np.array(v) - PATH.stationary @ np.array(v) for v in (first, second)]
    np.testing.assert_allclose(fit.potential_parts, centred, atol=0.15)


def test_known_parts() -> None:
    model = FlowModel(PATH, TIMES)
    v = np.array([0.5, -0.2, 0.3, -0.6])
    counts = counts_of(model, truth(model, list(v), 0.2), 5000)
    beta_known = fit_likelihood(PATH, TIMES, counts, options=LikelihoodOptions(beta=0.2))
    assert beta_known.beta == 0.2
    assert beta_known.beta_stderr == 0
    v_known = fit_likelihood(PATH, TIMES, counts, options=LikelihoodOptions(potential=v))
    np.testing.assert_allclose(v_known.potential, v - PATH.stationary @ v)
    assert v_known.beta == pytest.approx(0.2, abs=5 * v_known.beta_stderr)
    free = fit_likelihood(PATH, TIMES, counts)
    assert v_known.beta_stderr < free.beta_stderr


def test_other_energy_and_mobility() -> None:
    options = LikelihoodOptions(mobility=PorousMediumMean(2.0), internal=PowerEnergy(2.0))
    model = options.model(PATH, TIMES)
    counts = counts_of(model, truth(model, [0.5, -0.2, 0.3, -0.6], 0.2), 20_000)
    fit = fit_likelihood(PATH, TIMES, counts, options=options)
    assert fit.status
    assert fit.beta == pytest.approx(0.2, abs=4 * fit.beta_stderr)


@pytest.mark.parametrize("frozen", [True, False])
def test_tracked_population(frozen: bool) -> None:
    energy = FreeEnergy([0.5, -0.2, 0.3, -0.6], 0.2)
    seen = simulate(
        PATH, energy, [0.4, 0.3, 0.2, 0.1], TIMES, 10_000,
        rng=np.random.default_rng(3), method="frozen" if frozen else "tau-leap",
        rates="empirical",
    )  # fmt: skip
    options = LikelihoodOptions(
        observation="tracked", discretization="frozen" if frozen else "continuous"
    )
    fit = fit_likelihood(PATH, TIMES, np.asarray(seen.counts), options=options)
    assert fit.status
    v = energy.potential - PATH.stationary @ energy.potential
    assert np.all(abs(fit.potential - v) < 4 * fit.potential_stderr)
    assert fit.beta == pytest.approx(0.2, abs=4 * fit.beta_stderr)


def test_frozen_rates_by_continuation() -> None:
    model = FlowModel(PATH, np.linspace(0, 4, 6))
    theta = truth(model, [0.5, -0.2, 0.3, -0.6], 0.2)
    p = frozen_chain(model, theta).probabilities
    rng = np.random.default_rng(0)
    counts = np.array([rng.multinomial(50_000, q / q.sum()) for q in p])
    frozen = fit_likelihood(
        PATH, model.times, counts, options=LikelihoodOptions(discretization="frozen")
    )
    flow = fit_likelihood(PATH, model.times, counts)
    assert frozen.deviance < flow.deviance
    np.testing.assert_allclose(frozen.potential[1] - frozen.potential[0], -0.7, atol=0.1)


def test_interruption_gives_the_best_iterate(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FlowModel(PATH, TIMES)
    counts = counts_of(model, truth(model, [0.5, -0.2, 0.3, -0.6], 0.2), 5000)
    calls = []
    evaluate = IndependentObjective.evaluate

    def impatient(self: IndependentObjective, theta: np.ndarray, mesh: Mesh) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return evaluate(self, theta, mesh)

    monkeypatch.setattr(stages.IndependentObjective, "evaluate", impatient)
    fit = fit_likelihood(PATH, TIMES, counts)
    assert fit.status is Status.INTERRUPTED
    assert np.isfinite(fit.potential).all()
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("times", "counts", "match"),
    [
        ([0.0], [[1, 1, 1, 1]], "at least 2"),
        ([0.0, 1.0], [[1, 1, 1, 1], [0, 0, 0, 0]], "no samples; drop it"),
        ([0.0, 1.0], [[1, 1, 1, 1, 1]] * 2, "5 states, but the kernel has 4"),
        ([0.0, 1.0], [[1, 1, 1]] * 2, "column of zeros"),
        ([0.0, 1.0], [[1, 1, 1, -1]] * 2, "cannot be negative"),
        ([0.0, 1.0, 2.0], [[1, 1, 1, 1]] * 2, "for 3 times"),
        ([1.0, 0.0], [[1, 1, 1, 1]] * 2, "sort the times"),
    ],
)
def test_bad_input(times: list[float], counts: list[list[int]], match: str) -> None:
    with pytest.raises(InputError, match=match):
        fit_likelihood(PATH, times, counts)


def test_nothing_to_learn() -> None:
    options = LikelihoodOptions(potential=np.zeros(4), beta=1.0, initial=np.full(4, 0.25))
    with pytest.raises(InputError, match="nothing is left to learn"):
        fit_likelihood(PATH, [0.0, 1.0], [[1, 1, 1, 1]] * 2, options=options)


def test_extreme_data_give_a_status_not_an_exception() -> None:
    empty = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]])
    for counts in (empty, 1000 * empty, np.array([[0, 0, 0, 10]] * 3)):
        options = LikelihoodOptions(max_iterations=25)
        fit = fit_likelihood(PATH, [0.0, 1.0, 5.0], counts, options=options)
        assert np.isfinite(fit.potential).all()
        assert np.isfinite(fit.beta)
        assert isinstance(fit.status, Status)


@pytest.mark.slow
def test_random_problems() -> None:
    found = [cases.robustness_run(i, 11) for i in range(300)]
    assert set(found) == {"CONVERGED"}
