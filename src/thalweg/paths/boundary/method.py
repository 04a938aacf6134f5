"""Method B, for end points with empty states or far apart: which solver, and how much work at most.

| graph and tolerance | solver |
| --- | --- |
| up to 100 states, tolerance below 1e-5 | collocation on an adaptive mesh, dense blocks |
| up to some hundred thousand edges | staggered curves on graded meshes, incomplete elimination |
| any other | collocation with GMRES, a few rounds |
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg.paths.boundary.block_elimination import solve_blocks
from thalweg.paths.boundary.graded import Graded, affordable, solve_graded
from thalweg.paths.boundary.incomplete import IncompletePattern, by_incomplete
from thalweg.paths.boundary.interior_point import AdaptivePath, solve_adaptive
from thalweg.paths.boundary.staggered import Staggered, edge_weights
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.newton import NewtonPath
from thalweg.paths.newton_system import Direction, Linearisation, balanced, solve_krylov
from thalweg.paths.problem import PathProblem

__all__ = ["solve_far"]

Array = NDArray[np.float64]

_COLLOCATION_STATES = 100
_COLLOCATION_TOLERANCE = 1e-5
_FLOPS = 6e12
"""Work of the eliminations of one level: some minutes."""
_ENTRIES = 4e8
"""Numbers of one factorisation: three gigabytes."""
_BEYOND = 1e-8
"""Staggered curves do not get below this relative error with bearable work."""
_LEAST = 12
"""A mesh of fewer intervals tells nothing about its error."""


def solve_far(
    problem: PathProblem, tolerance: float, singular: tuple[bool, bool], max_stages: int | None
) -> AdaptivePath:
    """The path by the solver of the table above; where it fails on a small graph, by the other."""
    small = problem.kernel.n_states <= _COLLOCATION_STATES
    solvers = [_by_elimination, _by_collocation]
    if small and tolerance < _COLLOCATION_TOLERANCE:
        solvers.reverse()
    best: AdaptivePath | None = None
    for solver in solvers:
        found = solver(problem, tolerance, singular, max_stages)
        if found is None:
            continue
        if best is None or found.status or found.error < best.error:
            best = found
        if best.status or not small or best.error < _BEYOND * best.distance:
            break
    assert best is not None  # collocation always has an answer
    return best


def _by_elimination(
    problem: PathProblem, tolerance: float, singular: tuple[bool, bool], max_stages: int | None
) -> AdaptivePath | None:
    """Staggered curves; `None` where the graph is too large for them."""
    n = problem.kernel.n_states
    if (n + problem.kernel.n_edges) * (2 * _LEAST - 1) ** 2 > _ENTRIES:
        return None
    pattern = IncompletePattern.of(problem.kernel)
    most = affordable(pattern, _FLOPS, _ENTRIES)
    if most < _LEAST:
        return None
    staggered = Staggered(
        problem.kernel, problem.spec, problem.p0, problem.p1, np.ones(1), problem.solver
    )
    found = solve_graded(
        staggered,
        by_incomplete(pattern),
        tolerance=tolerance,
        singular=singular,
        most_intervals=most if max_stages is None else min(most, max_stages),
    )
    return _as_path(problem, found)


def _as_path(problem: PathProblem, found: Graded) -> AdaptivePath:
    widths = found.problem.widths
    mesh = TimeMesh(widths, np.ones(widths.size, dtype=np.int64))
    centred = found.centred
    path = NewtonPath(
        centred.curve.flux,
        centred.curve.middle,
        centred.psi,
        found.status,
        found.steps,
        found.products,
        centred.decrement,
    )
    return AdaptivePath(
        problem.on(mesh),
        path,
        found.distance,
        found.distance,
        found.error,
        found.status,
        found.steps,
        found.products,
    )


def _by_collocation(
    problem: PathProblem, tolerance: float, singular: tuple[bool, bool], max_stages: int | None
) -> AdaptivePath:
    n, pi = problem.kernel.n_states, problem.kernel.stationary
    small = n <= _COLLOCATION_STATES
    order = 4 if n <= 32 else 3
    pieces, start = 4, None
    if not any(singular):
        middle = 0.5 * (problem.p0 + problem.p1) / pi
        weights = edge_weights(*problem.kernel.edges, middle, problem.spec)
        psi = problem.solver.factor(weights).solve(balanced(problem.gap), tolerance=1e-3).x
        pieces = int(np.clip(np.ceil(np.sqrt(problem.gap @ psi)), 2, 16))
        problem = problem.on(TimeMesh.uniform(pieces, order))
        start = problem.chord_flux()

    def direction(lin: Linearisation, forcing: float) -> Direction:
        if small:
            return solve_blocks(lin)
        return solve_krylov(lin, problem.solver, tolerance=forcing, max_iterations=300)

    return solve_adaptive(
        problem,
        direction,
        tolerance=tolerance,
        order=order,
        singular=singular,
        pieces=pieces,
        max_stages=max_stages or (1500 if n <= 32 else 600 if small else 64),
        max_rounds=40 if small else 3,
        max_steps=80 if small else 25,
        start=start,
    )
