"""The walk of one individual against dense linear algebra, the flow and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from strategies import generators, kernels, kernels_with_probability, random_kernel
from thalweg import FreeEnergy, InputError, MarkovKernel, jump_rates, make_graph
from thalweg.dynamics import (
    Landscape,
    committor,
    fate_probabilities,
    mean_first_passage_time,
    passage_quantiles,
    relaxation_modes,
    transition_rates,
)
from thalweg.dynamics import passage as passage_module
from thalweg.dynamics import walk as walk_module
from thalweg.flow.rates import velocity
from thalweg_bench.dynamics import sample_paths


def random_landscape(n: int, rng: np.random.Generator, beta: float = 0.4) -> Landscape:
    kernel = random_kernel(n, rng)
    return Landscape(kernel, FreeEnergy(rng.normal(size=n), beta))


@given(kernels_with_probability())
@settings(max_examples=25)
def test_both_conventions_carry_the_flow(case):
    kernel, p, rng = case
    energy = FreeEnergy(rng.normal(size=kernel.n_states), 10.0 ** rng.uniform(-1.5, 0.5))
    expected = velocity(kernel, energy, p)
    for rates in ("reversible", "downhill"):
        q = transition_rates(kernel, energy, p, rates=rates)
        assert np.allclose(p @ q, expected, rtol=1e-9, atol=1e-12 * abs(q).max())
        assert np.allclose(q.sum(axis=1), 0, atol=1e-10 * abs(q).max())
        off = q.toarray() - np.diag(q.diagonal())
        assert off.min() >= 0


@given(kernels(), generators)
@settings(max_examples=20)
def test_detailed_balance_at_rest_and_locally(kernel, rng):
    energy = FreeEnergy(rng.normal(size=kernel.n_states), 0.5)
    p = energy.equilibrium(kernel)
    at_rest = transition_rates(kernel, energy)
    assert np.allclose(at_rest.toarray(), transition_rates(kernel, energy, p).toarray(), rtol=1e-9)
    flux = p[:, None] * at_rest.toarray()
    assert np.allclose(flux, flux.T, rtol=1e-10)
    p = rng.dirichlet(np.ones(kernel.n_states)) * 0.9 + 0.1 / kernel.n_states
    flux = p[:, None] * transition_rates(kernel, energy, p).toarray()
    f = energy.first_variation(kernel, p)
    x, y = kernel.edges.source, kernel.edges.target
    assert np.allclose(np.log(flux[x, y] / flux[y, x]), (f[x] - f[y]) / 0.5, atol=1e-8)


def test_without_potential_it_is_the_kernels_walk_whatever_the_population():
    rng = np.random.default_rng(3)
    kernel = random_kernel(7, rng)
    p = rng.dirichlet(np.ones(7))
    q = transition_rates(kernel, FreeEnergy(np.zeros(7), 1.7), p).toarray()
    expected = 1.7 * (kernel.matrix.toarray() - np.eye(7))
    assert np.allclose(q, expected, rtol=1e-10, atol=1e-12)


def test_small_beta_goes_downhill():
    rng = np.random.default_rng(4)
    kernel = random_kernel(6, rng)
    p, v = rng.dirichlet(np.full(6, 5.0)), rng.normal(size=6)
    energy = FreeEnergy(v, 1e-4)
    one = transition_rates(kernel, energy, p).toarray()
    assert np.allclose(one, jump_rates(kernel, energy, p).toarray(), atol=1e-6)


def test_generator_at_rest_is_the_linearised_flow():
    rng = np.random.default_rng(5)
    kernel = random_kernel(6, rng)
    energy = FreeEnergy(rng.normal(size=6), 0.6)
    p = energy.equilibrium(kernel)
    push = rng.normal(size=6)
    push -= push.mean()
    step = 1e-5
    slope = velocity(kernel, energy, p + step * push) - velocity(kernel, energy, p - step * push)
    assert np.allclose(slope / (2 * step), push @ transition_rates(kernel, energy), atol=1e-8)


@given(st.integers(4, 9), generators)
@settings(max_examples=20)
def test_fates_committors_and_times_against_dense_algebra(n, rng):
    land = random_landscape(n, rng)
    q = transition_rates(land.kernel, land.energy).toarray()
    targets = [0, 1, 2]
    inside = np.arange(3, n)
    exact = np.linalg.solve(q[np.ix_(inside, inside)], -q[np.ix_(inside, targets)])
    fates = fate_probabilities(land, targets)
    assert fates.status
    assert np.allclose(fates.probabilities.value[inside], exact, atol=1e-9)
    pair = committor(land, 0, [1, 2])
    rest = np.arange(3, n)
    exact = np.linalg.solve(q[np.ix_(rest, rest)], -q[np.ix_(rest, [1, 2])].sum(axis=1))
    assert np.allclose(pair.value[rest], exact, atol=1e-9)
    tau = np.linalg.solve(q[1:, 1:], -np.ones(n - 1))
    found = mean_first_passage_time(land, 0)
    assert np.allclose(found.value[1:], tau, rtol=1e-9)
    quantile = passage_quantiles(land, 0, [0.1, 0.5, 0.9])
    for k, share in enumerate((0.1, 0.5, 0.9)):
        for x in range(1, n):
            survival = expm(quantile.value[k, x] * q[1:, 1:])[x - 1].sum()
            assert abs(survival - (1 - share)) < 1e-7


def test_many_states_agree_with_dense(monkeypatch):
    rng = np.random.default_rng(8)
    kernel = make_graph("grid", 144, rng=rng)
    land = Landscape(kernel, FreeEnergy(rng.normal(size=kernel.n_states), 0.7))
    dense = relaxation_modes(land, 4)
    slow = passage_quantiles(land, [0], [0.1, 0.5, 0.99]).value
    monkeypatch.setattr(walk_module, "DENSE_STATES", 10)
    monkeypatch.setattr(passage_module, "DENSE_STATES", 10)
    sparse = relaxation_modes(land, 4)
    assert np.allclose(sparse.times.value, dense.times.value, rtol=1e-7)
    overlap = (dense.right * land.equilibrium[:, None]).T @ sparse.right
    assert np.allclose(abs(np.diag(overlap)), 1, atol=1e-5)
    again = passage_quantiles(land, [0], [0.1, 0.5, 0.99])
    assert again.status
    assert np.allclose(again.value, slow, rtol=1e-4)


def test_few_vectors_hold_the_answer_of_a_symmetric_graph(monkeypatch):
    # All leaves of a star are alike: two vectors span all that happens.
    star = MarkovKernel.from_weights(np.pad(np.zeros((11, 11)), (1, 0), constant_values=1.0))
    land = Landscape(star, FreeEnergy(np.zeros(12), 1.0))
    exact = passage_quantiles(land, 1, [0.5]).value
    monkeypatch.setattr(passage_module, "DENSE_STATES", 10)
    found = passage_quantiles(land, 1, [0.5])
    assert found.status
    assert np.allclose(found.value, exact, rtol=1e-9)


def test_derivatives_against_differences():
    rng = np.random.default_rng(11)
    land = random_landscape(7, rng)
    rows = rng.normal(size=(3, 8)) * 0.1
    uncertain = Landscape(land.kernel, land.energy, directions=rows)
    step = 1e-4

    def numeric(quantity):
        out = []
        for row in rows:
            v, b = land.energy.potential, land.energy.beta
            up = Landscape(land.kernel, FreeEnergy(v + step * row[:7], b + step * row[7]))
            down = Landscape(land.kernel, FreeEnergy(v - step * row[:7], b - step * row[7]))
            out.append((quantity(up) - quantity(down)) / (2 * step))
        return np.sqrt(np.sum(np.array(out) ** 2, axis=0))

    cases = {
        "committor": lambda l: committor(l, 0, 1),
        "fates": lambda l: fate_probabilities(l, [0, 1, 2]).probabilities,
        "time": lambda l: mean_first_passage_time(l, [0, 3]),
        "modes": lambda l: relaxation_modes(l, 3).times,
        "quantiles": lambda l: passage_quantiles(l, 0, [0.5]),
    }
    for name, quantity in cases.items():
        expected = numeric(lambda l, quantity=quantity: quantity(l).value)
        assert np.allclose(quantity(uncertain).stderr, expected, rtol=2e-4, atol=1e-8), name


def test_simulated_individuals_agree():
    rng = np.random.default_rng(21)
    land = random_landscape(8, rng)
    q = transition_rates(land.kernel, land.energy)
    stop = np.zeros(8, bool)
    stop[[0, 1]] = True
    where, when = sample_paths(q, np.full(20_000, 5), stop, rng=rng)
    share = committor(land, 0, 1).value[5]
    assert abs(np.mean(where == 1) - share) < 5 * np.sqrt(share * (1 - share) / 20_000)
    tau = mean_first_passage_time(land, [0, 1]).value[5]
    assert abs(when.mean() - tau) < 5 * when.std() / np.sqrt(20_000)
    median = passage_quantiles(land, [0, 1], [0.5]).value[0, 5]
    assert abs(np.mean(when < median) - 0.5) < 5 * 0.5 / np.sqrt(20_000)


def test_targets_are_states_or_sets_by_number_or_by_name():
    kernel = random_kernel(5, np.random.default_rng(0)).with_labels(names=[1, 2, 0, "d", "e"])
    land = Landscape(kernel, FreeEnergy(np.zeros(5), 1.0))
    fates = fate_probabilities(land, [[1, "d"], 2, "0"])
    assert fates.names == ("target 0", "2", "0")
    assert [list(x) for x in fates.targets] == [[0, 3], [1], [2]]
    assert np.allclose(committor(land, {1, "d"}, "e").value[[0, 3, 4]], [0, 0, 1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda l: fate_probabilities(l, [0, 99]), "not in the graph"),
        (lambda l: committor(l, [[0], [1]], 2), "not in the graph"),
        (lambda l: committor(l, [], 1), "a is empty"),
        (lambda l: committor(l, 0, [0, 1]), "in both a and b"),
        (lambda l: committor(l, [0, 1], [2, 3, 4]), "cover all"),
        (lambda l: fate_probabilities(l, [3]), "at least two"),
        (lambda l: mean_first_passage_time(l, 99), "not in the graph"),
        (lambda l: mean_first_passage_time(l, range(5)), "cover all"),
        (lambda l: passage_quantiles(l, 0, [1.5]), "strictly between"),
    ],
)
def test_bad_targets_get_one_sentence(call, words):
    land = random_landscape(5, np.random.default_rng(0))
    with pytest.raises(InputError, match=words):
        call(land)


def test_no_noise_has_no_walk_at_rest():
    kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    with pytest.raises(InputError, match="beta is 0"):
        transition_rates(kernel, FreeEnergy([0.0, 1.0], 0.0))
