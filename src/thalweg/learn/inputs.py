"""From users' graphs and tables to kernels and snapshots."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from thalweg import _checks
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.snapshots import Snapshots
from thalweg.snapshots.columns import COUNT_NAMES, STATE_NAMES, TIME_NAMES, choose

_FRAME = "the frame"
_log = logging.getLogger(__name__)


def as_kernel(graph: Any) -> MarkovKernel:
    """A kernel as it is, a networkx graph, or a square matrix of weights.

    >>> import networkx as nx
    >>> as_kernel(nx.path_graph(["a", "b", "c"])).names
    ('a', 'b', 'c')
    """
    if isinstance(graph, MarkovKernel):
        return graph
    if hasattr(graph, "number_of_nodes"):
        return MarkovKernel.from_networkx(graph)
    if hasattr(graph, "columns"):  # a data frame of weights with named rows
        names = tuple(graph.columns)
        return MarkovKernel.from_weights(np.asarray(graph, dtype=np.float64), names=names)
    if sparse.issparse(graph) or isinstance(graph, np.ndarray | list):
        return MarkovKernel.from_weights(graph)
    raise InputError(
        f"the graph is a {type(graph).__name__}; give a MarkovKernel, a networkx graph, or a "
        "square matrix of edge weights."
    )


def as_problem(
    graph: Any,
    data: Any,
    *,
    time: str | None = None,
    state: str | None = None,
    count: str | None = None,
) -> tuple[MarkovKernel, Snapshots]:
    """A kernel and snapshots on its states, from a graph and snapshots or a data frame.

    Long: one row per individual (or per `count` of them) with columns for time and state. Wide: one
    row per time, one column per state; times in a column, or in the index. Columns with well-known
    names (`day`, `place`, `n`, ...) need not be given. A graph without names takes those of a wide
    frame's columns, in their order.

    >>> import pandas as pd
    >>> wide = pd.DataFrame({"a": [9, 5], "b": [1, 5]}, index=[0.0, 2.0])
    >>> kernel, seen = as_problem([[0, 1], [1, 0]], wide)
    >>> kernel.names, seen.times
    (('a', 'b'), array([0., 2.]))
    """
    kernel = as_kernel(graph)
    if isinstance(data, Snapshots):
        return kernel, data
    if not hasattr(data, "columns"):
        raise InputError(
            f"the snapshots are a {type(data).__name__}; give Snapshots, or a data frame with "
            "columns time and state."
        )
    frame = data.to_pandas() if hasattr(data, "to_pandas") else data
    when = choose(list(frame.columns), time, TIME_NAMES, "time", _FRAME)
    others = [column for column in frame.columns if column != when]
    names = _wide_names(kernel, frame[others]) if state is None else None
    if names is not None:
        return _from_wide(kernel, frame if when is None else frame.set_index(when), names)
    where = choose(others, state, STATE_NAMES, "state", _FRAME)
    if when is None or where is None:
        names = list(kernel.labels)
        missing = [name for name in names if name not in others]
        raise InputError(
            f"the frame has no column for the {'time' if when is None else 'state'}, and none for "
            f"{len(missing)} of {len(names)} states ({str((missing or names)[0])!r} for one); it "
            f"has {', '.join(map(str, frame.columns[:8]))}: name the columns with time= and state=."
        )
    if kernel.names is None and frame[where].dtype.kind not in "iu":
        raise InputError(
            f"column {str(where)!r} names the states, but the graph only numbers them; give "
            "MarkovKernel.from_weights(matrix, names=[...]), with the names in the matrix's order."
        )
    many = _count_column(frame, when, where, count)
    columns = cast(dict[str, Any], {"time": when, "state": where, "count": many})
    return kernel, Snapshots.from_frame(frame, states=kernel, **columns)


def _wide_names(kernel: MarkovKernel, frame: Any) -> list[Hashable] | None:
    """The columns of a wide frame in the kernel's order; `None` if it is not wide."""
    columns = list(frame.columns)
    names = kernel.labels
    if all(name in columns for name in names):
        return list(names)
    numeric = all(dtype.kind in "iufb" for dtype in frame.dtypes)
    fits = kernel.names is None and len(columns) == kernel.n_states and numeric
    return columns if fits else None


def _from_wide(
    kernel: MarkovKernel, frame: Any, names: list[Hashable]
) -> tuple[MarkovKernel, Snapshots]:
    frame = frame.sort_index()
    if kernel.names is None and names != list(range(kernel.n_states)):
        kernel = kernel.with_labels(names=names)
        _log.warning(
            "the graph has no names: its states are taken to be the frame's columns in their order "
            "(%s)", ", ".join(map(str, names[:8])) + (", ..." if len(names) > 8 else ""),
        )  # fmt: skip
    counts = frame[names].to_numpy(dtype=np.float64)
    return kernel, Snapshots.from_counts(frame.index.to_numpy(), counts, names=kernel.names)


def _count_column(
    frame: Any, when: Hashable, where: Hashable, wanted: str | None
) -> Hashable | None:
    """The column of counts; `None` if each row is one individual.

    A table in which no time and state occur together twice holds counts: its only column with the
    name of a count is taken, and numbers under another name are an error.
    """
    rest = [column for column in frame.columns if column not in (when, where)]
    if wanted is not None or "count" in rest:
        return wanted or "count"
    if frame.duplicated([when, where]).any():
        return None
    known = choose(rest, None, COUNT_NAMES, "count", _FRAME)
    numbers = [column for column in rest if frame[column].dtype.kind in "iuf"]
    if known is None and numbers:
        raise InputError(
            f"the frame has a column of numbers that is neither time nor state: "
            f"{str(numbers[0])!r}; if it counts individuals, give count={str(numbers[0])!r}; if "
            "each row is one individual, leave the column out."
        )
    return known


def feature_table(
    features: ArrayLike, n_states: int | None = None, name: str = "features"
) -> Array:
    """Features as a table with one row per state; a single feature is one column.

    >>> feature_table([1.0, 2.0, 3.0], 3).shape
    (3, 1)
    """
    table = _checks.as_array(features, name)
    table = table[:, None] if table.ndim == 1 else table
    wrong = table.ndim != 2 or table.shape[1] == 0
    if wrong or (n_states is not None and table.shape[0] != n_states):
        rows = "" if n_states is None else f", shape ({n_states}, number of {name})"
        raise InputError(f"{name} have shape {table.shape}; give one row per state{rows}.")
    return np.ascontiguousarray(table)
