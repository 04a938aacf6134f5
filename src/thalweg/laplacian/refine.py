"""Preconditioned conjugate gradients on the flux-form residual, judged in the energy norm.

Every method here, direct or approximate, only supplies `z ~ M^+ r`. The same loop turns it into a
solution: for an exact factor it is iterative refinement (one to three sweeps), for an approximate
one it is PCG. With `e = x - x*` the energy error obeys

    lambda_min  <e, M e>  <=  <r, P^-1 r>  <=  lambda_max <e, M e>,

where the lambdas are the extreme eigenvalues of `P^-1 M`; the smallest is read off the
coefficients of the iteration (they are those of Lanczos), so the reported error is a bound as soon
as the iteration has seen the spectrum. A residual kept by recurrence drifts: on convergence it is
recomputed from `r = b - B^T (w * (B x))` and the iteration restarts from there until it holds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from thalweg._compile import njit
from thalweg.laplacian.pattern import Array, Index, Pattern, Preconditioner
from thalweg.status import Status

MAX_ITERATIONS = 1000
_MAX_RESTARTS = 12


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
            x += alpha * p
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


def flux(source: Index, target: Index, weights: Array, p: Array, out: Array) -> float:
    """`out = M p`; returns `<p, M p>`; one pass over the edges."""
    out.fill(0.0)
    return float(_add_flux(source, target, weights, p, out))


@njit(cache=True)
def _add_flux(source: Index, target: Index, weights: Array, p: Array, out: Array) -> float:
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
    """`b` without its sum, taken off in proportion to its entries: no small entry is drowned."""
    size = float(np.abs(b).sum())
    return b - np.abs(b) * (float(b.sum()) / size) if size > 0 else b
