"""The product structure against the explicit kernel on all sequences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.linalg import expm_multiply

from thalweg import InputError
from thalweg.diffusion import (
    ExactModel,
    HammingProcess,
    TokenProcess,
    absorbing_tokens,
    ordinal_tokens,
    uniform_tokens,
)

TOKENS: list[TokenProcess] = [
    uniform_tokens(4),
    absorbing_tokens(3, backward=0.1),
    ordinal_tokens(4),
]


@pytest.mark.parametrize("tokens", TOKENS)
def test_heat_flow_is_that_of_the_explicit_kernel(tokens: TokenProcess) -> None:
    process = HammingProcess(tokens, 4)
    kernel = process.kernel()
    p = np.random.default_rng(0).dirichlet(np.full(4**4, 0.3))
    exact = expm_multiply(kernel.matrix.T, p * np.exp(-2.5), 0.0, 2.5, 2)[1]
    moved = process.heat_flow(p, 2.5)
    np.testing.assert_allclose(moved, exact, atol=1e-14)
    np.testing.assert_allclose(process.base(), kernel.stationary, atol=1e-14)
    # Marginals move by themselves.
    tensor, after = p.reshape((4,) * 4), moved.reshape((4,) * 4)
    marginals = np.stack([tensor.sum(axis=tuple(j for j in range(4) if j != i)) for i in range(4)])
    expected = np.stack([after.sum(axis=tuple(j for j in range(4) if j != i)) for i in range(4)])
    np.testing.assert_allclose(process.flow_marginals(marginals, 2.5), expected, atol=1e-14)


def test_states_are_spelled_in_base_n() -> None:
    process = HammingProcess(uniform_tokens(3), 4)
    states = np.arange(81)
    sequences = process.decode(states)
    assert sequences[5].tolist() == [0, 0, 1, 2]
    np.testing.assert_array_equal(process.encode(sequences), states)


def test_conditionals_average_to_the_law() -> None:
    process = HammingProcess(absorbing_tokens(2, backward=0.2), 3)
    p = np.random.default_rng(1).dirichlet(np.ones(27))
    rows = process.conditional(process.decode(np.arange(27)), 1.7)
    joint = np.einsum("ba,bc,bd->bacd", rows[:, 0], rows[:, 1], rows[:, 2]).reshape(27, 27)
    np.testing.assert_allclose(p @ joint, process.heat_flow(p, 1.7), atol=1e-14)


@pytest.mark.parametrize("tokens", TOKENS)
def test_the_exact_context_gives_the_exact_ratios_and_posterior(tokens: TokenProcess) -> None:
    process = HammingProcess(tokens, 3)
    n = process.n_states
    p = np.random.default_rng(2).dirichlet(np.ones(n))
    sequences = process.decode(np.arange(n))
    model = ExactModel(process, p)
    law = process.heat_flow(p, 0.9)
    ratios = model.ratios(sequences, np.full(n, 0.9))
    rows = process.conditional(sequences, 0.9)
    joint = p[:, None] * np.einsum("ba,bc,bd->bacd", *rows.transpose(1, 0, 2)).reshape(n, n)
    posterior = model.posterior(sequences, np.full(n, 0.9))
    for i in range(3):
        for y in range(4):
            changed = sequences.copy()
            changed[:, i] = y
            expected = law[process.encode(changed)] / law
            np.testing.assert_allclose(ratios[:, i, y], expected, rtol=1e-9)
            clean = joint[sequences[:, i] == y].sum(axis=0) / joint.sum(axis=0)
            np.testing.assert_allclose(posterior[:, i, y], clean, atol=1e-12)


def test_errors_say_what_to_do() -> None:
    process = HammingProcess(uniform_tokens(4), 20)
    with pytest.raises(InputError, match="work token by token"):
        process.heat_flow([1.0], 1.0)
    with pytest.raises(InputError, match="token 4 in sequence 0 at position 3"):
        process.noise(np.array([0, 1, 2, 4] + [0] * 16), 1.0, rng=np.random.default_rng())
    with pytest.raises(InputError, match="give integers"):
        process.noise(np.zeros(20), 1.0, rng=np.random.default_rng())
    with pytest.raises(InputError, match="length is 0"):
        HammingProcess(uniform_tokens(4), 0)
