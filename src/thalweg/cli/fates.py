"""`thalweg fates`: where individuals end up, when they arrive, and which sets hold them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thalweg._words import listed
from thalweg.cli.forecast import announced
from thalweg.cli.options import Output
from thalweg.cli.output import give, say, state_labels
from thalweg.dynamics import Landscape, fate_probabilities, macrostates, mean_first_passage_time
from thalweg.errors import InputError
from thalweg.report.findings import WITHOUT_BIRTHS
from thalweg.status import Status


def named_sets(wanted: Sequence[str]) -> dict[str, list[str]]:
    """Sets of states from `name=a,b` or plain `a,b`, each once.

    >>> named_sets(["left=a,b", "c"])
    {'left': ['a', 'b'], 'c': ['c']}
    """
    out: dict[str, list[str]] = {}
    for text in wanted:
        name, equals, states = text.partition("=")
        members = [part.strip() for part in (states if equals else name).split(",")]
        members = [part for part in members if part]
        label = name.strip() if equals else ",".join(members)
        if not members:
            raise InputError(f"the target {text!r} is empty; write it as name=state,state.")
        if label in out:
            raise InputError(f"two targets are called {label!r}; give each its own name.")
        out[label] = members
    return out


def run_fates(
    model_file: Path, targets: Sequence[str], when: bool, level: float, output: Output
) -> None:
    """Fates (or, with `when`, passage times) of a saved model, one row per state and target."""
    model, cautions = announced(model_file, output, growing=WITHOUT_BIRTHS)
    land: Landscape = model.landscape_
    sets: dict[str, Any] = dict(named_sets(targets))
    labels = state_labels(model.kernel_)
    if not sets:
        found = macrostates(land)
        sets = dict(found.named_cores(labels))
        if not output.json:
            _explain(sets, labels, found.modes.times.value, found.gap)
    if when:
        parts, status = [], Status.CONVERGED
        for name, states in sets.items():
            times = mean_first_passage_time(land, states, level=level)
            frame = times.to_frame(labels).rename(columns={"name": "state", "value": "mean_time"})
            frame.insert(1, "target", name)
            parts.append(frame)
            status = times.status if status else status
        table = pd.concat(parts, ignore_index=True)
    else:
        fates = fate_probabilities(land, sets, level=level)
        table, status = fates.to_frame(), fates.status
        table["state"] = np.repeat(labels, len(sets))
    facts = {"level": level, "targets": _plain(sets, labels), "cautions": cautions}
    give(table, output, "passage_times" if when else "fates", facts, status)


def _plain(sets: dict[str, Any], labels: list[str]) -> dict[str, list[str]]:
    return {
        name: [labels[x] if isinstance(x, (int, np.integer)) else str(x) for x in states]
        for name, states in sets.items()
    }


def _explain(sets: dict[str, Any], labels: list[str], times: Any, gap: float) -> None:
    say(
        f"{len(sets)} sets hold an individual longest (the slowest relaxation takes "
        f"{times[0]:.4g}; the next one is {gap:.2g} times faster):",
        stderr=True,
    )
    for name, states in _plain(sets, labels).items():
        say(f"  {name}: {listed(states, 8)}", stderr=True)
