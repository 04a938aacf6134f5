"""Newton's system for a staggered curve by incomplete elimination and GMRES: for any graph.

The unknowns of a state at all times form a block, and the blocks are eliminated state by state,
from one side of the graph to the other. Fill beyond near neighbours is dropped, so the work is
linear in the edges whatever the graph; time is treated exactly, and in space other edges carry most
of the information in a dropped block. GMRES corrects the rest in tens of iterations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.linalg import LinAlgError
from scipy import sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

from thalweg._compile import njit
from thalweg._types import Array, Index
from thalweg.kernel import MarkovKernel
from thalweg.laplacian.krylov import gmres
from thalweg.paths.boundary.staggered import Solve, SpaceTime

_ITERATIONS = 400
"""Largest number of GMRES iterations."""
_DEEPEST = 2
"""Largest level of fill of the incomplete elimination."""
_GROWTH = 2.0
"""Fill may at most double the number of blocks: level 2 pays on planar graphs, 1 or 0 on others."""


class Ends(NamedTuple):
    """The edges of the kernel: the places of their sources and targets, and their blocks."""

    source: Index
    target: Index
    slot: Index


@dataclass(frozen=True, eq=False)
class IncompletePattern:
    """The order of the states and which pairs keep a block.

    Fill of level `l` joins states that are connected through earlier ones by a path of at most
    `l + 1` edges; the level is the deepest that does not add too many blocks.

    >>> path = MarkovKernel.from_weights(np.diag(np.ones(4), 1) + np.diag(np.ones(4), -1))
    >>> IncompletePattern.of(path).later.size
    4
    """

    order: Index
    start: Index
    """Start of the later neighbours of each place."""
    later: Index
    edges: Ends

    @classmethod
    def of(
        cls, kernel: MarkovKernel, *, deepest: int = _DEEPEST, growth: float = _GROWTH
    ) -> IncompletePattern:
        """States from one side of the graph to the other (reverse Cuthill and McKee)."""
        n = kernel.n_states
        source, target, _ = kernel.edges
        flows = sparse.csr_matrix(kernel.flow_matrix)
        order = reverse_cuthill_mckee(flows, symmetric_mode=True).astype(np.int64)
        place = np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        one, other = place[source], place[target]
        first, second = np.minimum(one, other), np.maximum(one, other)
        rows: list[list[int]] | None = None
        for level in range(deepest, -1, -1):
            most = growth * source.size if level else np.inf
            rows = _with_fill(first, second, n, level, most)
            if rows is not None:
                break
        assert rows is not None  # level 0 has no limit
        start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        later = np.array([j for row in rows for j in row], dtype=np.int64)
        keys = np.repeat(np.arange(n), np.diff(start)) * n + later
        slot = np.searchsorted(keys, first * n + second)
        return cls(order, start, later, Ends(one, other, slot))

    @cached_property
    def _products(self) -> int:
        return int(_count_products(self.start, self.later))

    def flops(self, block: int) -> float:
        """Multiplications and additions of a factorisation with `block` unknowns per state."""
        return 2.0 * block**3 * (self.order.size + self._products)

    def entries(self, block: int) -> float:
        """Numbers to keep for a factorisation."""
        return float(block**2 * (self.order.size + self.later.size))


def _with_fill(
    first: Index, second: Index, n: int, level: int, most: float
) -> list[list[int]] | None:
    """The later neighbours of each state with fill, sorted; `None` if more than `most`."""
    rows: list[dict[int, int]] = [{} for _ in range(n)]
    for i, j in zip(first.tolist(), second.tolist(), strict=True):
        rows[i][j] = 0
    total = first.size
    for row in rows:
        near = sorted(j for j, depth in row.items() if depth < level)
        for a, j in enumerate(near):
            below = rows[j]
            for k in near[a + 1 :]:
                depth = row[j] + row[k] + 1
                known = below.get(k)
                if depth <= level and (known is None or known > depth):
                    below[k] = depth
                    total += known is None
        if total > most:
            return None
    return [sorted(row) for row in rows]


@njit(cache=True, error_model="numpy")
def _count_products(start: Index, later: Index) -> int:
    """Number of products of blocks in an elimination."""
    total = 2 * later.size
    for i in range(start.size - 1):
        for a in range(start[i], start[i + 1]):
            at, end = start[later[a]], start[later[a] + 1]
            for b in range(a + 1, start[i + 1]):
                while at < end and later[at] < later[b]:
                    at += 1
                if at < end and later[at] == later[b]:
                    total += 1
    return total


class IncompleteFactor:
    """A factorisation whose `solve` approximates the inverse, in the scaled unknowns.

    It is `broken` if a pivot is singular or a number is not finite.
    """

    def __init__(self, system: SpaceTime, pattern: IncompletePattern) -> None:
        self.pattern = pattern
        self.units = np.concatenate(system.scale).T[pattern.order].copy()
        n, block = self.units.shape
        self.own = np.zeros((n, block, block))
        self.off = np.zeros((pattern.later.size, block, block))
        _fill(
            pattern.edges,
            system.table,
            np.ascontiguousarray(system.damping.T[pattern.order]),
            system.graph.pi[pattern.order],
            system.widths,
            self.units,
            self.own,
            self.off,
        )
        self.broken = False
        try:
            _eliminate(pattern.start, pattern.later, self.own, self.off)
        except LinAlgError:
            self.broken = True

    def solve(self, right: Array) -> Array:
        """Approximate solution for right-hand sides of shape (states in order, unknowns)."""
        return _substitute(self.pattern.start, self.pattern.later, self.own, self.off, right)


def by_incomplete(pattern: IncompletePattern, *, tolerance: float = 1e-3) -> Solve:
    """Newton's systems by GMRES on what is left of them after the incomplete elimination.

    `tolerance` is that of a Newton step, relative; the next step corrects what is left.
    """

    def solve(
        system: SpaceTime, right_x: Array, right_psi: Array, guess: Array
    ) -> tuple[Array, Array, int]:
        factor = IncompleteFactor(system, pattern)
        if factor.broken:
            return np.full_like(right_x, np.nan), guess, 1
        units, cut, order = factor.units, len(right_x), pattern.order

        def gather(x: Array, psi: Array) -> Array:
            return np.asarray(units * np.concatenate([x, psi]).T[order])

        def scatter(y: Array) -> tuple[Array, Array]:
            both = np.empty_like(units)
            both[order] = units * y.reshape(units.shape)
            return np.ascontiguousarray(both[:, :cut].T), np.ascontiguousarray(both[:, cut:].T)

        def operator(v: Array) -> Array:
            return factor.solve(gather(*system.product(*scatter(v)))).ravel()

        top, bottom = system.product(np.zeros_like(right_x), guess)
        right = factor.solve(gather(right_x - top, right_psi - bottom)).ravel()
        found = gmres(operator, right, tolerance=tolerance, max_iterations=_ITERATIONS)
        x, psi = scatter(found.x)
        return x, guess + psi, found.iterations

    return solve


@njit(cache=True, error_model="numpy")
def _fill(
    edges: Ends,
    table: Array,
    damping: Array,
    pi: Array,
    h: Array,
    units: Array,
    own: Array,
    off: Array,
) -> None:
    count, n = h.size, pi.size
    cut = damping.shape[1]
    for i in range(n):
        block, unit = own[i], units[i]
        for k in range(cut):
            block[k, k] = damping[i, k] * unit[k] ** 2
            block[k, cut + k] = pi[i] * unit[k] * unit[cut + k]
            if k + 1 < count:
                block[k, cut + k + 1] = -pi[i] * unit[k] * unit[cut + k + 1]
    for e in range(edges.slot.size):
        i, j = edges.source[e], edges.target[e]
        p, q, block = own[i], own[j], off[edges.slot[e]]
        cross = block if i < j else block.T
        s, t = units[i], units[j]
        for k in range(count):
            row = table[k, e]
            a, b = 0.5 * h[k] * row[1], 0.5 * h[k] * row[2]
            ss, st, tt = -0.25 * h[k] * row[3], -0.25 * h[k] * row[4], -0.25 * h[k] * row[5]
            z = cut + k
            w = h[k] * row[0]
            p[z, z] -= w * s[z] * s[z]
            q[z, z] -= w * t[z] * t[z]
            cross[z, z] += w * s[z] * t[z]
            for m in range(max(k - 1, 0), min(k + 1, cut)):
                p[m, z] -= a * s[m] * s[z]
                q[m, z] += b * t[m] * t[z]
                cross[z, m] -= b * s[z] * t[m]
                cross[m, z] += a * s[m] * t[z]
                for l in range(max(k - 1, 0), min(k + 1, cut)):
                    p[m, l] += ss * s[m] * s[l]
                    q[m, l] += tt * t[m] * t[l]
                    cross[m, l] += st * s[m] * t[l]
    for i in range(n):
        for k in range(cut):
            for z in range(cut, cut + count):
                own[i, z, k] = own[i, k, z]
    if cut < count:
        # Between fixed ends potentials have a free constant: tie one down.
        own[n - 1, cut, cut] -= 1.0


@njit(cache=True, error_model="numpy")
def _eliminate(start: Index, later: Index, own: Array, off: Array) -> None:
    """The inverses of the pivots in place of `own`, the remaining couplings in `off`."""
    n, size = own.shape[0], own.shape[1]
    most = 0
    for i in range(n):
        most = max(most, start[i + 1] - start[i])
    ahead = np.empty((most, size, size))
    update = np.empty((size, size))
    for i in range(n):
        pivot = np.linalg.inv(own[i])
        for r in range(size):
            for c in range(r + 1):
                own[i, r, c] = 0.5 * (pivot[r, c] + pivot[c, r])
                own[i, c, r] = own[i, r, c]
        first, stop = start[i], start[i + 1]
        for a in range(first, stop):
            np.dot(own[i], off[a], ahead[a - first])
        for a in range(first, stop):
            j = later[a]
            left = off[a].T
            np.dot(left, ahead[a - first], update)
            own[j] -= update
            at, end = start[j], start[j + 1]
            for b in range(a + 1, stop):
                while at < end and later[at] < later[b]:
                    at += 1
                if at < end and later[at] == later[b]:
                    np.dot(left, ahead[b - first], update)
                    off[at] -= update


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _substitute(start: Index, later: Index, own: Array, off: Array, right: Array) -> Array:
    # By hand: the blocks are small, and calls of BLAS cost more than the arithmetic.
    v = right.copy()
    n, size = v.shape
    y = np.empty(size)
    for i in range(n):
        here = v[i]
        for r in range(size):
            total = 0.0
            for c in range(size):
                total += own[i, r, c] * here[c]
            y[r] = total
        for a in range(start[i], start[i + 1]):
            there = v[later[a]]
            for r in range(size):
                for c in range(size):
                    there[c] -= y[r] * off[a, r, c]
    for i in range(n - 1, -1, -1):
        y[:] = v[i]
        for a in range(start[i], start[i + 1]):
            there = v[later[a]]
            for r in range(size):
                total = 0.0
                for c in range(size):
                    total += off[a, r, c] * there[c]
                y[r] -= total
        for r in range(size):
            total = 0.0
            for c in range(size):
                total += own[i, r, c] * y[c]
            v[i, r] = total
    return v
