"""A first answer for the mean-field chain: hold the population near the counts, then let it go.

Along many intervals the chain of frozen rates amplifies errors of its parameters, and states that
are nearly empty fill and empty in turns, so that the likelihood has many optima. A population that
is pulled towards the counts after each interval forgets such errors: at full pull the intervals
decouple. The pull is relaxed stage by stage, each stage starting from the last one's optimum and
seeing all intervals; a variance added to every count keeps nearly empty states from deciding, and
is taken away at the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from thalweg._types import Array
from thalweg.learn.likelihood.model import Mesh
from thalweg.learn.likelihood.optimize import Minimum, Penalty, minimise
from thalweg.learn.likelihood.tracked import FLOOR, Judgement, TrackedObjective
from thalweg.status import Status

_RELAXATION = 0.5
_SHARE = 3e-3
"""Variance added to every count at first, as a share of the individuals."""
_ITERATIONS = 6
_FIRST_ITERATIONS = 12
_TOLERANCE = 1e-2
_DOUBTFUL = 2.0  # standard deviations of the deviance above which another start is tried
_HOPELESS = 10.0  # the same, above which releasing the pull counts as failed


class Guide(NamedTuple):
    """Parameters near the optimum."""

    theta: Array
    """Parameters found with the pull released."""
    judgement: Judgement
    """How well `theta` describes the increments without any pull."""
    held: Array
    """Optimum under the weakest pull whose deviance passed."""
    n_iterations: int
    interrupted: bool


def let_go(
    objective: TrackedObjective, prior: Penalty, starts: list[Array], mesh: Mesh
) -> Guide | None:
    """Parameters that describe the whole chain, if relaxing the pull leads to them.

    Parameters
    ----------
    objective : TrackedObjective
        The mean-field chain of frozen rates, without weights.
    prior : Penalty
        The fit's prior.
    starts : list of arrays
        Parameters to begin from; the others are tried where the first describes little.
    mesh : Mesh
        Passed on to the objective.

    Returns
    -------
    `None` where no start has a flow.
    """
    n_intervals = objective.counts.shape[0] - 1
    wide = _SHARE * float(objective.counts.sum(axis=1).mean())
    spent, interrupted = 0, False

    def solve(theta: Array, stage: TrackedObjective, rounds: int = 1) -> Minimum | None:
        nonlocal spent, interrupted
        found: Minimum | None = None
        most = _FIRST_ITERATIONS if rounds > 1 else _ITERATIONS
        for _ in range(rounds):
            weighted = stage.reweighted(theta, mesh)
            result = None
            if weighted is not None:
                result = minimise(
                    weighted, prior, theta, mesh, max_iterations=most, tolerance=_TOLERANCE
                )
            if result is None:
                break
            found, theta = result, result.theta
            spent += result.n_iterations
            interrupted = interrupted or result.status is Status.INTERRUPTED
        return found

    stage = replace(objective, gain=1.0, floor=FLOOR + wide)
    best: tuple[Minimum, Judgement] | None = None
    for start in starts:
        found = solve(start, stage, rounds=2)
        if found is None:
            continue
        verdict = stage.judge(found.theta, mesh)
        if best is None or verdict.merit < best[1].merit:
            best = found, verdict
        if interrupted or not best[1].rejects(_DOUBTFUL):
            break
    if best is None:
        return None
    theta = held = best[0].theta
    gains = [_RELAXATION**i for i in range(1, 64) if _RELAXATION**i > 0.5 / n_intervals]
    floors = [wide * 0.25**i for i in range(1, 32) if wide * 0.25**i > 0.3 * FLOOR]
    stages = [(gain, wide) for gain in [*gains, 0.0]] + [(0.0, floor) for floor in [*floors, 0.0]]
    for gain, floor in stages:
        if interrupted:
            break
        stage = replace(objective, gain=gain, floor=FLOOR + floor)
        found = solve(theta, stage)
        if found is None:
            break
        theta = found.theta
        verdict = stage.judge(theta, mesh)
        if gain > 0.0 and not verdict.rejects():
            held = theta
        if gain == 0.0 and verdict.rejects(_HOPELESS):
            break
    return Guide(theta, objective.judge(theta, mesh), held, spent, interrupted)
