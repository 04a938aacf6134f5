"""Geodesics between far or empty end points: staggered curves on nested graded meshes.

Each level halves the intervals of the last and starts from its curve. The nodes of a level are then
joined by splines of the square root of the density, in the mesh's own parameter: a smooth curve
from `p0` to `p1` whose length bounds the distance from above. Length is least on the geodesic, so
the bound's error is the square of the curve's; it falls about sixteenfold from level to level.
"""

from __future__ import annotations

import numpy as np
from scipy.interpolate import CubicSpline

from thalweg._types import Array
from thalweg.laplacian import balanced
from thalweg.paths.boundary.incomplete import IncompletePattern
from thalweg.paths.boundary.staggered import Curve, Solve, Staggered, centre
from thalweg.paths.mesh import TimeMesh, gauss
from thalweg.paths.problem import Path
from thalweg.status import Status

_FIRST = 3
"""Intervals of the first mesh."""
_GAIN = 16.0
"""Factor by which a halved mesh reduces the error of the bound, in theory."""
_FIRST_GAIN = 20.0
"""The same factor on the first levels, up to twenty-four intervals, where it is larger."""
_LEVELS = 3
"""Least number of levels: the bounds of two may agree by chance."""
_MAX_STEPS = 60
"""Largest number of Newton steps per level."""
_STEPS = 10
"""Approximate number of Newton steps per level, to predict its work."""
_GAUSS = 3
"""Quadrature points per interval of the smoothed length."""


def solve_graded(
    problem: Staggered,
    solve: Solve,
    *,
    tolerance: float,
    singular: tuple[bool, bool],
    most_intervals: int,
) -> Path:
    """Levels of 3, 6, 12, ... intervals until the estimated relative error is below `tolerance`."""
    problem = problem.on(TimeMesh.graded(_FIRST, singular))
    curve = problem.start()
    scale = problem.action(curve)
    if most_intervals < _FIRST:
        # Not even one level: any curve bounds the distance from above.
        length = smooth_length(problem, curve.rho)
        return problem.as_path(curve, length, length, Status.WORK_LIMIT)
    mu = 0.02 * scale
    bounds: list[float] = []
    steps = products = 0
    best: tuple[Staggered, Curve, float, float] | None = None
    for level in range(20):
        mu_end = max(10.0 ** (-2 - level), 0.05 * tolerance) * scale
        excess = 0.5 * mu_end
        found = centre(
            problem, curve, solve, mu=mu, mu_end=mu_end, tolerance=excess, max_steps=_MAX_STEPS
        )
        steps, products = steps + found.steps, products + found.products
        bounds.append(smooth_length(problem, found.curve.rho))
        error, status = _error(bounds, np.sqrt(problem.action(found.curve))), found.status
        if best is None or bounds[-1] <= best[2]:
            best = problem, found.curve, bounds[-1], error
        if not status:
            error = max(error, best[3])
            break
        if error <= tolerance * best[2] and len(bounds) >= _LEVELS:
            # A bound is only as good as its quadrature: use a finer one.
            finer = smooth_length(problem, found.curve.rho, 2 * _GAUSS)
            error += abs(finer - bounds[-1])
            if error <= tolerance * finer:
                best = problem, found.curve, finer, error
                break
        status = Status.WORK_LIMIT
        if 2 * problem.widths.size > most_intervals:
            break
        problem = problem.on(TimeMesh.graded(2 * problem.widths.size, singular))
        curve = problem.halved(found.curve)
        scale = min(scale, best[2] ** 2)
        mu = 0.2 * mu_end
    assert best is not None
    problem, curve, length, _ = best
    return problem.as_path(curve, length, error, status, steps, products)


def _error(bounds: list[float], discrete: float) -> float:
    """Error from the fall of the bound: as fast as in theory, or as slowly as observed.

    `discrete`, the length that the staggered curve has, is of second order where the bound is of
    fourth: the error is at least about the square of their relative difference.
    """
    if len(bounds) < 2:
        return bounds[-1]
    last = abs(bounds[-2] - bounds[-1])
    gain = _GAIN if len(bounds) > 4 else _FIRST_GAIN
    if len(bounds) > 2:
        before = abs(bounds[-3] - bounds[-2])
        if before < 0.4 * _GAIN * last:
            gain = max(before / last, 2.0)
        if len(bounds) > 4:
            # A level that gains much leaves little to the next: two gain as theory says.
            last = max(last, before / gain)
    return max(last / (gain - 1.0), (bounds[-1] - discrete) ** 2 / bounds[-1])


def smooth_length(problem: Staggered, rho: Array, points: int = _GAUSS) -> float:
    """The length of the splines of `sqrt(rho)` through the nodes, each point of mass one."""
    pi = problem.kernel.stationary
    count = problem.widths.size
    root = CubicSpline(np.arange(count + 1.0), np.sqrt(rho), axis=0)
    slope = root.derivative()
    x, w = gauss(points)
    total = 0.0
    for k in range(count):
        at, weight = k + x, w
        if k == 0:
            at, weight = x**2, 2 * x * w
        elif k == count - 1:
            at, weight = count - x**2, 2 * x * w
        for u, part in zip(at, weight, strict=True):
            y, dy = root(u), slope(u)
            mass, growth = float(pi @ (y * y)), 2 * float(pi @ (y * dy))
            here = np.maximum(y * y / mass, 1e-60)
            gain = balanced(pi * (2 * y * dy / mass - y * y * (growth / mass**2)))
            factor = problem.path.solver.factor(problem.weights(here))
            psi = factor.solve(gain, tolerance=1e-5).x
            total += part * float(np.sqrt(max(float(gain @ psi), 0.0)))
    return total


def affordable(pattern: IncompletePattern, flops: float, entries: float) -> int:
    """The largest of 3, 6, 12, ... intervals whose level is within these bounds; zero if none."""
    intervals = 0
    while intervals < 1024:
        finer = max(_FIRST, 2 * intervals)
        block = 2 * finer - 1
        if _STEPS * pattern.flops(block) > flops or pattern.entries(block) > entries:
            break
        intervals = finer
    return intervals
