"""The rivals recover their own data, and their gradients are exact."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import expm

from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn import rivals

TIMES = np.linspace(0, 3, 13)


@pytest.fixture
def kernel() -> MarkovKernel:
    rng = np.random.default_rng(3)
    w = rng.uniform(0.2, 1.0, (5, 5))
    return MarkovKernel.from_weights(np.triu(w, 1) + np.triu(w, 1).T)


def hellinger(p: np.ndarray, q: np.ndarray) -> float:
    return float(np.sqrt(0.5 * ((np.sqrt(p) - np.sqrt(q)) ** 2).sum(axis=1)).mean())


def cyclic(kernel: MarkovKernel) -> np.ndarray:
    rates = np.random.default_rng(1).uniform(0.05, 0.9, 2 * kernel.n_edges)
    q = rivals._generator(kernel, rates)
    p0 = np.array([0.6, 0.1, 0.1, 0.1, 0.1])
    return np.array([p0 @ expm(t * q) for t in TIMES])


def test_no_movement_is_the_same_at_every_time(kernel: MarkovKernel) -> None:
    p = rivals.no_movement(kernel, TIMES, np.ones((13, 5)), at=[1.0, 9.0])
    assert np.allclose(p, 0.2)


def test_pure_heat_recovers_a_heat_flow_and_extrapolates(kernel: MarkovKernel) -> None:
    p0 = np.array([0.7, 0.1, 0.1, 0.05, 0.05])
    generator = 0.4 * (kernel.matrix.toarray() - np.eye(5))
    truth = np.array([p0 @ expm(t * generator) for t in TIMES])
    late = np.array([p0 @ expm(t * generator) for t in (4.0, 5.0)])
    assert hellinger(rivals.pure_heat(kernel, TIMES, 1e6 * truth), truth) < 1e-4
    assert hellinger(rivals.pure_heat(kernel, TIMES, 1e6 * truth, at=[4.0, 5.0]), late) < 1e-4


@pytest.mark.parametrize(("method", "tolerance"), [("least-squares", 0.01), ("likelihood", 5e-4)])
def test_free_chain_recovers_a_chain_with_cycles(
    kernel: MarkovKernel, method: rivals.CtmcMethod, tolerance: float
) -> None:
    truth = cyclic(kernel)
    p = rivals.free_ctmc(kernel, TIMES, 1e6 * truth, method=method)
    assert hellinger(p, truth) < tolerance
    assert np.allclose(p.sum(axis=1), 1)


def test_gradient_of_the_chain_agrees_with_finite_differences(kernel: MarkovKernel) -> None:
    times = np.array([0.0, 0.3, 0.6, 1.4])
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 50, (4, 5)).astype(float)
    z = rng.normal(size=2 * kernel.n_edges + 5)
    _, gradient = rivals.ctmc_objective(kernel, times, counts, z)
    for i in range(z.size):
        step = np.zeros(z.size)
        step[i] = 1e-5
        above = rivals.ctmc_objective(kernel, times, counts, z + step)[0]
        below = rivals.ctmc_objective(kernel, times, counts, z - step)[0]
        assert gradient[i] == pytest.approx((above - below) / 2e-5, rel=1e-5, abs=1e-4)


def test_sparse_rivals_agree_with_dense_ones(
    kernel: MarkovKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = 1e5 * cyclic(kernel)
    dense = rivals.free_ctmc(kernel, TIMES, truth, method="least-squares")
    monkeypatch.setattr(rivals, "MOST_STATES", 2)
    assert np.allclose(rivals.free_ctmc(kernel, TIMES, truth), dense, atol=1e-8)
    assert np.allclose(rivals.pure_heat(kernel, TIMES, truth).sum(axis=1), 1)


def test_bad_input_is_refused_with_a_sentence(kernel: MarkovKernel) -> None:
    with pytest.raises(InputError, match="add a column of zeros"):
        rivals.no_movement(kernel, TIMES, np.ones((13, 4)))
    with pytest.raises(InputError, match="before the first snapshot"):
        rivals.no_movement(kernel, TIMES, np.ones((13, 5)), at=[-1.0])
    with pytest.raises(InputError, match="choose"):
        rivals.free_ctmc(kernel, TIMES, np.ones((13, 5)), method="magic")  # type: ignore[arg-type]
