"""What the commands have in common: times, names, long tables, and where results go."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console

from thalweg._files import atomic_write
from thalweg._types import Array
from thalweg.adapters.spreadsheet import guarded_frame
from thalweg.cli.options import Output
from thalweg.errors import InputError
from thalweg.snapshots.times import TimeScale
from thalweg.status import Status

if TYPE_CHECKING:
    from thalweg.kernel import MarkovKernel


_MOST_TIMES = 100_000
"""Largest number of times in a range."""
_CLOCK = re.compile(r"\d[T ]\d{2}:")
MOST_CELLS = 20_000_000
"""Largest number of rows of a table."""


def parse_times(text: str, scale: TimeScale | None = None) -> Array:
    """Times from `1,2,5` or `0:10:21` (from, to, how many), or dates and labels of the scale.

    >>> parse_times("0:1:3"), parse_times("2, 5")
    (array([0. , 0.5, 1. ]), array([2., 5.]))
    >>> parse_times("2024-03-01:2024-03-05:3", TimeScale("days", "2024-02-28"))
    array([2., 4., 6.])
    """
    scale = TimeScale() if scale is None else scale
    remedy = (
        f"times are {text[:40]!r}; give rising numbers as 1,2,5 or as from:to:how-many, like "
        "0:10:21"
    )
    remedy += ", or dates such as 2024-03-20." if scale.origin else "."
    # The colons of 2024-03-20T12:30 are not those of a range.
    ranged = ":" in text and not _CLOCK.search(text)
    try:
        parts = text.split(":") if ranged else text.split(",")
        count = 0
        if ranged:
            *parts, number = parts
            count = int(number)
            if len(parts) != 2 or not 1 <= count <= _MOST_TIMES:
                raise ValueError(text)
    except ValueError:
        raise InputError(remedy) from None
    times = scale.numbers([part.strip() for part in parts], "--times")
    if ranged:
        times = np.linspace(times[0], times[1], count)
    if not np.isfinite(times).all() or (np.diff(times) <= 0).any():
        raise InputError(remedy)
    return times


def state_labels(kernel: MarkovKernel) -> list[str]:
    """The names of the states as they appear in tables."""
    return [str(x) for x in kernel.labels]


def long_table(
    kernel: MarkovKernel,
    times: Array,
    values: Array,
    *more: tuple[str, Array],
    scale: TimeScale | None = None,
) -> pd.DataFrame:
    """One row per time and state: time (a date if the data have dates), state, probability, ..."""
    names = state_labels(kernel)
    if len(times) * len(names) > MOST_CELLS:
        raise InputError(
            f"{len(times)} times of {len(names)} states are too many rows for a table; ask for "
            "fewer times."
        )
    columns = {
        "time": np.repeat(times if scale is None else scale.column(times), len(names)),
        "state": np.tile(np.asarray(names, dtype=object), len(times)),
        "probability": np.asarray(values).ravel(),
    }
    columns |= {name: np.asarray(array).ravel() for name, array in more}
    return pd.DataFrame(columns)


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write CSV, completely or not at all."""
    with atomic_write(path) as file:
        guarded_frame(frame).to_csv(file, index=False)


def give(
    frame: pd.DataFrame, output: Output, key: str, facts: dict[str, Any], status: Status | None
) -> None:
    """Print or write the rows, with the facts if JSON was asked for; then `finish`."""
    facts = facts if status is None else {"status": status.name, **facts}
    if output.out is not None:
        write_table(frame, output.out)
        _give_file(output, facts, "written to")
    elif output.json:
        rows = json.loads(frame.to_json(orient="records", double_precision=15))
        print(json.dumps({**facts, key: rows}))
    else:
        print(guarded_frame(frame).to_csv(index=False), end="")
    finish(status)


def give_page(text: str, output: Output, facts: dict[str, Any], status: Status | None) -> None:
    """Write a page, and print where it is, or the facts if JSON was asked for; then `finish`."""
    assert output.out is not None
    with atomic_write(output.out) as file:
        file.write(text)
    _give_file(output, facts if status is None else {"status": status.name, **facts}, "open")
    finish(status)


def _give_file(output: Output, facts: dict[str, Any], verb: str) -> None:
    if output.json:
        print(json.dumps({**facts, "files": [str(output.out)]}))
    else:
        say(f"{verb} {output.out}")


def number(value: float) -> float | None:
    """`value` for JSON, which knows no infinity and no NaN."""
    return float(value) if np.isfinite(value) else None


def finish(status: Status | None) -> None:
    """Exit with code 3 if a computation did not reach its tolerance; the results are written."""
    if status is not None and not status:
        say(f"thalweg: {status.value}", stderr=True)
        raise typer.Exit(3)


def say(text: str, *, stderr: bool = False) -> None:
    """Print one line of plain text, without markup."""
    Console(stderr=stderr).print(text, highlight=False, markup=False, soft_wrap=True)
