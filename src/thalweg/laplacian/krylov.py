"""Krylov methods: conjugate gradients for Laplacians, restarted GMRES for any operator.

`solve` is preconditioned conjugate gradients on the flux-form residual, judged in the energy norm.
Every method of this package, direct or approximate, only supplies `z ~ M^+ r`. The same loop turns
it into a solution: for an exact factor it is iterative refinement (one to three sweeps), for an
approximate one it is PCG. With `e = x - x*` the energy error obeys

    lambda_min  <e, M e>  <=  <r, P^-1 r>  <=  lambda_max <e, M e>,

where the lambdas are the extreme eigenvalues of `P^-1 M`; the smallest is read off the
coefficients of the iteration (they are those of Lanczos), so the reported error is a bound as soon
as the iteration has seen the spectrum. A residual kept by recurrence drifts: on convergence it is
recomputed from `r = b - B^T (w * (B x))` and the iteration restarts from there until it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from thalweg._compile import njit
from thalweg._types import Array, Index32
from thalweg.laplacian.pattern import Pattern, Preconditioner
from thalweg.status import Status

MAX_ITERATIONS = 1000
"""Largest number of conjugate-gradient iterations."""
_MAX_RESTARTS = 12
"""Largest number of restarts from a recomputed residual."""


class Refined(NamedTuple):
    """One solved column."""

    x: Array
    status: Status
    iterations: int
    energy_error: float


def solve(
    pattern: Pattern, weights: Array, preconditioner: Preconditioner, b: Array, tolerance: float
) -> Refined:
    """`x` with `M x = b` and estimated relative energy error at most `tolerance`."""
    source, target = pattern.source, pattern.target
    x, r, z, p, q = (np.zeros_like(b) for _ in range(5))
    if not b.any():
        return Refined(x, Status.CONVERGED, 0, 0.0)
    best = Refined(x, Status.STALLED, 0, np.inf)
    smallest = 1.0
    iterations = 0
    for _ in range(_MAX_RESTARTS):
        flux(source, target, weights, x, r)
        np.subtract(b, r, out=r)
        preconditioner.apply(r, z)
        rz = dot(r, z)
        if not np.isfinite(rz):
            return best._replace(status=Status.NOT_FINITE, iterations=iterations)
        energy = dot(b, x)
        error = _ratio(rz, smallest * energy)
        progress = not error > 0.25 * best.energy_error
        if error < best.energy_error:
            best = Refined(x.copy(), Status.STALLED, iterations, error)
        if error <= tolerance:
            return best._replace(status=Status.CONVERGED, iterations=iterations)
        if iterations >= MAX_ITERATIONS:
            return best._replace(status=Status.MAX_ITERATIONS, iterations=iterations)
        if not progress:
            break
        p[:] = z
        alphas: list[float] = []
        betas: list[float] = []
        while iterations < MAX_ITERATIONS:
            curvature = flux(source, target, weights, p, q)
            if not (curvature > 0.0 and rz > 0.0):
                break
            alpha = rz / curvature
            x += np.multiply(p, alpha, out=z)  # z is free until the next line that names it
            q *= alpha
            r -= q
            energy += alpha * rz
            preconditioner.apply(r, z)
            iterations += 1
            alphas.append(alpha)
            new = dot(r, z)
            if not np.isfinite(new):
                break
            if _ratio(new, energy) <= 0.5 * tolerance:
                smallest = min(1.0, _smallest_ritz(alphas, betas))
                if _ratio(new, smallest * energy) <= 0.5 * tolerance:
                    break
            beta = new / rz
            betas.append(beta)
            rz = new
            p *= beta
            p += z
    return best._replace(iterations=iterations)


def _ratio(numerator: float, denominator: float) -> float:
    if denominator <= 0.0:
        return np.inf
    return float(np.sqrt(abs(numerator) / denominator))


def _smallest_ritz(alphas: list[float], betas: list[float]) -> float:
    """The smallest eigenvalue of the Lanczos matrix of a PCG run."""
    if len(alphas) == 1:
        return 1 / alphas[0]
    a = np.array(alphas)
    c = np.array(betas[: a.size - 1])
    diagonal = 1 / a
    diagonal[1:] += c / a[:-1]
    off = np.sqrt(c) / a[:-1]
    return float(eigvalsh_tridiagonal(diagonal, off, select="i", select_range=(0, 0))[0])


@njit(cache=True)
def flux(source: Index32, target: Index32, weights: Array, p: Array, out: Array) -> float:
    """`out = M p`; returns `<p, M p>`; one pass over the edges."""
    out[:] = 0.0
    total = 0.0
    for e in range(source.size):
        difference = p[source[e]] - p[target[e]]
        current = weights[e] * difference
        out[source[e]] += current
        out[target[e]] -= current
        total += current * difference
    return total


def dot(a: Array, b: Array) -> float:
    """`<a, b>`, without a detour through threaded BLAS."""
    return float(np.einsum("i,i", a, b))


def balanced(b: Array) -> Array:
    """`b` less its sum, removed in proportion to its entries, so that small ones survive."""
    size = float(np.abs(b).sum())
    return b - np.abs(b) * (float(b.sum()) / size) if size > 0 else b


class KrylovSolution(NamedTuple):
    x: Array
    iterations: int
    residual: float
    """Residual relative to the norm of the right-hand side."""


def gmres(
    operator: Callable[[Array], Array],
    right: Array,
    *,
    tolerance: float,
    max_iterations: int,
    restart: int = 100,
) -> KrylovSolution:
    """`x` with `|b - A x| <= tolerance |b|`, or the best after `max_iterations`.

    The basis has the precision of `right`: single is enough for loose tolerances, at half the cost.
    """
    size = float(np.linalg.norm(right))
    x = np.zeros_like(right)
    if size == 0.0:
        return KrylovSolution(x, 0, 0.0)
    done, residual = 0, 1.0
    remainder = right
    while done < max_iterations:
        steps = min(restart, max_iterations - done)
        update, used = _cycle(operator, remainder, tolerance * size, steps)
        x = x + update
        done += used
        if used < steps and done <= restart:
            # The first cycle converged: its own estimate is good enough.
            return KrylovSolution(x, done, tolerance)
        remainder = right - operator(x)
        previous, residual = residual, float(np.linalg.norm(remainder)) / size
        if residual <= 1.5 * tolerance or residual > 0.9 * previous or not np.isfinite(residual):
            break
    return KrylovSolution(x, done, residual)


def _cycle(
    operator: Callable[[Array], Array], right: Array, tolerance: float, steps: int
) -> tuple[Array, int]:
    norm = float(np.linalg.norm(right))
    if norm == 0.0 or not np.isfinite(norm):
        return np.zeros_like(right), 1
    capacity = min(steps, 16)
    basis = np.empty((capacity + 1, right.size), right.dtype)
    basis[0] = right / norm
    hessenberg = np.zeros((steps + 1, steps))
    cosine, sine = np.zeros(steps), np.zeros(steps)
    rotated = np.zeros(steps + 1)
    rotated[0] = norm
    k = 0
    while k < steps:
        if k + 2 > basis.shape[0]:
            grown = np.empty((min(2 * basis.shape[0], steps + 1), right.size), right.dtype)
            grown[: basis.shape[0]] = basis
            basis = grown
        new = operator(basis[k])
        before = float(np.linalg.norm(new))
        for _ in range(2):
            # Twice is enough: the second pass removes what rounding left of the first.
            parts = basis[: k + 1] @ new
            new = new - parts @ basis[: k + 1]
            hessenberg[: k + 1, k] += parts
            height = float(np.linalg.norm(new))
            if height > 0.1 * before:
                break
        if not np.isfinite(height):
            break
        hessenberg[k + 1, k] = height
        column = hessenberg[:, k]
        for i in range(k):
            top = cosine[i] * column[i] + sine[i] * column[i + 1]
            column[i + 1] = -sine[i] * column[i] + cosine[i] * column[i + 1]
            column[i] = top
        length = float(np.hypot(column[k], column[k + 1]))
        if length == 0.0:
            break
        cosine[k], sine[k] = column[k] / length, column[k + 1] / length
        column[k], column[k + 1] = length, 0.0
        rotated[k + 1] = -sine[k] * rotated[k]
        rotated[k] *= cosine[k]
        k += 1
        if abs(rotated[k]) <= tolerance or height <= 1e-14 * length:
            break
        basis[k] = new / height
    if k == 0:
        return np.zeros_like(right), 1
    coefficients = np.linalg.solve(np.triu(hessenberg[:k, :k]), rotated[:k])
    return np.asarray(coefficients.astype(right.dtype) @ basis[:k]), k
