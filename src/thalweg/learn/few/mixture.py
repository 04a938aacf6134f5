"""Several landscapes with weights: the answer where the data do not single one out."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._types import Array

__all__ = ["Mixture"]


@dataclass(frozen=True, eq=False)
class Mixture:
    """Weighted landscapes, each with its own start; forecasts average over them.

    Parameters
    ----------
    weights : Weights that sum to one, heaviest first, shape (members,).
    potentials : Centred potentials, shape (members, N).
    betas : Noise levels, shape (members,).
    initials : Distributions at the first time, shape (members, N).

    >>> import numpy as np
    >>> two = Mixture(np.array([0.5, 0.5]), np.zeros((2, 3)), np.ones(2), np.full((2, 3), 1 / 3))
    >>> two.size
    2
    """

    weights: Array
    potentials: Array
    betas: Array
    initials: Array

    @property
    def size(self) -> int:
        return int(self.weights.size)
