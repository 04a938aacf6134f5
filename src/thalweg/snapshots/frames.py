"""Snapshots from a data frame: names to numbers, rows to counts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from thalweg._words import did_you_mean
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.snapshots.times import TimeScale, read_times

Names = tuple[Hashable, ...]


def read_frame(
    frame: Any,
    time: str,
    state: str,
    count: str | None,
    states: Sequence[Hashable] | MarkovKernel | int | None,
    replicate: str | None = None,
) -> tuple[NDArray[np.float64], sparse.csr_array, Names | None, list[Hashable] | None, TimeScale]:
    """Times, counts, names and time scale of a table of individuals or groups of them.

    With a column of replicates there is one row of counts per time and replicate, times repeat,
    and the replicate of each row comes next to last.
    """
    df = _as_pandas(frame)
    roles = (("time", time), ("state", state), ("count", count), ("replicate", replicate))
    for role, column in roles:
        if column is not None and column not in df.columns:
            raise InputError(
                f"the frame has no column {column!r} for {role}; it has "
                f"{', '.join(map(str, df.columns))}."
            )
    if len(df) == 0:
        raise InputError("the frame has no rows; give at least one individual per time.")
    codes, labels = pd.factorize(df[time], use_na_sentinel=False)
    where = f"times in column {time!r}"
    moments, scale = read_times(labels, where, lambda k: f"in row {int(np.argmax(codes == k))}")
    when = moments[codes]
    weight = np.ones(len(df)) if count is None else _numbers(df[count], count, "count")
    place, n_states, names = _positions(df[state], state, states)
    times, row = np.unique(when, return_inverse=True)
    which_replicate: list[Hashable] | None = None
    if replicate is not None:
        _check_filled(df[replicate], replicate, "replicate")
        which, kinds = pd.factorize(df[replicate])
        pairs, row = np.unique(np.stack([row, which], axis=1), axis=0, return_inverse=True)
        times, which_replicate = times[pairs[:, 0]], [kinds[k] for k in pairs[:, 1]]
    table = sparse.coo_array((weight, (row, place)), shape=(times.size, n_states)).tocsr()
    return times, table, names, which_replicate, scale


def _as_pandas(frame: Any) -> pd.DataFrame:
    if isinstance(frame, pd.DataFrame):
        return frame
    if hasattr(frame, "to_pandas"):
        return pd.DataFrame(frame.to_pandas())
    try:
        return pd.DataFrame(frame)
    except (TypeError, ValueError):
        raise InputError(
            f"the frame is a {type(frame).__name__}; give a pandas, polars or pyarrow table."
        ) from None


def _check_filled(column: pd.Series[Any], name: str, role: str) -> None:
    missing = column.isna().to_numpy()
    if missing.any():
        row = int(np.argmax(missing))
        raise InputError(f"column {name!r} is empty in row {row}; remove rows without a {role}.")


def _numbers(column: pd.Series[Any], name: str, role: str) -> NDArray[np.float64]:
    numeric = pd.api.types.is_numeric_dtype(column.dtype)
    texts = not numeric and column.map(lambda value: isinstance(value, str)).any()
    try:
        if texts or pd.api.types.is_complex_dtype(column.dtype):
            raise TypeError
        values = np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    except (TypeError, ValueError):
        raise InputError(
            f"column {name!r} holds values that are not numbers; a {role} must be one."
        ) from None
    bad = ~np.isfinite(values)
    if bad.any():
        k = int(np.argmax(bad))
        raise InputError(
            f"column {name!r} is {values[k]} in row {k}; remove rows without a {role}."
        )
    return values


def _positions(
    column: pd.Series[Any], name: str, states: Sequence[Hashable] | MarkovKernel | int | None
) -> tuple[NDArray[np.int64], int, Names | None]:
    """The number of each row's state, how many states there are, and their names."""
    _check_filled(column, name, "state")
    if column.dtype == object:
        odd = next((value for value in column if isinstance(value, list | dict | set)), None)
        if odd is not None:
            raise InputError(
                f"column {name!r} holds {str(odd)[:40]}, a {type(odd).__name__}; name states with "
                "text or numbers."
            )
    if isinstance(states, MarkovKernel):
        states = states.n_states if states.names is None else states.names
    numbered = pd.api.types.is_integer_dtype(column.dtype)
    if states is None and numbered:
        states = int(column.max()) + 1
    if isinstance(states, int | np.integer):
        if not numbered:
            raise InputError(
                f"column {name!r} holds {column.dtype} values, but the states are numbered; give "
                "their names in the kernel's order as states=[...]."
            )
        index = column.to_numpy(dtype=np.int64)
        wrong = (index < 0) | (index >= states)
        if wrong.any():
            raise InputError(
                f"state {index[np.argmax(wrong)]} in row {int(np.argmax(wrong))} is outside 0 to "
                f"{states - 1}; correct it, or give all states."
            )
        return index, int(states), None
    if states is None:
        states = sorted(column.unique(), key=lambda value: (str(type(value)), value))
    names = tuple(states)
    lookup = {value: k for k, value in enumerate(names)}
    found = column.map(lookup)
    unknown = found.isna().to_numpy()
    if unknown.any():
        value = column.iloc[int(np.argmax(unknown))]
        hint = did_you_mean(str(value), [str(x) for x in names])
        raise InputError(
            f"state {value!r} in row {int(np.argmax(unknown))} is not among the {len(names)} "
            f"states{hint} Add it to the states, or drop its rows."
        )
    return np.asarray(found, dtype=np.int64), len(names), names
