"""`gradient_flow`: the flow `p_dot = -M(rho) f`, by the method that the problem needs."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg import _checks
from thalweg._threads import single_threaded
from thalweg.energy import FreeEnergy
from thalweg.flow.edge_fluxes import accumulate_velocity, internal_spec
from thalweg.flow.explicit import dormand_prince
from thalweg.flow.trajectory import Trajectory
from thalweg.kernel import MarkovKernel
from thalweg.mobility import LogMean, Mobility
from thalweg.status import Status

__all__ = ["gradient_flow"]

Array = NDArray[np.float64]
Method = Literal["auto", "explicit", "implicit"]


@single_threaded
def gradient_flow(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p0: ArrayLike,
    times: ArrayLike,
    *,
    mobility: Mobility | None = None,
    rtol: float = 1e-8,
    atol: float | None = None,
    method: Method = "auto",
    max_steps: int = 100_000,
    throw: bool = False,
) -> Trajectory:
    """The gradient flow from `p0` at `times[0]`."""
    energy._check(kernel)
    mobility = LogMean() if mobility is None else mobility
    p = _checks.as_probability(p0, kernel.n_states, "p0")
    times = _checks.as_times(times)
    atol = 1e-3 * rtol if atol is None else atol
    out = np.empty((times.size, p.size))
    out[:] = p
    rho = np.empty_like(p)
    inner = internal_spec(energy, mobility)

    def rhs(state: Array, slope: Array) -> None:
        accumulate_velocity(
            *kernel.edges,
            kernel.stationary,
            state,
            energy.external(state),
            energy.beta,
            mobility.spec,
            inner,
            rho,
            slope,
        )

    run = dormand_prince(
        rhs, times, p, out, rtol=rtol, atol=atol, max_steps=max_steps, persist=True
    )
    status = Status.CONVERGED if run.reached == times.size else Status.STEP_TOO_SMALL
    if run.limit:
        status = Status.MAX_STEPS
    out[run.reached :] = run.p
    if throw:
        status.check()
    return Trajectory(times, out, status, run.n_steps, run.n_evaluations, "explicit")
