"""Graphs from files: CSV edge lists, GraphML, scipy `.npz`.

One rule for every format: edges listed more than once in the same direction are added; an edge with
different weights there and back gets their mean; a self-loop is a probability of staying. Each is
reported as an `Oddity`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from thalweg._sparse import as_sparse
from thalweg._types import Array, Index
from thalweg._words import damage
from thalweg.adapters.pieces import as_numbers, read_table
from thalweg.adapters.tables import state_key
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel, inside_largest
from thalweg.snapshots.columns import SOURCE_NAMES, TARGET_NAMES, Oddity, choose

_WEIGHT_NAMES = ("weight", "w", "weights", "conductance", "strength", "value", "similarity")
_MOST_UNPACKED = 8 * 2**30
"""Largest size of an unpacked file, in bytes."""
_MOST_PACKED = 200
"""Ratio of unpacked to packed size above which a file is no matrix (deflate reaches 1000)."""
_MOST_STATES = 5_000_000
"""Largest number of states in a file."""


class _Edges(NamedTuple):
    """Directed edges as a file lists them: the numbers of their ends, their weights, and names."""

    x: Any
    y: Any
    value: Array
    names: list[str]
    coordinates: Array | None = None


class GraphFile(NamedTuple):
    """The walk on the graph in a file, choices made and oddities, and the states left out."""

    kernel: MarkovKernel
    messages: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


def read_graph(
    path: str | Path,
    *,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    largest_component: bool = False,
) -> GraphFile:
    """The walk on the graph in a file.

    Parameters
    ----------
    path : str or Path
        `.csv`, `.tsv`, `.parquet`: one edge per row; `.graphml`; `.npz`: a sparse matrix.
    source, target, weight : str, optional
        The columns of a table; for GraphML, `weight` is the edge attribute.
    largest_component : bool
        Whether to keep only the largest component of a disconnected graph.
    """
    file = Path(path)
    if not file.exists():
        raise InputError(f"there is no file {file}; check the name and the folder.")
    suffix = file.suffix.lower()
    messages: list[str] = []
    if suffix == ".npz":
        found = _npz(file)
    elif suffix in (".graphml", ".xml"):
        found = _graphml(file, weight, messages)
    else:
        found = _edge_list(file, source, target, weight, messages)
    weights, names, coordinates = _symmetric(found, messages), found.names, found.coordinates
    keep = largest(weights, file.name, names, largest_component)
    outside: tuple[str, ...] = ()
    if keep.size < len(names):
        messages.append(f"kept the largest component: {keep.size} of {len(names)} states")
        outside = tuple(names[i] for i in np.setdiff1d(np.arange(len(names)), keep))
        weights, names = weights[keep][:, keep], [names[i] for i in keep]
        coordinates = None if coordinates is None else coordinates[keep]
    kernel = MarkovKernel.from_weights(weights, names=names, coordinates=coordinates)
    return GraphFile(kernel, tuple(messages), outside)


def _edge_list(
    file: Path, source: str | None, target: str | None, weight: str | None, messages: list[str]
) -> _Edges:
    frame, where = read_table(file), file.name
    columns = list(frame.columns)
    if len(columns) < 2:
        raise InputError(
            f"{where} has one column ({str(columns[0])[:40]}); an edge needs a source and a target."
        )
    source_column = choose(columns, source, SOURCE_NAMES, "source", where)
    target_column = choose(columns, target, TARGET_NAMES, "target", where)
    if source_column is None or target_column is None:
        source_column, target_column = columns[0], columns[1]
    if source is None or target is None:
        messages.append(f"edges run from {str(source_column)!r} to {str(target_column)!r}")
    rest = [c for c in columns if c not in (source_column, target_column)]
    weight_column = choose(rest, weight, _WEIGHT_NAMES, "weight", where)
    if weight_column is None and len(rest) == 1 and pd.api.types.is_numeric_dtype(frame[rest[0]]):
        weight_column = rest[0]
    if weight is None:
        shown = "every edge counts 1" if weight_column is None else f"weight is {weight_column!r}"
        messages.append(shown)
    ends = pd.concat([frame[source_column], frame[target_column]], ignore_index=True)
    if ends.isna().any():
        row = int(np.argmax(ends.isna().to_numpy())) % len(frame)
        raise InputError(
            f"{where}: an end of the edge in row {row + 2} is missing; fill or drop it."
        )
    codes, uniques = pd.factorize(ends.map(state_key))
    value = np.ones(len(frame))
    if weight_column is not None:
        value = as_numbers(frame[weight_column])
        bad = ~np.isfinite(value) | (value < 0)
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"{where}: the weight is {str(frame[weight_column].iloc[row])[:40]!r} in row "
                f"{row + 2}; it must be a number that is not negative."
            )
    x, y = codes.reshape(2, -1)
    return _Edges(x, y, value, [str(name) for name in uniques])


def _symmetric(edges: _Edges, messages: list[str]) -> sparse.csr_array:
    """The symmetric weights of directed edges, by the rule of this module."""
    x, y, value, names, _ = edges
    shape = (len(names), len(names))
    forth = sparse.coo_array((value, (x, y)), shape=shape).tocsr()
    times = sparse.coo_array((np.ones(len(value)), (x, y)), shape=shape).tocsr()
    _note_odd(messages, times.tocoo(), times.data > 1, names, "listed more than once", "are added")
    loops = times.diagonal() > 0
    if loops.any():
        first = names[int(np.argmax(loops))]
        messages.append(Oddity(
            f"edges from a state to itself: {int(loops.sum())}, the first at {first[:40]!r}; they "
            "count as a probability of staying"
        ))  # fmt: skip
    there = sparse.csr_array((np.ones(times.nnz), times.indices, times.indptr), shape=shape)
    gap = abs(forth - forth.T).multiply(there.multiply(there.T)).tocoo()
    odd = (gap.data > 1e-10 * max(abs(value).max(initial=0.0), 1e-300)) & (gap.row < gap.col)
    _note_odd(messages, gap, odd, names, "with different weights there and back", "are averaged")
    ways = sparse.csr_array(there + there.T)
    ways.data = 1 / ways.data
    return sparse.csr_array((forth + forth.T).multiply(ways))


def _note_odd(
    messages: list[str], edges: Any, odd: NDArray[np.bool_], names: list[str], what: str, rule: str
) -> None:
    if odd.any():
        k = int(np.argmax(odd))
        ends = f"{names[int(edges.row[k])][:40]!r} to {names[int(edges.col[k])][:40]!r}"
        messages.append(
            Oddity(f"edges {what}: {int(odd.sum())}, the first from {ends}; their weights {rule}")
        )


def _npz(file: Path) -> _Edges:
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
        raise InputError(
            f"{file.name} is not a sparse matrix saved by scipy.sparse.save_npz: {damage(error)}."
        ) from None
    shape = tuple(int(size) for size in matrix.shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise InputError(f"{file.name} holds a matrix of shape {shape}; it must be square.")
    if not 2 <= shape[0] <= _MOST_STATES:
        raise InputError(
            f"{file.name} holds a graph of {shape[0]} states; it must have 2 to {_MOST_STATES}."
        )
    as_sparse(matrix, file.name)  # Checks the indices; the entries are taken one by one.
    entries = sparse.coo_array(matrix)
    names = [str(x) for x in range(shape[0])]
    return _Edges(entries.row, entries.col, entries.data.astype(np.float64), names)


def _graphml(file: Path, weight: str | None, messages: list[str]) -> _Edges:
    import networkx as nx

    try:
        graph = nx.read_graphml(file)
    except Exception as error:  # the XML parser raises many types
        raise InputError(f"{file.name} is not readable GraphML: {damage(error)}.") from None
    if graph.number_of_nodes() < 2:
        raise InputError(f"{file.name} has {graph.number_of_nodes()} nodes; transport needs two.")
    index = {name: k for k, name in enumerate(graph.nodes)}
    names = [state_key(name) for name in graph.nodes]
    attribute = weight or "weight"
    edges = list(graph.edges(data=attribute))
    if weight is None:
        plain = all(found is None for _, _, found in edges)
        if plain:
            edges = [(x, y, 1.0) for x, y, _ in edges]
        shown = "every edge counts 1" if plain else f"weight is the edge attribute {attribute!r}"
        messages.append(shown)
    for x, y, found in edges:
        number = found if isinstance(found, int | float) and not isinstance(found, bool) else -1
        if 0 <= number < np.inf:
            continue
        which = f"the edge from {state_key(x)[:40]!r} to {state_key(y)[:40]!r}"
        if found is None:
            raise InputError(
                f"{file.name}: {which} has no attribute {attribute!r}; give every edge one, or "
                "name another attribute with --weight."
            )
        raise InputError(
            f"{file.name}: {which} has {str(found)[:40]!r} as its attribute {attribute!r}; it must "
            "be a number that is not negative."
        )
    ends = np.array([(index[x], index[y]) for x, y, _ in edges], dtype=np.int64).reshape(-1, 2)
    if not graph.is_directed():
        ends.sort(axis=1)  # The order of the ends has no meaning there.
    value = np.array([float(found) for _, _, found in edges])
    return _Edges(ends[:, 0], ends[:, 1], value, names, _positions(graph))


def _positions(graph: Any) -> Array | None:
    """Coordinates from the node attributes `x` and `y`, if every node has both."""
    try:
        return np.array([[float(d["x"]), float(d["y"])] for _, d in graph.nodes(data=True)])
    except (KeyError, TypeError, ValueError):
        return None


def largest(weights: sparse.csr_array, where: str, names: Sequence[str], wanted: bool) -> Index:
    """The states of the largest component; several are an error unless `wanted`."""
    if len(names) < 2:
        raise InputError(f"{where} has {len(names)} states; transport needs at least two.")
    remedy = "keep the largest one with --largest-component"
    what = f"in {where}"
    inside = inside_largest(weights, what, names=names, remedy=remedy, wanted=wanted)
    return np.flatnonzero(inside)
