"""Solution of the weak form's normal equations: a Laplacian with a border, and a ridge.

Minimise `x^T A x + 2 x^T C theta + theta^T G theta - 2 l^T x - 2 m^T theta + lambda x^T P x` with
`theta_0 = beta >= 0`. Eliminating `x` leaves a system as small as `theta` is short, so the cost is
that of the solves `A_lambda^-1 [l, C]`, `A_lambda = A + lambda P`.

The ridge is chosen by the unbiased estimate of the risk (Stein, Mallows): the load `l = p_0 - p_T`
carries sampling noise whose covariance `Z Z^T` is known from the sizes of the snapshots, and

    risk(lambda) = misfit(x_lambda, theta_lambda) + 2 trace(Z^T A_lambda^-1 Z)

has the expectation `E |x_lambda - x|_A^2` up to a constant.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import LinearOperator, cg

from thalweg._types import Array
from thalweg.edges import static
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import Factor, LaplacianSolver
from thalweg.learn.weak.terms import EdgeForm, Form, PairForm, WeakSystem
from thalweg.status import Status

DENSE_SIZE = 400
"""Number of unknowns up to which the matrices are dense."""

SMALLEST_RIDGE = 1e-12
"""Share of the largest eigenvalue of `(A, P)` below which the automatic ridge is rounding."""

_SINGULAR = 1e-10
"""Relative size below which a direction is not determined."""

_RIDGES = np.geomspace(SMALLEST_RIDGE, 1e2, 57)


class Minimum(NamedTuple):
    """Potentials and `theta` at a ridge, and how the solves ended."""

    potentials: Array
    """`(blocks, N)`."""
    theta: Array
    schur: Array
    """The Schur complement left for `theta`."""
    ridge: float
    status: Status


@dataclass(frozen=True, eq=False)
class Problem(ABC):
    """`A` and `P` behind a solve; the arrays are named as in the text."""

    load: Array
    columns: Array
    gram: Array
    moments: Array
    noise: Array

    @abstractmethod
    def solve(self, right: Array, ridge: float, tolerance: float) -> tuple[Array, Status]:
        """`A_ridge^-1` of the columns of `right`."""

    @abstractmethod
    def lift(self, x: Array) -> Array:
        """The potentials, `(blocks, N)`, that `x` stands for."""

    @abstractmethod
    def restrict(self, load: Array) -> Array:
        """Columns of loads on the states, of a fixed potential, as loads on `x`."""


# ------------------------------------------------------------------------ the two problems


@dataclass(frozen=True, eq=False)
class DenseProblem(Problem):
    """Small, or a potential in few features: `A` and `P` are dense and positive definite."""

    a: Array
    p: Array
    basis: Array
    """`(N, dim)`: the potential of every block is a combination of its columns."""

    def solve(self, right: Array, ridge: float, tolerance: float) -> tuple[Array, Status]:
        matrix = self.a + ridge * self.p if ridge else self.a
        factor, info = linalg.lapack.dpotrf(matrix, lower=1)
        if info == 0:
            x = linalg.lapack.dpotrs(factor, right, lower=1)[0]
            # One step of refinement: the weights may span many decades.
            x += linalg.lapack.dpotrs(factor, right - matrix @ x, lower=1)[0]
            return np.asarray(x), Status.CONVERGED
        values, vectors = linalg.eigh(matrix)
        keep = values > 1e-14 * max(values[-1], 0.0)
        inverse = np.where(keep, 1.0 / np.where(keep, values, 1.0), 0.0)
        return vectors @ (inverse[:, None] * (vectors.T @ right)), Status.CONVERGED

    def lift(self, x: Array) -> Array:
        return np.asarray(x.reshape(-1, self.basis.shape[1]) @ self.basis.T)

    def restrict(self, load: Array) -> Array:
        return np.asarray(self.basis.T @ load)


@dataclass(frozen=True, eq=False)
class GraphProblem(Problem):
    """Many states: Laplacian solves; conjugate gradients if the potential varies in time.

    `P` is a Laplacian of the graph, and `A` one of the graph or of all pairs of states.
    """

    kernel: MarkovKernel
    system: WeakSystem
    time_gram: Array
    solver: LaplacianSolver
    last: dict[float, list[Factor]] = field(default_factory=dict)
    """The factors of the last ridge."""

    def factors(self, ridge: float) -> list[Factor]:
        """One per block of the time basis."""
        if ridge not in self.last:
            self.last.clear()
            ridges = ridge * self.kernel.edges.conductance
            weights = self.system.weights
            if isinstance(self.system.form, PairForm):
                diagonal = self.system.form.diagonal(weights[0, 0])
                self.last[ridge] = [self.solver.factor(ridges, diagonal)]
            else:
                self.last[ridge] = [
                    self.solver.factor(weights[a, a] + share * ridges)
                    for a, share in enumerate(np.diag(self.time_gram))
                ]
        return self.last[ridge]

    def solve(self, right: Array, ridge: float, tolerance: float) -> tuple[Array, Status]:
        form = self.system.form
        if isinstance(form, PairForm):
            return self._solve_pairs(form, right, ridge, tolerance)
        factors = self.factors(ridge)
        if len(factors) == 1:
            found = factors[0].solve(right, tolerance=tolerance)
            return found.x, found.status

        def precondition(r: Array) -> Array:
            blocks = self.lift(r)
            blocks = blocks - blocks.mean(axis=1, keepdims=True)
            solved = [f.solve(b, tolerance=1e-12).x for f, b in zip(factors, blocks, strict=True)]
            return np.concatenate(solved)

        shape = (right.shape[0], right.shape[0])
        operator = LinearOperator(shape, matvec=lambda x: self.apply(x, ridge), dtype=np.float64)
        inverse = LinearOperator(shape, matvec=precondition, dtype=np.float64)
        out, status = np.empty_like(right), Status.CONVERGED
        for i, column in enumerate(right.T):
            out[:, i], info = cg(operator, column, rtol=0.1 * tolerance, maxiter=500, M=inverse)
            if info:
                status = Status.MAX_ITERATIONS
        return out, status

    def _solve_pairs(
        self, form: PairForm, right: Array, ridge: float, tolerance: float
    ) -> tuple[Array, Status]:
        """`diag(N P + t) + ridge L - 1 P^T` in the gauge `sum x = 0`: rank one on a solve."""
        weights, status = self.system.weights[0, 0], Status.CONVERGED
        ones = np.concatenate([right, np.ones((weights.size, 1))], axis=1)
        if ridge:
            found = self.factors(ridge)[0].solve(ones, tolerance=tolerance)
            solved, status = found.x, found.status
        else:
            solved = ones / form.diagonal(weights)[:, None]
        level = weights @ solved
        return solved[:, :-1] + np.outer(solved[:, -1], level[:-1] / (1 - level[-1])), status

    def apply(self, x: Array, ridge: float) -> Array:
        """`A_ridge x`."""
        v = self.lift(x)
        out = np.zeros_like(v)
        for (a, b), weights in self.system.weights.items():
            out[a] += self.system.form.apply(weights, v[b])
            if a != b:
                out[b] += self.system.form.apply(weights, v[a])
        return out.ravel() + ridge * self.roughness(x)

    def roughness(self, x: Array) -> Array:
        """`P x`."""
        source, target, conductance = self.kernel.edges
        mixed = self.time_gram @ self.lift(x)
        rows = [static.apply_laplacian(source, target, conductance, v) for v in mixed]
        return np.concatenate(rows)

    def lift(self, x: Array) -> Array:
        return x.reshape(self.time_gram.shape[0], -1)

    def restrict(self, load: Array) -> Array:
        return load


def problem_of(
    kernel: MarkovKernel, system: WeakSystem, features: Array | None, time_gram: Array
) -> Problem:
    """The problem in the unknowns that are left: potentials, or their weights in features."""
    size, n = system.load.shape
    q = system.gram.shape[0]
    if features is None and size * n > DENSE_SIZE:
        pairs = isinstance(system.form, PairForm)
        if pairs and size > 1:
            raise InputError(
                f"weighting='paper' with a potential varying in time needs at most {DENSE_SIZE} "
                f"unknowns, not {size * n}; use weighting='paper-edges' or 'metric'."
            )
        return GraphProblem(
            system.load.ravel(),
            system.columns.reshape(size * n, q),
            system.gram,
            system.moments,
            system.noise.reshape(size * n, -1),
            kernel,
            system,
            time_gram,
            LaplacianSolver.for_kernel(kernel, grounded=pairs),
        )
    # State 0 is the ground: a constant changes nothing.
    basis = np.eye(n)[:, 1:] if features is None else _independent(kernel, features)
    dim = basis.shape[1]
    a = np.zeros((size, dim, size, dim))
    for (i, j), weights in system.weights.items():
        block = _quadratic(system.form, weights, basis)
        a[i, :, j, :] = block
        if i != j:
            a[j, :, i, :] = block.T
    penalty = _quadratic(EdgeForm(kernel, None), kernel.edges.conductance, basis)
    return DenseProblem(
        (system.load @ basis).ravel(),
        np.einsum("anq,nd->adq", system.columns, basis).reshape(size * dim, q),
        system.gram,
        system.moments,
        np.einsum("ank,nd->adk", system.noise, basis).reshape(size * dim, -1),
        a.reshape(size * dim, size * dim),
        (time_gram[:, None, :, None] * penalty[:, None, :]).reshape(size * dim, size * dim),
        basis,
    )


def _quadratic(form: Form, weights: Array, basis: Array) -> Array:
    """`B^T Q B` for the columns of `basis`."""
    applied = [form.apply(weights, column) for column in np.ascontiguousarray(basis.T)]
    return np.asarray(np.array(applied) @ basis)


def _independent(kernel: MarkovKernel, features: Array) -> Array:
    """An orthogonal basis, in the kernel's Dirichlet form, of the features modulo constants."""
    form = EdgeForm(kernel, None)
    values, vectors = linalg.eigh(_quadratic(form, kernel.edges.conductance, features))
    keep = values > 1e-13 * max(values[-1], 1e-300)
    if not keep.any():
        raise InputError(
            "the features are constant over the graph; give features that differ between states."
        )
    return np.asarray(features @ (vectors[:, keep] / np.sqrt(values[keep])))


# ------------------------------------------------------------------------ border and ridge


def minimum(problem: Problem, ridge: float, *, signed: bool, tolerance: float) -> Minimum:
    """The minimiser at this ridge; `signed`: the first coefficient is beta, not negative."""
    right = np.concatenate([problem.load[:, None], problem.columns], axis=1)
    solved, status = problem.solve(right, ridge, tolerance)
    x, theta, schur = _combined(problem, solved, signed)
    return Minimum(problem.lift(x), theta, schur, ridge, status)


def _combined(problem: Problem, solved: Array, signed: bool) -> tuple[Array, Array, Array]:
    """`x`, `theta` and its Schur complement from `A^-1 [l, C]`."""
    x, by_theta = solved[:, 0], solved[:, 1:]
    schur = problem.gram - problem.columns.T @ by_theta
    theta = border(schur, problem.moments - problem.columns.T @ x, problem.gram, signed)
    return x - by_theta @ theta, theta, schur


def border(schur: Array, right: Array, gram: Array, signed: bool) -> Array:
    """The few coefficients: least squares in the directions that the data determine.

    `schur` and `right` may hold several systems, along their first axis.
    """
    if gram.size == 1:  # the usual case, which must be quick
        seen = schur[..., 0] > _SINGULAR * gram[0, 0]
        theta = np.where(seen, right / np.where(seen, schur[..., 0], 1.0), 0.0)
        return np.asarray(np.maximum(theta, 0.0) if signed else theta)
    scale = 1 / np.sqrt(np.maximum(np.diag(gram), 1e-300))
    values, vectors = np.linalg.eigh(schur * np.outer(scale, scale))
    keep = values > _SINGULAR
    inverse = np.where(keep, 1 / np.where(keep, values, 1.0), 0.0)
    along = inverse * np.einsum("...ij,...i->...j", vectors, scale * right)
    theta = scale * np.einsum("...ij,...j->...i", vectors, along)
    if signed:
        below = theta[..., 0] < 0
        theta[below, 0] = 0.0
        theta[below, 1:] = border(schur[below, 1:, 1:], right[below, 1:], gram[1:, 1:], False)
    return np.asarray(theta)


def choose_ridge(problem: Problem, *, signed: bool) -> float:
    """The ridge of least estimated risk; 0 if the load carries no noise."""
    if not problem.noise.any():
        return 0.0
    if isinstance(problem, DenseProblem):
        return _choose_dense(problem, signed)
    assert isinstance(problem, GraphProblem)
    return _choose_iterative(problem, signed)


def _choose_dense(problem: DenseProblem, signed: bool) -> float:
    """All ridges at once, in the eigenvectors of `(A, P)`."""
    values, vectors = linalg.eigh(problem.a, problem.p, check_finite=False)
    values = np.maximum(values, 0.0)
    ridges = values[-1] * _RIDGES
    inverse = 1 / (values + ridges[:, None])
    load, columns = vectors.T @ problem.load, vectors.T @ problem.columns
    spread = ((vectors.T @ problem.noise) ** 2).sum(axis=1)
    schur = problem.gram - np.einsum("gk,ki,kj->gij", inverse, columns, columns)
    right = problem.moments - inverse @ (columns * load[:, None])
    theta = border(schur, right, problem.gram, signed)
    cross = theta @ columns.T
    x = inverse * (load - cross)
    loss = (x * (cross - load)).sum(axis=1) - ridges * (x**2).sum(axis=1)
    loss += np.einsum("gi,ij,gj->g", theta, problem.gram, theta) - 2 * theta @ problem.moments
    risk = loss + 2 * inverse @ spread
    return float(ridges[int(np.argmin(risk))])


def _choose_iterative(problem: GraphProblem, signed: bool) -> float:
    """The zero of the risk's derivative, which needs no other ridge than its own:

        d risk / d lambda = 2 lambda (P x)^T A_lambda^-1 (P x) - 2 trace(Y^T P Y),

    `Y = A_lambda^-1 Z`. A few solves to a loose tolerance: secant steps on its logarithm.
    """
    huge = problem.load.size > 50_000
    tolerance = 1e-2 if huge else 1e-4
    data = sum(float(w.sum()) for (a, b), w in problem.system.weights.items() if a == b)
    # The ridge whose average weight equals that of the data.
    scale = data / float(problem.kernel.edges.conductance.sum())
    low, high = np.log(SMALLEST_RIDGE * scale), np.log(1e3 * scale)
    k, load = problem.noise.shape[1], problem.load
    before: tuple[float, float] | None = None
    here = np.log(1e-2 * scale)
    for step in range(3 if huge else 8):
        ridge = float(np.exp(here))
        # The coefficients barely depend on the ridge: kept, they save one column per solve.
        columns = [problem.noise, load[:, None]] + ([problem.columns] if step == 0 else [])
        solved, _ = problem.solve(np.concatenate(columns, axis=1), ridge, tolerance)
        x = solved[:, k]
        if step == 0:
            x, theta, _ = _combined(problem, solved[:, k:], signed)
            load = load - problem.columns @ theta
        rough = problem.roughness(x)
        back, _ = problem.solve(rough[:, None], ridge, tolerance)
        bias = float(rough @ back[:, 0])
        variance = sum(float(y @ problem.roughness(y)) for y in solved[:, :k].T)
        if not (bias > 0 and variance > 0):
            break
        gap = move = float(np.log(variance) - np.log(bias) - here)
        if before is not None and before[1] != gap:
            slope = (gap - before[1]) / (here - before[0])
            move = -gap / slope if slope < -0.2 else gap
        before = (here, gap)
        here = float(np.clip(here + np.clip(move, -7.0, 7.0), low, high))
        if abs(move) < 0.3 or here == before[0]:
            break
    return float(np.exp(here))
