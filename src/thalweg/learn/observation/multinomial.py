"""New, independent individuals at every time: multinomial counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg._types import Array
from thalweg.learn.likelihood.deviance import expected_deviance
from thalweg.learn.observation.model import CountModel, Terms

_NOTICEABLE = 0.05
"""Excess over the expected count, relative to it, above which the curvature is raised."""


@dataclass(frozen=True)
class Multinomial(CountModel):
    """Counts of individuals that are in state `x` with probability `p_x`, independently.

    >>> Multinomial().deviance(np.array([[2.0, 2.0]]), np.array([[0.5, 0.5]]))
    0.0
    """

    def terms(self, counts: Array, log_p: Array) -> Terms:
        expected = counts.sum(axis=1, keepdims=True) * np.exp(log_p)
        gap = counts - expected
        raised = np.where(gap > _NOTICEABLE * expected, expected + gap, expected)
        return Terms(-float(np.vdot(counts, log_p)), gap, expected, raised)

    def saturated(self, counts: Array) -> float:
        share = counts / counts.sum(axis=1, keepdims=True)
        return float(np.sum(counts * np.log(np.where(share > 0, share, 1.0))))

    def draw(self, counts: Array, p: Array, rng: np.random.Generator) -> Array:
        return draw_multinomial(counts, p, rng)

    def expected_deviance(self, counts: Array, p: Array) -> tuple[float, float]:
        return expected_deviance(counts.sum(axis=1), p)


def draw_multinomial(counts: Array, p: Array, rng: np.random.Generator) -> Array:
    """Draw as many individuals as in each row of `counts`, rounded, from the rows of `p`."""
    sizes = np.maximum(np.rint(counts.sum(axis=1)), 1).astype(np.int64)
    rows = [rng.multinomial(n, row / row.sum()) for n, row in zip(sizes, p, strict=True)]
    return np.array(rows, dtype=np.float64)
