"""The torch function against finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.geometry import TransportGeometry
from thalweg.kernel import MarkovKernel

torch = pytest.importorskip("torch")


def test_gradcheck_in_both_ends_and_in_the_edges() -> None:
    from thalweg.geometry.torch import squared_distance

    kernel = MarkovKernel.from_weights([[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    geometry = TransportGeometry(kernel)
    logits = torch.tensor(
        [[0.2, -0.1, 0.3], [-0.3, 0.4, 0.1]], dtype=torch.float64, requires_grad=True
    )
    conductance = torch.tensor(kernel.edges.conductance, requires_grad=True)

    def value(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(x, dim=1)
        return squared_distance(geometry, p[0], p[1], c, tolerance=1e-11)

    assert torch.autograd.gradcheck(value, (logits, conductance), eps=1e-5, atol=1e-7, rtol=1e-5)


def test_value_is_the_squared_distance() -> None:
    from thalweg.geometry.torch import squared_distance

    geometry = TransportGeometry(MarkovKernel.from_weights([[0, 1], [1, 0]]))
    p, q = torch.tensor([0.75, 0.25]).double(), torch.tensor([0.125, 0.875]).double()
    expected = geometry.distance(p.numpy(), q.numpy()) ** 2
    np.testing.assert_allclose(float(squared_distance(geometry, p, q)), expected, rtol=1e-7)
