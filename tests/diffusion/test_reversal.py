"""Exact time reversal: the reversed chain gives the data back."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.linalg import expm_multiply

from thalweg import InputError
from thalweg.diffusion import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    HammingProcess,
    Schedule,
    absorbing_tokens,
    hamming_path,
    heat_path,
    ordinal_tokens,
    time_reversal,
    uniform_tokens,
)

PROCESSES = {
    "uniform": HammingProcess(uniform_tokens(3), 3),
    "absorbing": HammingProcess(absorbing_tokens(2, backward=1e-3), 3),
    "ordinal": HammingProcess(ordinal_tokens(3), 3),
}


def data(process: HammingProcess) -> np.ndarray:
    p = np.random.default_rng(0).dirichlet(np.full(27, 0.5))
    if process.tokens.mask is not None:
        p = np.where((process.decode(np.arange(27)) == process.tokens.mask).any(axis=1), 0.0, p)
    return p / p.sum()


def total_variation(p: np.ndarray, q: np.ndarray) -> float:
    return float(0.5 * abs(p - q).sum())


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize(
    "schedule",
    [ConstantSchedule(9.0), ExponentialSchedule(9.0), CosineSchedule(9.0, unit=3.0)],
    ids=lambda s: type(s).__name__,
)
def test_the_reversed_chain_gives_the_data_back(name: str, schedule: Schedule) -> None:
    process = PROCESSES[name]
    p = data(process)
    back = time_reversal(hamming_path(process, p, 9.0), schedule)
    assert back.status
    assert total_variation(back.final, p) < 1e-7


def test_two_ways_to_the_forward_law_agree() -> None:
    process = PROCESSES["absorbing"]
    p, kernel = data(process), process.kernel()
    by_steps, by_position = heat_path(kernel, p, 9.0), hamming_path(process, p, 9.0)
    for clock in (1e-8, 0.5, 9.0):
        law = by_steps.probability(clock)
        np.testing.assert_allclose(law, by_position.probability(clock), rtol=1e-9)
        exact = expm_multiply(kernel.matrix.T * clock, p) * np.exp(-clock)
        np.testing.assert_allclose(law, exact, atol=1e-14)


def test_the_path_back_is_the_path_forth() -> None:
    process = PROCESSES["uniform"]
    path = hamming_path(process, data(process), 9.0)
    back = time_reversal(path, times=[0.5, 0.1])
    np.testing.assert_allclose(back.times[:3], [0.0, 0.5, 0.9])
    np.testing.assert_allclose(back.probabilities[1], path.probability(4.5), atol=1e-8)
    np.testing.assert_allclose(back.probabilities[2], path.probability(0.9), atol=1e-8)


def test_the_error_of_starting_from_the_base_shrinks_with_the_clock() -> None:
    process = PROCESSES["uniform"]
    p = data(process)
    errors = [
        total_variation(
            time_reversal(hamming_path(process, p, total), start=process.base()).final, p
        )
        for total in (3.0, 6.0, 9.0)
    ]
    # The slowest mode decays at the rate 3/2 a token, 1/2 a sequence. It decays on the way out, and
    # the reversed chain forgets a wrong start at the same rate: twice e^-1.5 for a clock of 3.
    assert errors[1] / errors[0] == pytest.approx(np.exp(-3), rel=0.15)
    assert errors[2] / errors[1] == pytest.approx(np.exp(-3), rel=0.15)


def test_errors_say_what_to_do() -> None:
    process = PROCESSES["uniform"]
    path = hamming_path(process, data(process), 2.0)
    with pytest.raises(InputError, match="make the path at least as long"):
        time_reversal(path, ConstantSchedule(3.0))
    with pytest.raises(InputError, match="last_time"):
        time_reversal(path, last_time=0.0)
