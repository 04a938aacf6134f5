"""Hellinger and total variation: metrics, exact where the arguments nearly agree."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.errors import InputError
from thalweg.snapshots import hellinger, total_variation


def draw(seed: int, n: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(n, 0.3))


@given(st.integers(0, 10**6))
def test_both_are_metrics_and_bound_each_other(seed: int) -> None:
    p, q, r = draw(seed), draw(seed + 1), draw(seed + 2)
    for d in (hellinger, total_variation):
        assert d(p, p) == 0
        assert d(p, q) == d(q, p)
        assert 0 <= d(p, q) <= 1 + 1e-15
        assert d(p, r) <= d(p, q) + d(q, r) + 1e-15
    h, tv = float(hellinger(p, q)), float(total_variation(p, q))
    assert h**2 <= tv + 1e-15
    assert tv <= np.sqrt(2) * h + 1e-15


@pytest.mark.parametrize("gap", [1e-3, 1e-8, 1e-13])
def test_close_distributions_keep_their_digits(gap: float) -> None:
    p = draw(3) * (1 - 1e-3) + 1e-3 / 7
    q = p.copy()
    q[0] += gap
    q[1] -= gap
    with mpmath.workdps(40):
        terms = [(mpmath.sqrt(a) - mpmath.sqrt(b)) ** 2 for a, b in zip(p, q, strict=True)]
        exact = float(mpmath.sqrt(mpmath.fsum(terms) / 2))
    assert abs(float(hellinger(p, q)) / exact - 1) < 1e-12


def test_rows_broadcast() -> None:
    ps = np.array([draw(k) for k in range(5)])
    np.testing.assert_allclose(hellinger(ps, ps[2]), [float(hellinger(p, ps[2])) for p in ps])
    assert hellinger(ps[:, None], ps[None]).shape == (5, 5)


@pytest.mark.parametrize(
    ("p", "q", "message"),
    [
        ([0.5, 0.6], [0.5, 0.5], "p sums to 1.1"),
        ([0.5, 0.5], [1.5, -0.5], "q is -0.5"),
        ([0.5, 0.5], [1.0], "2 states and q has 1"),
        ([np.nan, 0.5], [0.5, 0.5], "p is nan"),
        (1.0, [1.0], "single number"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(p: object, q: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hellinger(p, q)  # type: ignore[arg-type]
