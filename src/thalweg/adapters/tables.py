"""Tables of snapshots, long (`time, state[, count]`) or wide (one row per time)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from thalweg._words import did_you_mean, listed
from thalweg.adapters.pieces import as_numbers, read_pieces
from thalweg.errors import InputError
from thalweg.snapshots import Snapshots
from thalweg.snapshots.columns import (
    COUNT_NAMES,
    REPLICATE_NAMES,
    STATE_NAMES,
    TIME_NAMES,
    Oddity,
    choose,
    missing,
    plain,
    require,
)
from thalweg.snapshots.times import read_times

_MOST_STATES = 5_000_000
"""Largest number of states in a file."""
_MOST_TIMES = 100_000
"""Largest number of times in a file."""
_OUTSIDE = -1
"""The number of every state whose individuals are left out."""
_KEYS = ["time", "state", "replicate"]


@dataclass(frozen=True, eq=False)
class SnapshotTable:
    """Snapshots, the names of their states, and the choices made."""

    snapshots: Snapshots
    states: tuple[str, ...]
    messages: tuple[str, ...] = field(default=())


def read_snapshots(
    path: str | Path,
    *,
    time: str | None = None,
    state: str | None = None,
    count: str | None = None,
    states: Sequence[Hashable] | None = None,
    outside: Collection[str] = (),
    individuals: float | None = None,
    replicate: str | None = None,
) -> SnapshotTable:
    """The snapshots in a file.

    Text files are read piece by piece: memory is bounded by times x states, not by lines.

    Parameters
    ----------
    path : str or Path
        A `.csv`, `.tsv` or `.parquet` table: long, or wide with one row per time.
    time, state, count : str, optional
        The columns. Unambiguous ones are detected, and each choice is in `messages`; a column of
        numbers that could be the count, but whose name does not say so, is an error.
        `count="none"` means that each row is one individual.
    states : sequence, optional
        The states, in the kernel's order; by default those in the file, in order of appearance.
    outside : collection of str
        States whose individuals are left out, and reported.
    individuals : float, optional
        For shares: the number of individuals behind each snapshot.
    replicate : str, optional
        The column of replicates; it is never detected automatically.
    """
    source = Path(path)
    pieces = read_pieces(source)
    first = next(pieces, None)
    if first is None or first.empty:
        raise InputError(f"{source.name} has no rows; it needs at least two times.")
    own = None
    if replicate is not None:
        own = choose(list(first.columns), replicate, (), "replicate", source.name)
    columns = [column for column in first.columns if column != own]
    time_column = require(columns, time, TIME_NAMES, "time", source.name, "--time")
    messages = [] if time is not None else [f"time is column {str(time_column)!r}"]
    known = None if states is None else {state_key(name): k for k, name in enumerate(states)}
    if known is not None:
        known |= dict.fromkeys(map(state_key, outside), _OUTSIDE)
    if _is_wide(columns, time_column, state, known, first):
        messages.append("one row per time, one column per state")
        collected: _Collected = _Wide(source.name, time_column, known, own)
    else:
        others = first[[column for column in columns if column != time_column]]
        chosen = _long_columns(source.name, others, state, count, known, messages)
        collected = _Long(source.name, time_column, known, own, *chosen)
    collected.add(first)
    for piece in pieces:
        collected.add(piece)
    return collected.table(states, messages, individuals)


def state_key(name: object) -> str:
    """The form in which names are compared: stripped text, whole numbers without `.0`.

    >>> state_key(3), state_key("3.0"), state_key(" liver ")
    ('3', '3', 'liver')
    """
    if isinstance(name, float | np.floating) and float(name).is_integer():
        return str(int(name))
    text = str(name).strip()
    if text.endswith(".0") and text[:-2].lstrip("-").isdigit():
        return text[:-2]
    return text


# ------------------------------------------------------------------------ shapes


def _is_wide(
    columns: Sequence[Hashable],
    time_column: Hashable,
    state: str | None,
    known: dict[str, int] | None,
    first: pd.DataFrame,
) -> bool:
    if state is not None:
        return False
    others = [column for column in columns if column != time_column]
    if known is not None:
        return sum(state_key(column) in known for column in others) > len(others) / 2
    if choose(others, None, STATE_NAMES, "state", "the table") is not None:
        return False
    return len(others) >= 2 and all(pd.api.types.is_numeric_dtype(first[c]) for c in others)


def _long_columns(
    where: str,
    first: pd.DataFrame,
    state: str | None,
    count: str | None,
    known: dict[str, int] | None,
    messages: list[str],
) -> tuple[Hashable, Hashable | None]:
    """The columns of states and counts (`None`: a row is one individual) among those in `first`."""
    columns = list(first.columns)
    state_column = choose(columns, state, STATE_NAMES, "state", where)
    if state_column is None:
        left = [c for c in columns if plain(c) not in COUNT_NAMES]
        if len(left) != 1 and known is not None:  # the graph says what a state is called
            left = [c for c in left if set(map(state_key, first[c])) <= known.keys()]
        if len(left) != 1:
            raise missing(columns, "state", where, "--state")
        state_column = left[0]
    rest = [column for column in columns if column != state_column]
    count_column = None
    if count != "none" or "none" in rest:
        count_column = choose(rest, count, COUNT_NAMES, "count", where)
    unused = [column for column in rest if column != count_column]
    if count is None and count_column is None:
        # A second column of times is no count, nor are numbers of runs.
        could = [c for c in unused if plain(c) not in (*TIME_NAMES, *REPLICATE_NAMES)]
        numeric = [str(c)[:40] for c in could if pd.api.types.is_numeric_dtype(first[c])]
        if numeric:
            raise InputError(
                f"{where} has a column of numbers that is neither time nor state: {numeric[0]!r}; "
                f"if it counts individuals, give --count {numeric[0]}; if each row is one "
                "individual, give --count none."
            )
    if unused:
        apart = [str(c) for c in unused if plain(c) in REPLICATE_NAMES]
        hint = f" (--replicate {apart[0][:40]} keeps replicates apart)" if apart else ""
        messages.append(f"not used: {listed(unused)}{hint}")
    if state is None:
        messages.append(f"state is column {str(state_column)!r}")
    if count is None:
        messages.append(
            "each row is one individual"
            if count_column is None
            else f"count is column {str(count_column)!r}"
        )
    return state_column, count_column


class _Collected(ABC):
    """Counts by (time, state, replicate), added piece by piece."""

    repeats = True
    """Whether two rows of one time and state are worth a warning."""

    def __init__(
        self,
        where: str,
        time_column: Hashable,
        known: dict[str, int] | None,
        replicate: Hashable | None,
    ) -> None:
        self.where, self.known, self.replicate = where, known, replicate
        self.labels: dict[str, int] = {}
        self.time_column = time_column
        self.times: dict[Any, int] = {}
        """The times as they stand in the file, in order of appearance, each with its number."""
        self.rows: list[int] = []
        """The row where each appears first."""
        self.index: dict[str, int] = {} if known is None else known
        self.left_out = 0.0
        self.n_entries = 0
        self.parts: list[pd.DataFrame] = []

    @abstractmethod
    def entries(self, piece: pd.DataFrame) -> tuple[Any, Any, Any]:
        """The counts in a piece: their rows (positions in the piece), states and values."""

    def add(self, piece: pd.DataFrame) -> None:
        time, replicate = self._moments(piece), self._replicates(piece)
        rows, state, count = self.entries(piece)
        if (count < 0).any() or np.isinf(count).any():
            k = int(np.argmax((count < 0) | np.isinf(count)))
            raise InputError(
                f"{self.where}: a count is {count[k]:g} in row {int(piece.index[rows[k]]) + 2}; "
                "counts must be finite and not negative."
            )
        self.left_out += float(count[state == _OUTSIDE].sum())
        self.n_entries += int((state != _OUTSIDE).sum())
        columns = {"time": time[rows], "state": state, "replicate": replicate[rows]}
        self.parts.append(pd.DataFrame({**columns, "count": count}))
        if len(self.parts) > 8:
            self.parts = [self._merged()]
        if len(self.index) > _MOST_STATES:
            raise InputError(f"{self.where} has over {_MOST_STATES} states: is --state right?")

    def values(self, piece: pd.DataFrame, column: Hashable, what: str) -> tuple[Any, Any]:
        """The number of each row's value in a column, and the values; none may be missing."""
        codes, uniques = pd.factorize(piece[column])
        if (codes < 0).any():
            row = int(piece.index[int(np.argmax(codes < 0))]) + 2
            raise InputError(f"{self.where}: the {what} is missing in row {row}; fill or drop it.")
        return codes, uniques

    def states(self, names: Iterable[object]) -> NDArray[np.int64]:
        """The numbers of states by name; new ones are added, unless all are known."""
        keys = [state_key(name) for name in names]
        strange = [key for key in keys if key not in self.index]
        if strange and self.known is not None:
            hint = did_you_mean(strange[0], islice(self.known, 100_000))
            raise InputError(
                f"{self.where} has the state {strange[0][:60]!r}, which the graph does not "
                f"have{hint} Add it to the graph, or drop its rows."
            )
        return _numbered(self.index, keys)

    def numbers(self, piece: pd.DataFrame, columns: Sequence[Hashable], whose: str) -> Any:
        """The counts in some columns; an entry that is no number is an error.

        `whose` completes "the count" in the message, with the name of the column.
        """
        values = np.column_stack([as_numbers(piece[column]) for column in columns])
        if np.isnan(values).any():
            row, column = (int(k) for k in np.argwhere(np.isnan(values))[0])
            found = piece[columns[column]].iloc[row]
            entry = f"{self.where}: the count{whose.format(state_key(columns[column])[:60])}"
            place = f"in row {int(piece.index[row]) + 2}"
            if pd.isna(found):
                raise InputError(
                    f"{entry} is missing {place}; write 0 if none were seen, or drop the row."
                )
            raise InputError(
                f"{entry} is {str(found)[:60]!r} {place}; it must be a plain number, without "
                "separators of thousands."
            )
        return values

    def _moments(self, piece: pd.DataFrame) -> NDArray[np.int64]:
        """The number of each row's time."""
        codes, uniques = self.values(piece, self.time_column, "time")
        first = piece.index[np.unique(codes, return_index=True)[1]]
        new = (value not in self.times for value in uniques)
        self.rows += [int(row) + 2 for row, is_new in zip(first, new, strict=True) if is_new]
        number = _numbered(self.times, uniques)
        if len(self.times) > _MOST_TIMES:
            raise InputError(
                f"{self.where} has over {_MOST_TIMES} different times: is the time column right?"
            )
        return number[codes]

    def _replicates(self, piece: pd.DataFrame) -> NDArray[np.int64]:
        """The number of each row's replicate; all zero if there is no such column."""
        if self.replicate is None:
            return np.zeros(len(piece), dtype=np.int64)
        codes, uniques = self.values(piece, self.replicate, "replicate")
        return _numbered(self.labels, map(state_key, uniques))[codes]

    def _merged(self) -> pd.DataFrame:
        whole = pd.concat(self.parts, ignore_index=True)
        return whole.groupby(_KEYS, as_index=False, sort=False)["count"].sum()

    def table(
        self, states: Sequence[Hashable] | None, messages: list[str], individuals: float | None
    ) -> SnapshotTable:
        merged, labels = self._merged(), list(self.times)
        moments, scale = read_times(
            labels, f"times in {self.where}", lambda k: f"in row {self.rows[k]}"
        )
        if scale.unit:
            messages.append(
                f"times are dates, counted in {scale}"
                if scale.origin
                else f"times such as {str(labels[0])[:40]!r} are read as {moments[0]:g} {scale}"
            )
        outside = merged["state"] == _OUTSIDE
        # As zeros they are kept, so that a snapshot that is wholly outside is named below.
        merged.loc[outside, ["state", "count"]] = 0
        repeated = self.n_entries - int((~outside).sum())
        if repeated > 0 and self.repeats:
            messages.append(Oddity(
                "1 count repeats the time and state of another; they are added"
                if repeated == 1
                else f"{repeated} counts repeat the time and state of others; they are added"
            ))  # fmt: skip
        if self.left_out:
            messages.append(Oddity(
                f"{self.left_out:g} individuals outside the largest component are left out"
            ))  # fmt: skip
        names = tuple(state_key(name) for name in (self.index if states is None else states))
        merged["time"] = moments[merged["time"].to_numpy()]
        if individuals is not None:
            totals = merged.groupby("time")["count"].transform("sum")
            merged["count"] *= individuals / np.maximum(totals, 1e-300)
        try:
            snapshots = Snapshots.from_frame(
                merged, time="time", state="state", count="count", states=len(names),
                replicate=None if self.replicate is None else "replicate",
            )  # fmt: skip
        except InputError as error:
            raise InputError(f"{self.where}: {error}") from None
        return SnapshotTable(replace(snapshots, scale=scale), names, tuple(messages))


def _numbered(known: dict[Any, int], keys: Iterable[Any]) -> NDArray[np.int64]:
    """The number of each key; new ones are numbered in order of appearance."""
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)


class _Long(_Collected):
    """One row per individual, or per count of individuals."""

    def __init__(
        self,
        where: str,
        time_column: Hashable,
        known: dict[str, int] | None,
        replicate: Hashable | None,
        state_column: Hashable,
        count_column: Hashable | None,
    ) -> None:
        super().__init__(where, time_column, known, replicate)
        self.state_column, self.count_column = state_column, count_column
        self.repeats = count_column is not None

    def entries(self, piece: pd.DataFrame) -> tuple[Any, Any, Any]:
        codes, uniques = self.values(piece, self.state_column, "state")
        count = np.ones(len(piece))
        if self.count_column is not None:
            count = self.numbers(piece, [self.count_column], "")[:, 0]
        return np.arange(len(piece)), self.states(uniques)[codes], count


class _Wide(_Collected):
    """One row per time, one column per state."""

    def entries(self, piece: pd.DataFrame) -> tuple[Any, Any, Any]:
        columns = [c for c in piece.columns if c not in (self.time_column, self.replicate)]
        keys = [state_key(c) for c in columns]
        if len(set(keys)) < len(keys):
            twice = next(k for k in keys if keys.count(k) > 1)
            raise InputError(f"{self.where} has two columns for the state {twice!r}; merge them.")
        number = self.states(columns)
        values = self.numbers(piece, columns, " of {!r}")
        rows, states = np.nonzero(values)
        # A row of zeros is kept, so that the empty snapshot is named later and not lost.
        empty = np.flatnonzero(~values.any(axis=1))
        rows, states = np.concatenate([rows, empty]), np.concatenate([states, 0 * empty])
        return rows, number[states], values[rows, states]
