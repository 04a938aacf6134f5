"""The gradient flow and its likelihood as torch functions, for use inside other models.

The backward pass is the library's own adjoint of the implicit chain in `log rho` (positive at any
step), not a record of iterations. Needs the `neural` extra.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg import _checks
from thalweg._optional import optional
from thalweg.errors import ConvergenceError, InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.fields.flow_map import FlowMap, Run
from thalweg.status import Status

__all__ = ["flow", "log_likelihood"]

optional("torch", extra="neural", what="thalweg.torch")
import torch  # noqa: E402

_EXACT = 1e-12
"""Tolerance of Newton's steps and of the adjoint's solves."""


class _LogDensity(torch.autograd.Function):
    """`log rho` at the times, `(times, states)`, from `(log rho_0, V, beta)`."""

    @staticmethod
    def forward(ctx: Any, u0: Any, potential: Any, beta: Any, chain: FlowMap) -> Any:
        run = chain(_array(u0), _array(potential), float(beta.detach()))
        if run is None:
            raise ConvergenceError(Status.NEWTON_FAILED.value)
        ctx.run = run
        return torch.as_tensor(run.log_density, dtype=u0.dtype, device=u0.device)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (grad,) = grad_outputs
        run: Run = ctx.run
        parts = run.adjoint(np.ascontiguousarray(_array(grad)[:, :, None]), tolerance=_EXACT)
        g0, g_potential, g_beta = (
            torch.as_tensor(part[..., 0], dtype=grad.dtype, device=grad.device) for part in parts
        )
        return g0, g_potential, g_beta, None


def _array(tensor: Any) -> NDArray[np.float64]:
    return np.asarray(tensor.detach().cpu().double().numpy())


def flow(
    kernel: MarkovKernel,
    potential: Any,
    beta: Any,
    p0: Any,
    times: ArrayLike,
    *,
    substeps: int = 8,
) -> Any:
    """The population at `times` of the flow from `p0` at `times[0]`; shape `(times, states)`.

    Differentiable in `potential`, `beta` and `p0`.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    potential : tensor
        One number per state.
    beta : tensor
        A positive scalar.
    p0 : tensor
        Positive, one number per state, with sum one.
    times : array
        At least two, increasing.
    substeps : int
        Steps between two times; the error falls with their square.

    >>> import torch
    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> v = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    >>> start = torch.tensor([0.9, 0.1], dtype=torch.float64)
    >>> p = flow(kernel, v, torch.tensor(1.0, dtype=torch.float64), start, [0.0, 0.5])
    >>> p[-1].detach().numpy().round(3)
    array([0.647, 0.353])
    >>> p[-1, 0].backward()
    >>> v.grad.numpy().round(2)
    array([-0.14,  0.14])
    """
    return torch.exp(_log_probability(kernel, potential, beta, p0, times, substeps))


def log_likelihood(
    kernel: MarkovKernel,
    potential: Any,
    beta: Any,
    p0: Any,
    times: ArrayLike,
    counts: Any,
    *,
    substeps: int = 8,
) -> Any:
    """The log likelihood of independent snapshots, without the multinomial coefficients.

    `counts` has one row per time; the other parameters are those of `flow`.

    >>> import torch
    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> v, one = torch.zeros(2, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    >>> start = torch.tensor([0.9, 0.1], dtype=torch.float64)
    >>> round(float(log_likelihood(kernel, v, one, start, [0.0, 0.5], [[9, 1], [6, 4]])), 3)
    -10.029
    """
    logs = _log_probability(kernel, potential, beta, p0, times, substeps)
    table = torch.as_tensor(counts, dtype=logs.dtype, device=logs.device)
    if table.shape != logs.shape:
        raise InputError(
            f"counts have shape {tuple(table.shape)}; give one row per time and one column per "
            f"state, {tuple(logs.shape)}."
        )
    return (table * logs).sum()


def _log_probability(
    kernel: MarkovKernel, potential: Any, beta: Any, p0: Any, times: ArrayLike, substeps: int
) -> Any:
    when = _checks.as_times(times, minimum=2)
    for name, tensor in (("potential", potential), ("p0", p0)):
        if tuple(tensor.shape) != (kernel.n_states,):
            raise InputError(
                f"{name} has shape {tuple(tensor.shape)}; give one number per state, "
                f"({kernel.n_states},)."
            )
    if float(p0.detach().min()) <= 0 or float(beta.detach()) <= 0:
        raise InputError("p0 and beta must be positive; mix p0 with a little of the stationary p.")
    if substeps < 1:
        raise InputError(f"substeps is {substeps}; it must be at least 1.")
    log_pi = torch.as_tensor(np.log(kernel.stationary), dtype=p0.dtype, device=p0.device)
    chain = FlowMap(kernel, when, substeps, newton_tolerance=_EXACT, product_tolerance=_EXACT)
    log_rho = _LogDensity.apply(torch.log(p0) - log_pi, potential, beta, chain)
    return torch.log_softmax(log_rho + log_pi, dim=1)
