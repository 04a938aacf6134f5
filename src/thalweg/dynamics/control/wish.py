"""The goals that a plan may have, checked at the door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logsumexp

from thalweg import _checks
from thalweg._types import Array, Mask
from thalweg.dynamics.control.action import Action
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
    """`p` as a probability in which every state is occupied."""
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


@dataclass(frozen=True, eq=False)
class Target:
    """A plan must end at the population `p`."""

    p: Array

    def is_met(self, final: Array) -> bool:
        return bool(np.abs(final - self.p).max() <= 1e-9)

    def nearest(self, final: Array) -> Array:
        """A population that meets the goal."""
        return self.p

    def least(self, action: Action, phi: Array) -> float:
        """The minimum of `F(q) + phi . q` over the populations `q` that meet the goal."""
        return action.free_energy(self.p) + float(phi @ self.p)


@dataclass(frozen=True, eq=False)
class Share:
    """A plan must end with a share of at least `mass` in `members`."""

    members: Mask
    mass: float

    def is_met(self, final: Array) -> bool:
        return bool(final[self.members].sum() >= self.mass - 1e-12)

    def nearest(self, final: Array) -> Array:
        """A population that meets the goal: `final` with its two parts scaled."""
        held = final[self.members].sum()
        scales = self.mass / held, (1 - self.mass) / (1 - held)
        return final * np.where(self.members, *scales)

    def least(self, action: Action, phi: Array) -> float:
        """The minimum of `F(q) + phi . q` over the populations `q` that meet the goal."""
        beta = action.energy.beta
        logs = np.log(action.kernel.stationary) - (action.energy.potential + phi) / beta
        inside, outside = logsumexp(logs[self.members]), logsumexp(logs[~self.members])
        a = max(self.mass, float(expit(inside - outside)))
        return float(beta * (a * (np.log(a) - inside) + (1 - a) * (np.log1p(-a) - outside)))


Goal = Target | Share


def checked_share(landscape: Landscape, raise_mass: tuple[Any, float]) -> Share:
    """The share that is to be raised, in the form `(states, share)`."""
    if landscape.energy.beta == 0:
        raise InputError("beta is 0; raising a share needs noise: give a target instead.")
    kernel, (states, share) = landscape.kernel, raise_mass
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
    return Share(np.isin(np.arange(kernel.n_states), found), mass)
