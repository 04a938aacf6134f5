"""`MarkovKernel`: the graph on which everything lives, checked once and then trusted.

A kernel `K` is row-stochastic, irreducible and reversible: `pi_x K(x, y) = pi_y K(y, x)`. What
transport needs of it is the stationary distribution `pi` and, per undirected edge, the conductance
`c(x, y) = pi_x K(x, y)`; that is what is stored. Memory is linear in the edges.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order, connected_components

from thalweg import _checks
from thalweg._door import checked
from thalweg._types import Array, Index32
from thalweg.errors import InputError

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Adjacency", "Edges", "MarkovKernel"]

Reversibilisation = Literal["check", "additive", "metropolis"]

_STOCHASTIC_TOLERANCE = 1e-8
"""Largest error of the sum of a row."""
_BALANCE_TOLERANCE = 1e-8
"""Largest relative violation of detailed balance."""


class Edges(NamedTuple):
    """Undirected edges without self-loops, each once with `source < target`, sorted."""

    source: Index32
    target: Index32
    conductance: Array


class Adjacency(NamedTuple):
    """Neighbours `neighbor[indptr[x]:indptr[x+1]]` of state `x`, through `edge[...]`."""

    indptr: NDArray[np.int64]
    neighbor: Index32
    edge: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MarkovKernel:
    """A reversible Markov kernel on the states `0 .. n_states - 1`.

    Build it with one of the `from_*` constructors, which check their input.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 3], [0, 3, 0]])
    >>> kernel.stationary
    array([0.125, 0.5  , 0.375])
    >>> kernel.edges.conductance
    array([0.125, 0.375])
    >>> kernel.matrix.toarray()
    array([[0.  , 1.  , 0.  ],
           [0.25, 0.  , 0.75],
           [0.  , 1.  , 0.  ]])
    """

    stationary: Array
    edges: Edges
    coordinates: Array | None = field(default=None, kw_only=True)
    names: tuple[Hashable, ...] | None = field(default=None, kw_only=True)

    # ---------------------------------------------------------------- constructors

    @classmethod
    @checked
    def from_weights(
        cls,
        weights: ArrayLike | sparse.sparray | sparse.spmatrix,
        *,
        coordinates: ArrayLike | None = None,
        names: Sequence[Hashable] | None = None,
    ) -> MarkovKernel:
        """The walk that leaves `x` towards `y` with probability `w(x, y) / sum_z w(x, z)`.

        Parameters
        ----------
        weights : array or sparse matrix
            Symmetric, non-negative and connected, in any scipy sparse format or dense. A diagonal
            entry is the weight of staying.
        coordinates : array, optional
            Positions to draw the states at, one row per state.
        names : sequence, optional
            One name per state; by default their numbers.
        """
        w = as_csr(weights, "weights")
        _check_entries(w, "weights", "a weight")
        asymmetry = abs(w - w.T).tocoo()
        worst = int(np.argmax(asymmetry.data)) if asymmetry.nnz else 0
        if asymmetry.nnz and asymmetry.data[worst] > 1e-10 * abs(w).max():
            x, y = int(asymmetry.row[worst]), int(asymmetry.col[worst])
            raise InputError(
                f"weights are not symmetric: {w[x, y]:.6g} from {x} to {y} but {w[y, x]:.6g} back; "
                "symmetrise them with (w + w.T) / 2."
            )
        inside_largest(w, "of the weights", names=names)
        upper = sparse.triu(w, k=1).tocoo()
        # The upper triangle is what is kept, so the degrees must be its own for exact balance.
        degree = np.bincount(upper.row, upper.data, w.shape[0])
        degree += np.bincount(upper.col, upper.data, w.shape[0])
        degree += w.diagonal()
        total = degree.sum()
        return cls._assemble(
            degree / total, upper.row, upper.col, upper.data / total, coordinates, names
        )

    @classmethod
    @checked
    def from_matrix(
        cls,
        matrix: ArrayLike | sparse.sparray | sparse.spmatrix,
        *,
        reversible: Reversibilisation = "check",
        coordinates: ArrayLike | None = None,
        names: Sequence[Hashable] | None = None,
    ) -> MarkovKernel:
        """The kernel with this row-stochastic matrix.

        Parameters
        ----------
        matrix : array or sparse matrix
            `K(x, y)`; every row sums to one.
        reversible : {"check", "additive", "metropolis"}
            How to treat a matrix without detailed balance, `pi_x K(x, y) = pi_y K(y, x)`:
            `"check"` rejects it and names the worst edge; `"additive"` replaces `K` by
            `(K + K*) / 2`, with the time reversal `K*`; `"metropolis"` keeps the smaller of the two
            flows on each edge and turns the rest into staying. The last two keep the stationary
            distribution.
        coordinates : array, optional
            Positions to draw the states at, one row per state.
        names : sequence, optional
            One name per state; by default their numbers.

        >>> MarkovKernel.from_matrix([[0, .9, .1], [.1, 0, .9], [.9, .1, 0]])
        Traceback (most recent call last):
        ...
        thalweg.errors.InputError: the kernel is not reversible: pi(0) K(0, 1) = 0.3 but
        pi(1) K(1, 0) = 0.0333333; pass reversible="additive" or reversible="metropolis" to make
        it so.
        """
        if reversible not in ("check", "additive", "metropolis"):
            raise InputError(
                f"reversible is {reversible!r}; choose 'check', 'additive' or 'metropolis'."
            )
        k = as_csr(matrix, "matrix")
        _check_entries(k, "matrix", "a transition probability")
        sums = np.asarray(k.sum(axis=1)).ravel()
        worst = int(np.argmax(abs(sums - 1)))
        if abs(sums[worst] - 1) > _STOCHASTIC_TOLERANCE:
            raise InputError(
                f"row {worst} of the matrix sums to {sums[worst]:.10g}, not 1; divide each row by "
                "its sum, or use from_weights if these are symmetric weights."
            )
        inside_largest(k, "of the matrix", names=names, strong=True)
        k = sparse.diags_array(1 / sums) @ k
        stationary = _stationary(k)
        flow = (sparse.diags_array(stationary) @ k).tocsr()
        if reversible == "metropolis":
            flow = flow.minimum(flow.T)
            inside_largest(flow, "of the metropolis reversibilisation")
        else:
            if reversible == "check":
                _check_balance(flow)
            flow = (flow + flow.T) / 2
        upper = sparse.triu(flow, k=1).tocoo()
        return cls._assemble(stationary, upper.row, upper.col, upper.data, coordinates, names)

    @classmethod
    @checked
    def from_networkx(cls, graph: nx.Graph[Any], *, weight: str | None = "weight") -> MarkovKernel:
        """The walk on a networkx graph.

        Node names are kept in `names`, in the graph's order; a node attribute `pos` becomes the
        coordinates.

        Parameters
        ----------
        graph : networkx.Graph
            Undirected and connected.
        weight : str, optional
            The edge attribute that holds the weight; edges without it have weight 1.
        """
        import networkx as nx

        if not isinstance(graph, nx.Graph):
            raise InputError(f"graph is {graph!r:.60}; it must be a networkx graph.")
        if graph.number_of_nodes() == 0:
            raise InputError("the graph has no nodes; add at least two connected ones.")
        if graph.is_directed():
            raise InputError(
                "the graph is directed; pass graph.to_undirected(), or its transition matrix to "
                "from_matrix(..., reversible='additive')."
            )
        names = tuple(graph.nodes)
        positions = [graph.nodes[name].get("pos") for name in names]
        coordinates = None if any(p is None for p in positions) else np.array(positions, float)
        matrix = nx.to_scipy_sparse_array(graph, weight=weight, dtype=np.float64, format="csr")
        return cls.from_weights(matrix, coordinates=coordinates, names=names)

    @classmethod
    @checked
    def from_points(
        cls, points: ArrayLike, *, n_neighbors: int = 15, names: Sequence[Hashable] | None = None
    ) -> MarkovKernel:
        """The walk on the symmetrised nearest-neighbour graph of points.

        Weights are `exp(-|x - y|^2 / (s_x s_y))` with `s` the distance to the last neighbour
        (self-tuning bandwidth); components are joined by edges of the minimum spanning tree.

        Parameters
        ----------
        points : array
            One row per point.
        n_neighbors : int
            Number of nearest neighbours of each point.
        names : sequence, optional
            One name per point; by default their numbers.
        """
        from thalweg.graphs.points import neighbor_weights

        coordinates = _checks.as_array(points, "points")
        return cls.from_weights(
            neighbor_weights(coordinates, n_neighbors), coordinates=coordinates, names=names
        )

    @classmethod
    def _assemble(
        cls,
        stationary: Array,
        source: NDArray[np.integer],
        target: NDArray[np.integer],
        conductance: Array,
        coordinates: ArrayLike | None,
        names: Sequence[Hashable] | None,
    ) -> MarkovKernel:
        keep = conductance > 0
        source, target, conductance = source[keep], target[keep], conductance[keep]
        order = np.lexsort((target, source))
        edges = Edges(
            np.ascontiguousarray(source[order], dtype=np.int32),
            np.ascontiguousarray(target[order], dtype=np.int32),
            np.ascontiguousarray(conductance[order], dtype=np.float64),
        )
        kernel = cls(np.ascontiguousarray(stationary / stationary.sum()), edges)
        return kernel.with_labels(coordinates=coordinates, names=names)

    @checked
    def with_labels(
        self, *, coordinates: ArrayLike | None = None, names: Sequence[Hashable] | None = None
    ) -> MarkovKernel:
        """The same kernel with other positions or names of its states; `None` keeps them."""
        new = self
        if coordinates is not None:
            array = _checks.as_array(coordinates, "coordinates")
            if array.ndim != 2 or array.shape[0] != self.n_states:
                raise InputError(
                    f"coordinates have shape {array.shape}; give one row per state, "
                    f"shape ({self.n_states}, dimension)."
                )
            new = replace(new, coordinates=array)
        if names is not None:
            new = replace(new, names=_checks.as_names(names, self.n_states))
        return new

    # ---------------------------------------------------------------- what it knows

    @property
    def n_states(self) -> int:
        return int(self.stationary.size)

    @property
    def n_edges(self) -> int:
        return int(self.edges.source.size)

    @property
    def labels(self) -> Sequence[Hashable]:
        """The names of the states; their numbers where they have none."""
        return range(self.n_states) if self.names is None else self.names

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """`K` as a sparse matrix, with the probabilities of staying on its diagonal."""
        off = self.flow_matrix
        leaving = np.asarray(off.sum(axis=1)).ravel()
        stay = np.maximum(self.stationary - leaving, 0.0)
        stay[stay < 1e-14 * self.stationary] = 0.0
        # Rows are divided by their own sums, so that they sum to one exactly.
        k = sparse.diags_array(1 / (leaving + stay)) @ off
        if stay.any():
            k = k + sparse.diags_array(stay / (leaving + stay))
        return sparse.csr_array(k)

    @cached_property
    def flow_matrix(self) -> sparse.csr_array:
        """The symmetric matrix of conductances `pi_x K(x, y)`, zero on the diagonal."""
        a = self.adjacency
        return sparse.csr_array(
            (self.edges.conductance[a.edge], a.neighbor, a.indptr),
            shape=(self.n_states, self.n_states),
        )

    @cached_property
    def adjacency(self) -> Adjacency:
        """The neighbours of each state, and the edges that lead to them, sorted."""
        source, target, _ = self.edges
        n, count = self.n_states, self.n_edges
        rows = np.concatenate([source, target])
        columns = np.concatenate([target, source])
        order = np.lexsort((columns, rows))
        indptr = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=n), out=indptr[1:])
        return Adjacency(indptr, columns[order].astype(np.int32), order % count)

    def same_graph(self, other: MarkovKernel) -> bool:
        """Whether both have the same states and edges, with the same conductances to rounding."""
        mine, theirs = self.edges, other.edges
        return (
            self.n_states == other.n_states
            and np.array_equal(mine.source, theirs.source)
            and np.array_equal(mine.target, theirs.target)
            and np.allclose(mine.conductance, theirs.conductance, rtol=1e-9, atol=0)
        )

    def to_networkx(self) -> nx.Graph[Any]:
        """The graph with names as nodes, conductances as weights, coordinates as `pos`.

        `MarkovKernel.from_networkx` inverts it; a state that can stay has a self-loop.

        >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]], names=["a", "b"])
        >>> kernel.to_networkx().edges(data="weight")
        EdgeDataView([('a', 'b', 0.5)])
        """
        import networkx as nx

        names = self.labels
        graph: nx.Graph[Any] = nx.Graph()
        for k, name in enumerate(names):
            place = {} if self.coordinates is None else {"pos": tuple(self.coordinates[k].tolist())}
            graph.add_node(name, stationary=float(self.stationary[k]), **place)
        stay = self.matrix.diagonal() * self.stationary
        loops = ((names[x], names[x], float(stay[x])) for x in np.flatnonzero(stay).tolist())
        graph.add_weighted_edges_from(loops)
        graph.add_weighted_edges_from(
            (names[x], names[y], float(c)) for x, y, c in zip(*self.edges, strict=True)
        )
        return graph

    def density(self, p: ArrayLike) -> Array:
        """`rho = p / pi` of a probability.

        >>> MarkovKernel.from_weights([[0, 1], [1, 0]]).density([0.25, 0.75])
        array([0.5, 1.5])
        """
        return _checks.as_probability(p, self.n_states) / self.stationary

    def probability(self, rho: ArrayLike) -> Array:
        """`p = pi rho` of a density."""
        values = _checks.as_vector(rho, self.n_states, "rho") * self.stationary
        return _checks.as_probability(values, self.n_states, "pi * rho")

    def __repr__(self) -> str:
        return f"MarkovKernel(n_states={self.n_states}, n_edges={self.n_edges})"


# -------------------------------------------------------------------- checks at the door


def as_csr(matrix: Any, name: str) -> sparse.csr_array:
    """A square matrix of numbers, dense or sparse, as a checked CSR array."""
    if sparse.issparse(matrix):
        from thalweg._sparse import as_sparse

        csr = as_sparse(matrix, name)
    else:
        matrix = _checks.as_array(matrix, name)
        if matrix.ndim != 2:
            raise InputError(f"{name} has shape {matrix.shape}; give a square matrix.")
        csr = sparse.csr_array(matrix)
    if csr.shape[0] != csr.shape[1]:
        raise InputError(f"{name} has shape {csr.shape}; give a square matrix.")
    if csr.shape[0] < 2:
        raise InputError(f"{name} has {csr.shape[0]} states; transport needs at least two.")
    return csr


def _check_entries(csr: sparse.csr_array, name: str, what: str) -> None:
    if csr.data.size and csr.data.min() < 0:
        coo = csr.tocoo()
        k = int(np.argmax(coo.data < 0))
        raise InputError(
            f"{name} is {coo.data[k]:.6g} between {int(coo.row[k])} and {int(coo.col[k])}; "
            f"{what} cannot be negative: remove the edge or correct its weight."
        )
    csr.eliminate_zeros()


def inside_largest(
    csr: sparse.csr_array,
    what: str,
    *,
    names: Sequence[Hashable] | None = None,
    strong: bool = False,
    remedy: str = "keep one component",
    wanted: bool = False,
) -> NDArray[np.bool_]:
    """Which states the largest component holds; unless it is `wanted`, several are an error."""
    connection = "strong" if strong else "weak"
    count, label = connected_components(csr, directed=strong, connection=connection)
    sizes = np.bincount(label)
    inside = np.asarray(label == np.argmax(sizes))
    if count > 1 and not wanted:
        shown = ", ".join(map(str, np.sort(sizes)[:-6:-1])) + (", ..." if count > 5 else "")
        stray = int(np.argmin(inside))
        name = names[stray] if names is not None and len(names) > stray else stray
        called = repr(name[:40] if isinstance(name, str) else name)
        raise InputError(
            f"the graph {what} falls into {count} components of sizes {shown} (state {called} is "
            f"outside the largest); add edges between them, or {remedy}."
        )
    return inside


def _stationary(k: sparse.csr_array) -> Array:
    """The stationary distribution: by detailed balance if it holds, otherwise by a linear solve."""
    n = k.shape[0]
    order, parent = breadth_first_order(k, 0, directed=True, return_predecessors=True)
    child, mother = order[1:], parent[order[1:]]
    forth = np.asarray(k[mother, child]).ravel()
    back = np.asarray(k[child, mother]).ravel()
    if np.all(back > 0):
        log_ratio = np.log(forth) - np.log(back)
        log_pi = np.zeros(n)
        for node, above, step in zip(child, mother, log_ratio, strict=True):
            log_pi[node] = log_pi[above] + step
        pi = np.exp(log_pi - log_pi.max())
        pi /= pi.sum()
        if pi.min() > 0 and abs(pi @ k - pi).max() < 1e-12 * pi.max():
            return pi
    grounded = (sparse.eye_array(n, format="csc") - k.T).tocsc()[1:, 1:]
    rest = sparse.linalg.splu(grounded.tocsc()).solve(np.asarray(k[[0], 1:].todense()).ravel())
    pi = np.concatenate([[1.0], rest])
    return pi / pi.sum()


def _check_balance(flow: sparse.csr_array) -> None:
    gap = abs(flow - flow.T).tocoo()
    if gap.nnz == 0:
        return
    scale = flow.maximum(flow.T).tocsr()
    relative = gap.data / np.asarray(scale[gap.row, gap.col]).ravel()
    worst = int(np.argmax(np.where(relative > _BALANCE_TOLERANCE, gap.data, 0.0)))
    if relative[worst] > _BALANCE_TOLERANCE:
        x, y = sorted((int(gap.row[worst]), int(gap.col[worst])))
        raise InputError(
            f"the kernel is not reversible: pi({x}) K({x}, {y}) = {flow[x, y]:.6g} but "
            f'pi({y}) K({y}, {x}) = {flow[y, x]:.6g}; pass reversible="additive" or '
            'reversible="metropolis" to make it so.'
        )
