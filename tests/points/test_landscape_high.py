"""Landscapes in many dimensions: sparse derivatives, and functions that are few enough."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg import PointLandscape
from thalweg.points.landscape.features import Basis, Given, Polynomials
from thalweg.points.landscape.model import PushModel
from thalweg.points.landscape.moments import Moments


@pytest.mark.parametrize("beta", [None, 0.0, 0.3])
@pytest.mark.parametrize(("order", "steps"), [(0, 1), (1, 1), (0, 3), (1, 3)])
def test_derivatives_of_single_coordinates_are_those_of_all(
    beta: float | None, order: int, steps: int
) -> None:
    rng = np.random.default_rng(0)
    times, clouds = np.array([0.0, 0.5, 1.0]), tuple(rng.normal(size=(40, 3)) for _ in range(3))
    powers = Polynomials(np.zeros(3), np.full(3, 1.3), 4, cross=False)
    none = Given((lambda x: np.zeros(len(x)),), np.ones(3))  # makes the basis a dense one
    moments = Moments.of(np.concatenate(clouds), 8, rng)
    sparse, dense = (
        PushModel(times, clouds, basis, moments, order, beta, steps)
        for basis in (Basis((powers,)), Basis((powers, none)))
    )
    assert sparse.basis.separable is not None
    assert dense.basis.separable is None
    z = 0.1 * rng.normal(size=sparse.size)
    if beta is None:
        z[-1] = 0.2
    places = np.arange(12)[None] + 13 * np.arange(order + 1)[:, None]
    columns = np.append(places.ravel(), [dense.size - 1] if beta is None else []).astype(int)
    wide = np.zeros(dense.size)
    wide[columns] = z
    np.testing.assert_allclose(
        sparse.jacobian(z), dense.jacobian(wide)[:, columns], rtol=1e-9, atol=1e-12
    )
    inverse = np.eye(2 * moments.size)
    for few, all_of_them in zip(
        sparse.score_noise(z, inverse), dense.score_noise(wide, inverse), strict=True
    ):
        kept = all_of_them[columns] if few.ndim == 1 else all_of_them[np.ix_(columns, columns)]
        np.testing.assert_allclose(few, kept, rtol=1e-9, atol=1e-12)


def test_long_intervals_in_many_dimensions_are_a_flow() -> None:
    """Every set of functions is large there; the smallest is fitted, rather than none."""
    rng = np.random.default_rng(3)
    times = np.array([0.0, 1.5, 3.0])
    start = np.r_[3.0, np.zeros(31)]
    clouds = [
        start * np.exp(-t) + np.sqrt(0.3 + 0.7 * np.exp(-2 * t)) * rng.normal(size=(150, 32))
        for t in times
    ]
    model = PointLandscape().fit(times, clouds)
    assert "would overshoot" in model.why_
    ends = model.push(clouds[0], 0.0, 3.0, np.random.default_rng(0))
    assert abs(ends[:, 0].mean() - clouds[-1][:, 0].mean()) < 0.4
