"""Tables in pieces of bounded size: CSV, TSV, Parquet, packed or not."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thalweg._types import Array
from thalweg._words import damage
from thalweg.adapters.spreadsheet import unguarded_frame
from thalweg.errors import InputError, MissingDependencyError

_CHUNK = 500_000
"""Rows per piece."""
_TEXT = (".csv", ".tsv", ".txt", ".tab")


def read_table(path: str | Path) -> pd.DataFrame:
    """A whole table, for files that are small by nature."""
    return pd.concat(list(read_pieces(Path(path))), ignore_index=True)


def coordinate_table(frame: pd.DataFrame, columns: Sequence[Any], where: str) -> Array:
    """Columns of coordinates as numbers; none may be missing."""
    try:
        x = frame[list(columns)].to_numpy(dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"{where}: a coordinate is not a number; correct it, or leave its column out."
        ) from None
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if bad.size:
        raise InputError(
            f"{where}: coordinates are missing or infinite in {bad.size} of {len(x)} rows, row "
            f"{int(frame.index[bad[0]]) + 2} for one; drop them."
        )
    return x


def as_numbers(column: pd.Series[Any]) -> Array:
    """A column as numbers, NaN where an entry is none.

    As `pandas.to_numeric`, which crashes on an endless exponent.
    """
    if pd.api.types.is_numeric_dtype(column.dtype):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    codes, uniques = pd.factorize(column)
    return np.array([*map(_number, uniques), np.nan])[codes]  # a missing entry has the code -1


def _number(entry: Any) -> float:
    if isinstance(entry, str) and "_" in entry:
        return np.nan  # 1_000 is a number to Python only
    try:
        return float(entry)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def read_pieces(path: Path) -> Iterator[pd.DataFrame]:
    """The table in pieces of bounded size, with every column that is not numeric as text."""
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
    reader = pd.read_csv(
        path,
        encoding=_encoding(path),
        sep=_separator(path),
        encoding_errors="replace",
        chunksize=_CHUNK,
        skipinitialspace=True,
        low_memory=False,
        # Exact; the default is off by a bit, and crashes on an endless exponent.
        float_precision="round_trip",
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
        raise InputError(f"{path.name} is not a readable Parquet file: {damage(error)}.") from None


def _check_plain(path: Path, schema: Any) -> None:
    """Reject columns of lists, tables and bytes: no state, time or count is one."""
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
                head = packed.read(65536)
        except (OSError, EOFError, zlib.error):
            raise InputError(f"{path.name} is not a readable gzip file.") from None
        if not head:
            raise InputError(f"{path.name} is empty.")
        return head
    with path.open("rb") as file:
        return file.read(65536)


def _encoding(path: Path) -> str:
    """UTF-16 by its byte-order mark, UTF-8 if it decodes, otherwise Latin-1, which always does."""
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
    return max(",;\t", key=line.count)
