"""Curvature by blocks is that of the whole matrix."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.graphs import make_graph
from thalweg.learn.few.blocks import Curvature, Information, inverse_of
from thalweg.learn.few.shapes import FieldPrior, make_shapes


@pytest.mark.parametrize("rank", [3, 40])
def test_blocks_agree_with_the_whole_matrix(rank: int) -> None:
    n = 12
    rng = np.random.default_rng(rank)
    shapes = make_shapes(make_graph("delaunay", n, rng=rng), (1, 2))
    rows = rng.normal(size=(rank, 2 * n))
    known = Information(rows.T @ rows)
    for strength in (0.3, 5.0):
        prior = FieldPrior(shapes[1], shapes[0], strength, 2.0)
        curvature = Curvature(known, prior)
        whole = known.matrix + prior.precision
        covariance = np.linalg.inv(whole)
        assert curvature.log_determinant == pytest.approx(np.linalg.slogdet(whole)[1], rel=1e-8)
        right = rng.normal(size=2 * n)
        np.testing.assert_allclose(whole @ curvature.solve(right), right, rtol=1e-6, atol=1e-6)
        scale = np.abs(covariance).max()
        np.testing.assert_allclose(curvature.inverse, covariance, atol=1e-7 * scale)
        np.testing.assert_allclose(inverse_of(whole), covariance, atol=1e-7 * scale)
        # The draws of unit normals are a root of the covariance.
        root = np.column_stack([curvature.spread(e) for e in np.eye(2 * n)])
        np.testing.assert_allclose(root @ root.T, covariance, atol=1e-7 * scale)
        held = [
            strength * np.vdot(covariance[:n, :n], shapes[1].matrix),
            2.0 * np.vdot(covariance[n:, n:], shapes[0].matrix),
        ]
        assert curvature.used() == pytest.approx([n - held[0], n - held[1]], rel=1e-6)
        np.testing.assert_allclose(prior.times(right), prior.precision @ right)


def test_the_start_is_integrated_out_once_for_priors_of_the_potential() -> None:
    n = 6
    shapes = make_shapes(make_graph("delaunay", n, rng=np.random.default_rng(0)), (1, 2))
    known = Information(np.eye(2 * n))
    first = known.start(FieldPrior(shapes[0], shapes[0], 1.0, 2.0))
    assert known.start(FieldPrior(shapes[1], shapes[0], 7.0, 2.0)) is first
    assert known.start(FieldPrior(shapes[0], shapes[0], 1.0, 3.0)) is not first


def test_directions_without_curvature_are_nearly_free() -> None:
    matrix = np.outer([1.0, 1.0, 0.0], [1.0, 1.0, 0.0])
    inverse = inverse_of(matrix)
    assert np.isfinite(inverse).all()
    assert inverse[2, 2] > 1e8
