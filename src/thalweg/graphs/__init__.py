"""Graphs as Markov kernels: twelve random families, lattices, Hamming graphs, graphs of points."""

from thalweg.graphs.families import GRAPH_FAMILIES, make_graph
from thalweg.graphs.lattices import (
    cycle,
    hamming_kernel,
    hypercube,
    lattice,
    path,
    star,
    triangular_lattice,
)
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
