"""The goals that a plan may have, checked at the door."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._types import Array, Mask
from thalweg.dynamics.landscape import Landscape, as_states
from thalweg.energy import Entropy
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.mobility import LogMean

FLOOR = 1e-9
"""Least share of a state in a start or a target: below, the cost's integrand is singular."""


def supported(landscape: Landscape) -> None:
    """Reject energies for which the cost has another form."""
    energy = landscape.energy
    if energy.interaction is not None or not isinstance(energy.internal, Entropy):
        raise InputError(
            "steering is computed for a potential and the entropy alone; leave interactions and "
            "other internal energies out."
        )
    if not isinstance(landscape.mobility, LogMean) and energy.beta > 0:
        raise InputError(
            f"steering against noise is computed for the logarithmic mean, not for "
            f"{landscape.mobility}; use it, or set beta to 0."
        )


def occupied(p: ArrayLike, kernel: MarkovKernel, name: str) -> Array:
    out = _checks.as_probability(p, kernel.n_states, name)
    x = int(np.argmin(out))
    if out[x] < FLOOR:
        label = kernel.labels[x]
        raise InputError(
            f"{name} has a share of {out[x]:.2g} in state {label!r}; an empty state can neither be "
            f"left nor reached at a finite push: give every state at least {FLOOR:g}, as "
            "(1 - 1e-3) * p + 1e-3 * kernel.stationary does, or ask with raise_mass."
        )
    return out


def checked_wish(
    landscape: Landscape, p0: ArrayLike, raise_mass: tuple[Any, float]
) -> tuple[Array, Mask, float]:
    """The start, the states whose share is to be raised, and to what."""
    if landscape.energy.beta == 0:
        raise InputError("beta is 0; raising a share needs noise: give a target instead.")
    kernel, (states, share) = landscape.kernel, raise_mass
    start = occupied(p0, kernel, "p0")
    found = as_states(kernel, states, "raise_mass")
    if found.size == kernel.n_states:
        raise InputError(
            "raise_mass names all states, which already hold everything: leave some out."
        )
    mass = float(share)
    if not 0 < mass < 1:
        raise InputError(
            f"raise_mass asks for a share of {mass:g}; only shares between 0 and 1 can be reached."
        )
    members = np.zeros(kernel.n_states, dtype=np.bool_)
    members[found] = True
    return start, members, mass
