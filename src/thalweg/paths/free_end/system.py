"""Newton's system of a JKO step: a path with a free end, and its solution by GMRES.

Unknowns at the stages of a mesh in time are the densities `R` and the potentials `P`; at the end
the potential `last` and the logarithm `y` of the end density. With `e = pi exp(y)`,

    r1 = start + J (M(R) P) / pi - R,     r2 = last + (integral from each stage to 1 of force) - P,
    r3 = p + sum_i b_i M_i P_i - e,       r4 = last + tau f(e).

A change of the end density is `de = -slack (r4 + dlast)`, `slack = 1 / (tau F'')`: zero where the
end all but empties a state, so that its potential there is free, as a multiplier is. Late densities
are integrated backwards from `e`, so none is a difference of large numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.edges import packed
from thalweg.energy import FreeEnergy
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import Factor, LaplacianSolver
from thalweg.laplacian.krylov import gmres
from thalweg.paths.mesh import TimeMesh

__all__ = ["Change", "FreeEnd", "Linear", "State", "solve_linear"]

Array = NDArray[np.float64]


class State(NamedTuple):
    """Densities and potentials less `last` at the stages, `(states, stages)`; `last`; `y`."""

    rho: Array
    q: Array
    last: Array
    y: Array

    @property
    def psi(self) -> Array:
        return self.q + self.last[:, None]


class Change(NamedTuple):
    """Relative changes of the densities, changes of `q`, `last` and `y`; the cost."""

    w: Array
    q: Array
    last: Array
    y: Array
    iterations: int


class Linear(NamedTuple):
    """The coefficients and residuals of one Newton step."""

    table: NDArray[np.floating]
    rho: Array
    end: Array
    give: Array
    """`slack / end`: the change of `y` for one of the potential."""
    damping: Array
    """`z`: what the barrier adds to the curvature, `(states, stages)`."""
    r1: Array
    """Relative to the densities."""
    r2: Array
    r3: Array
    r4: Array


@dataclass(frozen=True, eq=False)
class FreeEnd:
    """Minimise half the action of a path from `p` plus `tau F` at its end."""

    kernel: MarkovKernel
    spec: Array
    energy: FreeEnergy
    p: Array
    tau: float
    mesh: TimeMesh
    solver: LaplacianSolver
    extra: float = 0.0
    """A little entropy for energies that let the end reach the boundary of the simplex."""

    def on(self, mesh: TimeMesh) -> FreeEnd:
        return replace(self, mesh=mesh)

    @cached_property
    def size(self) -> float:
        """The size of first variations."""
        energy = self.energy
        size = float(np.ptp(energy.potential)) + energy.beta
        size += float(abs(energy.interaction).max()) if energy.interaction is not None else 0.0
        return max(size, 1e-300)

    @cached_property
    def ends(self) -> Array:
        """`(stages, stages)`: values times this are integrals from the nearer end."""
        return np.ascontiguousarray(self.mesh.from_ends.T)

    @cached_property
    def to_end(self) -> Array:
        return np.ascontiguousarray((self.mesh.weights - self.mesh.forward).T)

    @cached_property
    def late(self) -> Array:
        return self.mesh.late.astype(np.float64)

    def base(self, end: Array) -> Array:
        """The density from which each stage is integrated."""
        pi = self.kernel.stationary
        return np.where(self.mesh.late, (end / pi)[:, None], (self.p / pi)[:, None])

    def first_variation(self, end: Array, y: Array) -> Array:
        energy = self.energy
        f = energy.external(end) + energy.beta * energy.internal.derivative(y)
        return np.asarray(f + self.extra * y)

    def slope(self, y: Array) -> Array:
        """`tau df / dy` without the interaction."""
        own = self.energy.beta * self.energy.internal.log_slope(y) + self.extra
        return np.asarray(self.tau * np.maximum(own, 1e-300))

    def residual(self, y: Array, final: Array, defect: Array) -> float:
        """Of the first-order condition: `final / tau + f` less its mean, and what the end lacks.

        Root mean square under the end; what it lacks of the mass that the fluxes bring, `defect`,
        counts as the error `beta log(1 + |defect| / end)` of the first variation.
        """
        energy, end = self.energy, self.kernel.stationary * np.exp(y)
        f = energy.external(end)
        if energy.beta > 0:
            f = f + energy.beta * energy.internal.derivative(y)
        mismatch = final / self.tau + f
        mismatch = mismatch - end @ mismatch / end.sum()
        lacking = energy.beta * np.log1p(np.abs(defect) / np.maximum(end, 1e-300))
        return float(np.sqrt(end @ (mismatch**2 + lacking**2)))

    def energy_at(self, end: Array) -> float:
        """`F(end)`, the extra entropy included."""
        pi, energy = self.kernel.stationary, self.energy
        rho = end / pi
        value = float(end @ energy.potential)
        if energy.interaction is not None:
            value += 0.5 * float(end @ (energy.interaction @ end))
        if energy.beta > 0:
            value += energy.beta * float(pi @ energy.internal.value(rho))
        if self.extra > 0:
            value += self.extra * float(end @ np.log(np.maximum(rho, 1e-300)))
        return value


def solve_linear(
    problem: FreeEnd,
    lin: Linear,
    factor: Factor,
    *,
    forcing: float,
    max_iterations: int = 60,
    strict: bool = True,
) -> Change:
    """The Newton step up to `forcing`, preconditioned by one solve with the averaged Laplacian.

    `factor` is that of the averaged Laplacian plus `slack` on the diagonal, or of an earlier one.
    """
    source, target, _ = problem.kernel.edges
    pi, b = problem.kernel.stationary[:, None], problem.mesh.weights
    ends, to_end, late = problem.ends, problem.to_end, problem.late
    table, rho, slack = lin.table, lin.rho, lin.end * lin.give
    interaction, tau = problem.energy.interaction, problem.tau
    n, count = rho.shape
    block = n * count
    scale_w = np.sqrt(b * pi * np.maximum(rho, 1.0))
    scale = np.sqrt(b * pi * rho)
    if strict:
        # In these units an error of a potential counts as that of the density which it makes.
        mobile, _, _ = packed.diagonals(source, target, table, n)
        scale = scale_w * np.maximum(mobile / (pi * rho), 1.0)
    scale_last = np.sqrt((scale**2).sum(axis=1))
    scale_end = 1.0 / np.sqrt(np.maximum(lin.end, 1e-60))
    whole = ends.sum(axis=0)
    tolerance = 0.1 * forcing
    gain, push = np.empty((n, count)), np.empty((n, count))
    size = 2 * block + (n if interaction is None else 2 * n)

    def act(shift: Array) -> Array:
        return np.asarray(interaction @ shift)  # type: ignore[operator]

    def precondition(o1: Array, o2: Array, o3: Array, o4: Array | None) -> Array:
        # As if every stage had the averaged Laplacian: exact for steps infinitely short.
        out = np.empty(size, table.dtype)
        mean = o2 @ b
        last = factor.solve(o3 + slack * mean, tolerance=tolerance).x - mean
        moved = slack * last
        o1 = o1 + ((o3 - moved)[:, None] * whole - moved[:, None] * late) / pi / rho
        out[:block] = (o1 * scale_w).ravel()
        out[block : 2 * block] = (o2 * scale).ravel()
        out[2 * block : 2 * block + n] = last * scale_last
        if o4 is not None:
            out[2 * block + n :] = (o4 - moved) * scale_end
        return out

    def unpack(v: Array) -> tuple[Array, Array, Array, Array | None]:
        w = v[:block].reshape(n, count) / scale_w
        q = v[block : 2 * block].reshape(n, count) / scale
        last = v[2 * block : 2 * block + n] / scale_last
        return w, q, last, None if interaction is None else v[2 * block + n :] / scale_end

    def operator(v: Array) -> Array:
        w, q, last, shift = unpack(v)
        packed.product(source, target, table, q + last[:, None], w, gain, push)
        pull = last if shift is None else last + tau * act(shift)
        moved = slack * pull
        o1 = w - (gain @ ends - moved[:, None] * late) / pi / rho
        o2 = q - (push / pi / rho - lin.damping * w) @ to_end
        o3 = gain @ b + moved
        return precondition(o1, o2, o3, None if shift is None else shift + moved)

    known = slack * lin.r4
    right = precondition(
        lin.r1 - known[:, None] * late / pi / rho,
        lin.r2,
        -lin.r3 - known,
        None if interaction is None else -known,
    )
    solution = gmres(
        operator, right, tolerance=forcing, max_iterations=max_iterations, restart=max_iterations
    )
    w, q, last, shift = unpack(solution.x)
    for _ in range(2):
        # The end's mass to more digits: its logarithm follows the potential with a large factor.
        packed.product(source, target, table, q + last[:, None], w, gain, push)
        pull = last if shift is None else last + tau * act(shift)
        defect = -lin.r3 - known - gain @ b - slack * pull
        last = last + factor.solve(defect, tolerance=tolerance).x
    pull = lin.r4 + last
    if shift is not None:
        pull = pull + tau * act(shift)
    return Change(w, q, last, -lin.give * pull, solution.iterations)
