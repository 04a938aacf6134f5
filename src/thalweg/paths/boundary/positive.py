"""Geodesics from or to empty states on small graphs: positive curves on finer and finer meshes.

Near an empty end the density grows like powers of time and of its logarithm whose exponents depend
on the graph, so no single change of variable makes it smooth. A mesh that is cut geometrically
towards the end, with a degree that grows from level to level, needs no exponents and converges
exponentially. Each level starts from the curve of the last, which is one of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from thalweg._types import Array
from thalweg.edges.static import edge_weights
from thalweg.paths.boundary.bernstein import BernsteinMesh, carried, graded_pieces
from thalweg.paths.boundary.positive_newton import Evaluated, PositiveCurves
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.problem import Path, PathProblem
from thalweg.status import Status


class Level(NamedTuple):
    """One space of curves: number of pieces, their degree, and cuts of the end pieces."""

    pieces: int
    degree: int
    cuts: int

    @property
    def size(self) -> int:
        """The number of coefficients in time."""
        return (self.pieces + 2 * self.cuts) * self.degree

    def mesh(self) -> BernsteinMesh:
        widths = graded_pieces(self.pieces, self.cuts, _GRADING, _CUT)
        # With as many points as coefficients the action is too low by up to a thousand times the
        # error of the curve; half as many again are enough.
        return BernsteinMesh(widths, self.degree, -(-3 * self.degree // 2))


LEVELS = (
    Level(4, 3, 0),
    Level(8, 4, 0),
    Level(8, 6, 1),
    Level(8, 8, 2),
    Level(16, 8, 3),
    Level(16, 10, 5),
    Level(16, 12, 8),
)
_GRADING = 3.0
"""Nodes are at `(2 k / pieces)^_GRADING / 2` from an empty end."""
_CUT = 0.125
"""Place of the cut of an end piece, as a share of it from the end."""
MAX_STEPS = 60
"""Largest number of Newton steps per level."""
_RESTART = 30.0
"""The barrier of a level starts at this many times the last one's end."""
_TO_BOUNDARY = 0.99
"""Share of the way to the boundary that a step may take."""
_REDUCTION = 0.03
"""Factor on `mu` after each step that came near its minimum; 0.1 needs a tenth more steps."""
_CENTRED = 0.5
"""A Newton decrement below this many `mu` ends a level: what is left is a quarter of that at most,
and far less after the step; at 0.1 levels take one or two steps more."""
_CENTRAL = 1e4
"""Multipliers stay within this factor of `mu / e`."""


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # reported by the status
def solve_positive(
    problem: PathProblem, *, tolerance: float, max_stages: int | None = None
) -> Path:
    """The curve whose length has an estimated relative error below `tolerance`, or the best found.

    The length of any curve between the end points bounds the distance from above, up to quadrature.
    Levels after the first have at most `max_stages` coefficients in time.
    """
    levels = [a for a in LEVELS if a is LEVELS[0] or max_stages is None or a.size <= max_stages]
    curves = PositiveCurves(problem, levels[0].mesh())
    c = curves.start()
    first = curves.evaluate(c, curves.mesh.elevation @ c)
    assert first is not None
    scale, mu, spent = first.action, 0.05 * first.action, 0
    lengths: list[float] = []
    # If a mean does not vanish with one density, states may empty on the way.
    ends = np.array([0], np.int32), np.array([1], np.int32)
    kinks = edge_weights(*ends, np.ones(1), np.array([0.0, 1.0]), problem.spec)[0] > 0
    best: Path | None = None
    for number, level in enumerate(levels):
        if number > 0:
            finer = PositiveCurves(problem, level.mesh())
            c, curves = finer.tidy(carried(curves.mesh, c, finer.mesh)), finer
        mu_end = max(0.1 * tolerance, 10.0 ** (-4 - 2 * number)) * scale
        at, status, steps = _centre(curves, c, max(mu, mu_end), mu_end)
        spent += steps
        length, quadrature = _length(curves, at, 0.01 * tolerance)
        lengths.append(length)
        error = _error(lengths, mu_end / at.action * length, quadrature, kinks)
        if not status and best is not None:
            # How far this level is from its minimum is unknown; its length is a bound all the same.
            error = max(best.error_estimate, best.distance - length)
        reached = bool(status) and error <= tolerance * length
        if best is None or status or length < best.distance:
            best = _as_path(curves, at, length, quadrature, error)
        if reached or not status:
            break
        status = Status.WORK_LIMIT
        c, mu, scale = at.c, _RESTART * mu_end, min(scale, at.action)
    assert best is not None
    return replace(best, status=status, steps=spent, products=spent)


def _error(lengths: list[float], gap: float, quadrature: float, kinks: bool) -> float:
    """Error from the fall of the length over the levels, the barrier and the quadrature."""
    if len(lengths) < 3:
        return lengths[-1]
    falls = np.maximum(np.abs(np.diff(lengths[-4:])), 1e-300)
    # States that empty on the way leave kinks, which no mesh graded towards the ends resolves: the
    # length falls quickly at first and slowly then. Nor do two falls show the rate of smooth
    # curves, since the first mesh is coarse and its barrier high.
    rate = 0.7
    if len(lengths) > 3 and not kinks:
        rate = min(max(float(np.sqrt(np.max(falls[1:] / falls[:-1]))), 0.1), 0.7)
    # The barrier's part is a bound: states that stay positive cost nothing, so that the true one is
    # about a sixth of it between point masses on a grid of 3 x 3.
    error = falls[-1] * rate / (1 - rate) + 0.5 * gap + quadrature
    return float(max(error, 1e-13 * lengths[-1]))


def _length(curves: PositiveCurves, at: Evaluated, tolerance: float) -> tuple[float, float]:
    """The length by a finer quadrature, and its difference from the next coarser one.

    The points are doubled until that is below the relative `tolerance`, at most three times.
    """
    length, change = float(curves.mesh.weights @ np.sqrt(at.actions)), np.inf
    for factor in (2, 4, 8):
        finer = PositiveCurves(curves.problem, curves.mesh.finer(factor))
        fine = finer.evaluate(at.c, at.e)
        if fine is None:
            return length, length
        before, length = length, float(finer.mesh.weights @ np.sqrt(fine.actions))
        change = abs(length - before)
        if change <= tolerance * length:
            break
    return length, change


def _centre(
    curves: PositiveCurves, c: Array, mu: float, mu_end: float
) -> tuple[Evaluated, Status, int]:
    """The minimiser of the barrier function at `mu_end`, reached by reducing `mu` in turn.

    Returns a curve near it, how the search ended, and its steps.
    """
    mesh, pi = curves.mesh, curves.problem.kernel.stationary
    free = mesh.barrier[:, :, None] > 0
    at = curves.evaluate(c, mesh.elevation @ c)
    assert at is not None
    z = mu / np.where(at.e > 0, at.e, 1.0)
    value = curves.value(at, mu)
    for steps in range(1, MAX_STEPS + 1):
        try:
            step, decrement = curves.direction(at, mu, z)
        except np.linalg.LinAlgError:
            return at, Status.STALLED, steps
        move = mesh.elevation @ step
        e = np.where(free, at.e, 1.0)
        ratio = np.where(free, move / e, 0.0)
        length = min(1.0, _TO_BOUNDARY / max(-float(ratio.min()), 1e-300))
        # Next to the minimum the value's rounding hides what is left to gain.
        slack = 1e-13 * abs(value) + (0.5 * abs(decrement) if abs(decrement) < 0.01 * mu else 0.0)
        while True:
            new = curves.evaluate(at.c + length * step, at.e + length * move)
            new_value = np.inf if new is None else curves.value(new, mu)
            if new_value <= value - 1e-4 * length * decrement + slack or length < 1e-8:
                break
            length *= 0.5
        if new is None:
            return at, Status.STALLED, steps
        aim = mu / e - z * ratio
        shrink = float(np.where(free, (z - aim) / z, 0.0).max())
        z = z + min(1.0, _TO_BOUNDARY / max(shrink, 1e-300)) * (aim - z)
        central = mu / np.where(free, new.e, 1.0)
        z = np.clip(z, central / _CENTRAL, central * _CENTRAL)
        z[1:, 0] = z[:-1, -1]
        at, value = new, new_value
        size = float(np.sqrt((mesh.barrier[:, :, None] * pi * ratio**2).sum()))
        if mu <= mu_end:
            if length > 0.5 and decrement <= _CENTRED * mu_end:
                return at, Status.CONVERGED, steps
            if length < 1e-7:
                return at, Status.STALLED, steps
        elif length > 0.3 and (size < 0.5 or decrement < mu):
            mu = max(_REDUCTION * mu, mu_end)
            value = curves.value(at, mu)
    return at, Status.MAX_ITERATIONS, MAX_STEPS


def _as_path(
    curves: PositiveCurves, at: Evaluated, length: float, quadrature: float, error: float
) -> Path:
    """The curve by its fluxes at as many Gauss points as it has degrees: the same polynomials."""
    mesh, problem = curves.mesh, curves.problem
    times = TimeMesh(mesh.widths, np.full(mesh.pieces, mesh.degree))
    plain = BernsteinMesh(mesh.widths, mesh.degree, mesh.degree, singular=False)
    stage = PositiveCurves(problem, plain).evaluate(at.c, at.e)
    assert stage is not None
    flux, ended = problem.fluxes(stage.rho, stage.psi), (Status.WORK_LIMIT, 0, 0)
    return Path(
        problem.on(times), flux, stage.rho, stage.psi, length, length + quadrature, error, *ended
    )
