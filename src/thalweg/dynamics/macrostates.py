"""Macrostates found automatically: by slow modes (PCCA+), and by saddles of the landscape.

*Modes.* The `k - 1` slowest modes and the constant span functions that are nearly constant on `k`
metastable sets. PCCA+ (Roeblitz and Weber) takes the linear map of them to `k` non-negative
memberships with sum one that is as crisp as possible. Their number is where the ratio of two
successive relaxation times is largest.

*Saddles.* In units of `beta`, a state has the free energy `-log p_x` and an edge `-log(p_x Q_xy)`:
the log of the mean time to cross it from `x` is their difference. As the level rises, states join
over higher and higher edges; a basin's persistence is the barrier from its bottom to the saddle
where it joins a deeper one, so `exp(persistence)` is a waiting time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.sparse.csgraph import minimum_spanning_tree

from thalweg._compile import inner, njit
from thalweg._door import single_threaded
from thalweg._types import Array, Index
from thalweg.dynamics.landscape import Landscape
from thalweg.dynamics.walk import Modes, relaxation_modes, resting_walk
from thalweg.errors import InputError

MOST_MACROSTATES = 12
"""Largest number of macrostates considered by default."""


@dataclass(frozen=True, eq=False)
class Macrostates:
    """Metastable sets of states, and the memberships of each state."""

    memberships: Array
    """`(N, k)`: non-negative, rows summing to one."""
    labels: Index
    """The macrostate that each state belongs to most, ordered by weight at rest."""
    weights: Array
    """The share of the population at rest in each."""
    modes: Modes
    gap: float
    """Ratio of the last relaxation time kept to the first left out (infinite: none left)."""

    @property
    def n_macrostates(self) -> int:
        return int(self.memberships.shape[1])

    def states(self, k: int) -> Index:
        """The states of macrostate `k`."""
        return np.flatnonzero(self.labels == k)

    def cores(self, threshold: float = 0.95) -> tuple[Index, ...]:
        """States that almost certainly belong to a macrostate: targets for fates.

        A macrostate without any keeps its most certain state.
        """
        out = []
        for k in range(self.n_macrostates):
            sure = np.flatnonzero(self.memberships[:, k] > threshold)
            out.append(sure if sure.size else np.array([int(np.argmax(self.memberships[:, k]))]))
        return tuple(out)

    def named_cores(self, names: Sequence[Hashable]) -> dict[str, Index]:
        """The cores, each as the set of the state that belongs to it most surely."""
        surest = np.argmax(self.memberships, axis=0)
        called = (f"set of {names[int(x)]}" for x in surest)
        return dict(zip(called, self.cores(), strict=True))


@single_threaded
def macrostates(
    landscape: Landscape, n_macrostates: int | None = None, *, most: int = MOST_MACROSTATES
) -> Macrostates:
    """Metastable sets by PCCA+ on the slowest modes.

    Parameters
    ----------
    landscape : Landscape
        Kernel and energy.
    n_macrostates : int, optional
        Number of sets; by default where the gap between relaxation times is widest.
    most : int
        The largest number considered by default; never more than a third of the states.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> import numpy as np
    >>> w = np.kron(np.eye(2), np.ones((3, 3))); w[2, 3] = w[3, 2] = 0.01
    >>> two = macrostates(Landscape(MarkovKernel.from_weights(w), FreeEnergy(np.zeros(6), 1.0)))
    >>> two.n_macrostates, sorted(two.states(0).tolist() + two.states(1).tolist())
    (2, [0, 1, 2, 3, 4, 5])
    """
    n = landscape.kernel.n_states
    if n_macrostates is not None and not 2 <= n_macrostates <= n:
        raise InputError(f"n_macrostates is {n_macrostates}; choose between 2 and {n}.")
    # More sets than a third of the states are no summary.
    widest = max(2, min(most, n // 3))
    count = min(widest if n_macrostates is None else n_macrostates, n - 1)
    modes = relaxation_modes(landscape, count, tolerance=1e-8)
    times = modes.times.value
    if n_macrostates is None:
        ratios = times[:-1] / times[1:]
        n_macrostates = 2 if ratios.size == 0 else int(np.argmax(ratios)) + 2
    last = times[n_macrostates - 1] if n_macrostates <= times.size else 0.0
    gap = float(times[n_macrostates - 2] / last) if last > 0 else float("inf")
    p = landscape.equilibrium
    chi = memberships(np.column_stack([np.ones(n), modes.right[:, : n_macrostates - 1]]))
    weights = p @ chi
    order = np.argsort(-weights)
    chi, weights = chi[:, order], weights[order]
    return Macrostates(chi, np.argmax(chi, axis=1), weights, modes, gap)


def memberships(vectors: Array) -> Array:
    """PCCA+: the crispest memberships in the span of `vectors`, whose first column is constant."""
    n, k = vectors.shape
    corner = _corners(vectors)
    a: Array = np.asarray(np.linalg.inv(vectors[corner]), dtype=np.float64)
    if k > 1:
        a = _feasible(a[1:, 1:], vectors)

    def loss(flat: Array) -> float:
        full = _feasible(flat.reshape(k - 1, k - 1), vectors)
        if not np.all(full[0] > 0):  # an empty macrostate
            return np.inf
        return -float(np.sum(full**2 / full[0]))

    # For two macrostates the map to [0, 1] is fixed by its ends; for many entries this start is
    # near-optimal.
    if k > 2 and n * k <= 200_000:
        found = minimize(
            loss, a[1:, 1:].ravel(), method="Nelder-Mead",
            options={"maxiter": 400 * (k - 1) ** 2, "xatol": 1e-6, "fatol": 1e-10},
        )  # fmt: skip
        a = _feasible(found.x.reshape(k - 1, k - 1), vectors)
    chi = np.clip(vectors @ a, 0.0, 1.0)
    return np.asarray(chi / chi.sum(axis=1, keepdims=True))


def _corners(vectors: Array) -> list[int]:
    """The inner simplex: states farthest from the span of those already chosen."""
    y = vectors.copy()
    first = int(np.argmax(np.sum(y**2, axis=1)))
    out = [first]
    y = y - y[first]
    for _ in range(1, vectors.shape[1]):
        k = int(np.argmax(np.sum(y**2, axis=1)))
        out.append(k)
        direction = y[k] / np.linalg.norm(y[k])
        y = y - np.outer(y @ direction, direction)
    return out


def _feasible(inner: Array, vectors: Array) -> Array:
    """The map with these inner entries that gives non-negative memberships of sum one."""
    k = inner.shape[0] + 1
    a = np.empty((k, k))
    a[1:, 1:] = inner
    a[1:, 0] = -inner.sum(axis=1)
    a[0] = -np.min(vectors[:, 1:] @ a[1:], axis=0)
    return np.asarray(a / a[0].sum())


@dataclass(frozen=True, eq=False)
class Basins:
    """The merge tree of the landscape's basins, deepest barrier first.

    Row `k` is the basin whose bottom is `bottom[k]`; it joins the basin of `parent[k]` (a row; -1
    for the deepest) at `saddle[k]`. Energies are in units of `beta`.
    """

    bottom: Index
    depth: Array
    """`-log p` at the bottom."""
    saddle: Array
    """`-log(p Q)` of the edge where it joins a deeper basin; infinite for the deepest."""
    parent: Index
    tree: tuple[Index, Index, Array]
    """The spanning tree of easiest passages: ends and heights of its edges."""

    @property
    def persistence(self) -> Array:
        """The barrier out of the basin; its exponential is a waiting time."""
        return self.saddle - self.depth

    def terminal(self, barrier: float) -> Index:
        """The bottoms of the basins that hold an individual behind at least this barrier."""
        return self.bottom[self.persistence >= barrier]

    def labels(self, n_basins: int) -> Index:
        """The basin of each state once only the `n_basins` most persistent are kept."""
        kept = min(n_basins, self.bottom.size)
        n = self.tree[0].size + 1
        return _flood(n, *self.tree[:2], self.bottom[:kept])


@single_threaded
def basins(landscape: Landscape) -> Basins:
    """The basins of the landscape, by the heights of the saddles between them.

    Parameters
    ----------
    landscape : Landscape
        Kernel and energy.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> path = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> found = basins(Landscape(path, FreeEnergy([0.0, 3.0, 0.5], beta=0.5)))
    >>> found.bottom.tolist(), found.persistence[1] > 1
    ([0, 2], np.True_)
    """
    walk = resting_walk(landscape)
    n = walk.p.size
    source, target, _ = walk.kernel.edges
    height = -np.log(walk.conductance)
    shifted = height - height.min() + 1.0
    tree = minimum_spanning_tree(
        sparse.csr_array((shifted, (source, target)), shape=(n, n))
    ).tocoo()
    level = tree.data + height.min() - 1.0
    order = np.argsort(level, kind="stable")
    one, other = tree.row[order].astype(np.int64), tree.col[order].astype(np.int64)
    level = level[order]
    depth = -np.log(walk.p)
    saddle, joins = _merge(one, other, level, depth)
    keep = (saddle - depth > 1e-9) | (joins < 0)
    bottom = np.flatnonzero(keep)
    bottom = bottom[np.argsort(-(saddle - depth)[bottom], kind="stable")]
    row = np.full(n, -1, dtype=np.int64)
    row[bottom] = np.arange(bottom.size)
    parent = np.array([_ancestor(joins, row, int(x)) for x in bottom], dtype=np.int64)
    return Basins(bottom, depth[bottom], saddle[bottom], parent, (one, other, level))


def _ancestor(joins: Index, row: Index, state: int) -> int:
    """The row of the kept basin that this one joins."""
    x = int(joins[state])
    while x >= 0 and row[x] < 0:
        x = int(joins[x])
    return -1 if x < 0 else int(row[x])


@inner(cache=True)
def _root(parent: Index, x: int) -> int:
    while parent[x] != x:
        parent[x] = parent[parent[x]]
        x = parent[x]
    return x


@njit(cache=True)
def _merge(one: Index, other: Index, level: Array, depth: Array) -> tuple[Array, Index]:
    """The height at which each state's basin joins a deeper one, and that one's bottom."""
    n = depth.size
    parent = np.arange(n)
    saddle = np.full(n, np.inf)
    joins = np.full(n, -1, np.int64)
    for e in range(one.size):
        a, b = _root(parent, one[e]), _root(parent, other[e])
        if depth[a] > depth[b]:
            a, b = b, a
        # Roots are the bottoms of their basins, so the shallower one ends here.
        saddle[b] = level[e]
        joins[b] = a
        parent[b] = a
    return saddle, joins


@njit(cache=True)
def _flood(n: int, one: Index, other: Index, bottoms: Index) -> Index:
    """Join over the easiest edges first, but never two kept basins."""
    parent = np.arange(n)
    label = np.full(n, -1, np.int64)
    for k in range(bottoms.size):
        label[bottoms[k]] = k
    for e in range(one.size):
        a, b = _root(parent, one[e]), _root(parent, other[e])
        if label[a] >= 0 and label[b] >= 0:
            continue
        if label[a] < 0:
            a, b = b, a
        parent[b] = a
    out = np.empty(n, np.int64)
    for x in range(n):
        out[x] = label[_root(parent, x)]
    return out
