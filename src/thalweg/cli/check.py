"""`thalweg check`: what would be fitted, what is odd about the data, and what it will cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from thalweg.cli.problem import Problem
from thalweg.snapshots import hellinger

__all__ = ["findings", "print_check"]


def findings(problem: Problem) -> dict[str, Any]:
    """Facts and warnings, plain enough for JSON."""
    kernel, snapshots = problem.kernel, problem.snapshots
    counts = np.asarray(snapshots.counts.sum(axis=0)).ravel()
    sizes = np.asarray(snapshots.sizes)
    unseen = np.flatnonzero(counts == 0)
    names = kernel.names or tuple(range(kernel.n_states))
    facts = {
        "states": kernel.n_states,
        "edges": kernel.n_edges,
        "times": snapshots.n_times,
        "first_time": problem.time_labels[0],
        "last_time": problem.time_labels[-1],
        "individuals": float(sizes.sum()),
        "smallest_snapshot": float(sizes.min()),
        "largest_snapshot": float(sizes.max()),
        "states_never_seen": [str(names[x]) for x in unseen[:50]],
        "n_states_never_seen": int(unseen.size),
    }
    warnings = []
    if snapshots.n_times < 2:
        warnings.append("There is one snapshot: no motion can be learned from it. Add times.")
    elif snapshots.n_times == 2:
        warnings.append(
            "There are two snapshots: a fit always looks perfect and proves nothing. A third time "
            "would test it."
        )
    if unseen.size:
        warnings.append(
            f"{unseen.size} of {kernel.n_states} states were never seen; their potential will be a "
            f"guess from their neighbours ({', '.join(str(names[x]) for x in unseen[:5])}"
            f"{', ...' if unseen.size > 5 else ''})."
        )
    if snapshots.n_times >= 2:
        warnings += _motion(problem, facts)
    if sizes.max() > 3 * sizes.min():
        warnings.append(
            f"Snapshots differ in size ({sizes.min():g} to {sizes.max():g}). That is fine if you "
            "sampled differently; if the population itself grew, transport cannot explain births."
        )
    facts["warnings"] = warnings
    facts["cost"] = _cost(kernel.n_states, kernel.n_edges, snapshots.n_times)
    facts["guesses"] = list(problem.messages)
    return facts


def _motion(problem: Problem, facts: dict[str, Any]) -> list[str]:
    """Does the population move more than counting noise would make it seem to?"""
    snapshots = problem.snapshots
    p, n = snapshots.frequencies, np.asarray(snapshots.sizes)
    first, last = p[0], p[-1]
    first = first if isinstance(first, np.ndarray) else first.toarray().ravel()
    last = last if isinstance(last, np.ndarray) else last.toarray().ravel()
    moved = float(hellinger(first, last))
    seen = int(((first + last) > 0).sum())
    # Two samples of one population differ by about this much (variance-stabilised multinomial).
    noise = float(np.sqrt((seen - 1) / 8 * (1 / n[0] + 1 / n[-1])))
    facts["hellinger_first_to_last"] = moved
    facts["hellinger_from_noise_alone"] = noise
    if moved < 1.5 * noise:
        return [
            f"First and last snapshot differ by a Hellinger distance of {moved:.3g}, and counting "
            f"noise alone gives about {noise:.3g}: there is little motion to learn from."
        ]
    return []


def _cost(n_states: int, n_edges: int, n_times: int) -> str:
    if n_states <= 300:
        return "seconds: every state's landscape is fitted with exact second derivatives"
    if n_states <= 2000:
        return "up to a minute: matrix-free fit with a smoothness prior"
    if n_states <= 20_000:
        return "minutes: matrix-free fit with a smoothness prior"
    return "long; --method weak answers in the time of a few Laplacian solves"


def print_check(problem: Problem, as_json: bool, source: Path) -> None:
    """Print the findings for people, or as JSON for scripts."""
    facts = findings(problem)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    console = Console()
    console.print(
        f"{source.name}: {facts['times']} times from {facts['first_time']} to "
        f"{facts['last_time']}, {facts['individuals']:g} individuals on {facts['states']} states "
        f"and {facts['edges']} edges",
        highlight=False,
        markup=False,
    )
    for guess in facts["guesses"]:
        console.print(f"  guessed: {guess}", highlight=False, markup=False)
    for warning in facts["warnings"]:
        console.print(f"  ! {warning}", highlight=False, markup=False)
    if not facts["warnings"]:
        console.print("  nothing odd was found", highlight=False)
    console.print(f"  cost: {facts['cost']}", highlight=False, markup=False)
