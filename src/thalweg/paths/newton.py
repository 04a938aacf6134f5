"""Newton's loop for the collocation equations of a path, whatever its end.

Densities and potentials are independent unknowns, so a step that would empty a state is bent at
that state alone (`bent`), and the rest of the path takes the whole step. Directions come from an
iterative solver, preconditioned by one factorisation that serves several steps. A barrier, the
weight of `-log rho` in half the action, keeps a long path away from the boundary at first.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from thalweg._types import Array
from thalweg.laplacian import Factor
from thalweg.status import Status

_NEAR = 0.15
"""Relative residual below which a barrier may fall."""
_LOOSE = 0.05
"""Relative residual of directions while there is a barrier."""
_FORCING = 0.03
"""Relative residual of the first directions."""
_FINEST = 1e-8
"""Least relative residual of directions."""


class Sight(Protocol):
    """The residuals and weights at an iterate."""

    @property
    def size(self) -> float:
        """The residual, relative to the length of the path."""

    @property
    def speed(self) -> float:
        """The length of the path."""


At = TypeVar("At")
Here = TypeVar("Here", bound=Sight)
Step = TypeVar("Step")


class Equations(Protocol[At, Here, Step]):
    """The equations of a path on one mesh: residuals, directions and how to move."""

    def look(self, at: At, barrier: float, tolerance: float) -> Here:
        """The residuals at an iterate, which may be improved in place."""

    def with_barrier(self, at: At, here: Here, barrier: float) -> Here:
        """The residuals at the same iterate with another barrier."""

    def factor(self, here: Here) -> Factor:
        """The factorisation that preconditions directions."""

    def direction(
        self, at: At, here: Here, factor: Factor, barrier: float, forcing: float
    ) -> tuple[Step, int]:
        """Newton's step up to the relative residual `forcing`, and its iterations."""

    def move(self, at: At, step: Step, length: float) -> At:
        """The iterate after the share `length` of a step."""

    def sharpened(self, at: At, forcing: float) -> float:
        """Set the relative residual of the directions from here on."""


class Pace(NamedTuple):
    """The settings of the loop for one kind of equations."""

    last_barrier: float
    """Barrier, relative to the squared length, below which it is set to zero at once."""
    stale: int
    """Number of iterations after which the next step makes its own factorisation."""
    start: float = 0.0
    """Residual that the first steps may reach: that of a start may be small by its weights."""
    doubts: bool = False
    """Whether a step that gains less than half is taken as a sign of loose directions."""


class Ended(NamedTuple, Generic[At, Here]):
    """The last iterate of the loop, its status, and its cost."""

    at: At
    here: Here
    status: Status
    steps: int
    directions: int
    factorisations: int
    iterations: int
    factor: Factor | None


def newton(
    equations: Equations[At, Here, Step],
    at: At,
    pace: Pace,
    *,
    tolerance: float,
    factor: Factor | None = None,
    barriers: tuple[float, float] = (0.0, 0.0),
    max_steps: int = 40,
) -> Ended[At, Here]:
    """The solution next to `at`.

    Parameters
    ----------
    equations
        The equations to solve.
    at
        The first iterate.
    pace
        How carefully to solve them.
    tolerance
        Bound on the relative residual.
    factor
        A factorisation to begin with.
    barriers
        The first barrier, which falls tenfold whenever the residual allows, and the last.
    max_steps
        Bound on the number of evaluations.
    """
    (barrier, barrier_end), forcing = barriers, _FORCING
    previous, length, status = np.inf, 1.0, Status.MAX_ITERATIONS
    kept: tuple[At, Step] | None = None
    steps, age, last, directions, factorisations, iterations = 0, 0, 0, 0, 0, 0
    while steps < max_steps:
        steps += 1
        forcing = equations.sharpened(at, forcing)
        here = equations.look(at, barrier, tolerance)
        if barrier > barrier_end and length == 1.0 and here.size <= max(tolerance, _NEAR):
            barrier = 0.1 * barrier if barrier > pace.last_barrier * here.speed**2 else 0.0
            barrier = max(barrier, barrier_end)
            here = equations.with_barrier(at, here, barrier)
            previous = np.inf
        size = here.size
        if size <= tolerance and barrier <= barrier_end:
            status = Status.CONVERGED
            break
        worse = not size < 1.5 * (previous if directions > 2 else max(previous, pace.start))
        if pace.doubts and kept is not None and not size < 0.5 * previous and length == 1.0:
            forcing, last, age = max(0.1 * forcing, _FINEST), pace.stale + 1, 1
        if worse and kept is not None and (length > 0.05 or not np.isfinite(size)):
            # Back, and a shorter step in the same direction.
            length *= 0.3 if np.isfinite(size) else 0.1
            if length < 1e-3:
                status = Status.STALLED
                break
            at = equations.move(*kept, length)
            continue
        if not np.isfinite(size):
            status = Status.NOT_FINITE
            break
        if factor is None or (last > pace.stale and age > 0):
            factor, age = equations.factor(here), 0
            factorisations += 1
        age += 1
        try:
            enough = _enough(size, tolerance, forcing, pace, barrier > barrier_end)
            step, last = equations.direction(at, here, factor, barrier, enough)
        except np.linalg.LinAlgError:
            status = Status.NOT_FINITE
            break
        directions, iterations = directions + 1, iterations + last
        kept, previous, length = (at, step), size, 1.0
        at = equations.move(*kept, length)
    return Ended(at, here, status, steps, directions, factorisations, iterations, factor)


def _enough(size: float, tolerance: float, forcing: float, pace: Pace, led: bool) -> float:
    """Relative residual of a direction: not smaller than the last step needs."""
    last = max(0.3 * tolerance / size, 1e-3)
    if pace.doubts:
        return max(min(0.3 * size, forcing), min(last, forcing))
    return min(max(last, min(0.3 * size, _LOOSE if led else forcing)), 0.3)


def bent(rho: Array, w: Array) -> Array:
    """Densities changed by the factors `1 + w`, bent where these are below 1/2 or above 4."""
    factor = np.where(w < -0.5, 0.25 / np.maximum(-w, 0.5), 1.0 + w)
    high = w > 3.0
    if high.any():
        factor[high] = 4.0 + 4.0 * np.log((1.0 + w[high]) / 4.0)
    return np.asarray(rho * factor)


def norm(x: Array) -> float:
    return float(np.linalg.norm(x))
