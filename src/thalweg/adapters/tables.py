"""Tables of snapshots: CSV, TSV, Parquet; long (`time, state[, count]`) or wide (a row a time)."""

from __future__ import annotations

import csv
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thalweg.adapters.columns import COUNT_NAMES, STATE_NAMES, TIME_NAMES, choose
from thalweg.adapters.spreadsheet import unguarded_frame
from thalweg.errors import InputError, MissingDependencyError
from thalweg.snapshots import Snapshots

__all__ = ["SnapshotTable", "read_snapshots", "read_table", "state_key"]

_CHUNK = 500_000
_MOST_STATES = 5_000_000
_MOST_TIMES = 100_000
_KEYS = ["time", "state", "replicate"]
_TEXT = (".csv", ".tsv", ".txt", ".tab")


@dataclass(frozen=True, eq=False)
class SnapshotTable:
    """Snapshots, the names of their states and times, and what had to be guessed."""

    snapshots: Snapshots
    states: tuple[str, ...]
    time_labels: tuple[str, ...]
    time_unit: str = ""
    messages: tuple[str, ...] = field(default=())


def read_snapshots(
    path: str | Path,
    *,
    time: str | None = None,
    state: str | None = None,
    count: str | None = None,
    states: Sequence[Hashable] | None = None,
    replicate: str | None = None,
) -> SnapshotTable:
    """The snapshots in a file.

    `time`, `state`, `count` name the columns; what is left out is guessed where there is one way,
    and the guess is reported in `messages`. `states`: the states there are, in the kernel's order;
    without it, those in the file, in order of appearance. `replicate` names the column of
    replicates; it is never guessed. Text files are read piece by piece:
    memory is bounded by times x states, not by lines.
    """
    source = Path(path)
    pieces = _pieces(source)
    first = next(pieces, None)
    if first is None or first.empty:
        raise InputError(f"{source.name} has no rows; it needs at least two times.")
    own = None
    if replicate is not None:
        own = choose(list(first.columns), replicate, (), "replicate", source.name)
    columns = [column for column in first.columns if column != own]
    time_column = choose(columns, time, TIME_NAMES, "time", source.name)
    if time_column is None:
        raise InputError(
            f"{source.name} has no column that looks like a time; name it with --time. Its columns "
            f"are {', '.join(str(c)[:40] for c in columns[:12])}."
        )
    messages = [] if time is not None else [f"time is column {str(time_column)!r}"]
    known = None if states is None else {state_key(name): k for k, name in enumerate(states)}
    if _is_wide(columns, time_column, state, known, first):
        messages.append("one row a time, one column a state")
        collected: _Collected = _Wide(source.name, time_column, known, own)
    else:
        state_column, count_column = _long_columns(
            source.name, columns, time_column, state, count, messages
        )
        collected = _Long(source.name, time_column, known, own)
        collected.state_column, collected.count_column = state_column, count_column
    collected.add(first)
    for piece in pieces:
        collected.add(piece)
    return collected.table(states, messages)


def state_key(name: object) -> str:
    """How names are compared: as text without blanks around it, whole numbers without `.0`.

    >>> state_key(3), state_key("3.0"), state_key(" liver ")
    ('3', '3', 'liver')
    """
    if isinstance(name, float | np.floating) and float(name).is_integer():
        return str(int(name))
    text = str(name).strip()
    if text.endswith(".0") and text[:-2].lstrip("-").isdigit():
        return text[:-2]
    return text


# ------------------------------------------------------------------------ reading


def read_table(path: str | Path) -> pd.DataFrame:
    """A whole table, for files that are small by nature."""
    return pd.concat(list(_pieces(Path(path))), ignore_index=True)


def _pieces(path: Path) -> Iterator[pd.DataFrame]:
    """The table in pieces of bounded size, every column as text where it is not a number."""
    if not path.exists():
        raise InputError(f"there is no file {path}; check the name and the folder.")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a file.")
    if path.stat().st_size == 0:
        raise InputError(f"{path.name} is empty.")
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    suffix = suffixes[-1] if suffixes else ".csv"
    try:
        if suffix in (".parquet", ".pq"):
            yield from _parquet_pieces(path)
        elif suffix in _TEXT:
            yield from _text_pieces(path)
        else:
            raise InputError(
                f"{path.name} ends in {suffix!r}; snapshots are read from .csv, .tsv, .parquet "
                "and .h5ad."
            )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, csv.Error) as error:
        detail = str(error).strip().splitlines()[-1][:200]
        raise InputError(f"{path.name} is not a readable table: {detail}.") from None
    except OSError as error:
        raise InputError(f"cannot read {path.name}: {error.strerror or error}.") from None


def _text_pieces(path: Path) -> Iterator[pd.DataFrame]:
    encoding, separator = _encoding(path), _separator(path)
    reader = pd.read_csv(
        path,
        sep=separator,
        encoding=encoding,
        encoding_errors="replace",
        chunksize=_CHUNK,
        skipinitialspace=True,
        keep_default_na=True,
        on_bad_lines="error",
        low_memory=False,
        engine="c",
    )
    with reader:
        for piece in reader:
            if not isinstance(piece.index, pd.RangeIndex):
                raise InputError(
                    f"{path.name}: some rows have more cells than the header has names; name every "
                    "column, or quote cells that hold the separator."
                )
            yield unguarded_frame(piece)


def _parquet_pieces(path: Path) -> Iterator[pd.DataFrame]:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingDependencyError(
            "reading Parquet needs pyarrow: pip install pyarrow (or save the table as CSV)."
        ) from None
    start = 0
    try:
        file = pq.ParquetFile(path)
        _check_plain(path, file.schema_arrow)
        for batch in file.iter_batches(batch_size=_CHUNK):
            # An index with a name is a column like any other; one without a name only counts rows.
            piece = batch.to_pandas(ignore_metadata=True)
            piece = piece.drop(columns=[c for c in piece if str(c).startswith("__index_level_")])
            piece.index = pd.RangeIndex(start, start + len(piece))
            start += len(piece)
            yield piece
    except InputError:
        raise
    except Exception as error:  # pyarrow raises many types for a damaged file
        detail = str(error).strip().splitlines()[0][:200] if str(error).strip() else "damaged"
        raise InputError(f"{path.name} is not a readable Parquet file: {detail}.") from None


def _check_plain(path: Path, schema: Any) -> None:
    """Refuse columns of lists, tables and bytes: no state, time or count is one."""
    import pyarrow.types as kinds

    for field_ in schema:
        if kinds.is_nested(field_.type) or "binary" in str(field_.type):
            raise InputError(
                f"{path.name}: the column {str(field_.name)[:40]!r} holds {str(field_.type)[:60]}; "
                "leave it out, or turn it into numbers or text."
            )


def _head(path: Path) -> bytes:
    if path.suffix.lower() == ".gz":
        import gzip
        import zlib

        try:
            with gzip.open(path) as packed:
                return packed.read(65536)
        except (OSError, EOFError, zlib.error):
            raise InputError(f"{path.name} is not a readable gzip file.") from None
    with path.open("rb") as file:
        return file.read(65536)


def _encoding(path: Path) -> str:
    """UTF-16 by its mark, UTF-8 where it decodes, else Latin-1, which always does."""
    head = _head(path)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if b"\x00" in head:
        raise InputError(f"{path.name} is a binary file, not a table of text.")
    try:
        head[: head.rfind(b"\n") + 1 or None].decode("utf-8-sig")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8-sig"


def _separator(path: Path) -> str:
    if ".tsv" in path.name.lower() or ".tab" in path.name.lower():
        return "\t"
    line = _head(path).decode("utf-8", errors="replace").splitlines()[0]
    return max(",;\t", key=line.count) if any(c in line for c in ",;\t") else ","


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
    columns: Sequence[Hashable],
    time_column: Hashable,
    state: str | None,
    count: str | None,
    messages: list[str],
) -> tuple[Hashable, Hashable | None]:
    others = [column for column in columns if column != time_column]
    state_column = choose(others, state, STATE_NAMES, "state", where)
    if state_column is None:
        left = [c for c in others if str(c).strip().lower() not in COUNT_NAMES]
        if len(left) != 1:
            raise InputError(
                f"{where} has no column that looks like a state; name it with --state. Its columns "
                f"are {', '.join(str(c)[:40] for c in columns[:12])}."
            )
        state_column = left[0]
    rest = [column for column in others if column != state_column]
    count_column = choose(rest, count, COUNT_NAMES, "count", where)
    if state is None:
        messages.append(f"state is column {str(state_column)!r}")
    if count is None:
        messages.append(
            "each row is one individual"
            if count_column is None
            else f"count is column {str(count_column)!r}"
        )
    return state_column, count_column


class _Times:
    """Times as numbers: numbers as they are, dates as days since the first one."""

    def __init__(self, where: str, column: Hashable) -> None:
        self.where, self.column = where, column
        self.dates: bool | None = None

    def numbers(self, values: pd.Series[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        if self.dates is None:
            # Decided by the majority: one slip among numbers must not turn them into dates.
            self.dates = bool(pd.to_numeric(values, errors="coerce").isna().mean() > 0.5)
        parsed: Any
        if self.dates:
            parsed = pd.to_datetime(values, errors="coerce", format="ISO8601", utc=True)
            bad = parsed.isna().to_numpy()
            numbers = (parsed - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
        else:
            numbers = pd.to_numeric(values, errors="coerce")
            bad = ~np.isfinite(numbers.to_numpy(dtype=np.float64))
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"{self.where}: the time is {str(values.iloc[row])[:60]!r} in row "
                f"{int(values.index[row]) + 2}; it must be a number or an ISO date "
                "such as 2024-03-01."
            )
        return np.asarray(numbers.to_numpy(dtype=np.float64))

    def finish(
        self, numbers: np.ndarray[Any, np.dtype[np.float64]]
    ) -> tuple[np.ndarray[Any, np.dtype[np.float64]], tuple[str, ...], str]:
        if not self.dates:
            return numbers, tuple(f"{t:g}" for t in numbers), ""
        stamps = pd.Timestamp(0, tz="UTC") + pd.to_timedelta(numbers, unit="D").round("s")
        midnight = bool((stamps == stamps.normalize()).all())
        labels = tuple(
            str(s.date()) if midnight else s.strftime("%Y-%m-%d %H:%M:%S") for s in stamps
        )
        return numbers - numbers[0], labels, "days"


class _Collected:
    """Counts by (time, state, replicate), added piece by piece."""

    def __init__(
        self,
        where: str,
        time_column: Hashable,
        known: dict[str, int] | None,
        replicate: Hashable | None = None,
    ) -> None:
        self.where, self.known, self.replicate = where, known, replicate
        self.labels: dict[str, int] = {}
        self.times = _Times(where, time_column)
        self.time_column = time_column
        self.index: dict[str, int] = {} if known is None else known
        self.parts: list[pd.DataFrame] = []

    def add(self, piece: pd.DataFrame) -> None:
        raise NotImplementedError

    def replicates(self, piece: pd.DataFrame) -> Any:
        """The number of each row's replicate; all zero where there is no such column."""
        if self.replicate is None:
            return np.zeros(len(piece), dtype=np.int64)
        codes, uniques = pd.factorize(piece[self.replicate])
        if (codes < 0).any():
            row = int(piece.index[int(np.argmax(codes < 0))]) + 2
            raise InputError(
                f"{self.where}: the replicate is missing in row {row}; fill or drop it."
            )
        number = [self.labels.setdefault(state_key(u), len(self.labels)) for u in uniques]
        return np.array(number, dtype=np.int64)[codes]

    def store(self, time: Any, state: Any, count: Any, replicate: Any) -> None:
        bad = ~np.isfinite(count) | (count < 0)
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"{self.where}: a count is {count[row]} at time {time[row]:g}; counts must be "
                "finite and not negative."
            )
        columns = {"time": time, "state": state, "replicate": replicate, "count": count}
        part = pd.DataFrame(columns).groupby(_KEYS, as_index=False, sort=False)["count"].sum()
        self.parts.append(part)
        if len(self.parts) > 8:
            self.parts = [self._merged()]
        if len(self.index) > _MOST_STATES:
            raise InputError(f"{self.where} has over {_MOST_STATES} states: is --state right?")

    def _merged(self) -> pd.DataFrame:
        whole = pd.concat(self.parts, ignore_index=True)
        return whole.groupby(_KEYS, as_index=False, sort=False)["count"].sum()

    def table(self, states: Sequence[Hashable] | None, messages: list[str]) -> SnapshotTable:
        merged = self._merged()
        numbers, rows = np.unique(merged["time"].to_numpy(), return_inverse=True)
        if numbers.size > _MOST_TIMES:
            raise InputError(
                f"{self.where} has {numbers.size} different times: is the time column right?"
            )
        names = tuple(self.index) if states is None else tuple(state_key(s) for s in states)
        from scipy import sparse

        counts = sparse.coo_array(
            (merged["count"].to_numpy(), (rows, merged["state"].to_numpy())),
            shape=(numbers.size, len(names)),
        ).tocsr()
        times, labels, unit = self.times.finish(numbers)
        small = numbers.size * len(names) <= 50_000_000
        snapshots = Snapshots.from_counts(times, counts.toarray() if small else counts)
        if self.replicate is not None:
            snapshots = self._split(snapshots, rows, merged)
        return SnapshotTable(snapshots, names, labels, unit, tuple(messages))

    def _split(self, whole: Snapshots, rows: Any, merged: pd.DataFrame) -> Snapshots:
        """The same snapshots with the counts of each replicate."""
        labels = merged["replicate"].to_numpy()
        pairs, place = np.unique(np.stack([rows, labels], axis=1), axis=0, return_inverse=True)
        table = np.zeros((pairs.shape[0], whole.n_states))
        np.add.at(table, (place, merged["state"].to_numpy()), merged["count"].to_numpy())
        return Snapshots.from_counts(
            whole.times[pairs[:, 0]], table, replicates=pairs[:, 1].tolist()
        )


class _Long(_Collected):
    state_column: Hashable
    count_column: Hashable | None = None

    def add(self, piece: pd.DataFrame) -> None:
        time = self.times.numbers(piece[self.time_column])
        codes, uniques = pd.factorize(piece[self.state_column])
        if (codes < 0).any():
            row = int(piece.index[int(np.argmax(codes < 0))]) + 2
            raise InputError(f"{self.where}: the state is missing in row {row}; fill or drop it.")
        if self.count_column is None:
            count = np.ones(len(piece))
        else:
            values = pd.to_numeric(piece[self.count_column], errors="coerce")
            missing = values.isna().to_numpy()
            if missing.any():
                row = int(np.argmax(missing))
                shown = str(piece[self.count_column].iloc[row])[:60]
                raise InputError(
                    f"{self.where}: the count is {shown!r} in row {int(piece.index[row]) + 2}; it "
                    "must be a plain number, without separators of thousands."
                )
            count = values.to_numpy(dtype=np.float64)
        number = np.array([self._number(name) for name in uniques], dtype=np.int64)
        self.store(time, number[codes], count, self.replicates(piece))

    def _number(self, name: object) -> int:
        key = state_key(name)
        if self.known is not None:
            if key not in self.known:
                raise _unknown(self.where, key, self.known)
            return self.known[key]
        return self.index.setdefault(key, len(self.index))


class _Wide(_Collected):
    def add(self, piece: pd.DataFrame) -> None:
        time, replicate = self.times.numbers(piece[self.time_column]), self.replicates(piece)
        others = [c for c in piece.columns if c not in (self.time_column, self.replicate)]
        keys = [state_key(c) for c in others]
        if len(set(keys)) < len(keys):
            twice = next(k for k in keys if keys.count(k) > 1)
            raise InputError(f"{self.where} has two columns for the state {twice!r}; merge them.")
        if self.known is not None:
            strange = [key for key in keys if key not in self.known]
            if strange:
                raise _unknown(self.where, strange[0], self.known)
        columns = np.array([self.index.setdefault(key, len(self.index)) for key in keys])
        frame = piece[others].apply(pd.to_numeric, errors="coerce")
        values = frame.to_numpy(dtype=np.float64)
        if np.isnan(values).any():
            row, column = (int(i) for i in np.argwhere(np.isnan(values))[0])
            raise InputError(
                f"{self.where}: the count of {keys[column]!r} is not a number in row "
                f"{int(piece.index[row]) + 2}."
            )
        rows, states = np.nonzero(values)
        empty = np.flatnonzero(~values.any(axis=1))
        # A row of zeros is kept, so that the empty snapshot is named later and not lost.
        rows, states = np.concatenate([rows, empty]), np.concatenate([states, 0 * empty])
        self.store(time[rows], columns[states], values[rows, states], replicate[rows])


def _unknown(where: str, key: str, known: dict[str, int]) -> InputError:
    import difflib

    close = difflib.get_close_matches(key, list(known)[:100_000], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return InputError(
        f"{where} has the state {key[:60]!r}, which the graph does not have{hint} Add it to the "
        "graph, or drop its rows."
    )
