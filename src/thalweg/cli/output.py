"""What the commands have in common: times, names, long tables, and where results go."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from rich.console import Console

from thalweg._files import atomic_write
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.snapshots.times import TimeScale
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd

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
    import pandas as pd

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


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows for JSON: values that are not numbers become null."""
    return list(json.loads(frame.to_json(orient="records", double_precision=15)))


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write CSV, completely or not at all."""
    from thalweg.adapters.spreadsheet import guarded_frame

    with atomic_write(path) as file:
        guarded_frame(frame).to_csv(file, index=False)


def give(
    frame: pd.DataFrame, out: Path | None, as_json: bool, key: str, facts: dict[str, Any]
) -> None:
    """Print the rows, as JSON if asked, or write them to a file; both if both are asked."""
    if out is not None:
        write_table(frame, out)
    if as_json:
        answer = dict(facts)
        if out is None:
            answer[key] = records(frame)
        else:
            answer["files"] = [str(out)]
        print(json.dumps(answer))
    elif out is None:
        from thalweg.adapters.spreadsheet import guarded_frame

        print(guarded_frame(frame).to_csv(index=False), end="")
    else:
        say(f"written to {out}")


def give_page(text: str, out: Path, as_json: bool, facts: dict[str, Any]) -> None:
    """Write a page, and print where it is, or the facts as JSON."""
    with atomic_write(out) as file:
        file.write(text)
    if as_json:
        print(json.dumps({**facts, "files": [str(out)]}))
    else:
        say(f"open {out}")


def number(value: float) -> float | None:
    """`value` for JSON, which knows no infinity and no NaN."""
    return float(value) if np.isfinite(value) else None


def ends_in(out: Path | None, *suffixes: str) -> None:
    """Reject an output file whose extension names a format that the command does not write."""
    if out is not None and out.suffix.lower() not in ("", *suffixes):
        raise InputError(
            f"--out is {out.name!r}; this command writes {' or '.join(suffixes)}, so end the name "
            "in that."
        )


def finish(status: Status) -> None:
    """Exit with code 3 if a computation did not reach its tolerance; the results are written."""
    if not status:
        say(f"thalweg: {status.value}", stderr=True)
        raise typer.Exit(3)


def say(text: str, *, stderr: bool = False) -> None:
    """Print one line of plain text, without markup."""
    Console(stderr=stderr).print(text, highlight=False, markup=False, soft_wrap=True)
