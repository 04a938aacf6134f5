"""`gradient_flow`: the flow `p_dot = -M(rho) f`, by the method that the problem needs."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import checked, single_threaded
from thalweg._types import Array
from thalweg.edges.fluxes import Drive, accumulate_velocity, steepness
from thalweg.edges.static import Graph
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow.explicit import Accuracy, Run, dormand_prince
from thalweg.flow.extrapolation import extrapolated_euler
from thalweg.flow.implicit_euler import ImplicitEuler
from thalweg.flow.trajectory import Trajectory
from thalweg.kernel import MarkovKernel
from thalweg.mobility import Mobility, as_mobility
from thalweg.status import Status

Method = Literal["auto", "explicit", "implicit"]

_MANY = 5000
"""Number of states above which implicit solves are avoided at first."""
_STEEP = 30.0
"""Largest rate of a state, per time scale, for an explicit start."""
_LONG = 3000
"""Explicit steps after which implicit ones take over: near equilibrium only those can grow."""

FLOOR = 1e-300
"""The density to which implicit steps raise the empty states of `p0`."""


@single_threaded
@checked
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
    """The gradient flow `p_dot = -M(rho) f` of a free energy, from `p0` at `times[0]`.

    The probabilities are positive and sum to one, and the energy falls from each time to the next:
    a change within the tolerance that would raise it, at equilibrium, is not made. `status` says
    how the integration ended.

    Empty states in `p0`: for `beta > 0` the flow fills them at once, and implicit steps start them
    from the density `FLOOR`. For `beta = 0` a mean that vanishes with either density lets nothing
    into an empty state: it stays empty. A state that runs empty on the way may refill, as it does
    in the limit of weak noise.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    energy : FreeEnergy
        The energy that falls along the flow.
    p0 : array
        Probabilities at `times[0]`.
    times : array
        Increasing times at which to return the flow.
    mobility : Mobility, optional
        By default the logarithmic mean.
    rtol, atol : float
        The error of a step is kept below `atol + rtol p`; `atol` is `rtol / n_states` by default,
        the tolerance relative to the mean probability.
    method : {"auto", "explicit", "implicit"}
        `"explicit"` is Dormand and Prince's pair of order 5(4) on `p`; `"implicit"` is implicit
        Euler in `u = log rho`, extrapolated to high order, which alone can follow states that run
        empty in finite time, as they do where `beta` is small; `"auto"` starts explicitly, unless
        a nearly empty state lies beside a full one, and switches when a state nears zero, when the
        steps become short, or after a few thousand steps.
    max_steps : int
        Bound on the number of steps.
    throw : bool
        Raise `ConvergenceError` unless the status is `CONVERGED`.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> flow = gradient_flow(kernel, FreeEnergy([0.0, 1.0], beta=0.5), [0.5, 0.5], [0, 1, 20])
    >>> flow.probabilities.round(4)
    array([[0.5   , 0.5   ],
           [0.7949, 0.2051],
           [0.8808, 0.1192]])
    """
    energy._check(kernel)
    if method not in get_args(Method):
        raise InputError(f"method is {method!r}; choose 'auto', 'explicit' or 'implicit'.")
    mobility = as_mobility(mobility)
    p = _checks.as_probability(p0, kernel.n_states, "p0")
    times = _checks.as_times(times)
    rtol = _checks.positive(rtol, "rtol")
    atol = rtol / kernel.n_states if atol is None else _checks.positive(atol, "atol")
    accuracy = Accuracy(rtol, atol, max_steps)
    out = np.repeat(p[None], times.size, axis=0)

    run = Run(1, float(times[0]), p, 0, 0, False)
    if method != "implicit":
        run = _explicit(kernel, energy, mobility, times, run, out, accuracy, method)
    used, p = "explicit", run.state
    limit = run.limit and (method == "explicit" or run.n_steps >= max_steps)
    if method != "explicit" and run.reached < times.size and not limit:
        used = "implicit" if run.n_steps == 0 else f"explicit, implicit from t = {run.time:.6g}"
        euler = ImplicitEuler(kernel, energy, mobility, support=p > 0)
        u = np.log(np.maximum(p / kernel.stationary, FLOOR))
        u -= np.log(euler.masses(u).sum())
        step = 0.01 * _time_scale(energy, p)
        run = extrapolated_euler(euler, times, run._replace(state=u), out, accuracy, step=step)
        limit, p = run.limit, euler.probabilities(run.state)
    out[run.reached :] = p
    _hold(kernel, energy, out, rtol, atol)
    status = Status.CONVERGED if run.reached == times.size else Status.STEP_TOO_SMALL
    if limit:
        status = Status.MAX_STEPS
    if throw:
        status.check()
    return Trajectory(times, out, status, run.n_steps, run.n_evaluations, used, kernel.names)


def _explicit(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    mobility: Mobility,
    times: Array,
    start: Run,
    out: Array,
    accuracy: Accuracy,
    method: Method,
) -> Run:
    (rtol, atol, most), p = accuracy, start.state
    graph, drive = Graph.of(kernel, mobility), Drive.of(energy, mobility, p)
    rho = np.empty_like(p)

    def at(state: Array) -> Drive:
        if energy.interaction is None:
            return drive
        return Drive(energy.external(state), *drive[1:])

    def rhs(state: Array, slope: Array) -> None:
        accumulate_velocity(*graph, *at(state), state, rho, slope)

    # Rates per unit of time are of order one over the time scale; far above, a state is nearly
    # empty beside a full one. There the implicit method is better; on many states, where its
    # linear solves are expensive, the explicit one takes steps that follow the steep mean.
    scale, few = _time_scale(energy, p), p.size < _MANY

    def steep(state: Array) -> float:
        return steepness(graph, at(state), state, 100 * atol / scale)

    is_steep = steep(p) * scale > _STEEP
    if is_steep and few and method == "auto":
        return start
    return dormand_prince(
        rhs,
        times,
        p,
        out,
        accuracy if method == "explicit" else Accuracy(rtol, atol, min(most, _LONG + times.size)),
        persist=method == "explicit",
        minimum_step=(0.3 if few else 0.03) * rtol**0.2 * scale,
        longest_step=(lambda state: 0.3 / (steep(state) + 1e-300)) if is_steep else None,
    )


def _time_scale(energy: FreeEnergy, p: Array) -> float:
    """The time in which a kernel with rates of order one moves mass: one over the energy."""
    external = energy.external(p)
    return 1.0 / (energy.beta + float(np.ptp(external)) + 1e-12)


def _hold(kernel: MarkovKernel, energy: FreeEnergy, out: Array, rtol: float, atol: float) -> None:
    """Repeat a row, in place, where the next differs within the tolerance but has more energy."""
    if len(out) < 2:
        return
    before = energy(kernel, out[0])
    for k in range(1, len(out)):
        now = energy(kernel, out[k])
        if now > before and np.all(abs(out[k] - out[k - 1]) <= 10 * (atol + rtol * out[k])):
            out[k] = out[k - 1]
        else:
            before = now
