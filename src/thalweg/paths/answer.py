"""`Path`: what every method for a curve between two probabilities answers with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.paths.problem import PathProblem
from thalweg.status import Status

__all__ = ["Path"]

Array = NDArray[np.float64]


class Path(NamedTuple):
    """A curve on its mesh in time, its length, and what is known about the error."""

    problem: PathProblem
    """Carries the mesh on which the curve is given."""
    flux: Array
    """At the stages of the mesh, per edge."""
    rho: Array
    psi: Array
    distance: float
    upper: float
    """The distance is not larger, up to quadrature; infinite where no bound is known."""
    error: float
    """Estimated error of `distance`, discretisation and barrier together, absolute."""
    status: Status
    steps: int
    """Newton steps."""
    products: int
    """Inner iterations, each a Laplacian solve or a pass over all times."""
