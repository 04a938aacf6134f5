"""The best potential and start at one beta and one prior, and the evidence for that pair.

At a fixed `beta` and prior the unknowns are `theta = (V, log rho_0)`. Integrating them out by
Laplace's method around their best values leaves the evidence

    log Z = -(half deviance + prior) + 1/2 log|P| - 1/2 log|I + P| + log hyper-prior.

A joint optimum over `beta` as well would slide to an end: a prior on `V` charges less the smaller
`V` and `beta` are together. The determinants undo that.

A solved cell also serves others at the same `beta`: to second order around it, their optima and
evidences under other priors cost one factorisation each and no flow (`Inner.expand`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from thalweg._types import Array
from thalweg.learn.few.blocks import Curvature, Information
from thalweg.learn.few.shapes import FieldPrior, Shape
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import IndependentObjective
from thalweg.learn.likelihood.optimize import Minimum
from thalweg.learn.likelihood.sparse.flow import Point
from thalweg.learn.likelihood.sparse.search import minimise_likelihood
from thalweg.learn.observation import CountModel, Multinomial
from thalweg.status import Status

__all__ = ["Cell", "Inner", "Place"]

_BETA_SPREAD = 3.0
"""Standard deviation of `log(beta T)` in the hyper-prior."""
_SIZE_SPREAD = 2.5
"""Standard deviation of the logarithm of the potential's size times `T`."""
_REFINEMENTS = 3
_MESH_SHARE = 0.02
"""Allowed error of the time steps per state, in units of the log likelihood."""
_PAIRS = 5
"""Pairs of draws for the next order of the evidence."""
_NEARLY_NORMAL = 2.0
"""Remainder of the first two pairs below which the others are not drawn."""
_ROUGHLY = 0.3
"""Log likelihood that a rough cell may leave to gain."""
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

    @cached_property
    def prior(self) -> FieldPrior:
        return FieldPrior(
            self.potential,
            self.initial,
            float(np.exp(self.log_strength)),
            float(np.exp(self.log_initial)),
        )


@dataclass(frozen=True, eq=False)
class Cell:
    """The best fit at a place, and its evidence."""

    place: Place
    theta: Array
    known: Information
    half_deviance: float
    log_evidence: float
    status: Status
    mesh: Mesh
    point: Any = None
    """The flow, for cells nearby."""
    solved: bool = True
    """False where it was expanded from a solved cell."""
    correction: float = 0.0
    """What Laplace's method leaves out; part of the evidence."""

    @property
    def information(self) -> Array:
        return self.known.matrix

    @property
    def precision(self) -> Array:
        return self.place.prior.precision

    @cached_property
    def curvature(self) -> Curvature:
        """Curvature of data and prior together, factored."""
        return Curvature(self.known, self.place.prior)

    @property
    def covariance(self) -> Array:
        """Covariance of (potential, initial log density), given the place."""
        return self.curvature.inverse

    def with_correction(self, correction: float) -> Cell:
        evidence = self.log_evidence - self.correction + correction
        cell = replace(self, log_evidence=evidence, correction=correction)
        vars(cell).update({k: v for k, v in vars(self).items() if k == "curvature"})
        return cell

    def forget(self, *, every: bool = False) -> None:
        """Discard the factored curvature: a lattice would hold hundreds of them.

        `every`: also what it shares with the cells that were expanded from the same one.
        """
        vars(self).pop("curvature", None)
        if every:
            self.known.forget()

    def used(self) -> tuple[float, float]:
        """Number of directions of the potential and of the start that the data determine."""
        return self.curvature.used()


@dataclass
class Inner:
    """Solves for cells on one data set; counts its work."""

    model: FlowModel
    counts: Array
    mesh: Mesh
    noise: CountModel = field(default_factory=Multinomial)
    tolerance: float = 0.03
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
        self,
        place: Place,
        theta: Array,
        mesh: Mesh | None = None,
        near: Cell | None = None,
        *,
        rough: bool = False,
    ) -> Cell | None:
        """The cell at a place, searched for from `theta`; None where there is no flow.

        Parameters
        ----------
        place : Its beta and priors.
        theta : Where the search begins.
        mesh : Time steps to begin with; refined where they are too coarse, unless `rough`.
        near : A cell close to it, whose flow and information help.
        rough : Whether a fit on the given mesh, short of convergence by less than one, will do.
        """
        beta = float(np.exp(place.log_beta))
        k = self.n
        scale = max(beta, float(np.std(theta[:k])), 0.1 / self.span)
        prior = replace(place.prior, scale=scale)
        objective = IndependentObjective(
            replace(self.model, fixed_beta=beta), self.counts, self.noise
        )
        mesh = self.mesh if mesh is None else mesh
        best: Minimum | None = None
        tried: list[Information] = [] if near is None else [near.known]

        def solver(information: Array) -> Callable[[Array], Array]:
            """Solves with the curvature of this information and the prior."""
            return Curvature(_known(tried, information), prior).solve

        for _ in range(_REFINEMENTS + 1):
            found = minimise_likelihood(
                objective, prior, theta, mesh, near=near,
                max_iterations=self.max_iterations,
                tolerance=_ROUGHLY if rough else self.tolerance,
                dense=False, solver=solver,
            )  # fmt: skip
            if found is not None:
                self.n_iterations += found.n_iterations
                best, theta = found, found.theta
                allowed = _MESH_SHARE * max(k, 10) * (1.0 if mesh.n_levels > 2 else _LOW_ORDER)
                fine = found.evaluation.mesh_error <= allowed
                if found.status is Status.INTERRUPTED:
                    raise KeyboardInterrupt
                if rough or (fine and found.status is not Status.STALLED):
                    break
            mesh = mesh.refined()
        if best is None:
            return None
        self.n_cells += 1
        known = _known(tried, best.evaluation.information)
        curvature = Curvature(known, prior)
        evidence = -best.value + 0.5 * (prior.log_determinant - curvature.log_determinant)
        correction = 0.0 if near is None else near.correction
        cell = Cell(
            place,
            best.theta,
            known,
            best.evaluation.value,
            evidence + self.size_prior(place.log_strength) + correction,
            best.status,
            mesh,
            best.point,
            correction=correction,
        )
        vars(cell)["curvature"] = curvature
        return cell

    def expand(self, near: Cell, place: Place) -> Cell:
        """The cell at a place of the same beta, to second order around a solved one.

        On lattices of 30 states the least values so found were within 0.3 of the searched ones,
        also 20 and more below the optimum, and half the logarithms of the determinants within 0.5
        where the evidence was within 2 of the best.
        """
        prior, pull = place.prior, near.place.prior.times(near.theta)
        curvature = Curvature(near.known, prior)
        step = -curvature.solve(prior.times(near.theta) - pull)
        theta = near.theta + step
        # At the solved cell's optimum the data pull as hard as its prior does.
        value = near.half_deviance - float(pull @ step)
        value += 0.5 * float(step @ near.information @ step)
        evidence = 0.5 * (prior.log_determinant - curvature.log_determinant)
        evidence -= value + 0.5 * float(theta @ prior.times(theta))
        cell = replace(
            near,
            place=place,
            theta=theta,
            half_deviance=value,
            log_evidence=evidence + self.size_prior(place.log_strength) + near.correction,
            solved=False,
        )
        vars(cell)["curvature"] = curvature
        return cell

    def corrected(self, cell: Cell) -> Cell:
        """The cell with the next order of Laplace's method in its evidence.

        The remainder `r` of the second-order expansion is sampled at pairs of opposite draws from
        the cell's normal distribution: `log E exp(-r)` is missing from the evidence. On 100 states
        with a rough potential and 300 individuals per snapshot that is 7 at five times the true
        beta and 12 near it: where states run empty the likelihood is wider than its curvature says.
        """
        if not isinstance(cell.point, Point) or cell.point.theta is not cell.theta:
            return cell
        middle = cell.point.coarsest()
        remainders: list[float] = []
        for k, normal in enumerate(self.normals):
            step = cell.curvature.spread(normal)
            up, down = (
                middle.flow.value_near(cell.theta + sign * step, middle) - middle.value
                for sign in (1.0, -1.0)
            )
            if not np.isfinite(up + down):
                continue
            square = 0.5 * float(np.vdot(middle.expected, middle.moved(step) ** 2))
            slope = float(middle.gradient @ step)
            remainders += [up - square - slope, down - square + slope]
            if k == 1 and np.abs(remainders).max() < _NEARLY_NORMAL:
                break
        if not remainders:
            return cell
        correction = float(np.logaddexp.reduce(np.negative(remainders)) - np.log(len(remainders)))
        return cell.with_correction(correction)

    def along_beta(self, cell: Cell) -> tuple[Array, float]:
        """How a solved cell's parameters follow `log beta`, and how its value bends there.

        To second order, with the data's information for a Hessian; nothing is known (zero, NaN)
        where the search kept no flow.
        """
        if not isinstance(cell.point, Point) or cell.point.theta is not cell.theta:
            return np.zeros_like(cell.theta), np.nan
        own, mixed = cell.point.about_beta
        slope = -cell.curvature.solve(mixed)
        return slope, own + float(mixed @ slope)

    @cached_property
    def normals(self) -> Array:
        """The same draws at every beta, so that differences between them are sharp."""
        return np.random.default_rng(0).standard_normal((_PAIRS, 2 * self.n))


def _known(tried: list[Information], matrix: Array) -> Information:
    """This information among those that were factored before, or a new one."""
    for known in tried:
        if known.matrix is matrix:
            return known
    tried.append(Information(matrix))
    return tried[-1]
