"""The roles of columns, from known names, or from their contents if only one choice is possible."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

from thalweg._words import did_you_mean, listed
from thalweg.errors import InputError


class Oddity(str):
    """A message about a possible mistake in a file, which `check` and `fit` print as a warning."""

    __slots__ = ()


TIME_NAMES = (
    "time", "t", "times", "timepoint", "time_point", "day", "days", "date", "datetime", "hour",
    "hours", "week", "month", "year", "years", "age", "stage", "samples", "frame", "lag",
)  # fmt: skip
STATE_NAMES = (
    "state", "states", "place", "node", "vertex", "cluster", "region", "site", "cell_type",
    "celltype", "label", "name", "id", "location", "species", "bin", "microstate", "town", "city",
    "county", "country", "station", "patch", "plot", "zone", "habitat", "leiden", "louvain",
)  # fmt: skip
COUNT_NAMES = (
    "count", "counts", "n", "number", "population", "abundance", "frequency", "weight", "value",
    "size", "total", "cells", "people", "individuals",
)  # fmt: skip
REPLICATE_NAMES = (
    "replicate", "rep", "run", "batch", "trajectory", "traj", "animal", "mouse", "donor", "plate",
)  # fmt: skip
SOURCE_NAMES = ("source", "from", "src", "start", "u", "node1", "a", "state1", "i")
TARGET_NAMES = ("target", "to", "dst", "end", "v", "node2", "b", "state2", "j")


def choose(
    columns: Sequence[Hashable], wanted: str | None, known: Sequence[str], what: str, where: str
) -> Hashable | None:
    """The column for `what`: the one requested, or the only one with a known name, or None.

    >>> choose(["Day", "place", "n"], None, TIME_NAMES, "time", "a.csv")
    'Day'
    >>> choose(["run", "time (ps)", "shape"], None, TIME_NAMES, "time", "a.csv")
    'time (ps)'
    >>> choose(["Day"], "day2", TIME_NAMES, "time", "a.csv")
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: a.csv has no column 'day2' for the time; did you mean 'Day'? Its
    columns are Day.
    """
    if wanted is not None:
        if wanted in columns:
            return wanted
        alike = [column for column in columns if plain(column) == plain(wanted)]
        if alike:
            return alike[-1]
        hint = did_you_mean(wanted, (str(column).strip() for column in columns))
        raise InputError(
            f"{where} has no column {wanted!r} for the {what}{hint} Its columns are "
            f"{listed(columns)}."
        )
    named = [column for column in columns if plain(column) in known]
    if not named:  # a known word and more: "time_ps", "Time [h]"
        named = [column for column in columns if _first_word(column) in known]
    for name in known[:2]:
        # "time" wins over "day" when a table has both.
        exact = [column for column in named if plain(column) == name]
        if len(exact) == 1:
            return exact[0]
    if len(named) == 1:
        return named[0]
    if len(named) > 1:
        raise InputError(
            f"{where} has several columns that could be the {what}: {listed(named)}; say which."
        )
    return None


def require(
    columns: Sequence[Hashable],
    wanted: str | None,
    known: Sequence[str],
    what: str,
    where: str,
    option: str,
) -> Hashable:
    """The column that `choose` finds; if there is none, an error that names the option to give."""
    found = choose(columns, wanted, known, what, where)
    if found is None:
        raise missing(columns, what, where, option)
    return found


def missing(columns: Sequence[Hashable], what: str, where: str, option: str) -> InputError:
    """The error for a column that could not be found."""
    return InputError(
        f"{where} has no column that looks like a {what}; name it with {option}. Its columns are "
        f"{listed(columns)}."
    )


def plain(column: Hashable) -> str:
    """The form in which column names are compared."""
    return str(column).strip().lower()


def _first_word(column: Hashable) -> str:
    words = re.findall("[a-z0-9]+", plain(column))
    return words[0] if words else ""
