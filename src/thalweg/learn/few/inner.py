"""The best potential and start at one beta and one prior, and the evidence for that pair.

At a fixed `beta` and prior the unknowns are `theta = (V, log rho_0)`. Integrating them out by
Laplace's method around their best values leaves the evidence

    log Z = -(half deviance + prior) + 1/2 log|P| - 1/2 log|I + P| + log hyper-prior.

A joint optimum over `beta` as well would slide to an end: a prior on `V` charges less the smaller
`V` and `beta` are together. The determinants undo that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh

from thalweg.learn.few.shapes import FieldPrior, Shape
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import IndependentObjective
from thalweg.learn.likelihood.optimize import Minimum
from thalweg.learn.likelihood.sparse.search import minimise_likelihood
from thalweg.learn.observation import CountModel, Multinomial
from thalweg.status import Status

__all__ = ["Cell", "Inner", "Place"]

Array = NDArray[np.float64]

_LEAST_CURVATURE = 1e-15  # of the largest

_BETA_SPREAD = 3.0
"""Standard deviation of `log(beta T)` in the hyper-prior."""
_SIZE_SPREAD = 2.5
"""Standard deviation of the logarithm of the potential's size times `T`."""
_REFINEMENTS = 3
_MESH_SHARE = 0.02
"""Allowed error of the time steps per state, in units of the log likelihood."""
_LOW_ORDER = 4.0
"""With two chains the estimate is that of first order: that much above the error itself."""


@dataclass(frozen=True)
class Place:
    """A point of the lattice: `log beta`, log strengths, and the shapes of both priors."""

    log_beta: float
    log_strength: float
    log_initial: float
    potential: Shape
    initial: Shape


@dataclass(frozen=True, eq=False)
class Cell:
    """The best fit at a place, and its evidence."""

    place: Place
    theta: Array
    information: Array
    precision: Array
    half_deviance: float
    log_evidence: float
    status: Status
    mesh: Mesh
    point: Any = None
    """The flow, for cells nearby."""

    @cached_property
    def covariance(self) -> Array:
        """Of (potential, initial log density), given the place."""
        return _solved(self.information + self.precision, np.eye(self.theta.size))

    def used(self, part: slice, shape: Shape, strength: float) -> float:
        """How many directions of a part of `theta` the data determine."""
        held = strength * float(np.sum(self.covariance[part, part] * shape.matrix))
        return max(shape.matrix.shape[0] - held, 0.1)


@dataclass
class Inner:
    """Solves for cells on one data set; counts its work."""

    model: FlowModel
    counts: Array
    mesh: Mesh
    noise: CountModel = field(default_factory=Multinomial)
    tolerance: float = 1e-2
    max_iterations: int = 60
    n_iterations: int = 0
    n_cells: int = 0
    span: float = field(init=False)

    def __post_init__(self) -> None:
        self.span = float(self.model.times[-1] - self.model.times[0])

    @property
    def n(self) -> int:
        return self.model.n_states

    def beta_prior(self, log_beta: float) -> float:
        """Log hyper-prior of `log beta`, without its constant."""
        return -0.5 * ((log_beta + float(np.log(self.span))) / _BETA_SPREAD) ** 2

    def size_prior(self, log_strength: float) -> float:
        """Log hyper-prior of the potential's size, without its constant.

        Below `1 / T` it is flat in the size itself, so that a vanishing potential stays possible.
        """
        size = -0.5 * log_strength + float(np.log(self.span))
        return size if size < 0 else -0.5 * (size / _SIZE_SPREAD) ** 2

    def solve(
        self, place: Place, theta: Array, mesh: Mesh | None = None, near: Cell | None = None
    ) -> Cell | None:
        """The cell at a place, searched for from `theta`; None where there is no flow.

        `near`: a cell close to it, whose flow and information help; where `theta` is that cell's at
        the same beta, the search begins one Newton step on, for which no flow is needed.
        """
        beta = float(np.exp(place.log_beta))
        k = self.n
        scale = max(beta, float(np.std(theta[:k])), 0.1 / self.span)
        prior = FieldPrior(
            place.potential,
            place.initial,
            float(np.exp(place.log_strength)),
            float(np.exp(place.log_initial)),
            scale,
        )
        objective = IndependentObjective(
            replace(self.model, fixed_beta=beta), self.counts, self.noise
        )
        mesh = self.mesh if mesh is None else mesh
        if near is not None and near.place.log_beta == place.log_beta and theta is near.theta:
            theta = _moved(near, prior.precision)
        best: Minimum | None = None
        for _ in range(_REFINEMENTS + 1):
            found = minimise_likelihood(
                objective, prior, theta, mesh,
                max_iterations=self.max_iterations, tolerance=self.tolerance, near=near,
            )  # fmt: skip
            if found is not None:
                self.n_iterations += found.n_iterations
                best, theta = found, found.theta
                allowed = _MESH_SHARE * max(k, 10) * (1.0 if mesh.n_levels > 2 else _LOW_ORDER)
                fine = found.evaluation.mesh_error <= allowed
                if found.status is Status.INTERRUPTED:
                    raise KeyboardInterrupt
                if fine and found.status is not Status.STALLED:
                    break
            mesh = mesh.refined()
        if best is None:
            return None
        self.n_cells += 1
        information, precision = best.evaluation.information, prior.precision
        _, log_curvature = np.linalg.slogdet(information + precision)
        evidence = -best.value + 0.5 * prior.log_determinant - 0.5 * float(log_curvature)
        return Cell(
            place,
            best.theta,
            information,
            precision,
            best.evaluation.value,
            evidence + self.size_prior(place.log_strength),
            best.status,
            mesh,
            best.point,
        )


def _moved(near: Cell, precision: Array) -> Array:
    """Where a cell's optimum goes under another prior, by one Newton step."""
    pull = (precision - near.precision) @ near.theta
    return near.theta - _solved(near.information + precision, pull)


def _solved(matrix: Array, right: Array) -> Array:
    """`matrix^-1 right`; directions that rounding has left without curvature are nearly free."""
    try:
        return np.asarray(cho_solve(cho_factor(matrix), right))
    except LinAlgError:
        values, vectors = eigh(matrix)
        values = np.maximum(values, _LEAST_CURVATURE * values[-1])
        return np.asarray(vectors @ ((vectors.T @ right).T / values).T)
