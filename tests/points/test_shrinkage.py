"""Scales of the prior by evidence: against brute force, and on strong and on empty data."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.special import log_ndtr

from thalweg import ConvergenceError
from thalweg.points.landscape.shrinkage import Prior, averaged, best_scales, solution


def _prior(free_beta: bool) -> Prior:
    local = np.array([False] * 3 + [True] * 4 + [False] * free_beta)
    unit = np.append(np.linspace(0.5, 2.0, 7), [1.0] * free_beta)
    return Prior(local, unit, free_beta)


def _problem(size: int, rows: int, strength: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Normal equations of data with unit noise; without strength they are noise alone."""
    rng = np.random.default_rng(5)
    m = rng.normal(size=(rows, size))
    y = strength * m @ np.abs(rng.normal(size=size)) + rng.normal(size=rows)
    return m.T @ m, m.T @ y, float(y @ y)


@pytest.mark.parametrize("free_beta", [False, True])
def test_evidence_is_that_of_every_pair_on_its_own(free_beta: bool) -> None:
    prior = _prior(free_beta)
    normal, side, square = _problem(7 + free_beta, 60, 1.0)
    found = {}
    for scales in product(*prior.grid()):
        d = prior.precision(scales)
        inverse = np.linalg.inv(normal + np.diag(d))
        z = inverse @ side
        value = -0.5 * (square - side @ z) - 0.5 * np.linalg.slogdet(normal + np.diag(d))[1]
        value += 0.5 * np.log(d).sum()
        if free_beta:
            value += log_ndtr(z[-1] / np.sqrt(inverse[-1, -1])) + np.log(2.0)
        found[scales] = value
    scales, evidence = best_scales(normal, side, square, prior)
    best = max(found, key=lambda key: found[key])
    assert scales == best
    assert abs(evidence - found[best]) < 1e-9 * abs(found[best])


def test_strong_data_are_left_alone_and_noise_is_shrunk_to_rest() -> None:
    prior = _prior(True)
    normal, side, square = _problem(8, 6000, 1.0)
    mean, _ = averaged(np.linalg.cholesky(normal).T, side, square, prior)
    free = solution(np.linalg.cholesky(normal).T, side, np.zeros(8), True)
    assert np.abs(mean - free).max() < 0.01 * np.abs(free).max()
    normal, side, square = _problem(8, 60, 0.0)
    mean, spread = averaged(np.linalg.cholesky(normal).T, side, square, prior)
    free = solution(np.linalg.cholesky(normal).T, side, np.zeros(8), True)
    assert np.linalg.norm(mean) < 0.5 * np.linalg.norm(free)
    assert (np.abs(mean) < 2 * np.sqrt(np.diag(spread))).all()


def test_what_overflows_has_no_evidence_and_is_never_averaged() -> None:
    prior = _prior(True)
    normal, side, square = _problem(8, 60, 1.0)
    assert best_scales(normal, 1e200 * side, square, prior)[1] == -np.inf
    assert best_scales(np.full((8, 8), np.inf), side, square, prior)[1] == -np.inf
    rows = np.linalg.cholesky(normal).T
    with pytest.raises(ConvergenceError, match="expels points"):
        averaged(rows, np.full(8, np.inf), square, prior)
