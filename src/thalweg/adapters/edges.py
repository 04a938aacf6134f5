"""Graphs from files: CSV edge lists, GraphML, scipy `.npz`; and back to networkx."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from thalweg._sparse import as_sparse
from thalweg.adapters.columns import SOURCE_NAMES, TARGET_NAMES, choose
from thalweg.adapters.tables import read_table, state_key
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["read_graph", "to_networkx"]

_WEIGHT_NAMES = ("weight", "w", "weights", "conductance", "strength", "value", "similarity")
_MOST_UNPACKED = 8 * 2**30
_MOST_PACKED = 200
"""A file that unpacks to this many times its size is no matrix (deflate reaches 1000)."""
_MOST_STATES = 5_000_000


def read_graph(
    path: str | Path,
    *,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    largest_component: bool = False,
) -> tuple[MarkovKernel, tuple[str, ...]]:
    """The walk on the graph in a file, and sentences about what was guessed.

    `.csv`, `.tsv`, `.parquet`: an edge a row; `.graphml`; `.npz`: a symmetric sparse matrix.
    `largest_component` keeps that component of a graph that falls apart.
    """
    file = Path(path)
    if not file.exists():
        raise InputError(f"there is no file {file}; check the name and the folder.")
    suffix = file.suffix.lower()
    messages: list[str] = []
    coordinates: Any = None
    if suffix == ".npz":
        weights, names = _npz(file)
    elif suffix in (".graphml", ".xml"):
        weights, names, coordinates = _graphml(file, weight)
    else:
        weights, names = _edge_list(file, source, target, weight, messages)
    if largest_component:
        weights, keep = _largest(weights)
        if len(keep) < len(names):
            messages.append(f"kept the largest component: {len(keep)} of {len(names)} states")
            names = [names[i] for i in keep]
            coordinates = None if coordinates is None else coordinates[keep]
    return MarkovKernel.from_weights(weights, names=names, coordinates=coordinates), tuple(messages)


def to_networkx(kernel: MarkovKernel) -> nx.Graph[Any]:
    """The kernel as a networkx graph: `weight` on edges, `stationary` and `pos` on nodes."""
    import networkx as nx

    names = kernel.names if kernel.names is not None else tuple(range(kernel.n_states))
    graph: nx.Graph[Any] = nx.Graph()
    for x, name in enumerate(names):
        attributes: dict[str, Any] = {"stationary": float(kernel.stationary[x])}
        if kernel.coordinates is not None:
            attributes["pos"] = tuple(float(c) for c in kernel.coordinates[x])
        graph.add_node(name, **attributes)
    stay = kernel.matrix.diagonal() * kernel.stationary
    for state in np.flatnonzero(stay):
        graph.add_edge(names[state], names[state], weight=float(stay[state]))
    for x, y, c in zip(*kernel.edges, strict=True):
        graph.add_edge(names[x], names[y], weight=float(c))
    return graph


def _edge_list(
    file: Path, source: str | None, target: str | None, weight: str | None, messages: list[str]
) -> tuple[sparse.csr_array, list[str]]:
    frame = read_table(file)
    columns = list(frame.columns)
    if len(columns) < 2:
        raise InputError(
            f"{file.name} has one column ({str(columns[0])[:40]}); an edge needs a source and a "
            "target."
        )
    source_column = choose(columns, source, SOURCE_NAMES, "source", file.name)
    target_column = choose(columns, target, TARGET_NAMES, "target", file.name)
    if source_column is None or target_column is None:
        source_column, target_column = columns[0], columns[1]
    if source is None or target is None:
        messages.append(f"edges run from {str(source_column)!r} to {str(target_column)!r}")
    rest = [c for c in columns if c not in (source_column, target_column)]
    weight_column = choose(rest, weight, _WEIGHT_NAMES, "weight", file.name)
    if weight_column is None and len(rest) == 1 and pd.api.types.is_numeric_dtype(frame[rest[0]]):
        weight_column = rest[0]
    if weight is None:
        shown = "every edge counts 1" if weight_column is None else f"weight is {weight_column!r}"
        messages.append(shown)
    return _assemble(file.name, frame, source_column, target_column, weight_column)


def _assemble(
    where: str, frame: pd.DataFrame, source: Any, target: Any, weight: Any
) -> tuple[sparse.csr_array, list[str]]:
    ends = pd.concat([frame[source], frame[target]], ignore_index=True)
    if ends.isna().any():
        row = int(np.argmax(ends.isna().to_numpy())) % len(frame)
        raise InputError(
            f"{where}: an end of the edge in row {row + 2} is missing; fill or drop it."
        )
    codes, uniques = pd.factorize(ends.map(state_key))
    names = [str(name) for name in uniques]
    value = np.ones(len(frame))
    if weight is not None:
        numbers = pd.to_numeric(frame[weight], errors="coerce").to_numpy(dtype=np.float64)
        bad = ~np.isfinite(numbers) | (numbers < 0)
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"{where}: the weight is {str(frame[weight].iloc[row])[:40]!r} in row {row + 2}; "
                "it must be a number that is not negative."
            )
        value = numbers
    x, y = codes[: len(frame)], codes[len(frame) :]
    low, high = np.minimum(x, y), np.maximum(x, y)
    n = len(names)
    pairs = pd.DataFrame({"low": low, "high": high, "value": value, "forth": x <= y})
    # An edge given in both directions is one edge: its mean weight, not its sum.
    merged = pairs.groupby(["low", "high", "forth"], as_index=False)["value"].sum()
    merged = merged.groupby(["low", "high"], as_index=False)["value"].mean()
    upper = sparse.coo_array(
        (merged["value"].to_numpy(), (merged["low"].to_numpy(), merged["high"].to_numpy())),
        shape=(n, n),
    ).tocsr()
    diagonal = sparse.diags_array(upper.diagonal())
    return sparse.csr_array(upper + upper.T - diagonal), names


def _npz(file: Path) -> tuple[sparse.csr_array, list[str]]:
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        trap = max(2**28, _MOST_PACKED * file.stat().st_size)
        if unpacked > min(_MOST_UNPACKED, trap):
            raise InputError(
                f"{file.name} is not a sparse matrix: it unpacks to {unpacked / 2**30:.1f} GiB, "
                "far more than its own size; save the matrix with compressed=False."
            )
        matrix = sparse.load_npz(file)
    except InputError:
        raise
    except Exception as error:  # numpy raises a different type for every kind of damage
        detail = str(error).strip().splitlines()[0][:160] if str(error).strip() else "damaged"
        raise InputError(
            f"{file.name} is not a sparse matrix saved by scipy.sparse.save_npz: {detail}."
        ) from None
    shape = tuple(int(size) for size in matrix.shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise InputError(f"{file.name} holds a matrix of shape {shape}; it must be square.")
    if not 2 <= shape[0] <= _MOST_STATES:
        raise InputError(
            f"{file.name} holds a graph of {shape[0]} states; it must have 2 to {_MOST_STATES}."
        )
    return as_sparse(matrix, file.name), [str(x) for x in range(shape[0])]


def _graphml(file: Path, weight: str | None) -> tuple[sparse.csr_array, list[str], Any]:
    import networkx as nx

    try:
        graph = nx.read_graphml(file)
    except Exception as error:  # the XML parser raises many types
        detail = str(error).strip().splitlines()[0][:160] if str(error).strip() else "damaged"
        raise InputError(f"{file.name} is not readable GraphML: {detail}.") from None
    if graph.number_of_nodes() < 2:
        raise InputError(f"{file.name} has {graph.number_of_nodes()} nodes; transport needs two.")
    if graph.is_directed():
        graph = graph.to_undirected()
    names = [state_key(name) for name in graph.nodes]
    attribute = weight or "weight"
    if graph.is_multigraph():
        graph = nx.Graph(graph)
    values = [v for _, _, v in graph.edges(data=attribute, default=1.0)]
    try:
        np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"{file.name}: the edge attribute {attribute!r} is not a number."
        ) from None
    matrix = nx.to_scipy_sparse_array(graph, weight=attribute, dtype=np.float64, format="csr")
    return sparse.csr_array(matrix), names, _positions(graph)


def _positions(graph: Any) -> Any:
    """Coordinates from the node attributes `x` and `y`, where every node has both."""
    try:
        return np.array([[float(d["x"]), float(d["y"])] for _, d in graph.nodes(data=True)])
    except (KeyError, TypeError, ValueError):
        return None


def _largest(weights: sparse.csr_array) -> tuple[sparse.csr_array, list[int]]:
    from scipy.sparse.csgraph import connected_components

    _, label = connected_components(weights, directed=False)
    keep = np.flatnonzero(label == np.argmax(np.bincount(label)))
    return weights[keep][:, keep], [int(i) for i in keep]
