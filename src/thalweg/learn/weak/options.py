"""The options of the weak form, and the checks of what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from thalweg import _checks
from thalweg._door import check_kinds
from thalweg._types import Array
from thalweg.energy import InternalEnergy
from thalweg.errors import InputError
from thalweg.learn.time_basis import TimeBasis
from thalweg.learn.weak.terms import Quadrature, Weighting
from thalweg.mobility import Mobility, as_mobility

Ridge = float | Literal["auto"]


@dataclass(frozen=True)
class WeakOptions:
    """The loss that is minimised, and terms beside a fixed potential and the entropy.

    Parameters
    ----------
    quadrature : {"trapezoid", "midpoint", "right"}
        The first two are of second order in the time step; `"right"` is the paper's JKO condition.
    weighting : {"metric", "paper", "paper-edges"}
        The metric, or the paper's expectation over sampled states, over all pairs or over edges.
    ridge : float or "auto"
        Strength of the penalty `V^T L V` with the kernel's Laplacian `L`. `"auto"` takes the one of
        least estimated risk given the sampling noise of snapshots of the given sizes; without
        sizes there is no ridge.
    mobility : Mobility, optional
        By default the logarithmic mean.
    internal : InternalEnergy, optional
        By default the entropy.
    features : array, optional
        The potential is linear in them, shape `(N, d)`.
    interactions : sequence of matrices
        Symmetric matrices `B_i` whose strengths are learned.
    time_basis : TimeBasis, optional
        For a potential that varies in time.
    tolerance : float
        Relative energy error of the Laplacian solves.
    """

    quadrature: Quadrature = "trapezoid"
    weighting: Weighting = "metric"
    ridge: Ridge = "auto"
    mobility: Mobility | None = None
    internal: InternalEnergy | None = None
    features: ArrayLike | None = None
    interactions: Sequence[ArrayLike | sparse.sparray] = ()
    time_basis: TimeBasis | None = None
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        as_mobility(self.mobility)
        check_kinds(WeakOptions.__init__, vars(self))


def check_positive(p: Array) -> None:
    lowest = p.min()
    if lowest <= 0:
        k, x = (int(i) for i in np.argwhere(p == lowest)[0])
        raise InputError(
            f"probabilities[{k}] is {p[k, x]:.3g} at state {x}, where the entropy has no "
            "derivative; smooth the counts, for instance with (counts + 0.5) / total, or give "
            "beta=0."
        )


def as_sizes(sizes: ArrayLike, count: int) -> Array:
    array = _checks.as_array(sizes, "sizes")
    if array.shape != (count,) or array.min() <= 0:
        raise InputError(
            f"sizes must be one positive number of samples per time, shape ({count},), not "
            f"{array.tolist() if array.size < 10 else array.shape}."
        )
    return array
