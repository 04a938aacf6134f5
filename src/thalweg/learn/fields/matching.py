"""The slope in log beta that remains at fitted fields, by simulation.

Fields `z*` are drawn from the posterior, snapshots from their flow, and fields fitted to these
snapshots at the same beta and prior. The remaining slope of the log likelihood in log beta then
has, to first order, known mean zero parts (the score at `z*`, and the prior's pull at the draw),
which are subtracted: few simulations suffice. Draws are centred at the most likely fields, while
the truth lies around the posterior's mean. The effect of that difference on the slope shows in the
same simulations: the fit misses `z*` by more than linear theory predicts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from thalweg._types import Array
from thalweg.learn.fields.conjugate_gradients import conjugate_gradients
from thalweg.learn.fields.likelihood import Likelihood
from thalweg.learn.fields.spectral_solver import Curvature
from thalweg.learn.observation.multinomial import draw_multinomial

_STEPS = 5
_TRIES = 3
"""Draws per simulation asked for: some have no flow at the time steps of the fit."""
_ENOUGH = 0.01
"""Newton decrement per state at which a simulated fit ends: the rest moves the slope by about a
fifth of it."""


@dataclass(frozen=True)
class Matched:
    """The mean slope of simulated fits and its standard error."""

    slope: float
    error: float
    count: int


class Following(NamedTuple):
    """Fields at a log beta, and how they follow it to first order."""

    z: Array
    theta: float
    """The log beta."""
    along: Array
    """Derivative of the fields."""
    pull: Array
    """The prior's precision times `along`."""
    shrunk: Array
    """The inverse curvature times `pull`."""


def matched_slope(
    curvature: Curvature,
    preconditioner: Callable[[Array], Array],
    finer: Likelihood,
    here: Following,
    draws: Array,
    *,
    count: int,
    seed: int,
) -> Matched | None:
    """The slope at the fields `here.z`, from `count` simulations; None if hardly any has a flow.

    `finer` makes the snapshots; `draws` are of the posterior around these fields, used with both
    signs.
    """
    z, theta, along, pull, shrunk = here
    n = z.size // 2
    slopes: list[float] = []
    for k in range(_TRIES * count):
        if len(slopes) == count:
            break
        x = draws[:, (k // 2) % draws.shape[1]] * (1.0 if k % 2 == 0 else -1.0)
        true = finer.at(z[:n] + x[:n], z[n:] + x[n:], theta)
        if true is None:
            continue
        rng = np.random.default_rng([seed, k])
        counts = draw_multinomial(finer.counts, np.exp(true.log_p), rng)
        true = replace(true, likelihood=replace(finer, counts=counts))
        score, slope = true.score()
        known = slope + float(along @ score - pull @ x)
        fitted = _fitted(curvature, preconditioner, counts, z + x, theta, along)
        if fitted is None:
            continue
        found, best, gradient = fitted
        rest = score - curvature.prior(z + x) + gradient
        offset = float(pull @ (z + x - best) + shrunk @ rest)
        slopes.append(found - known - offset)
    if len(slopes) < max(2, count // 2):
        return None
    values = np.sort(slopes)
    trimmed = values[1:-1] if values.size >= 6 else values
    return Matched(
        float(trimmed.mean()), float(values.std(ddof=1) / np.sqrt(values.size)), values.size
    )


def _fitted(
    curvature: Curvature,
    preconditioner: Callable[[Array], Array],
    counts: Array,
    z: Array,
    theta: float,
    along: Array,
) -> tuple[float, Array, Array] | None:
    """The slope left at the fields that fit `counts` best, and these fields, starting at `z`.

    The slope is corrected for the gradient that is left; fields and gradient are as they are.
    """
    n = z.size // 2
    likelihood = replace(curvature.place.likelihood, counts=counts)
    place = likelihood.at(z[:n], z[n:], theta)
    if place is None:
        return None
    best = curvature.roughness(z) - place.log_likelihood
    for k in range(_STEPS + 1):
        score, slope = place.score()
        gradient = curvature.prior(z) - score
        left = slope - float(along @ gradient)
        about = 0.5 * float(gradient @ preconditioner(gradient[:, None])[:, 0])
        if k == _STEPS or about < _ENOUGH * n:
            break
        step, _ = conjugate_gradients(
            replace(curvature, place=place),
            -gradient[:, None],
            preconditioner,
            tolerance=0.25,
            least=0.1,
        )
        share = 1.0
        while share > 0.1:
            moved = z + share * step[:, 0]
            new = likelihood.at(moved[:n], moved[n:], theta)
            if new is not None:
                now = curvature.roughness(moved) - new.log_likelihood
                if now < best:
                    break
            share *= 0.5
        else:
            break
        z, place, best = moved, new, now
    return left, z, gradient
