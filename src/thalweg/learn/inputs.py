"""What people have, as what the mathematics takes: graphs and tables to kernels and snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.snapshots import Snapshots

__all__ = ["as_kernel", "as_snapshots"]


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


def as_snapshots(
    data: Any,
    kernel: MarkovKernel,
    *,
    time: str | None = None,
    state: str | None = None,
    count: str | None = None,
) -> Snapshots:
    """Snapshots as they are, or a data frame, long or wide, matched to the kernel's states.

    Long: one row per individual (or per `count` of them) with columns `time` and `state`, so named
    by default. Wide: one row per time, one column per state; times in the column `time`, or in the
    index.

    >>> import pandas as pd
    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]], names=["a", "b"])
    >>> wide = pd.DataFrame({"a": [9, 5], "b": [1, 5]}, index=[0.0, 2.0])
    >>> as_snapshots(wide, kernel).times
    array([0., 2.])
    """
    if isinstance(data, Snapshots):
        return data
    if not hasattr(data, "columns"):
        raise InputError(
            f"the snapshots are a {type(data).__name__}; give Snapshots, or a data frame with "
            "columns time and state."
        )
    columns = list(data.columns)
    if state is not None or "state" in columns:
        if count is None and "count" in columns:
            count = "count"
        return Snapshots.from_frame(
            data, time=time or "time", state=state or "state", count=count, states=kernel
        )
    frame = data.to_pandas() if hasattr(data, "to_pandas") else data
    if time is not None or "time" in columns:
        frame = frame.set_index(time or "time")
    names = range(kernel.n_states) if kernel.names is None else kernel.names
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise InputError(
            f"the frame has no column 'state', and none for {len(missing)} of {kernel.n_states} "
            f"states ({str(missing[0])!r} for one); it has {', '.join(map(str, columns[:8]))}: "
            "name the columns with time= and state=."
        )
    frame = frame.sort_index()
    return Snapshots.from_counts(
        frame.index.to_numpy(),
        frame[list(names)].to_numpy(dtype=np.float64),
        names=kernel.names,
    )
