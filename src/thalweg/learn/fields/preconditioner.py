"""An inverse of the curvature that is exact in the smooth directions, and conjugate gradients.

The information `F` of the data about the fields is replaced by its part in the span of the smooth
functions, `F ~ Q G Q^T` with `G = Phi^T F Phi` and `Q = Phi (Phi^T Phi)^-1`. With
`T = Q^T B` the curvature becomes `P + T^T G T`, `P` the precision of the white coefficients, and
Woodbury's identity inverts it with one small dense matrix. `G` does not depend on the prior's
scales, so it survives their updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

from thalweg._types import Array
from thalweg.learn.fields.conjugate_gradients import conjugate_gradients
from thalweg.learn.fields.prior import FieldPrior

if TYPE_CHECKING:
    from thalweg.learn.fields.posterior import Point, Posterior

_BATCH = 32
"""Tangents computed together."""


@dataclass(frozen=True, eq=False)
class _Span:
    """The dual functions `Q` of a prior's smooth part, and `Q^T B B^T Q` of each component."""

    dual: Array
    rough: tuple[Array, ...]

    @staticmethod
    def of(prior: FieldPrior) -> _Span:
        dual = linalg.solve(prior.basis.T @ prior.basis, prior.basis.T, assume_a="pos").T
        rough = []
        for i in range(len(prior.spreads)):
            noise = prior.noise(dual, i)
            rough.append(noise.T @ noise)
        return _Span(np.ascontiguousarray(dual), tuple(rough))

    def covariance(self, prior: FieldPrior) -> Array:
        """`Q^T B B^T Q`."""
        out = np.diag(prior.scales[prior.group] ** 2)
        for scale, gram in zip(prior.rough_scales, self.rough, strict=True):
            out += scale**2 * gram
        return out


@dataclass(frozen=True, eq=False)
class Information:
    """`G` at one point of the posterior, split as `root root^T`."""

    spans: tuple[_Span, _Span]
    root: Array

    @staticmethod
    def at(point: Point, spans: tuple[_Span, _Span] | None = None) -> Information:
        """One tangent of the flow for every smooth function, in batches."""
        post = point.posterior
        if spans is None:
            spans = (_Span.of(post.initial), _Span.of(post.potential))
        m0, mV = post.initial.n_smooth, post.potential.n_smooth
        p = np.exp(point.place.log_p)
        count, n = m0 + mV + 1, p.shape[1]
        root = np.sqrt(post.likelihood.totals[:, None] * p)
        jacobian = np.empty((p.size, count), dtype=np.float32)
        for start in range(0, count, _BATCH):
            columns = np.arange(start, min(start + _BATCH, count))
            du0, dV = np.zeros((n, columns.size)), np.zeros((n, columns.size))
            first, second = columns < m0, (columns >= m0) & (columns < m0 + mV)
            du0[:, first] = post.initial.basis[:, columns[first]]
            dV[:, second] = post.potential.basis[:, columns[second] - m0]
            dl = point.push(du0, dV, (columns == count - 1).astype(np.float64), tolerance=1e-4)
            dl -= np.einsum("kx,kxj->kj", p, dl)[:, None, :]
            jacobian[:, columns] = (root[:, :, None] * dl).reshape(-1, columns.size)
        gram = np.zeros((count, count))
        rows = max(1, 4_000_000 // count)
        for start in range(0, jacobian.shape[0], rows):
            part = jacobian[start : start + rows]
            gram += part.T @ part
        values, vectors = linalg.eigh(gram)
        return Information(spans, vectors * np.sqrt(np.maximum(values, 0.0)))


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """`(P + T^T G T)^-1` for the scales of one posterior."""

    posterior: Posterior
    information: Information
    damping: float
    inverse: Array
    """The diagonal of `P^-1`, as a column."""
    middle: Array
    """`(G^-1 + T P^-1 T^T)^-1`."""

    @staticmethod
    def of(posterior: Posterior, information: Information, damping: float = 0.0) -> Preconditioner:
        inverse = np.full((posterior.size, 1), 1.0 / (1.0 + damping))
        inverse[-1] = 1.0 / (posterior.log_beta_precision + damping)
        blocks = [
            span.covariance(prior) / (1.0 + damping)
            for span, prior in zip(information.spans, posterior.priors, strict=True)
        ]
        root = information.root
        small = np.eye(root.shape[0]) + root.T @ linalg.block_diag(*blocks, inverse[-1]) @ root
        middle = root @ linalg.solve(small, root.T, assume_a="pos")
        return Preconditioner(posterior, information, damping, inverse, middle)

    def __call__(self, v: Array) -> Array:
        first, second = (span.dual for span in self.information.spans)
        scaled = self.inverse * v
        u0, V, theta = self.posterior.fields(scaled)
        y = self.middle @ np.concatenate([first.T @ u0, second.T @ V, theta[None]])
        m = first.shape[1]
        back = self.posterior.transpose(first @ y[:m], second @ y[m:-1], y[-1])
        return np.asarray(scaled - self.inverse * back)

    def well_determined(self) -> tuple[Array, Array]:
        """The number of coefficients that the data determine, per scale of the two priors."""
        out, start = [], 0
        for span, prior in zip(self.information.spans, self.posterior.priors, strict=True):
            m = prior.n_smooth
            block = self.middle[start : start + m, start : start + m]
            diagonal = np.diag(block) * prior.scales[prior.group] ** 2
            bands = np.bincount(prior.group, diagonal)
            rough = [
                scale**2 * float(np.sum(block * gram))
                for scale, gram in zip(prior.rough_scales, span.rough, strict=True)
            ]
            out.append(np.concatenate([bands, rough]))
            start += m
        return out[0], out[1]


def solve(
    point: Point,
    right: Array,
    preconditioner: Preconditioner,
    *,
    tolerance: float,
    min_iterations: int = 0,
    max_iterations: int = 200,
    guess: Array | None = None,
) -> tuple[Array, int]:
    """`H^-1 right` for every column, by conjugate gradients, and the iterations it took.

    `H` includes the preconditioner's damping. By default the guess is the preconditioner's answer.
    """
    damping = preconditioner.damping
    return conjugate_gradients(
        lambda z: point.curvature(z, damping), right, preconditioner, tolerance=tolerance,
        min_iterations=min_iterations, max_iterations=max_iterations,
        guess=preconditioner(right) if guess is None else guess,
    )  # fmt: skip
