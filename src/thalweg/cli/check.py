"""`thalweg check`: what would be fitted, what is odd about the data, and what it will cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.cli.output import say
from thalweg.cli.problem import Problem
from thalweg.errors import InputError
from thalweg.snapshots import hellinger

__all__ = ["findings", "print_check", "warnings"]


def findings(problem: Problem) -> dict[str, Any]:
    """Facts and warnings, plain enough for JSON."""
    kernel, snapshots = problem.kernel, problem.snapshots
    sizes = np.asarray(snapshots.sizes)
    unseen = _unseen(problem)
    names = kernel.names or tuple(range(kernel.n_states))
    first, last = snapshots.scale.labels(snapshots.times[[0, -1]])
    facts: dict[str, Any] = {
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
    }
    if snapshots.n_times >= 2:
        facts["hellinger_first_to_last"], facts["hellinger_from_noise_alone"] = _motion(problem)
    facts["warnings"] = warnings(problem)
    facts["cost"] = _cost(kernel.n_states) if snapshots.n_times >= 2 else None
    facts["guesses"] = problem.guesses
    return facts


def warnings(problem: Problem) -> list[str]:
    """What is odd about the data: the same before a fit and at it."""
    kernel, snapshots = problem.kernel, problem.snapshots
    sizes = np.asarray(snapshots.sizes)
    unseen = _unseen(problem)
    names = kernel.names or tuple(range(kernel.n_states))
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
            f"{unseen.size} of {kernel.n_states} states were never seen; their potential will be a "
            f"guess from their neighbours ({', '.join(str(names[x]) for x in unseen[:5])}"
            f"{', ...' if unseen.size > 5 else ''})."
        )
    if snapshots.n_times >= 2:
        moved, noise = _motion(problem)
        if moved < 1.5 * noise:
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
    if (abs(sizes - 100.0) < 1e-6).all() and (_entries(snapshots.counts) % 1 != 0).any():
        found.append(
            "The counts of every snapshot sum to 100: if they are percentages, say how many "
            "individuals they stand for with --individuals."
        )
    return found


def _entries(counts: Any) -> Any:
    """The entries of counts, dense or sparse."""
    return counts if isinstance(counts, np.ndarray) else counts.data


def _unseen(problem: Problem) -> Any:
    return np.flatnonzero(np.asarray(problem.snapshots.counts.sum(axis=0)).ravel() == 0)


def _motion(problem: Problem) -> tuple[float, float]:
    """How far first and last snapshot differ, and how far counting noise alone would have them."""
    snapshots = problem.snapshots
    p, n = snapshots.frequencies, np.asarray(snapshots.sizes)
    first, last = p[0], p[-1]
    first = first if isinstance(first, np.ndarray) else first.toarray().ravel()
    last = last if isinstance(last, np.ndarray) else last.toarray().ravel()
    seen = int(((first + last) > 0).sum())
    # Two samples of one population differ by about this much (variance-stabilised multinomial).
    noise = float(np.sqrt((seen - 1) / 8 * (1 / n[0] + 1 / n[-1])))
    return float(hellinger(first, last)), noise


def _cost(n_states: int) -> str:
    if n_states <= 300:
        return "seconds: every state's landscape is fitted with exact second derivatives"
    if n_states <= 2000:
        return "up to a minute: matrix-free fit with a smoothness prior"
    if n_states <= 20_000:
        return "minutes: matrix-free fit with a smoothness prior"
    return "long; --method weak answers in the time of a few Laplacian solves"


def print_check(problem: Problem, as_json: bool, source: Path) -> None:
    """Print the findings for people, or as JSON for scripts; exit code 2 if no fit is possible."""
    facts = findings(problem)
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        _print(facts, source)
    if facts["cost"] is None:
        raise InputError(
            f"{source.name} holds one snapshot; nothing can be fitted to it: add times."
        )


def _print(facts: dict[str, Any], source: Path) -> None:
    say(
        f"{source.name}: {facts['times']} times from {facts['first_time']} to "
        f"{facts['last_time']}, {facts['individuals']:g} individuals on {facts['states']} states "
        f"and {facts['edges']} edges"
    )
    for guess in facts["guesses"]:
        say(f"  guessed: {guess}")
    for warning in facts["warnings"]:
        say(f"  ! {warning}")
    if not facts["warnings"]:
        say("  nothing odd was found")
    if facts["cost"]:
        say(f"  cost: {facts['cost']}")
