"""Prior scales and beta by evidence: the likelihood with the fields integrated out.

MacKay's update sets a scale so that its coefficients are as large as the number of them that the
data determine. The log determinant of the curvature depends on beta; its slope is the `force` that
keeps the joint optimum from shrinking beta and the potential together. Both are traces, found from
random probes, with the preconditioner's exact ones as control.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg._types import Array
from thalweg.learn.fields.posterior import Point
from thalweg.learn.fields.preconditioner import Preconditioner, solve

_LEAST_SCALE = 1e-4
"""Least scale of a prior."""
_LARGEST_CHANGE = 6.0
"""Largest factor by which a scale changes in one update."""


@dataclass(frozen=True, eq=False)
class Probes:
    """Random signs `z`, `H^-1 z` and, last, `H^-1 e` with `e` the direction of log beta."""

    z: Array
    solved: Array
    along_beta: Array
    least_variance: float
    """Variance of log beta if all else were known: rough solves may fall below it."""

    @property
    def log_beta_variance(self) -> float:
        return max(float(self.along_beta[-1]), self.least_variance)


def least_variance(point: Point) -> float:
    """The variance of log beta if all else were known."""
    own = point.curvature(point.posterior.along_beta)[-1, 0]
    return 1.0 / max(float(own), 1e-300)


def probe(
    point: Point,
    preconditioner: Preconditioner,
    z: Array,
    tolerance: float,
    before: Probes | None = None,
) -> Probes:
    """Solve for the probes and for the direction of log beta together, starting from `before`."""
    z = z.copy()
    z[-1] = 0.0
    right = np.concatenate([z, point.posterior.along_beta], axis=1)
    guess = None if before is None else np.column_stack([before.solved, before.along_beta])
    solved, _ = solve(
        point, right, preconditioner,
        tolerance=tolerance, min_iterations=3, max_iterations=50, guess=guess,
    )  # fmt: skip
    return Probes(z, solved[:, :-1], solved[:, -1], least_variance(point))


def updated_scales(
    point: Point, preconditioner: Preconditioner, probes: Probes | None, relaxation: float = 1.0
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """New scales of the two priors, and the number of coefficients of each that data determine.

    Without probes the preconditioner replaces the curvature. The plain update slows down near its
    end; a `relaxation` above one speeds it up.
    """
    post = point.posterior
    correction = np.zeros(post.size)
    if probes is not None:
        correction = np.mean(probes.z * (probes.solved - preconditioner(probes.z)), axis=1)
    parts = zip(
        post.split(point.z)[:2],
        post.split(correction)[:2],
        post.priors,
        preconditioner.well_determined(),
        strict=True,
    )
    scales, counts = [], []
    for w, rest, prior, known in parts:
        groups = prior.groups
        sizes = np.bincount(groups)
        determined = known - np.bincount(groups, rest)
        determined = np.clip(determined, 1e-3 * np.minimum(sizes, 100), sizes)
        power = np.bincount(groups, w**2)
        ratio = (np.maximum(power, 1e-300) / determined) ** (0.5 * relaxation)
        ratio = np.clip(ratio, 1 / _LARGEST_CHANGE, _LARGEST_CHANGE)
        scales.append(np.maximum(prior.scales * ratio, _LEAST_SCALE))
        counts.append(determined)
    return (scales[0], scales[1]), (counts[0], counts[1])


def slope_of_log_determinant(point: Point, probes: Probes) -> float:
    """`d log det H / d log beta` with the fields at their best for every beta.

    `tr(H^-1 dH)`, the difference of `H` taken along `d(fields) / d log beta`.
    """
    direction = probes.along_beta / probes.along_beta[-1]
    # A fraction of a standard error: far below the nonlinearity of H, far above rounding.
    delta = min(0.05, 0.5 * np.sqrt(probes.log_beta_variance))
    ahead, behind = (point.posterior.point(point.z + sign * delta * direction) for sign in (1, -1))
    if ahead is None or behind is None:
        return 0.0
    change = ahead.curvature(probes.z) - behind.curvature(probes.z)
    change[-1] = 0.0
    return float(np.mean(np.sum(probes.solved * change, axis=0)) / (2 * delta))
