"""Exact time reversal on spaces that can be enumerated.

A `NoisingPath` knows the law `p` of the forward process at every clock and its jump rates there.
`time_reversal` integrates the reversed chain, `R(x, y) = Q(y, x) p(y) / p(x)`, which carries the
law back along the same path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import DOP853
from scipy.special import gammaln

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.diffusion.schedules import ConstantSchedule, Schedule
from thalweg.diffusion.scores import quotient
from thalweg.diffusion.sequences import HammingProcess
from thalweg.edges.static import edge_divergence
from thalweg.errors import InputError
from thalweg.flow import Trajectory
from thalweg.kernel import MarkovKernel
from thalweg.status import Status

EdgeRates = tuple[Array, Array]


@dataclass(frozen=True, eq=False)
class NoisingPath:
    """The law of a noising process at every clock up to `total`, and its rates.

    `edge_rates(clock)` gives the forward rates along `kernel.edges`: from source to target, and
    from target to source.
    """

    kernel: MarkovKernel
    total: float
    probability: Callable[[float], Array]
    edge_rates: Callable[[float], EdgeRates]


def heat_path(kernel: MarkovKernel, p0: ArrayLike, total: float) -> NoisingPath:
    """The heat flow from `p0`, exact to rounding at every clock.

    `p_t = sum_k e^(-t) t^k / k! p_0 K^k`: a mixture of stored steps, all terms positive, so that
    the smallest probabilities keep their relative accuracy, which ratios need.
    """
    p0 = _checks.as_probability(p0, kernel.n_states, "p0")
    total = _checks.positive(total, "total")
    count = math.ceil(total + 9 * math.sqrt(total) + 25)
    if count * kernel.n_states > 2**28:  # 2 GB
        raise InputError(
            f"{kernel.n_states} states up to the clock {total:g} need {count} stored steps, more "
            "than memory should hold; use hamming_path for sequences, or a shorter clock."
        )
    transpose = kernel.matrix.T.tocsr()
    steps = np.empty((count, kernel.n_states))
    steps[0] = p0
    for k in range(1, count):
        steps[k] = transpose @ steps[k - 1]
    terms = np.arange(count)
    log_factorial = gammaln(terms + 1)

    def probability(clock: float) -> Array:
        if clock <= 0:
            return p0
        weights = np.exp(terms * math.log(clock) - clock - log_factorial)
        return np.asarray(weights @ steps / weights.sum())

    return NoisingPath(kernel, total, probability, _heat_rates(kernel))


def hamming_path(process: HammingProcess, p0: ArrayLike, total: float) -> NoisingPath:
    """The heat flow of all sequences from `p0`, position by position: no stored steps."""
    p0 = _checks.as_probability(p0, process.n_states, "p0")
    kernel = process.kernel()

    def probability(clock: float) -> Array:
        return process.heat_flow(p0, clock) if clock > 0 else p0

    return NoisingPath(kernel, _checks.positive(total, "total"), probability, _heat_rates(kernel))


def law_change(kernel: MarkovKernel, law: Array, rates: EdgeRates) -> Array:
    """The rate of change `law Q` of a law under the rates along the edges."""
    source, target, _ = kernel.edges
    flux = law[source] * rates[0] - law[target] * rates[1]
    return np.asarray(-edge_divergence(source, target, flux, kernel.n_states))


def _heat_rates(kernel: MarkovKernel) -> Callable[[float], EdgeRates]:
    source, target, conductance = kernel.edges
    forth, back = conductance / kernel.stationary[source], conductance / kernel.stationary[target]
    return lambda clock: (forth, back)


@single_threaded
def time_reversal(
    path: NoisingPath,
    schedule: Schedule | None = None,
    *,
    start: ArrayLike | None = None,
    times: ArrayLike = (),
    last_time: float = 1e-9,
    rtol: float = 1e-9,
    atol: float | None = None,
    max_steps: int = 20_000,
) -> Trajectory:
    """The law of the reversed chain of `path`, from time 1 down to `last_time`, close to `p_0`.

    Integrated in `log t` (explicit, eighth order), because the reverse rates grow like `1 / t`
    where data has empty states. The times of the result run backwards: 0 is noise, `1 - last_time`
    data.

    Parameters
    ----------
    path : NoisingPath
        The forward process.
    schedule : Schedule, optional
        The clock at each time; by default constant.
    start : array, optional
        The law to start from; by default the path's own at the end of the schedule, for which the
        reversal is exact up to the integrator. The base distribution shows the cost of a finite
        clock.
    times : array
        Forward times, in any order, at which to report the law as well.
    last_time : float
        The forward time at which to stop.
    rtol, atol : float
        Tolerances of the integrator.
    max_steps : int
        Bound on the number of steps.
    """
    schedule = ConstantSchedule(path.total) if schedule is None else schedule
    if schedule.total > path.total * (1 + 1e-12):
        raise InputError(
            f"the schedule runs to the clock {schedule.total:g}, the path only to "
            f"{path.total:g}; make the path at least as long."
        )
    if not 0 < last_time < 1:
        raise InputError(f"last_time is {last_time:g}; it must lie between 0 and 1.")
    kernel = path.kernel
    source, target, _ = kernel.edges
    if start is None:
        q = path.probability(float(schedule.clock(1.0)))
    else:
        q = _checks.as_probability(start, kernel.n_states, "start")

    def slope(log_time: float, law: Array) -> Array:
        # u = -log t, so that time runs backwards while u grows: dq/du = t beta_t q R.
        time = math.exp(-log_time)
        clock = float(schedule.clock(time))
        p = path.probability(clock)
        forth, back = path.edge_rates(clock)
        # The reverse rate from source to target is Q(y, x) p_y / p_x.
        change = law_change(kernel, quotient(law, p), (back * p[target], forth * p[source]))
        return time * float(schedule.rate(time)) * change

    solver = DOP853(
        slope, 0.0, q, -math.log(last_time), rtol=rtol, atol=1e-3 * rtol if atol is None else atol
    )
    status = Status.CONVERGED
    wanted = sorted(np.unique(-np.log(_checks.as_array(times, "times"))).tolist(), reverse=True)
    rows, moments, steps = [q], [0.0], 0
    while solver.status == "running":
        if steps >= max_steps:
            status = Status.MAX_STEPS
            break
        solver.step()
        steps += 1
        if solver.status == "failed":
            status = Status.STEP_TOO_SMALL
            break
        while wanted and wanted[-1] <= solver.t:
            moments.append(-math.expm1(-wanted[-1]))
            rows.append(np.asarray(solver.dense_output()(wanted.pop())))
    rows.append(solver.y.copy())
    moments.append(-math.expm1(-solver.t))
    return Trajectory(np.array(moments), np.array(rows), status, steps, solver.nfev, "explicit")
