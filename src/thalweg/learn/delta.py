"""Bands around a flow by the delta method: how its uncertain parameters move the probabilities.

A standard deviation of `log p` becomes an interval of `p` on two scales. On the logits, errors of
well-seen states are symmetric; but a state that was never visited has a logarithm without a lower
bound, and its interval there extends to one. On the scale `arcsin sqrt p`, where a sample of `n`
has the error `1 / (2 sqrt n)` whatever `p` is, that state keeps the bound from the empty sample.
The upper end is the lower of the two, and the arcsine's error is never below that of one sample.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from thalweg import _checks
from thalweg._sparse import dense
from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.flow import Trajectory, gradient_flow
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.mobility import Mobility

_STEP = 0.05
"""Step along a draw over which the flow is differenced: long enough for the integrator's error."""
_LONGEST_STEP = 0.8
"""Largest time step times the rate of leaving a state. With order 2 the widths of bands are within
0.4 % (300 states) and 3 % (100) of those of half the step and order 3, in a quarter of the time."""


def band_around(
    p: Array,
    deviation: Array,
    size: float,
    level: float,
    apart: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Lower and upper bounds in [0, 1] from the standard deviation of `log p`.

    `size` is the number of individuals in an ordinary snapshot. If `p` is an average of flows,
    `apart` holds their standard deviations in `log p` and in `arcsin sqrt p`, and `deviation` is
    that of one flow.

    >>> low, high = band_around(np.array([0.5, 1e-6]), np.array([0.1, 30.0]), 100.0, 0.95)
    >>> low.round(3), high.round(3)
    (array([0.403, 0.   ]), array([0.597, 0.016]))
    """
    z = float(ndtri(0.5 + 0.5 * _checks.share(level, "level")))
    rest = np.maximum(1.0 - p, 1e-12)
    angle = np.arcsin(np.sqrt(np.clip(p, 0.0, 1.0)))
    error = 0.5 * deviation * np.sqrt(p / rest)
    if apart is not None:
        logs, angles = apart
        deviation, error = np.hypot(deviation, logs), np.hypot(error, angles)
    odds, width = p / rest, np.minimum(z * deviation / rest, 600.0)
    down, up = odds * np.exp(-width), odds * np.exp(width)
    low = np.sin(np.clip(angle - z * error, 0.0, 0.5 * np.pi)) ** 2
    seen = z * (error + 0.5 / np.sqrt(max(size, 1.0)))
    high = np.sin(np.clip(angle + seen, 0.0, 0.5 * np.pi)) ** 2
    lower = np.minimum(np.minimum(down / (1.0 + down), low), p)
    upper = np.maximum(np.minimum(up / (1.0 + up), high), p)
    return lower, upper


def deviation_from_covariance(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    start: Array,
    covariance: Array,
    times: Array,
    *,
    known_start: bool,
    mobility: Mobility,
    done: Callable[[int], None] = lambda times: None,
) -> Array | None:
    """Standard deviation of `log p` at `times`, from exact sensitivities of the flow.

    `covariance` is that of (potential, beta, log initial distribution). `None` if the flow with its
    sensitivities could not be integrated. `done`: called with the number of times reached.
    """
    n = kernel.n_states
    learns = energy.beta > 0 and covariance[n, n] > 0
    model = FlowModel(
        kernel,
        times,
        fixed_interaction=_dense(energy.interaction),
        fixed_beta=None if learns else energy.beta,
        fixed_initial=np.maximum(start, 1e-300) if known_start else None,
        mobility=mobility,
        internal=energy.internal,
    )
    keep = list(range(n + 1 if learns else n))
    units = np.ones(2 * n + 1)
    theta = [energy.potential]
    if learns:
        units[n] = 1.0 / energy.beta
        theta.append(np.array([np.log(energy.beta)]))
    if not known_start:
        keep += list(range(n + 1, 2 * n + 1))
        theta.append(np.log(np.maximum(start, 1e-300) / kernel.stationary))
    scaled = (units[:, None] * covariance * units)[np.ix_(keep, keep)]
    # An error bar needs two digits.
    leaving = 2.0 * float(kernel.edges.conductance.sum())
    size = float(np.sqrt(kernel.stationary @ energy.potential**2)) + energy.beta
    steps = np.ceil(np.diff(times) * size * leaving / _LONGEST_STEP)
    result = model.sensitivities(
        np.concatenate(theta), Mesh(np.clip(steps, 1, 2000).astype(np.int64), 2), done=done
    )
    if result is None:
        return None
    _, slopes = result
    return deviation_along(slopes, scaled)


def deviation_along(slopes: Array, covariance: Array) -> Array:
    """Standard deviation, at each time and state, of what has these slopes in the parameters.

    >>> deviation_along(np.ones((1, 1, 2)), np.diag([9.0, 16.0]))
    array([[5.]])
    """
    # Two products of matrices: einsum would loop over both indices of the covariance.
    return np.sqrt(np.maximum(((slopes @ covariance) * slopes).sum(axis=-1), 0.0))


def deviation_from_draws(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    start: Array,
    draws: Array,
    best: Trajectory,
    *,
    mobility: Mobility,
    start_size: float | None = None,
    done: Callable[[int], None] = lambda draws: None,
) -> Array | None:
    """The same from draws of (potential, beta), by differences from the flow `best` along each.

    A start that was counted from `start_size` individuals moves with their sampling noise.
    `done`: called with the number of draws that have been followed.

    The flows of the draws themselves are not used: if the data say little, a draw is a landscape
    that the data exclude, and its flow carries the population to states that were never visited.
    """
    n = kernel.n_states
    log_p = np.log(np.maximum(best.probabilities, 1e-300))
    squares, count = np.zeros_like(log_p), 0
    rng = np.random.default_rng(0)
    for followed, row in enumerate(draws, 1):
        v = energy.potential + _STEP * (row[:n] - energy.potential)
        beta = energy.beta
        if beta > 0 and row[n] > 0:
            beta *= float((row[n] / beta) ** _STEP)
        moved = FreeEnergy(v, beta, energy.interaction, energy.internal)
        begin = start
        if start_size is not None:
            noise = rng.standard_normal(n) / np.sqrt(start_size)
            # The covariance of log shares, (diag(1 / p) - 1) / size; the mass divides it out.
            begin = start * np.exp(_STEP * np.clip(noise / np.sqrt(start), -100.0, 100.0))
            begin = begin / begin.sum()
        path = gradient_flow(kernel, moved, begin, best.times, mobility=mobility, rtol=1e-6)
        if path.status:
            squares += ((np.log(np.maximum(path.probabilities, 1e-300)) - log_p) / _STEP) ** 2
            count += 1
        done(followed)
    return np.sqrt(squares / count) if count else None


def _dense(interaction: object) -> Array:
    if interaction is None:
        return np.zeros((0, 0))
    return dense(interaction).astype(np.float64)
