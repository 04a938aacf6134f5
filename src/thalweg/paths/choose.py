"""The choice of a method for the path between two given ends, and bounds on the work.

| ends | graph | method |
| --- | --- | --- |
| all densities above 1e-3 | any | collocation (`interior`) |
| nearly empty states | up to 120 states | curves with positive coefficients, dense blocks |
| the same | 37 to 120 at 1e-4 or looser; larger ones | staggered curves, elimination |
| collocation fails | up to 400 states | as for nearly empty states, if that is better |

On a small graph the other of the last two (`boundary`) is tried if the first one fails. Each method
is imported when it is first used.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np

from thalweg.errors import InputError
from thalweg.paths.interior.collocation import solve_inside
from thalweg.paths.problem import Path, PathProblem
from thalweg.status import Status

GeodesicMethod = Literal["auto", "collocation", "interior-point"]
Ends = tuple[bool, bool]
"""Whether the path is singular at its start, and at its end."""

DENSE_STATES = 120
"""Number of states up to which the dense method, `n^3` operations per block, takes seconds."""
SECOND_CHANCE_STATES = 400
"""Number of states up to which the boundary methods are tried if collocation misses its tolerance:
on a large graph they do not improve on the best path so far."""
_QUICK_STATES, _LOOSE = 36, 1e-4
"""Above this many states, and for this tolerance or looser, staggered curves are quicker: 0.3 s
against 3 s on a grid of 100 states at 1e-2."""
SINGULAR = 1e-3
"""An end point with a density below this needs a mesh graded towards it."""
_INSIDE = 1e-8
"""Least density with which collocation is tried."""
_TOLERANCE, _FAR_TOLERANCE = 1e-8, 1e-3
"""Default relative errors: of most pairs, and of pairs that need second-order staggered curves."""
_USEFUL = 0.05
"""Relative error below which the other method is not tried."""
_FLOPS = 6e12
"""Bound on the operations of the eliminations of one level: a few minutes."""
_ENTRIES = 4e8
"""Bound on the numbers stored for one factorisation: three gigabytes."""


class Chosen(NamedTuple):
    """A path, the word for the method that found it, and its relative tolerance."""

    path: Path
    method: str
    tolerance: float


def solve_path(
    problem: PathProblem,
    *,
    tolerance: float | None = None,
    method: GeodesicMethod = "auto",
    max_stages: int | None = None,
    potential_tolerance: float | None = None,
) -> Chosen:
    """The path with a relative error of the distance below `tolerance`.

    By default 1e-8, and 1e-3 for pairs with nearly empty states on more than 120 states.
    """
    if method not in get_args(GeodesicMethod):
        raise InputError(
            f"method is {method!r}; choose one of {', '.join(get_args(GeodesicMethod))}."
        )
    n = problem.kernel.n_states
    if np.abs(problem.gap).max() == 0.0:
        return Chosen(_constant(problem), "constant", tolerance or _TOLERANCE)
    lowest = [float((p / problem.kernel.stationary).min()) for p in (problem.p0, problem.p1)]
    singular = (lowest[0] < SINGULAR, lowest[1] < SINGULAR)
    inside = min(lowest) > _INSIDE
    if tolerance is None:
        far = n > DENSE_STATES and (any(singular) or method == "interior-point")
        tolerance = _FAR_TOLERANCE if far else _TOLERANCE
    if method == "collocation" and not inside:
        raise InputError(
            f"the least density of the end points is {min(lowest):.3g}; collocation needs "
            "densities above 1e-8: use method='auto'."
        )
    found: Path | None = None
    if method == "collocation" or (method == "auto" and inside and not any(singular)):
        # The action is stationary: its error is the square of the path's.
        wanted = 0.1 * np.sqrt(tolerance) if potential_tolerance is None else potential_tolerance
        found = solve_inside(
            problem,
            tolerance=tolerance,
            accuracy=float(np.clip(wanted, 1e-11, 3e-3)),
            max_stages=120 if max_stages is None else max_stages,
        )
    settled = found is not None and (bool(found.status) or n > SECOND_CHANCE_STATES)
    if found is None or (method == "auto" and not settled):
        other = solve_far(problem, tolerance, singular, max_stages)
        if found is None or other.status or other.error_estimate < found.error_estimate:
            return Chosen(other, "interior-point", tolerance)
    return Chosen(found, "collocation", tolerance)


def _constant(problem: PathProblem) -> Path:
    """The path from a point to itself."""
    n, edges, stages = problem.kernel.n_states, problem.kernel.n_edges, problem.mesh.size
    flux, psi = np.zeros((stages, edges)), np.zeros((stages, n))
    return Path(problem, flux, psi + 1.0, psi, 0.0, 0.0, 0.0, Status.CONVERGED, 0, 0)


def solve_far(
    problem: PathProblem, tolerance: float, singular: Ends, max_stages: int | None
) -> Path:
    """The path between ends with empty states, or far apart, by the methods of the table."""
    n = problem.kernel.n_states
    solvers = [_by_elimination]
    if n <= DENSE_STATES:
        solvers.append(_by_positive_curves)
        if n <= _QUICK_STATES or tolerance < _LOOSE:
            solvers.reverse()
    best: Path | None = None
    for solver in solvers:
        found = solver(problem, tolerance, singular, max_stages)
        if best is None or found.status or found.error_estimate < best.error_estimate:
            best = found
        if best.error_estimate < _USEFUL * best.distance:
            break
    assert best is not None
    return best


def _by_positive_curves(
    problem: PathProblem, tolerance: float, singular: Ends, max_stages: int | None
) -> Path:
    from thalweg.paths.boundary.positive import solve_positive

    return solve_positive(problem, tolerance=tolerance, max_stages=max_stages)


def _by_elimination(
    problem: PathProblem, tolerance: float, singular: Ends, max_stages: int | None
) -> Path:
    from thalweg.paths.boundary.graded import affordable, solve_graded
    from thalweg.paths.boundary.incomplete import IncompletePattern, by_incomplete
    from thalweg.paths.boundary.staggered import Staggered

    pattern = IncompletePattern.of(problem.kernel)
    most = affordable(pattern, _FLOPS, _ENTRIES)
    return solve_graded(
        Staggered(problem),
        by_incomplete(pattern),
        tolerance=tolerance,
        singular=singular,
        most_intervals=most if max_stages is None else min(most, max_stages),
    )
