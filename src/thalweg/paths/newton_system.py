"""Newton's system for a discretised geodesic, and its matrix-free solution by GMRES.

Unknowns at each stage: the change `v` of the density and the new potential `psi`. With the mesh's
integrals `J` (densities, from the ends) and `J_mid` (potentials, from the middle of [0, 1]),

    pi v = J (M psi + A v - D),    psi = psi_mid - J_mid (A^T psi + K v - force + barrier) / pi,
    sum_i b_i (M_i psi_i + A_i v_i) = p1 - p0,

where `M`, `A`, `K` hold the coefficients of `stages.linearise`. The integrals amplify rounding
where a density grows over many decades; `block_elimination` solves the same equations piece
by piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.edges import stages
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import Factor, LaplacianSolver
from thalweg.laplacian.krylov import gmres
from thalweg.paths.mesh import TimeMesh

__all__ = ["Direction", "Linearisation", "balanced", "solve_krylov"]

Array = NDArray[np.float64]


class Direction(NamedTuple):
    """New potentials and fluxes, and the cost of finding them."""

    psi: Array
    flux: Array
    middle: Array
    """The potential at the middle of [0, 1]."""
    iterations: int
    residual: float
    factor: Factor | None = None
    """The averaged Laplacian, if it was factorised."""


@dataclass(frozen=True, eq=False)
class Linearisation:
    """The path problem at one iterate."""

    kernel: MarkovKernel
    mesh: TimeMesh
    gap: Array
    """`p1 - p0`."""
    rho: Array
    gain: Array
    """`div F`, the rate of change of the probabilities at the stages."""
    table: Array
    constant: Array
    """Force without its linear part: `barrier - force`."""
    damping: Array
    """`pi z / rho`: what the barrier adds to the curvature."""
    psi: Array
    """The potentials of the last iterate: where GMRES starts."""
    middle: Array
    """The last iterate's potential at the middle of [0, 1]."""


def solve_krylov(
    lin: Linearisation,
    solver: LaplacianSolver,
    *,
    tolerance: float,
    max_iterations: int = 300,
    restart: int = 80,
) -> Direction:
    """The direction by GMRES on the integrated form; one averaged Laplacian solve per iteration."""
    source, target, _ = lin.kernel.edges
    pi, mesh, table = lin.kernel.stationary, lin.mesh, lin.table
    count, n = lin.rho.shape
    factor = solver.factor(stages.newton_average(table, mesh.weights))
    scale_v = np.sqrt(mesh.weights[:, None] * pi / lin.rho)
    scale_q = np.sqrt(mesh.weights[:, None] * pi * lin.rho)
    inner_tolerance = float(np.clip(0.03 * tolerance, 1e-10, 1e-3))

    known = lin.middle
    first = lin.psi - known

    def image(v: Array, q: Array, affine: bool) -> tuple[Array, Array, Array]:
        # The potential halfway is solved for as a correction, so a loose solve is enough.
        middle = known if affine else np.zeros(n)
        gain, force = stages.newton_product(source, target, table, q + middle, v)
        right = (lin.gap if affine else 0.0) - mesh.weights @ gain
        middle = middle + factor.solve(balanced(right), tolerance=inner_tolerance).x
        gain, force = stages.newton_product(source, target, table, q + middle, v)
        force -= lin.damping * v
        if affine:
            gain = gain - lin.gain
            force = force + lin.constant
        return (mesh.from_ends @ gain) / pi, -(mesh.from_middle @ force) / pi, middle

    def unpack(y: Array) -> tuple[Array, Array]:
        half = y.size // 2
        return y[:half].reshape(count, n) / scale_v, y[half:].reshape(count, n) / scale_q

    def pack(v: Array, q: Array) -> Array:
        return np.concatenate([(v * scale_v).ravel(), (q * scale_q).ravel()])

    def operator(y: Array) -> Array:
        v, q, _ = image(*unpack(y), False)
        return y - pack(v, q)

    v, q, _ = image(np.zeros_like(first), first, True)
    right = pack(v, q - first)
    solution = gmres(
        operator, right, tolerance=tolerance, max_iterations=max_iterations, restart=restart
    )
    v, q = unpack(solution.x)
    q = q + first
    _, _, middle = image(v, q, True)
    psi = q + middle
    flux = stages.newton_flux(source, target, table, psi, v)
    return Direction(psi, flux, middle, solution.iterations, solution.residual, factor)


def balanced(b: Array) -> Array:
    """`b` without its sum, taken off in proportion to its entries: no small entry is drowned."""
    size = float(np.abs(b).sum())
    return b - np.abs(b) * (float(b.sum()) / size) if size > 0 else b
