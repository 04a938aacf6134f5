"""Which pairs of states are joined: one function per family, each giving arrays of edges.

Every function returns a `Topology`: exactly `n` states, each edge once with `source < target`.
Components may remain; `connected` joins them. Everything is vectorised or compiled, so that 10^5
states take seconds at most.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial import Delaunay

from thalweg._compile import inner, njit
from thalweg._types import Array
from thalweg.graphs.lattices import circle

Pairs = NDArray[np.int64]


class Topology(NamedTuple):
    """Edges without weights, and positions to draw the states at if there are natural ones."""

    n: int
    source: Pairs
    target: Pairs
    coordinates: Array | None = None


def simple(n: int, a: Pairs, b: Pairs, coordinates: Array | None = None) -> Topology:
    """The simple graph with these pairs: sorted, each once, without self-loops."""
    keys = np.unique(_keys(n, a[a != b], b[a != b]))
    return Topology(n, keys // n, keys % n, coordinates)


def _keys(n: int, a: Pairs, b: Pairs) -> Pairs:
    """One number per undirected pair."""
    return np.asarray(np.minimum(a, b).astype(np.int64) * n + np.maximum(a, b))


# -------------------------------------------------------------------- connectedness


def components(n: int, a: Pairs, b: Pairs) -> tuple[int, NDArray[np.int32]]:
    """The number of components of a graph, and the label of each state's own."""
    graph = sparse.coo_array((np.ones(a.size, dtype=np.int8), (a, b)), shape=(n, n))
    count, label = connected_components(graph, directed=False)
    return int(count), label


def is_connected(graph: Topology) -> bool:
    """Whether a path joins every two states."""
    return components(*graph[:3])[0] == 1


def connected(graph: Topology, rng: np.random.Generator) -> Topology:
    """The graph with its components joined to the largest one, each by one random edge."""
    count, label = components(*graph[:3])
    if count == 1:
        return graph
    order = np.argsort(label, kind="stable")
    sizes = np.bincount(label, minlength=count)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    largest = int(np.argmax(sizes))
    others = np.flatnonzero(np.arange(count) != largest)
    ends = order[first[others] + rng.integers(0, sizes[others])]
    hosts = order[first[largest] + rng.integers(0, sizes[largest], size=others.size)]
    return simple(
        graph.n,
        np.concatenate([graph.source, ends]),
        np.concatenate([graph.target, hosts]),
        graph.coordinates,
    )


# -------------------------------------------------------------------- dense families


def complete(n: int) -> Topology:
    """Every pair."""
    source, target = np.triu_indices(n, k=1)
    return Topology(n, source, target)


def k_partite(n: int, rng: np.random.Generator, n_parts: int, probability: float) -> Topology:
    """States in `n_parts` random parts, none empty; pairs across parts with the probability."""
    part = np.concatenate([np.arange(n_parts), rng.integers(0, n_parts, size=n - n_parts)])
    rng.shuffle(part)
    source, target = np.triu_indices(n, k=1)
    keep = part[source] != part[target]
    if probability < 1:
        keep &= rng.random(source.size) < probability
    # Drawn as parts side by side, each a column.
    height = np.empty(n)
    for k in range(n_parts):
        members = np.flatnonzero(part == k)
        height[members] = (np.arange(members.size) + 0.5) / members.size
    return Topology(n, source[keep], target[keep], np.column_stack([part, n_parts * height]))


# -------------------------------------------------------------------- random graphs


def erdos_renyi(n: int, rng: np.random.Generator, probability: float) -> Topology:
    """`G(n, p)`: each pair with the same probability; linear in the edges drawn."""
    n_pairs = n * (n - 1) // 2
    count = int(rng.binomial(n_pairs, min(probability, 1.0)))
    index = np.sort(rng.choice(n_pairs, size=count, replace=False, shuffle=False))
    # Pair number k is (i, j), j < i, with i (i - 1) / 2 <= k; the root is off by one at most.
    i = ((1 + np.sqrt(1 + 8 * index.astype(np.float64))) / 2).astype(np.int64)
    i -= i * (i - 1) // 2 > index
    i += i * (i + 1) // 2 <= index
    return Topology(n, index - i * (i - 1) // 2, i)


def block_model(
    n: int, rng: np.random.Generator, n_blocks: int, within: float, between: float
) -> Topology:
    """Stochastic block model: blocks of equal size, `within` / `between` mean neighbours."""
    bounds = np.linspace(0, n, n_blocks + 1).round().astype(np.int64)
    block = np.repeat(np.arange(n_blocks), np.diff(bounds))
    across = max(n - n / n_blocks, 1.0)
    rest = erdos_renyi(n, rng, between / across)
    keep = block[rest.source] != block[rest.target]
    source, target = [rest.source[keep]], [rest.target[keep]]
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        size = int(stop - start)
        if size > 1:
            inside = connected(erdos_renyi(size, rng, within / (size - 1)), rng)
            source.append(inside.source + start)
            target.append(inside.target + start)
    return simple(n, np.concatenate(source), np.concatenate(target))


def watts_strogatz(n: int, rng: np.random.Generator, degree: int, rewiring: float) -> Topology:
    """Ring of `degree` nearest neighbours whose edges are rewired with a probability.

    A rewired edge that finds no free target in a hundred draws is left out.
    """
    reach = degree // 2
    source = np.tile(np.arange(n), reach)
    target = (source + np.repeat(np.arange(1, reach + 1), n)) % n
    moved = np.flatnonzero(rng.random(source.size) < rewiring)
    taken = _keys(n, np.delete(source, moved), np.delete(target, moved))
    for _ in range(100):
        if moved.size == 0:
            break
        drawn = rng.integers(0, n, size=moved.size)
        keys = _keys(n, source[moved], drawn)
        _, first = np.unique(keys, return_index=True)
        good = np.zeros(moved.size, dtype=bool)
        good[first] = True
        good &= (drawn != source[moved]) & ~np.isin(keys, taken)
        taken = np.concatenate([taken, keys[good]])
        moved = moved[~good]
    return simple(n, taken // n, taken % n, circle(n))


def regular(n: int, rng: np.random.Generator, degree: int) -> Topology:
    """A random `degree`-regular graph: a circulant ring mixed by double edge swaps.

    Each swap turns edges `ab`, `cd` into `ad`, `cb` where that keeps the graph simple; the swaps
    reach every simple graph of these degrees, uniformly in the limit. Ten swaps per edge.
    """
    steps = np.arange(1, degree // 2 + 1)
    source = np.tile(np.arange(n), steps.size)
    target = (source + np.repeat(steps, n)) % n
    if degree % 2:
        source = np.concatenate([source, np.arange(n // 2)])
        target = np.concatenate([target, np.arange(n // 2) + n // 2])
    source, target = source.copy(), target.copy()
    neighbor = np.full((n, degree), -1, dtype=np.int64)
    _fill_neighbors(source, target, neighbor, np.zeros(n, dtype=np.int64))
    while True:
        _swap_edges(source, target, neighbor, 10 * source.size, rng)
        graph = simple(n, source, target)
        if is_connected(graph):
            return graph


@njit(cache=True)
def _fill_neighbors(source: Pairs, target: Pairs, neighbor: Pairs, filled: Pairs) -> None:
    for e in range(source.size):
        a, b = source[e], target[e]
        neighbor[a, filled[a]] = b
        neighbor[b, filled[b]] = a
        filled[a] += 1
        filled[b] += 1


@njit(cache=True)
def _swap_edges(
    source: Pairs, target: Pairs, neighbor: Pairs, n_swaps: int, rng: np.random.Generator
) -> None:
    for _ in range(n_swaps):
        e = rng.integers(0, source.size)
        f = rng.integers(0, source.size)
        a, b, c, d = source[e], target[e], source[f], target[f]
        if rng.random() < 0.5:
            c, d = d, c
        if a == d or c == b or a == c or b == d:
            continue
        if _has(neighbor, a, d) or _has(neighbor, c, b):
            continue
        _replace(neighbor, a, b, d)
        _replace(neighbor, b, a, c)
        _replace(neighbor, c, d, b)
        _replace(neighbor, d, c, a)
        source[e], target[e], source[f], target[f] = a, d, c, b


@inner(cache=True)
def _has(neighbor: Pairs, x: int, y: int) -> bool:
    for k in range(neighbor.shape[1]):
        if neighbor[x, k] == y:
            return True
    return False


@inner(cache=True)
def _replace(neighbor: Pairs, x: int, old: int, new: int) -> None:
    for k in range(neighbor.shape[1]):
        if neighbor[x, k] == old:
            neighbor[x, k] = new
            return


def barabasi_albert(n: int, rng: np.random.Generator, n_links: int) -> Topology:
    """Preferential attachment: each new state chooses `n_links` others in proportion to degree.

    It starts from a complete graph on `n_links + 1` states.
    """
    source, target = _attach(n, n_links, rng)
    return simple(n, source, target)


@njit(cache=True)
def _attach(n: int, n_links: int, rng: np.random.Generator) -> tuple[Pairs, Pairs]:
    seeds = n_links + 1
    count = seeds * (seeds - 1) // 2 + (n - seeds) * n_links
    source = np.empty(count, dtype=np.int64)
    target = np.empty(count, dtype=np.int64)
    e = 0
    for a in range(seeds):
        for b in range(a + 1, seeds):
            source[e], target[e] = a, b
            e += 1
    for new in range(seeds, n):
        start = e
        while e < start + n_links:
            # An end of a random edge is a state drawn in proportion to its degree.
            k = rng.integers(0, start)
            old = source[k] if rng.random() < 0.5 else target[k]
            fresh = True
            for j in range(start, e):
                fresh = fresh and target[j] != old
            if fresh:
                source[e], target[e] = new, old
                e += 1
    return source, target


# -------------------------------------------------------------------- planar and spatial


def delaunay(n: int, rng: np.random.Generator) -> Topology:
    """The Delaunay triangulation of points drawn uniformly in the unit square."""
    points = rng.random((n, 2))
    corners = Delaunay(points).simplices.astype(np.int64)
    a = np.concatenate([corners[:, 0], corners[:, 1], corners[:, 2]])
    b = np.concatenate([corners[:, 1], corners[:, 2], corners[:, 0]])
    return simple(n, a, b, points)


def euclidean_spanning_tree(n: int, rng: np.random.Generator) -> Topology:
    """The Euclidean minimum spanning tree of uniform points, found inside their Delaunay graph."""
    _, source, target, points = delaunay(n, rng)
    assert points is not None
    length = np.linalg.norm(points[source] - points[target], axis=1)
    tree = minimum_spanning_tree(sparse.csr_array((length, (source, target)), shape=(n, n)))
    a, b = tree.nonzero()
    return simple(n, a.astype(np.int64), b.astype(np.int64), points)


def apollonian(n: int, rng: np.random.Generator) -> Topology:
    """A random Apollonian network: new states split triangles chosen uniformly.

    Coordinates make a planar drawing whose inner faces all have the same area.
    """
    source, target, points = _split_triangles(n, rng)
    return simple(n, source, target, points)


@njit(cache=True)
def _split_triangles(n: int, rng: np.random.Generator) -> tuple[Pairs, Pairs, Array]:
    source = np.empty(3 * n - 6, dtype=np.int64)
    target = np.empty(3 * n - 6, dtype=np.int64)
    for e in range(3):
        source[e], target[e] = e, (e + 1) % 3
    # Triangle 0 is the whole; state `new` splits triangle `split[new]` into three, the first of
    # which is number 3 (new - 3) + 1 and lies opposite the corner c, the next opposite a, then b.
    corner = np.empty((3 * n - 8, 3), dtype=np.int64)
    corner[0] = (0, 1, 2)
    split = np.zeros(n, dtype=np.int64)
    face = np.zeros(2 * n - 5, dtype=np.int64)
    n_faces, e = 1, 3
    for new in range(3, n):
        k = rng.integers(0, n_faces)
        split[new] = face[k]
        a, b, c = corner[face[k]]
        for old in (a, b, c):
            source[e], target[e] = old, new
            e += 1
        first = 3 * (new - 3) + 1
        corner[first] = (a, b, new)
        corner[first + 1] = (b, c, new)
        corner[first + 2] = (c, a, new)
        face[k], face[n_faces], face[n_faces + 1] = first, first + 1, first + 2
        n_faces += 2
    # Each triangle's area is the number of faces in it: that places the state that splits it.
    faces = np.ones(3 * n - 8, dtype=np.int64)
    for new in range(n - 1, 2, -1):
        first = 3 * (new - 3) + 1
        faces[split[new]] = faces[first] + faces[first + 1] + faces[first + 2]
    points = np.empty((n, 2))
    points[0] = (0.0, 0.0)
    points[1] = (1.0, 0.0)
    points[2] = (0.5, math.sqrt(0.75))
    for new in range(3, n):
        first = 3 * (new - 3) + 1
        a, b, c = corner[split[new]]
        points[new] = (
            faces[first] * points[c] + faces[first + 1] * points[a] + faces[first + 2] * points[b]
        ) / faces[split[new]]
    return source, target, points


def rectangle(n: int, n_columns: int, periodic: bool) -> Topology:
    """`n` states row by row in `n_columns` columns, the last row possibly shorter.

    `periodic` joins the last state of each row to its first, and of each column.
    """
    state = np.arange(n)
    row, column = state // n_columns, state % n_columns
    right = state[(column < n_columns - 1) & (state < n - 1)]
    below = state[state + n_columns < n]
    a = [right, below]
    b = [right + 1, below + n_columns]
    if periodic:
        row_start = np.arange(0, n, n_columns)
        a.append(row_start)
        b.append(np.minimum(row_start + n_columns, n) - 1)
        top = np.arange(min(n_columns, n))
        a.append(top)
        b.append(top + (n - 1 - top) // n_columns * n_columns)
    coordinates = np.column_stack([column, -row]).astype(np.float64)
    return simple(n, np.concatenate(a), np.concatenate(b), coordinates)
