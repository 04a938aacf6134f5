"""How a computation ended: an enum whose value is a sentence that says what to do."""

from __future__ import annotations

from enum import Enum

from thalweg.errors import ConvergenceError

__all__ = ["Status"]


class Status(Enum):
    """The end of a computation, with a sentence that says what to do.

    >>> bool(Status.CONVERGED), bool(Status.STALLED)
    (True, False)
    >>> print(Status.CONVERGED.value)
    The computation reached its tolerance.
    """

    CONVERGED = "The computation reached its tolerance."
    MAX_ITERATIONS = (
        "The iteration limit was reached before the tolerance; raise the limit (max_iterations of "
        "a fit, max_stages of a geodesic), or ask for a looser tolerance."
    )
    STALLED = (
        "Progress stopped above the requested tolerance, usually because rounding errors dominate; "
        "ask for a looser tolerance, or use less extreme weights."
    )
    STEP_TOO_SMALL = (
        "The step size fell below what the clock can resolve; the energy or the initial "
        "distribution is too extreme for the requested tolerance."
    )
    MAX_STEPS = "The step limit was reached before the last time; raise max_steps."
    NOT_FINITE = (
        "A value overflowed or became NaN; rescale the weights or the potential to ordinary sizes."
    )
    NEWTON_FAILED = (
        "Newton's method did not converge at any step size; smooth the end points, or ask for a "
        "looser tolerance."
    )
    DISCONNECTED = (
        "The right-hand side moves mass across edges of zero weight; smooth the density so that "
        "every state keeps some mass, or solve on each component."
    )
    WORK_LIMIT = (
        "The next refinement would take more work than allowed; the best value and the estimate of "
        "its error are given: ask for a looser tolerance."
    )
    LEFT_SIMPLEX = (
        "A density reached zero, beyond which the geodesic cannot be followed; use a smaller "
        "potential or a shorter time."
    )
    TIME_LIMIT = (
        "The time limit was reached before the tolerance; the best iterate so far is given: raise "
        "max_seconds, or --max-seconds of the command line."
    )
    INTERRUPTED = "The computation was interrupted; the best iterate so far is given."
    COLLAPSED = (
        "The fitted population collapses onto a single state; the data do not determine a "
        "landscape: add snapshots, or fix beta."
    )

    SHORTER_HORIZON = (
        "Only the first intervals could be followed: beyond them no parameters were found that "
        "describe the snapshots, and those before decide; use environment='empirical', which "
        "takes each interval by itself, or shorter intervals."
    )
    UNDETERMINED = (
        "The data do not determine beta: any value fits with a potential of its own; add snapshots "
        "at other times, or give beta."
    )
    UNRESOLVED = (
        "The potential varies within less than a step or than its functions resolve, as at a kink, "
        "and that passes for noise there: beta is from the quieter places, and the error bars "
        "include the rest; take snapshots at shorter intervals, or give features that vary so."
    )

    def __bool__(self) -> bool:
        return self is Status.CONVERGED

    def check(self) -> None:
        """Raise `ConvergenceError` with this status's sentence unless it is `CONVERGED`."""
        if not self:
            raise ConvergenceError(self.value)
