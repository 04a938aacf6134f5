"""Scores, the entropy gradient and reversed rates: identities on random kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from strategies import kernels_with_probability
from thalweg import InputError, MarkovKernel
from thalweg.diffusion import (
    entropy_gradient,
    langevin_rates,
    reverse_rates,
    score_ratios,
    scores_from_entropy_gradient,
)
from thalweg.geometry.operators import gradient


@given(kernels_with_probability())
def test_the_score_is_the_exponential_of_the_entropy_gradient(case) -> None:
    kernel, p, _ = case
    grad = entropy_gradient(kernel, p)
    scores = scores_from_entropy_gradient(kernel, grad)
    np.testing.assert_allclose(scores.toarray(), score_ratios(kernel, p).toarray(), rtol=1e-11)
    # The same gradient as everywhere else in the library, edge by edge.
    source, target, _ = kernel.edges
    along = gradient(kernel, np.log(p / kernel.stationary))
    np.testing.assert_allclose(grad.toarray()[source, target], along, atol=1e-12)


@given(kernels_with_probability())
def test_reversed_rates_carry_the_law_back(case) -> None:
    kernel, p, _ = case
    forward = kernel.matrix.toarray() - np.eye(kernel.n_states)
    back = reverse_rates(kernel, p).toarray()
    np.testing.assert_allclose(p @ back, -(p @ forward), atol=1e-13)
    # Reversible noise: the forward rate times the exponential of minus the gradient.
    off = kernel.matrix.toarray() * np.exp(-entropy_gradient(kernel, p).toarray())
    np.fill_diagonal(off, 0.0)
    np.fill_diagonal(back, 0.0)
    np.testing.assert_allclose(back, off, rtol=1e-10)


@given(kernels_with_probability())
def test_reversing_twice_is_the_forward_process(case) -> None:
    kernel, p, _ = case
    once = reverse_rates(kernel, p)
    twice = reverse_rates(kernel, p, forward=once).toarray()
    forward = kernel.matrix.toarray() - np.eye(kernel.n_states)
    np.testing.assert_allclose(twice, forward, rtol=1e-9, atol=1e-12)


@given(kernels_with_probability())
def test_langevin_rates_balance(case) -> None:
    kernel, p, _ = case
    rates = langevin_rates(kernel, p).toarray()
    flow = p[:, None] * rates
    np.testing.assert_allclose(flow, flow.T, rtol=1e-10, atol=1e-18)
    off = ~np.eye(kernel.n_states, dtype=bool)
    forth, back = kernel.matrix.toarray()[off], reverse_rates(kernel, p).toarray()[off]
    expected = np.where(forth > 0, 2 * forth * back / np.where(forth > 0, forth + back, 1), 0)
    np.testing.assert_allclose(rates[off], expected, rtol=1e-9)


def test_errors_say_what_to_do() -> None:
    kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    with pytest.raises(InputError, match="zero at state 1, where the score is infinite"):
        score_ratios(kernel, [1.0, 0.0])
    assert reverse_rates(kernel, [1.0, 0.0]).toarray()[1].tolist() == [0.0, 0.0]
