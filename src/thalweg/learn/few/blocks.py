"""Curvature of potential and start together, factored by blocks.

A lattice holds many cells that share the data's information and the prior of the start, and differ
in the prior of the potential alone. With the start integrated out once (a Schur complement), each
of them costs a factorisation of N rows instead of 2 N, an eighth of the work.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.linalg import LinAlgError
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtrs

from thalweg._types import Array
from thalweg.learn.few.shapes import FieldPrior
from thalweg.learn.likelihood.inverse import symmetric

__all__ = ["Curvature", "Information", "inverse_of"]

_RAISED = (0.0, 1e-15, 1e-13, 1e-11, 1e-9)
"""Shares of the greatest diagonal entry that are added where rounding left no curvature."""


def _factored(matrix: Array) -> Array:
    """The lower factor; directions that rounding left without curvature are nearly free."""
    top = float(matrix.diagonal().max())
    for share in _RAISED:
        raised = matrix + np.diag(np.full(matrix.shape[0], share * top)) if share else matrix
        # Symmetric: transposed it is in LAPACK's order. SciPy's checks of so many small matrices
        # would show.
        factor, failed = dpotrf(raised.T, lower=1)
        if not failed:
            return np.asarray(factor)
    raise LinAlgError("the curvature is not positive")


def _triangular(factor: Array, right: Array, *, transposed: bool = False) -> Array:
    """`L^-1 x`, or `L^-T x`, for the lower factor `L`."""
    return np.asarray(dtrtrs(factor, right, lower=1, trans=int(transposed))[0])


def _inverse(factor: Array) -> Array:
    return symmetric(dpotri(factor, lower=1)[0])


def inverse_of(matrix: Array) -> Array:
    """The inverse of a positive matrix.

    >>> inverse_of(np.diag([2.0, 4.0])).diagonal()
    array([0.5 , 0.25])
    """
    return _inverse(_factored(matrix))


def _log_determinant(factor: Array) -> float:
    return 2.0 * float(np.log(factor.diagonal()).sum())


class Information:
    """The data's information about (potential, start), shape (2 N, 2 N).

    Keeps the last start that was integrated out, for other priors of the potential.
    """

    def __init__(self, matrix: Array) -> None:
        self.matrix = matrix
        self._latest: Start | None = None

    def start(self, prior: FieldPrior) -> Start:
        """The start integrated out under its prior."""
        found = self._latest
        if found is None or not found.fits(prior):
            found = self._latest = Start(self.matrix, prior)
        return found

    def forget(self) -> None:
        """Discard what can be computed again."""
        self._latest = None


class Start:
    """The start integrated out, under one prior of it.

    With `M` the start's own curvature, `M = L L^T`, and `B` its mixed one with the potential: the
    potential keeps the information `I - B^T M^-1 B = I - W^T W`, where `W = L^-1 B`.
    """

    def __init__(self, information: Array, prior: FieldPrior) -> None:
        n = prior.initial.matrix.shape[0]
        self.shape, self.strength = prior.initial, prior.initial_strength
        self.factor = _factored(information[n:, n:] + self.strength * self.shape.matrix)
        self.log_determinant = _log_determinant(self.factor)
        self.mixed = _triangular(self.factor, information[n:, :n])
        lower = dsyrk(1.0, self.mixed, trans=1, lower=1)
        self.reduced = information[:n, :n] - symmetric(lower)

    def fits(self, prior: FieldPrior) -> bool:
        return prior.initial is self.shape and prior.initial_strength == self.strength

    def up(self, x: Array) -> Array:
        """`L^-1 x`."""
        return _triangular(self.factor, x)

    def down(self, x: Array) -> Array:
        """`L^-T x`."""
        return _triangular(self.factor, x, transposed=True)

    @cached_property
    def answer(self) -> Array:
        """How the start gives way to the potential: `M^-1 B`."""
        return self.down(self.mixed)

    @cached_property
    def held(self) -> tuple[float, Array]:
        """The prior's share of the start's curvature: on its own, and by way of the potential."""
        own = float(np.vdot(_inverse(self.factor), self.shape.matrix))
        return own, np.asarray(self.answer.T @ (self.shape.matrix @ self.answer))

    def covariance(self, potential: Array) -> Array:
        """Of (potential, start), from that of the potential."""
        n = potential.shape[0]
        total = np.empty((2 * n, 2 * n))
        both = potential @ self.answer.T
        total[:n, :n] = potential
        total[:n, n:], total[n:, :n] = -both, -both.T
        total[n:, n:] = _inverse(self.factor) + self.answer @ both
        return total


class Curvature:
    """Curvature of data and prior together, factored.

    Parameters
    ----------
    information : The data's.
    prior : Of potential and start.
    """

    def __init__(self, information: Information, prior: FieldPrior) -> None:
        self.prior, self.start = prior, information.start(prior)
        own = self.start.reduced + prior.potential_strength * prior.potential.matrix
        self.factor = _factored(own)
        self.log_determinant = self.start.log_determinant + _log_determinant(self.factor)

    def solve(self, right: Array) -> Array:
        n, start = self.factor.shape[0], self.start
        up = start.up(right[n:])
        v = dpotrs(self.factor, right[:n] - start.mixed.T @ up, lower=1)[0]
        return np.concatenate([v, start.down(up - start.mixed @ v)])

    def spread(self, normal: Array) -> Array:
        """A draw with this inverse covariance, from a standard normal one."""
        n, start = self.factor.shape[0], self.start
        v = _triangular(self.factor, normal[:n], transposed=True)
        return np.concatenate([v, start.down(normal[n:] - start.mixed @ v)])

    @property
    def potential_covariance(self) -> Array:
        """Covariance of the potential, the start integrated out."""
        return _inverse(self.factor)

    @property
    def inverse(self) -> Array:
        """Covariance of (potential, start)."""
        return self.start.covariance(self.potential_covariance)

    def used(self) -> tuple[float, float]:
        """Number of directions of the potential and of the start that the data determine."""
        n, prior, covariance = self.factor.shape[0], self.prior, self.potential_covariance
        own, through = self.start.held
        held = prior.potential_strength * float(np.vdot(covariance, prior.potential.matrix))
        held0 = prior.initial_strength * (own + float(np.vdot(covariance, through)))
        return max(n - held, 0.1), max(n - held0, 0.1)
