"""Token processes against the matrix exponential of their explicit kernels."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy.linalg import expm

from thalweg import InputError, MarkovKernel
from thalweg.diffusion import (
    AbsorbingTokens,
    DenseTokens,
    HammingProcess,
    RefreshTokens,
    TokenProcess,
    absorbing_tokens,
    ordinal_tokens,
    tilted_tokens,
    tokens_from_kernel,
    uniform_tokens,
)

RNG = np.random.default_rng(3)
BASES = RNG.dirichlet(np.ones(4), size=3)
PROCESSES: dict[str, TokenProcess] = {
    "uniform": uniform_tokens(5),
    "refresh": RefreshTokens(BASES[0]),
    "refresh per position": RefreshTokens(BASES, rate=0.7),
    "absorbing": absorbing_tokens(4, backward=0.05),
    "absorbing, tiny backward": absorbing_tokens(4, backward=1e-9),
    "absorbing per position": AbsorbingTokens(BASES, backward=0.3),
    "ordinal": ordinal_tokens(6),
    "matrix": tokens_from_kernel(
        MarkovKernel.from_weights(np.ones((5, 5)) + np.diag(np.arange(5)))
    ),
    "dense per position": DenseTokens(
        (uniform_tokens(4).token_kernel(), *2 * [ordinal_tokens(4).token_kernel()])
    ),
}


def generator(process: TokenProcess, position: int) -> np.ndarray:
    n = process.n_tokens
    return process.token_kernel(position).matrix.toarray() - np.eye(n)


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("time", [1e-4, 0.3, 2.0, 30.0])
def test_transitions_are_the_matrix_exponential(name: str, time: float) -> None:
    process = PROCESSES[name]
    n, d = process.n_tokens, 3
    every = np.repeat(np.arange(n)[:, None], d, axis=1)
    times = np.full(n, time)
    rows = process.rows(every, times)
    columns = process.columns(every, np.zeros(n), times)
    weights = np.random.default_rng(0).random((n, d, n))
    applied = process.apply(weights, times)
    for i in range(d):
        p = expm(time * generator(process, i))
        np.testing.assert_allclose(rows[:, i], p, atol=2e-13)
        np.testing.assert_allclose(columns[:, i].T, p, atol=2e-13)
        np.testing.assert_allclose(applied[:, i], weights[:, i] @ p, atol=2e-12)


@pytest.mark.parametrize("name", PROCESSES)
def test_rates_are_the_kernel(name: str) -> None:
    process = PROCESSES[name]
    n, d = process.n_tokens, 3
    every = np.repeat(np.arange(n)[:, None], d, axis=1)
    out, into = process.outflow(every, np.zeros(n)), process.inflow(every, np.zeros(n))
    for i in range(d):
        q = generator(process, i)
        np.fill_diagonal(q, 0.0)
        np.testing.assert_allclose(out[:, i], q, atol=1e-14)
        np.testing.assert_allclose(into[:, i].T, q, atol=1e-14)
        fastest = np.broadcast_to(process.fastest(0.0), d)[i]
        assert fastest == pytest.approx(q.sum(axis=1).max(), rel=1e-12)


@pytest.mark.parametrize("name", PROCESSES)
def test_samples_follow_the_rows(name: str) -> None:
    process = PROCESSES[name]
    rng = np.random.default_rng(0)
    n_samples = 20_000
    start = np.full((n_samples, 3), 1)
    drawn = process.sample(start, np.full(n_samples, 0.8), rng=rng)
    expected = process.rows(start[:1], np.array([0.8]))[0]
    for i in range(3):
        counts = np.bincount(drawn[:, i], minlength=process.n_tokens) / n_samples
        assert abs(counts - expected[i]).max() < 5 * 0.5 / math.sqrt(n_samples)
    base = process.sample_stationary((n_samples, 3), rng=rng)
    stationary = np.broadcast_to(process.stationary, (3, process.n_tokens))
    for i in range(3):
        counts = np.bincount(base[:, i], minlength=process.n_tokens) / n_samples
        assert abs(counts - stationary[i]).max() < 5 * 0.5 / math.sqrt(n_samples)


def test_unlikely_transitions_keep_their_relative_accuracy() -> None:
    # Nine steps up in a time of 1e-3: (t / 2)^9 / 9! to leading order, far below rounding.
    process, time = ordinal_tokens(12), 1e-3
    p = process.rows(np.array([[0]]), np.array([time]))[0, 0, 9]
    leading = (time / 2) ** 9 / math.factorial(9)
    assert p == pytest.approx(leading, rel=5e-3)
    # The exchange of a token by way of the mask: backward t^2 / 2 to leading order.
    absorbing = absorbing_tokens(2, backward=1e-6)
    p = absorbing.rows(np.array([[0]]), np.array([1e-5]))[0, 0, 1]
    assert p == pytest.approx(1e-6 * 1e-10 / 2 / 2, rel=1e-4)


@pytest.mark.parametrize("kind", ["uniform", "absorbing", "tilted"])
def test_a_language_sized_sequence_in_linear_memory(kind: str) -> None:
    n, d = 50257, 1024
    tokens: TokenProcess = uniform_tokens(n) if kind == "uniform" else absorbing_tokens(n)
    if kind == "tilted":
        tokens = tilted_tokens(tokens, np.log(np.arange(1, n + 1)))
    process = HammingProcess(tokens, d)
    clean = np.random.default_rng(0).integers(n, size=(1, d))
    tracemalloc.start()
    noisy = process.noise(clean, float(d), rng=np.random.default_rng(1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert noisy.shape == (1, d)
    assert 0.25 < (noisy == clean).mean() < 0.5
    assert peak < 100 * (n + d)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(InputError, match="zero at token 1"):
        RefreshTokens(np.array([1.0, 0.0]))
    with pytest.raises(InputError, match="lower the rate"):
        RefreshTokens(np.array([0.5, 0.5]), rate=3.0)
    with pytest.raises(InputError, match="backward is 2"):
        absorbing_tokens(3, backward=2.0)
    with pytest.raises(InputError, match="n_tokens is 1"):
        uniform_tokens(1)
