"""Solving the weak form's normal equations: a Laplacian bordered by a few columns, and a ridge.

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
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import LinearOperator, cg

from thalweg._types import Array
from thalweg.edges import static
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import Factor, LaplacianSolver
from thalweg.learn.weak.terms import PairForm, WeakSystem
from thalweg.status import Status

DENSE_SIZE = 400
"""Number of unknowns up to which the matrices are dense."""

SMALLEST_RIDGE = 1e-12
"""Share of the largest eigenvalue of `(A, P)` below which the automatic ridge is rounding."""

_SINGULAR = 1e-10
"""Relative size below which a direction is not determined."""

_RIDGES = np.geomspace(SMALLEST_RIDGE, 1e2, 57)


class Bordered(NamedTuple):
    """`x`, `theta`, the Schur complement left for `theta`, and how the solves ended."""

    x: Array
    theta: Array
    schur: Array
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
    def roughness(self, x: Array) -> Array:
        """`P x`."""

    @abstractmethod
    def lift(self, x: Array) -> Array:
        """The potentials, `(blocks, N)`, that `x` stands for."""

    @abstractmethod
    def restrict(self, load: Array) -> Array:
        """Columns of loads on the states, of a fixed potential, as loads on `x`."""

    def adjusted(self, gram: Array, moments: Array) -> Problem:
        """The same problem with other entries for the coefficients."""
        return replace(self, gram=gram, moments=moments)


# ------------------------------------------------------------------------ the three problems


@dataclass(frozen=True, eq=False)
class DenseProblem(Problem):
    """Small, or a potential in few features: `A` and `P` are dense and positive definite."""

    a: Array
    p: Array
    basis: Array
    """`(blocks, N, dim)`."""

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

    def roughness(self, x: Array) -> Array:
        return np.asarray(self.p @ x)

    def lift(self, x: Array) -> Array:
        return np.asarray(self.basis @ x)

    def restrict(self, load: Array) -> Array:
        return np.asarray(self.basis[0].T @ load)


@dataclass(frozen=True, eq=False)
class LaplacianProblem(Problem):
    """One potential on a large graph: `P` is a Laplacian of it, `A` one of it or of all pairs."""

    kernel: MarkovKernel
    system: WeakSystem
    solver: LaplacianSolver
    last: dict[float, Factor] = field(default_factory=dict)
    """The factor of the last ridge."""

    def factor(self, ridge: float, weights: Array, diagonal: Array | None = None) -> Factor:
        if ridge not in self.last:
            self.last.clear()
            self.last[ridge] = self.solver.factor(weights, diagonal)
        return self.last[ridge]

    def solve(self, right: Array, ridge: float, tolerance: float) -> tuple[Array, Status]:
        weights = self.system.weights[0, 0]
        ridges = ridge * self.kernel.edges.conductance
        if not isinstance(self.system.form, PairForm):
            found = self.factor(ridge, weights + ridges).solve(right, tolerance=tolerance)
            return found.x, found.status
        # diag(N P + t) + ridge L - 1 P^T in the gauge sum x = 0: rank one on a grounded solve.
        diagonal, status = weights.size * weights + weights.sum(), Status.CONVERGED
        ones = np.concatenate([right, np.ones((weights.size, 1))], axis=1)
        if ridge:
            found = self.factor(ridge, ridges, diagonal).solve(ones, tolerance=tolerance)
            solved, status = found.x, found.status
        else:
            solved = ones / diagonal[:, None]
        level = weights @ solved
        return solved[:, :-1] + np.outer(solved[:, -1], level[:-1] / (1 - level[-1])), status

    def roughness(self, x: Array) -> Array:
        source, target, conductance = self.kernel.edges
        return np.asarray(static.apply_laplacian(source, target, conductance, x))

    def lift(self, x: Array) -> Array:
        return x[None, :]

    def restrict(self, load: Array) -> Array:
        return load


@dataclass(frozen=True, eq=False)
class BlockProblem(Problem):
    """A potential varying in time on a large graph: conjugate gradients, a solve per block."""

    kernel: MarkovKernel
    system: WeakSystem
    time_gram: Array
    solver: LaplacianSolver

    def apply(self, x: Array, ridge: float) -> Array:
        form = self.system.form
        v = self.lift(x)
        out = np.zeros_like(v)
        for (a, b), weights in self.system.weights.items():
            out[a] += form.apply(weights, v[b])
            if a != b:
                out[b] += form.apply(weights, v[a])
        return out.ravel() + ridge * self.roughness(x)

    def solve(self, right: Array, ridge: float, tolerance: float) -> tuple[Array, Status]:
        size, n = self.time_gram.shape[0], self.kernel.n_states
        factors = [
            self.solver.factor(
                self.system.weights[a, a]
                + ridge * self.time_gram[a, a] * self.kernel.edges.conductance
            )
            for a in range(size)
        ]

        def precondition(r: Array) -> Array:
            blocks = r.reshape(size, n) - r.reshape(size, n).mean(axis=1, keepdims=True)
            solved = [f.solve(b, tolerance=1e-12).x for f, b in zip(factors, blocks, strict=True)]
            return np.concatenate(solved)

        shape = (size * n, size * n)
        operator = LinearOperator(shape, matvec=lambda x: self.apply(x, ridge), dtype=np.float64)
        inverse = LinearOperator(shape, matvec=precondition, dtype=np.float64)
        out, status = np.empty_like(right), Status.CONVERGED
        for i, column in enumerate(right.T):
            out[:, i], info = cg(operator, column, rtol=0.1 * tolerance, maxiter=500, M=inverse)
            if info:
                status = Status.MAX_ITERATIONS
        return out, status

    def roughness(self, x: Array) -> Array:
        source, target, conductance = self.kernel.edges
        mixed = self.time_gram @ self.lift(x)
        rows = [static.apply_laplacian(source, target, conductance, v) for v in mixed]
        return np.concatenate(rows)

    def lift(self, x: Array) -> Array:
        return x.reshape(self.time_gram.shape[0], -1)

    def restrict(self, load: Array) -> Array:
        return np.tile(load, (self.time_gram.shape[0], 1))


def problem_of(
    kernel: MarkovKernel, system: WeakSystem, features: Array | None, time_gram: Array
) -> Problem:
    """The problem in the unknowns that are left: potentials, or their weights in features."""
    size, n = system.load.shape
    q = system.gram.shape[0]
    if features is None and size * n > DENSE_SIZE:
        flat = (
            system.load.ravel(),
            system.columns.reshape(size * n, q),
            system.gram,
            system.moments,
            system.noise.reshape(size * n, -1),
        )
        pairs = isinstance(system.form, PairForm)
        if size == 1:
            solver = LaplacianSolver.for_kernel(kernel, grounded=pairs)
            return LaplacianProblem(*flat, kernel, system, solver)
        if pairs:
            raise InputError(
                f"weighting='paper' with a potential varying in time needs at most {DENSE_SIZE} "
                f"unknowns, not {size * n}; use weighting='paper-edges' or 'metric'."
            )
        return BlockProblem(*flat, kernel, system, time_gram, LaplacianSolver.for_kernel(kernel))
    one = _grounded(n) if features is None else _independent(kernel, features)
    d = one.shape[1]
    a = np.zeros((size, d, size, d))
    for (i, j), weights in system.weights.items():
        if n <= DENSE_SIZE:
            block = one.T @ system.form.dense(weights) @ one
        else:
            block = one.T @ np.stack([system.form.apply(weights, f) for f in one.T], axis=1)
        a[i, :, j, :] = block
        if i != j:
            a[j, :, i, :] = block.T
    source, target, conductance = kernel.edges
    slopes = one[source] - one[target]
    penalty = slopes.T @ (conductance[:, None] * slopes)
    basis = np.zeros((size, n, size, d))
    for i in range(size):
        basis[i, :, i, :] = one
    dim = size * d
    return DenseProblem(
        (system.load @ one).ravel(),
        np.einsum("anq,nd->adq", system.columns, one).reshape(dim, q),
        system.gram,
        system.moments,
        np.einsum("ank,nd->adk", system.noise, one).reshape(dim, -1),
        a.reshape(dim, dim),
        np.asarray(np.kron(time_gram, penalty), np.float64) if size > 1 else penalty,
        basis.reshape(size, n, dim),
    )


def _grounded(n: int) -> Array:
    """State 0 is the ground; adding a constant to a potential changes nothing."""
    return np.eye(n)[:, 1:]


def _independent(kernel: MarkovKernel, features: Array) -> Array:
    """An orthogonal basis, in the kernel's Dirichlet form, of the features modulo constants."""
    source, target, conductance = kernel.edges
    slopes = features[source] - features[target]
    values, vectors = linalg.eigh(slopes.T @ (conductance[:, None] * slopes))
    keep = values > 1e-13 * max(values[-1], 1e-300)
    if not keep.any():
        raise InputError(
            "the features are constant over the graph; give features that differ between states."
        )
    return np.asarray(features @ (vectors[:, keep] / np.sqrt(values[keep])))


# ------------------------------------------------------------------------ border and ridge


def bordered(problem: Problem, ridge: float, *, signed: bool, tolerance: float) -> Bordered:
    """The minimiser at this ridge; `signed`: the first coefficient is beta, not negative."""
    right = np.concatenate([problem.load[:, None], problem.columns], axis=1)
    solved, status = problem.solve(right, ridge, tolerance)
    x, by_theta = solved[:, 0], solved[:, 1:]
    schur = problem.gram - problem.columns.T @ by_theta
    theta = border(schur, problem.moments - problem.columns.T @ x, problem.gram, signed)
    return Bordered(x - by_theta @ theta, theta, schur, status)


def border(schur: Array, right: Array, gram: Array, signed: bool) -> Array:
    """The few coefficients: least squares in the directions that the data determine."""
    q = right.size
    if q == 0:
        return np.zeros(0)
    if q == 1:
        scalar = right[0] / schur[0, 0] if schur[0, 0] > _SINGULAR * gram[0, 0] else 0.0
        return np.array([max(scalar, 0.0) if signed else scalar])
    scale = 1 / np.sqrt(np.maximum(np.diag(gram), 1e-300))
    values, vectors = linalg.eigh(schur * np.outer(scale, scale))
    keep = values > _SINGULAR
    inverse = np.where(keep, 1 / np.where(keep, values, 1.0), 0.0)
    theta = np.asarray(scale * (vectors @ (inverse * (vectors.T @ (scale * right)))))
    if signed and theta[0] < 0:
        theta[0] = 0.0
        theta[1:] = border(schur[1:, 1:], right[1:], gram[1:, 1:], False)
    return theta


def choose_ridge(problem: Problem, *, signed: bool) -> float:
    """The ridge of least estimated risk; 0 if the load carries no noise."""
    if problem.noise.shape[1] == 0 or not problem.noise.any():
        return 0.0
    if isinstance(problem, DenseProblem):
        return _choose_dense(problem, signed)
    return _choose_iterative(problem, signed)


def _choose_dense(problem: DenseProblem, signed: bool) -> float:
    """All ridges at once, in the eigenvectors of `(A, P)`."""
    values, vectors = linalg.eigh(problem.a, problem.p, check_finite=False)
    values = np.maximum(values, 0.0)
    ridges = values[-1] * _RIDGES
    inverse = 1 / (values + ridges[:, None])
    load, columns = vectors.T @ problem.load, vectors.T @ problem.columns
    spread = ((vectors.T @ problem.noise) ** 2).sum(axis=1)
    if columns.shape[1] == 1:
        schur = problem.gram[0, 0] - inverse @ columns[:, 0] ** 2
        right = problem.moments[0] - inverse @ (columns[:, 0] * load)
        seen = schur > _SINGULAR * problem.gram[0, 0]
        theta = np.where(seen, right / np.where(seen, schur, 1.0), 0.0)
        theta = (np.maximum(theta, 0.0) if signed else theta)[:, None]
    else:
        theta = np.stack(
            [
                border(
                    problem.gram - columns.T @ (i[:, None] * columns),
                    problem.moments - columns.T @ (i * load),
                    problem.gram,
                    signed,
                )
                for i in inverse
            ]
        )
    cross = theta @ columns.T
    x = inverse * (load - cross)
    loss = (x * (cross - load)).sum(axis=1) - ridges * (x**2).sum(axis=1)
    loss += np.einsum("gi,ij,gj->g", theta, problem.gram, theta) - 2 * theta @ problem.moments
    risk = loss + 2 * inverse @ spread
    return float(ridges[int(np.argmin(risk))])


def _choose_iterative(problem: Problem, signed: bool) -> float:
    """The zero of the risk's derivative, which needs no other ridge than its own:

        d risk / d lambda = 2 lambda (P x)^T A_lambda^-1 (P x) - 2 trace(Y^T P Y),

    `Y = A_lambda^-1 Z`. A few solves to a loose tolerance: secant steps on its logarithm.
    """
    huge = problem.load.size > 50_000
    tolerance = 1e-2 if huge else 1e-4
    scale = _scale(problem)
    low, high = np.log(SMALLEST_RIDGE * scale), np.log(1e3 * scale)
    q, theta = problem.columns.shape[1], np.zeros(0)
    tried: list[tuple[float, float]] = []
    here = np.log(1e-2 * scale)
    for step in range(3 if huge else 8):
        ridge = float(np.exp(here))
        parts = [problem.noise, problem.load[:, None]] + ([problem.columns] if step == 0 else [])
        k = problem.noise.shape[1]
        if step:
            # The coefficients barely depend on the ridge: kept, they save one column per solve.
            parts[1] = (problem.load - problem.columns @ theta)[:, None]
        solved, _ = problem.solve(np.concatenate(parts, axis=1), ridge, tolerance)
        x = solved[:, k]
        if step == 0 and q:
            by_theta = solved[:, k + 1 :]
            schur = problem.gram - problem.columns.T @ by_theta
            theta = border(schur, problem.moments - problem.columns.T @ x, problem.gram, signed)
            x = x - by_theta @ theta
        rough = problem.roughness(x)
        back, _ = problem.solve(rough[:, None], ridge, tolerance)
        bias = float(rough @ back[:, 0])
        variance = sum(float(y @ problem.roughness(y)) for y in solved[:, :k].T)
        if not (bias > 0 and variance > 0):
            break
        gap = np.log(variance) - np.log(bias) - here
        tried.append((here, gap))
        move = gap
        if len(tried) > 1 and tried[-2][1] != gap:
            slope = (gap - tried[-2][1]) / (here - tried[-2][0])
            move = -gap / slope if slope < -0.2 else gap
        move = float(np.clip(move, -7.0, 7.0))
        here = float(np.clip(here + move, low, high))
        if abs(move) < 0.3 or here == tried[-1][0]:
            break
    return float(np.exp(here))


def _scale(problem: Problem) -> float:
    """The ridge whose average weight equals that of the data."""
    assert isinstance(problem, LaplacianProblem | BlockProblem)
    total = sum(
        float(problem.system.weights[a, a].sum()) for a, b in problem.system.weights if a == b
    )
    return total / float(problem.kernel.edges.conductance.sum())
