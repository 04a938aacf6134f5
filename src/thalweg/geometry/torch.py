"""`W_K^2` as a torch function of both end points and of the edge weights: the `neural` extra.

The backward pass uses the potentials and fluxes of the geodesic (see `distance_gradient`); nothing
is differentiated through iterations. Gradients in the end points are those on the simplex: they are
defined up to a constant, and have mean zero under `pi`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg._optional import optional
from thalweg.geometry.transport import TransportGeometry
from thalweg.kernel import Edges, MarkovKernel

__all__ = ["squared_distance"]

optional("torch", extra="neural", what="thalweg.geometry.torch")
import torch  # noqa: E402


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, p: Any, q: Any, conductance: Any, geometry: TransportGeometry, tolerance: float
    ) -> Any:
        kernel = geometry.kernel
        values = conductance.detach().cpu().double().numpy()
        if not np.array_equal(values, kernel.edges.conductance):
            edges = Edges(kernel.edges.source, kernel.edges.target, np.ascontiguousarray(values))
            kernel = MarkovKernel(kernel.stationary, edges)
            geometry = TransportGeometry(kernel, geometry.mobility)
        result = geometry.distance_gradient(
            p.detach().cpu().double().numpy(),
            q.detach().cpu().double().numpy(),
            tolerance=tolerance,
        )
        result.status.check()
        ctx.save_for_backward(
            p.new_tensor(result.first),
            q.new_tensor(result.second),
            conductance.new_tensor(result.conductance),
        )
        return p.new_tensor(result.squared_distance)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (grad,) = grad_outputs
        first, second, conductance = ctx.saved_tensors
        return grad * first, grad * second, grad * conductance, None, None


def squared_distance(
    geometry: TransportGeometry,
    p: Any,
    q: Any,
    conductance: Any | None = None,
    *,
    tolerance: float = 1e-9,
) -> Any:
    """`W_K(p, q)^2` of two tensors, differentiable in both and in the conductances of the edges.

    By default the conductances are the kernel's own; `conductance` replaces the edge weights
    `pi_x K(x, y)` at a fixed stationary distribution.
    """
    if conductance is None:
        conductance = torch.as_tensor(geometry.kernel.edges.conductance, dtype=p.dtype)
    return _SquaredDistance.apply(p, q, conductance, geometry, tolerance)
