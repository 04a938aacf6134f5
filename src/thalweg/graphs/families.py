"""`make_graph`: the twelve families of random graphs on which methods are compared."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import numpy as np

from thalweg import _checks
from thalweg._door import checked
from thalweg._types import Array
from thalweg._words import did_you_mean
from thalweg.errors import InputError
from thalweg.graphs import topology
from thalweg.graphs.lattices import walk
from thalweg.graphs.topology import Topology
from thalweg.kernel import MarkovKernel

_MAX_EDGES = 20_000_000
"""Largest number of edges."""
_REDRAWS = 20
"""Draws of a disconnected graph before its components are joined."""
_SMALL = 1000
"""Number of states up to which disconnected graphs are drawn again."""


@checked
def make_graph(
    family: str,
    n: int,
    *,
    rng: np.random.Generator,
    weights: tuple[float, float] | None = (0.5, 1.5),
    **options: float | tuple[int, int],
) -> MarkovKernel:
    """A random connected graph of a family, as a kernel on exactly `n` states.

    The walk leaves `x` towards `y` in proportion to the edge's weight. The same generator state
    gives the same graph. A disconnected graph is drawn again (up to 20 times, up to 1000 states);
    components that remain are joined to the largest by one random edge each.

    | family | what it is | options and defaults |
    | --- | --- | --- |
    | `complete` | every pair | |
    | `erdos_renyi` | each pair with one probability | `mean_degree=1.5 log n + 1` |
    | `regular` | every state has `degree` neighbours | `degree=4` |
    | `watts_strogatz` | ring with rewired edges | `degree=4, rewiring=0.2` |
    | `block_model` | communities | `n_blocks, within, between=1` (mean neighbours) |
    | `delaunay` | triangulation of random points | |
    | `spanning_tree` | Euclidean minimum spanning tree of random points | |
    | `k_partite` | pairs across parts | `n_parts=3, probability=1` |
    | `grid` | rectangle, the last row possibly shorter | `shape`, by default the squarest |
    | `torus` | the same, wrapped | `shape`, by default the squarest |
    | `apollonian` | triangles split at random | |
    | `barabasi_albert` | preferential attachment | `n_links=2` |

    Parameters
    ----------
    family : str
        A name from the table above.
    n : int
        Number of states.
    rng : numpy.random.Generator
        Source of every random choice.
    weights : (float, float), optional
        Bounds between which edge weights are drawn uniformly; `None` gives every edge weight 1.
    **options
        Options of the family, from the table above.

    >>> kernel = make_graph("grid", 6, rng=np.random.default_rng(0), weights=None)
    >>> kernel
    MarkovKernel(n_states=6, n_edges=7)
    >>> kernel.stationary * 14
    array([2., 3., 2., 2., 3., 2.])
    """
    if family not in _BUILDERS:
        hint = did_you_mean(str(family).replace("-", "_"), _BUILDERS, cutoff=0.4)
        raise InputError(
            f"there is no graph family {family!r}{hint} The families are {', '.join(_BUILDERS)}."
        )
    builder, smallest = _BUILDERS[family]
    if n < smallest:
        raise InputError(
            f"n is {int(n)}; a {family} graph needs at least {smallest} states: ask for more."
        )
    known = [k for k in inspect.signature(builder).parameters if k not in ("n", "rng")]
    for name in options:
        if name not in known:
            raise InputError(
                f"{family} has no option {name!r}; it has "
                + (", ".join(known) + " and weights." if known else "weights only.")
            )
    _checks.generator(rng)
    graph = builder(int(n), rng, **options)
    redraws = _REDRAWS if n <= _SMALL else 0
    while redraws > 0 and not topology.is_connected(graph):
        graph = builder(int(n), rng, **options)
        redraws -= 1
    graph = topology.connected(graph, rng)
    drawn = None if weights is None else _draw_weights(graph.source.size, weights, rng)
    return walk(*graph, drawn)


def _draw_weights(count: int, bounds: tuple[float, float], rng: np.random.Generator) -> Array:
    try:
        low, high = float(bounds[0]), float(bounds[1])
    except (TypeError, ValueError, IndexError):
        raise InputError(
            f"weights is {bounds!r}; give a pair (lowest, highest), or None for unit weights."
        ) from None
    if not (0 < low <= high < math.inf):
        raise InputError(
            f"weights is ({low:g}, {high:g}); give 0 < lowest <= highest, for instance (0.5, 1.5)."
        )
    return rng.uniform(low, high, size=count)


# -------------------------------------------------------------------- one builder per family


def _complete(n: int, rng: np.random.Generator) -> Topology:
    _check_edges(n * (n - 1) / 2, f"a complete graph on {n} states")
    return topology.complete(n)


def _erdos_renyi(n: int, rng: np.random.Generator, *, mean_degree: float | None = None) -> Topology:
    wanted = 1.5 * math.log(n) + 1 if mean_degree is None else mean_degree
    degree = _checks.positive(wanted, "mean_degree", zero=True)
    _check_edges(n * degree / 2, f"mean_degree={degree:g} on {n} states")
    return topology.erdos_renyi(n, rng, degree / (n - 1))


def _regular(n: int, rng: np.random.Generator, *, degree: int | None = None) -> Topology:
    d = _checks.whole(min(4, n - 1) if degree is None else degree, "degree")
    if not 3 <= d < n:
        raise InputError(
            f"degree is {d}; a connected random regular graph on {n} states needs one from 3 to "
            f"{n - 1} (for 2, use cycle)."
        )
    if n * d % 2:
        raise InputError(f"{n} states of degree {d} have no whole number of edges; make one even.")
    _check_edges(n * d / 2, f"degree={d} on {n} states")
    return topology.regular(n, rng, d)


def _watts_strogatz(
    n: int, rng: np.random.Generator, *, degree: int | None = None, rewiring: float = 0.2
) -> Topology:
    d = _checks.whole(min(4, (n - 1) // 2 * 2) if degree is None else degree, "degree")
    if d % 2 or not 2 <= d < n:
        raise InputError(f"degree is {d}; give an even number from 2 to {n - 1}.")
    _check_edges(n * d / 2, f"degree={d} on {n} states")
    return topology.watts_strogatz(n, rng, d, _probability("rewiring", rewiring))


def _block_model(
    n: int,
    rng: np.random.Generator,
    *,
    n_blocks: int | None = None,
    within: float | None = None,
    between: float = 1.0,
) -> Topology:
    default = min(max(2, round(math.sqrt(n) / 2)), 20)
    blocks = _checks.whole(default if n_blocks is None else n_blocks, "n_blocks")
    if not 1 <= blocks <= n:
        raise InputError(f"n_blocks is {blocks}; give a number from 1 to {n}.")
    wanted = 1.5 * math.log(n / blocks) + 3 if within is None else within
    mean = _checks.positive(wanted, "within", zero=True)
    other = _checks.positive(between, "between", zero=True)
    _check_edges(n * (mean + other) / 2, f"within={mean:g}, between={other:g} on {n} states")
    return topology.block_model(n, rng, blocks, mean, other)


def _spanning_tree(n: int, rng: np.random.Generator) -> Topology:
    if n == 2:
        return topology.complete(2)
    return topology.euclidean_spanning_tree(n, rng)


def _k_partite(
    n: int, rng: np.random.Generator, *, n_parts: int = 3, probability: float = 1.0
) -> Topology:
    parts = _checks.whole(n_parts, "n_parts")
    if not 2 <= parts <= n:
        raise InputError(f"n_parts is {parts}; give a number from 2 to {n}.")
    _check_edges(n * (n - 1) / 2, f"a {parts}-partite graph on {n} states")
    return topology.k_partite(n, rng, parts, _probability("probability", probability))


def _grid(n: int, rng: np.random.Generator, *, shape: tuple[int, int] | None = None) -> Topology:
    return topology.rectangle(n, _columns(n, shape), periodic=False)


def _torus(n: int, rng: np.random.Generator, *, shape: tuple[int, int] | None = None) -> Topology:
    return topology.rectangle(n, _columns(n, shape), periodic=True)


def _barabasi_albert(n: int, rng: np.random.Generator, *, n_links: int | None = None) -> Topology:
    links = _checks.whole(min(2, n - 1) if n_links is None else n_links, "n_links")
    if not 1 <= links < n:
        raise InputError(f"n_links is {links}; give a number from 1 to {n - 1}.")
    _check_edges(n * links, f"n_links={links} on {n} states")
    return topology.barabasi_albert(n, rng, links)


_BUILDERS: dict[str, tuple[Callable[..., Topology], int]] = {
    "complete": (_complete, 2),
    "erdos_renyi": (_erdos_renyi, 2),
    "regular": (_regular, 4),
    "watts_strogatz": (_watts_strogatz, 3),
    "block_model": (_block_model, 2),
    "delaunay": (topology.delaunay, 3),
    "spanning_tree": (_spanning_tree, 2),
    "k_partite": (_k_partite, 3),
    "grid": (_grid, 2),
    "torus": (_torus, 3),
    "apollonian": (topology.apollonian, 3),
    "barabasi_albert": (_barabasi_albert, 2),
}

GRAPH_FAMILIES: tuple[str, ...] = tuple(_BUILDERS)
"""The names that `make_graph` knows."""


# -------------------------------------------------------------------- checks at the door


def _columns(n: int, shape: tuple[int, int] | None) -> int:
    """Columns of the squarest rectangle of `n` states, ragged where `n` only factors badly."""
    if shape is not None:
        rows, columns = (_checks.whole(side, "shape") for side in shape)
        if rows < 1 or columns < 1 or rows * columns != n:
            raise InputError(
                f"shape ({rows}, {columns}) has {rows * columns} states, not {n}; make them agree."
            )
        return columns
    rows = next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0)
    if n // rows <= 3 * rows:
        return n // rows
    return math.ceil(n / math.isqrt(n))


def _check_edges(count: float, what: str) -> None:
    if count > _MAX_EDGES:
        raise InputError(
            f"{what} has {count:.2g} edges, more than {_MAX_EDGES:.0e}; ask for fewer states or a "
            "sparser family."
        )


def _probability(name: str, value: float) -> float:
    number = float(value)
    if not 0 <= number <= 1:
        raise InputError(f"{name} is {number:g}; it must lie between 0 and 1.")
    return number
