"""Tilted noise: the gradient flow of V + beta H, its individuals, and its factorised relatives."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given

from strategies import kernels_with_probability
from thalweg import FreeEnergy, InputError, gradient_flow, hamming_kernel
from thalweg.diffusion import (
    ExactModel,
    HammingProcess,
    LogLinearSchedule,
    MarginalFlowTokens,
    absorbing_tokens,
    conditional_law,
    langevin_rates,
    ordinal_tokens,
    sample,
    tilted_kernel,
    tilted_path,
    tilted_rates,
    tilted_tokens,
    time_reversal,
    tokens_from_kernel,
    uniform_tokens,
)
from thalweg.flow import velocity


@given(kernels_with_probability())
def test_individuals_carry_the_gradient_flow(case) -> None:
    kernel, p, rng = case
    energy = FreeEnergy(rng.normal(size=kernel.n_states) * 3, beta=float(rng.choice([0.1, 1.0])))
    rates = tilted_rates(kernel, energy, p)
    np.testing.assert_allclose(p @ rates, velocity(kernel, energy, p), atol=1e-12)
    off = rates.toarray()[~np.eye(kernel.n_states, dtype=bool)]
    assert off.min() >= 0


@given(kernels_with_probability())
def test_without_potential_it_is_the_usual_noise(case) -> None:
    kernel, p, _ = case
    rates = tilted_rates(kernel, FreeEnergy(np.zeros(kernel.n_states), beta=0.7), p).toarray()
    expected = 0.7 * (kernel.matrix.toarray() - np.eye(kernel.n_states))
    np.testing.assert_allclose(rates, expected, atol=1e-13)


@given(kernels_with_probability())
def test_at_equilibrium_it_is_the_heat_bath_chain(case) -> None:
    kernel, _, rng = case
    energy = FreeEnergy(rng.normal(size=kernel.n_states), beta=0.8)
    equilibrium = energy.equilibrium(kernel)
    rates = tilted_rates(kernel, energy, equilibrium).toarray()
    tilted = tilted_kernel(kernel, energy.potential, 0.8)
    np.testing.assert_allclose(tilted.stationary, equilibrium, rtol=1e-10)
    chain = 2 * 0.8 * (tilted.matrix.toarray() - np.eye(kernel.n_states))
    np.testing.assert_allclose(rates, chain, rtol=1e-8, atol=1e-12)
    langevin = 0.8 * langevin_rates(kernel, equilibrium).toarray()
    np.testing.assert_allclose(rates, langevin, rtol=1e-8, atol=1e-12)


@given(kernels_with_probability(max_states=6))
def test_the_heat_bath_chain_descends_the_same_free_energy(case) -> None:
    kernel, p, rng = case
    energy = FreeEnergy(rng.normal(size=kernel.n_states), beta=0.5)
    tilted = tilted_kernel(kernel, energy.potential, 0.5)
    entropy = FreeEnergy(np.zeros(kernel.n_states), beta=0.5)
    # F is the entropy relative to the equilibrium, up to a constant.
    gap = energy(kernel, p) - energy(kernel, tilted.stationary)
    assert entropy(tilted, p) == pytest.approx(gap, abs=1e-10)


def test_the_path_is_the_gradient_flow_and_reverses() -> None:
    rng = np.random.default_rng(0)
    kernel = hamming_kernel(3, 3)
    p0 = rng.dirichlet(np.full(27, 0.7))
    energy = FreeEnergy(rng.normal(size=27), beta=1.0)
    path = tilted_path(kernel, energy, p0, 8.0)
    flow = gradient_flow(kernel, energy, p0, [0.0, 0.5, 8.0], rtol=1e-10)
    np.testing.assert_allclose(path.probability(0.5), flow.probabilities[1], atol=1e-9)
    np.testing.assert_allclose(path.probability(8.0), flow.final, atol=1e-9)
    back = time_reversal(path)
    assert 0.5 * abs(back.final - p0).sum() < 1e-6
    # Conditional laws average to the law.
    kernel, p0 = hamming_kernel(2, 2), np.array([0.1, 0.2, 0.3, 0.4])
    path = tilted_path(kernel, FreeEnergy([0.0, 1.0, 2.0, -1.0], beta=1.0), p0, 1.0)
    mean = sum(p0[x] * conditional_law(path, x, 0.7) for x in range(4))
    np.testing.assert_allclose(mean, path.probability(0.7), atol=1e-8)


def product(factors: np.ndarray) -> np.ndarray:
    return reduce(np.multiply.outer, factors).ravel()


def test_a_product_stays_a_product_and_nothing_else_does() -> None:
    rng = np.random.default_rng(1)
    tokens, length = ordinal_tokens(3).token_kernel(), 3
    kernel = hamming_kernel(3, length, tokens)
    potentials = rng.normal(size=(length, 3))
    additive = reduce(np.add.outer, potentials).ravel()
    factors = rng.dirichlet(np.ones(3), size=length)
    energy = FreeEnergy(additive, beta=0.6)
    path = tilted_path(kernel, energy, product(factors), 3.0)
    each = np.stack(
        [
            gradient_flow(tokens, FreeEnergy(v, beta=0.6), f, [0.0, 1.0], rtol=1e-10).final
            for v, f in zip(potentials, factors, strict=True)
        ]
    )
    np.testing.assert_allclose(path.probability(3.0), product(each), atol=1e-8)
    # The marginals of a law that is not a product do not move by themselves.
    mixed = 0.5 * product(factors) + 0.5 * product(factors[::-1])
    tensor = mixed.reshape((3,) * 3)
    first = tensor.sum(axis=(1, 2))
    alone = gradient_flow(tokens, FreeEnergy(potentials[0], beta=0.6), first, [0.0, 1.0]).final
    joint = tilted_path(kernel, energy, mixed, 3.0).probability(3.0).reshape((3,) * 3)
    assert abs(joint.sum(axis=(1, 2)) - alone).max() > 5e-4


def test_marginal_flow_tokens_follow_the_token_flows() -> None:
    rng = np.random.default_rng(2)
    kernel = uniform_tokens(3).token_kernel()
    potentials, marginals = rng.normal(size=(2, 3)), rng.dirichlet(np.ones(3), size=2)
    tokens = MarginalFlowTokens(kernel, potentials, marginals, total=6.0)
    moved = HammingProcess(tokens, 2).flow_marginals(marginals, 2 * 1.3)
    for i in range(2):
        alone = gradient_flow(
            kernel, FreeEnergy(potentials[i], beta=1.0), marginals[i], [0.0, 1.3], rtol=1e-10
        ).final
        np.testing.assert_allclose(moved[i], alone, atol=1e-8)
    # Transitions compose: P_(0, t) = P_(0, s) P_(s, t).
    every = np.repeat(np.arange(3)[:, None], 2, axis=1)
    s, t = np.full(3, 0.4), np.full(3, 1.1)
    later = tokens.columns(every, s, t).transpose(1, 2, 0)
    first, whole = tokens.transitions(s[:1])[0], tokens.transitions(t[:1])[0]
    np.testing.assert_allclose(first @ later, whole, atol=1e-6)
    far = HammingProcess(tokens, 2).flow_marginals(marginals, 2 * 6.0)
    assert abs(far - tokens.stationary).max() < 1e-3


@pytest.mark.parametrize("kind", ["heat-bath", "refresh", "absorbing", "marginal flow"])
def test_tilted_noise_samples_the_data(kind: str) -> None:
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.full(27, 0.6))
    tensor = p.reshape(3, 3, 3)
    marginals = np.stack([tensor.sum((1, 2)), tensor.sum((0, 2)), tensor.sum((0, 1))])
    potential = -np.log(marginals)
    if kind == "heat-bath":
        tokens = tilted_tokens(tokens_from_kernel(uniform_tokens(3).token_kernel()), potential)
    elif kind == "refresh":
        tokens = tilted_tokens(uniform_tokens(3), potential)
    elif kind == "absorbing":
        tokens = tilted_tokens(absorbing_tokens(3), potential)
    else:
        kernel = uniform_tokens(3).token_kernel()
        tokens = MarginalFlowTokens(kernel, potential, marginals, total=5.0)
    process = HammingProcess(tokens, 3)
    law = p
    if kind == "absorbing":
        full = np.zeros((4, 4, 4))
        full[:3, :3, :3] = tensor
        law = full.ravel()
    else:
        np.testing.assert_allclose(process.tokens.stationary, marginals, rtol=1e-9)
    schedule = LogLinearSchedule(15.0, unit=3.0)
    drawn = sample(ExactModel(process, law), schedule, 20_000, rng=rng, n_steps=40)
    frequency = np.bincount(drawn @ np.array([9, 3, 1]), minlength=27) / 20_000
    assert 0.5 * abs(frequency - p).sum() < 0.035


def test_errors_say_what_to_do() -> None:
    with pytest.raises(InputError, match="give 3 numbers, one per data token"):
        tilted_tokens(absorbing_tokens(3), np.zeros(4))
    kernel = uniform_tokens(3).token_kernel()
    with pytest.raises(InputError, match="per position"):
        MarginalFlowTokens(kernel, np.zeros((2, 3)), np.full((1, 3), 1 / 3), total=1.0)
