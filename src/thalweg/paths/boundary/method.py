"""End points with empty states, or far apart: the choice of method, and bounds on the work.

| graph | method |
| --- | --- |
| up to 120 states | curves with positive Bernstein coefficients, dense blocks |
| the same above 36 states, tolerance 1e-4 or looser; any other | staggered curves, elimination |

Each method is imported when it is first used.
"""

from __future__ import annotations

from thalweg.paths.problem import Path, PathProblem

DENSE_STATES = 120
"""Number of states up to which the dense method, `n^3` operations per block, takes seconds."""
_QUICK_STATES, _LOOSE = 36, 1e-4
"""Above this many states, and for this tolerance or looser, staggered curves are quicker: 0.3 s
against 3 s on a grid of 100 states at 1e-2."""
_USEFUL = 0.05
"""Relative error below which the other method is not tried."""
_FLOPS = 6e12
"""Bound on the operations of the eliminations of one level: a few minutes."""
_ENTRIES = 4e8
"""Bound on the numbers stored for one factorisation: three gigabytes."""


def solve_far(
    problem: PathProblem,
    tolerance: float,
    singular: tuple[bool, bool],
    max_stages: int | None,
) -> Path:
    """The path by the method of the table above, or by the other if that fails on a small graph."""
    n = problem.kernel.n_states
    solvers = [_by_elimination]
    if n <= DENSE_STATES:
        solvers.append(_by_positive_curves)
        if n <= _QUICK_STATES or tolerance < _LOOSE:
            solvers.reverse()
    best: Path | None = None
    for solver in solvers:
        found = solver(problem, tolerance, singular, max_stages)
        if best is None or found.status or found.error < best.error:
            best = found
        if best.error < _USEFUL * best.distance:
            break
    assert best is not None
    return best


def _by_positive_curves(
    problem: PathProblem, tolerance: float, singular: tuple[bool, bool], max_stages: int | None
) -> Path:
    from thalweg.paths.boundary.positive import Bernstein, solve_positive

    method = Bernstein() if max_stages is None else Bernstein().within(max_stages)
    return solve_positive(problem, tolerance=tolerance, method=method)


def _by_elimination(
    problem: PathProblem, tolerance: float, singular: tuple[bool, bool], max_stages: int | None
) -> Path:
    from thalweg.paths.boundary.graded import affordable, solve_graded
    from thalweg.paths.boundary.incomplete import IncompletePattern, by_incomplete
    from thalweg.paths.boundary.staggered import Staggered

    pattern = IncompletePattern.of(problem.kernel)
    most = affordable(pattern, _FLOPS, _ENTRIES)
    found = solve_graded(
        Staggered(problem),
        by_incomplete(pattern),
        tolerance=tolerance,
        singular=singular,
        most_intervals=most if max_stages is None else min(most, max_stages),
    )
    curve = found.centred.curve
    return Path(
        found.problem.path,
        curve.flux,
        curve.middle,
        found.centred.psi,
        found.distance,
        found.distance,
        found.error,
        found.status,
        found.steps,
        found.products,
    )
