"""`thalweg check`: what would be fitted, what is odd about the data, and what it will cost."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from thalweg._sparse import dense
from thalweg._words import listed
from thalweg.cli.output import say
from thalweg.cli.problem import Problem, detected_lines
from thalweg.errors import ConvergenceError, InputError
from thalweg.snapshots import hellinger

QUICK_STATES = 30
"""Number of states up to which a fit and its rivals take seconds."""

_MEASURED = 20_000
"""Number of states up to which one round takes seconds."""
_TRIAL = 30.0
"""Seconds after which the trial fit is stopped."""
_PAGE = 2.0
"""CPU seconds that drawing the report takes: 0.1 to 2.4 s at 12 to 1000 states."""
_USUAL_ITERATIONS = (10, 80)
"""Iterations of ordinary fits of small problems."""
_USUAL_ROUNDS = (5, 25)
"""Rounds of ordinary fits of large problems."""


def findings(problem: Problem, *, cost: bool = True) -> dict[str, Any]:
    """Facts and warnings, plain enough for JSON; with `cost`, what a trial fit took."""
    kernel, snapshots = problem.kernel, problem.snapshots
    sizes, unseen, names = snapshots.sizes, _unseen(problem), kernel.labels
    first, last = snapshots.scale.labels(snapshots.times[[0, -1]])
    moved = {}
    if snapshots.n_times >= 2:
        distance, noise = _motion(problem)
        moved = {"hellinger_first_to_last": distance, "hellinger_from_noise_alone": noise}
    return {
        "states": kernel.n_states,
        "edges": kernel.n_edges,
        "times": snapshots.n_times,
        "first_time": first,
        "last_time": last,
        "time_unit": snapshots.scale.unit,
        "individuals": float(sizes.sum()),
        "smallest_snapshot": float(sizes.min()),
        "largest_snapshot": float(sizes.max()),
        "states_never_seen": [str(names[x]) for x in unseen[:50]],
        "n_states_never_seen": int(unseen.size),
        "summary": problem.summary,
        "positions": kernel.coordinates is not None,
        **moved,
        "warnings": warnings(problem),
        "cost": _cost(problem) if cost and snapshots.n_times >= 2 else None,
        "guesses": problem.guesses,
    }


def warnings(problem: Problem) -> list[str]:
    """Oddities of the data, in the words that both `check` and `fit` print."""
    kernel, snapshots = problem.kernel, problem.snapshots
    sizes, unseen, names = snapshots.sizes, _unseen(problem), kernel.labels
    found = problem.oddities
    if snapshots.n_times < 2:
        found.append("There is one snapshot: no motion can be learned from it. Add times.")
    elif snapshots.n_times == 2:
        found.append(
            "There are two snapshots: a fit always looks perfect and proves nothing. A third time "
            "would test it."
        )
    if unseen.size:
        found.append(
            f"{unseen.size} of {kernel.n_states} states were never seen; their potential will be "
            f"inferred from their neighbours ({listed((names[x] for x in unseen), 5)})."
        )
    if snapshots.n_times >= 2:
        moved, noise = _motion(problem)
        if moved <= 1.5 * noise:
            found.append(
                f"First and last snapshot differ by a Hellinger distance of {moved:.3g}, and "
                f"counting noise alone gives about {noise:.3g}: there is little motion to learn "
                "from."
            )
    if sizes.max() > 3 * sizes.min():
        found.append(
            f"Snapshots differ in size ({sizes.min():g} to {sizes.max():g}). That is fine if you "
            "sampled differently; if the population itself grew, transport cannot explain births."
        )
    counts = snapshots.counts
    entries = counts if isinstance(counts, np.ndarray) else counts.data
    if (abs(sizes - 100.0) < 1e-6).all() and (entries % 1 != 0).any():
        found.append(
            "The counts of every snapshot sum to 100: if they are percentages, say how many "
            "individuals they stand for with --individuals."
        )
    return found


def _unseen(problem: Problem) -> Any:
    return np.flatnonzero(np.asarray(problem.snapshots.counts.sum(axis=0)).ravel() == 0)


def _motion(problem: Problem) -> tuple[float, float]:
    """The distance between the first and last snapshots, and that due to counting noise alone."""
    snapshots = problem.snapshots
    p, n = snapshots.frequencies, snapshots.sizes
    first, last = (dense(p[k]).ravel() for k in (0, -1))
    seen = int(((first + last) > 0).sum())
    # Two samples of one population differ by about this much (variance-stabilised multinomial).
    noise = float(np.sqrt((seen - 1) / 8 * (1 / n[0] + 1 / n[-1])))
    return float(hellinger(first, last)), noise


def _cost(problem: Problem) -> str:
    """The CPU time of `thalweg fit`: from a trial, or one round times the usual number."""
    # Here, so that file errors surface before numba is loaded.
    from thalweg.cli.forecast import band_of, forecast_grid
    from thalweg.learn import FreeEnergyRegressor
    from thalweg.report import rejected
    from thalweg.status import Status

    n = problem.kernel.n_states
    if n > _MEASURED:
        return (
            f"long: {n} states were not tried out; --method weak answers in the time of a few "
            "Laplacian solves"
        )
    started = process_time()  # what reading the files and loading the mathematics took
    model = FreeEnergyRegressor(max_seconds=_TRIAL)
    with suppress(ConvergenceError):
        model.fit(problem.kernel, problem.snapshots)
    taken = process_time() - started
    if getattr(model, "status_", Status.TIME_LIMIT) is Status.TIME_LIMIT:
        return f"more than {_duration(taken)} of computing: a trial fit was stopped there. " + (
            _by_rounds(problem)
        )
    begun = process_time()
    band_of(model, forecast_grid(model))
    unexplained = rejected(model)
    after = process_time() - begun
    few = n <= QUICK_STATES
    after += taken if few and problem.snapshots.n_times >= 3 else 0.0  # rivals: one more fit
    said = (
        f"about {_duration(started + taken + after + _PAGE)} of computing in all: a trial fit took "
        f"{taken:.2g} s, error bands and tests {after:.2g} s, and the rest is starting and drawing"
    )
    if few and unexplained:
        said += "; up to a minute more to find out why the landscape is rejected"
    return said


def _by_rounds(problem: Problem) -> str:
    """The time of one round of a fit, and the usual number of rounds."""
    from thalweg.learn.answer import small_states
    from thalweg.learn.fields import LargeOptions, fit_likelihood_large
    from thalweg.learn.likelihood.fit import fit_likelihood
    from thalweg.learn.likelihood.options import LikelihoodOptions

    kernel, times = problem.kernel, problem.snapshots.times
    counts, rounds = dense(problem.snapshots.counts), 1
    begun = process_time()
    if kernel.n_states <= small_states(problem.snapshots):
        options = LikelihoodOptions(max_iterations=1, prior_strength=1.0)
        rounds = fit_likelihood(kernel, times, counts, options=options).n_iterations
        usual, more = _USUAL_ITERATIONS, ", and several times that where landscapes are averaged"
    else:
        few = LargeOptions(max_rounds=1, n_samples=2)
        fit_likelihood_large(kernel, times, counts, options=few)
        usual, more = _USUAL_ROUNDS, ""
    each = (process_time() - begun) / max(rounds, 1)
    return (
        f"One round takes {each:.2g} s, fits take {usual[0]} to {usual[1]}{more}; fit "
        "--max-seconds bounds it"
    )


def _duration(seconds: float) -> str:
    """A time in readable units.

    >>> _duration(0.2), _duration(41.0), _duration(200.0)
    ('less than a second', '41 s', '3 min')
    """
    if seconds < 1:
        return "less than a second"
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def print_check(problem: Problem, as_json: bool, source: Path, *, cost: bool = True) -> None:
    """Print the findings for people, or as JSON for scripts; exit code 2 if no fit is possible."""
    facts = findings(problem, cost=cost)
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        say(
            f"{source.name}: {facts['summary']}, from {facts['first_time']} to "
            f"{facts['last_time']}, on {facts['states']} states and {facts['edges']} edges"
        )
        warned = [f"! {warning}" for warning in facts["warnings"]]
        for line in [*detected_lines(facts["guesses"]), *(warned or ["nothing odd was found"])]:
            say(f"  {line}")
        if not facts["positions"]:
            say("  positions: none; fit --positions FILE draws the states where they are")
        if facts["cost"]:
            say(f"  cost: {facts['cost']}")
    if facts["times"] < 2:
        raise InputError(
            f"{source.name} holds one snapshot; nothing can be fitted to it: add times."
        )
