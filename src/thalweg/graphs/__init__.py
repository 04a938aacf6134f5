"""Graphs as Markov kernels: twelve random families, lattices, Hamming graphs, graphs of points."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from thalweg.graphs.lattices import (
    cycle,
    hamming_kernel,
    hypercube,
    lattice,
    path,
    star,
    triangular_lattice,
)

if TYPE_CHECKING:
    from thalweg.graphs.families import GRAPH_FAMILIES, make_graph
    from thalweg.graphs.points import neighbor_weights

__all__ = [
    "GRAPH_FAMILIES",
    "cycle",
    "hamming_kernel",
    "hypercube",
    "lattice",
    "make_graph",
    "neighbor_weights",
    "path",
    "star",
    "triangular_lattice",
]

_LATER = {"GRAPH_FAMILIES": "families", "make_graph": "families", "neighbor_weights": "points"}
"""Names imported on first use: random families and neighbour searches load scipy.spatial."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'thalweg.graphs' has no attribute {name!r}")
    return getattr(import_module(f"thalweg.graphs.{_LATER[name]}"), name)
