"""Streams of individuals between groups of states over successive times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.dynamics.kinship import transition_operator
from thalweg.dynamics.landscape import Landscape
from thalweg.dynamics.walk import Rates
from thalweg.errors import InputError
from thalweg.flow import gradient_flow


@dataclass(frozen=True, eq=False)
class Streams:
    """Shares of groups at each time, and the streams between them."""

    times: Array
    shares: Array
    """`(times, groups)`."""
    moved: Array
    """`moved[k, a, b]`: the share that is in `a` at time `k` and in `b` at the next."""


@single_threaded
def streams(
    landscape: Landscape,
    p0: ArrayLike,
    times: ArrayLike,
    labels: ArrayLike,
    *,
    rates: Rates = "reversible",
) -> Streams:
    """Streams between groups of states along the flow from `p0` at `times[0]`.

    Parameters
    ----------
    landscape : Landscape
        Kernel and energy.
    p0 : array
        The population at the first time.
    times : array
        At least two.
    labels : array
        The group of each state, counted from 0; those of macrostates, for instance.
    rates : {"reversible", "downhill"}
        Which jumps carry the flow.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> path = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> flat = Landscape(path, FreeEnergy([0.0, 0.0, 0.0], beta=1.0))
    >>> found = streams(flat, [0.8, 0.1, 0.1], [0.0, 9.0], [0, 0, 1])
    >>> found.shares.round(3).tolist(), found.moved[0].round(3).tolist()
    ([[0.9, 0.1], [0.75, 0.25]], [[0.675, 0.225], [0.075, 0.025]])
    """
    kernel, when = landscape.kernel, _checks.as_times(times, minimum=2)
    group = np.asarray(labels, dtype=np.int64)
    if group.shape != (kernel.n_states,) or group.min() < 0:
        raise InputError(
            f"labels have shape {group.shape}; give the number of a group for each of the "
            f"{kernel.n_states} states."
        )
    p = _checks.as_probability(p0, kernel.n_states, "p0")
    flow = gradient_flow(kernel, landscape.energy, p, when, mobility=landscape.mobility, rtol=1e-8)
    size = int(group.max()) + 1
    member = (group == np.arange(size)[:, None]).astype(np.float64)
    moved = np.zeros((when.size - 1, size, size))
    for k in range(when.size - 1):
        here = flow.probabilities[k] / flow.probabilities[k].sum()
        # Sixteen steps are enough for streams that are only drawn.
        step = transition_operator(
            landscape, here, (float(when[k]), float(when[k + 1])), rates=rates, n_steps=16
        )
        for b in range(size):
            moved[k, :, b] = member @ (here * (step @ member[b]))
    return Streams(when, flow.probabilities @ member.T, moved)
