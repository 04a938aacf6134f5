"""Ways to solve the linear systems of implicit Euler steps: storage of the matrix, and the solve.

Newton's matrix has dominant columns over short times (mass that leaves a state arrives at its
neighbours), so Gauss-Seidel sweeps solve it for any graph in a few passes; where they do not, GMRES
preconditioned by a sweep in both directions does, or an LU decomposition, whichever is cheaper.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse
from scipy.linalg import lapack
from scipy.sparse.linalg import splu

from thalweg._compile import inner, njit
from thalweg._types import Array
from thalweg.edges.implicit_euler import Places, Slots
from thalweg.kernel import Adjacency, MarkovKernel
from thalweg.laplacian.krylov import gmres
from thalweg.laplacian.policy import graph_width

_PIVOT = 0.01
"""Threshold of SuperLU's diagonal pivots."""
_SWEEPS = 60
"""Largest number of Gauss-Seidel sweeps."""
_TRIAL = 6
"""Sweeps after which a rate of convergence that needs too many of them ends the attempt."""
_SETTLED = 1e-3
"""Change of a sweep in `log rho`, absolute and relative to the solution, that is accurate enough
for a Newton step."""
_KRYLOV = 1e-6
"""Relative accuracy of GMRES in `log rho`."""
_ITERATIONS = 150
"""Largest number of its iterations."""
_WIDE = 300
"""Width of a graph, its largest number of states at one distance from a peripheral state, above
which GMRES is tried before an LU decomposition, whose largest dense block has about that size."""


class Dense:
    """A full matrix, in Fortran order as LAPACK wants it: entry `(x, y)` at `x + n y`."""

    def __init__(self, kernel: MarkovKernel) -> None:
        n = self.n = kernel.n_states
        source, target, _ = kernel.edges
        self.slots = Slots(
            np.arange(n, dtype=np.int64) * (n + 1),
            source + n * target.astype(np.int64),
            target + n * source.astype(np.int64),
        )
        self.values = np.zeros(n * n)

    @property
    def matrix(self) -> Array:
        return self.values.reshape(self.n, self.n, order="F")

    def solve(self, right: Array) -> Array | None:
        """The solution; `None` if the matrix is singular. The matrix is zero afterwards."""
        _, _, solution, info = lapack.dgesv(self.matrix, right, overwrite_a=True)
        self.values[:] = 0.0
        return None if info else np.asarray(solution)


class Factored:
    """A sparse matrix for SuperLU, with one fill-reducing order for all solves."""

    def __init__(self, kernel: MarkovKernel) -> None:
        n = self.n = kernel.n_states
        source, target, _ = kernel.edges
        self.place = _elimination_order(kernel)
        here, there = self.place[source], self.place[target]
        rows = np.concatenate([self.place, here, there])
        columns = np.concatenate([self.place, there, here])
        order = np.lexsort((rows, columns))
        slot = np.empty(order.size, dtype=np.int64)
        slot[order] = np.arange(order.size)
        self.slots = Slots(*np.split(slot, [n, n + source.size]))
        indptr = np.zeros(n + 1, dtype=np.int32)
        np.cumsum(np.bincount(columns, minlength=n), out=indptr[1:])
        self.matrix = sparse.csc_matrix(
            (np.zeros(order.size), rows[order].astype(np.int32), indptr), shape=(n, n)
        )
        self.values = self.matrix.data

    def solve(self, right: Array) -> Array | None:
        """The solution; `None` if the matrix is singular."""
        placed = np.empty(self.n)
        placed[self.place] = right
        try:
            factor = splu(
                self.matrix,
                permc_spec="NATURAL",
                diag_pivot_thresh=_PIVOT,
                options={"SymmetricMode": True},
            )
        except RuntimeError:
            return None
        return np.asarray(factor.solve(placed)[self.place])


class Swept:
    """A matrix by rows, diagonal first, for Gauss-Seidel sweeps in alternating directions."""

    def __init__(self, kernel: MarkovKernel) -> None:
        n, count = kernel.n_states, kernel.n_edges
        self.adjacency = kernel.adjacency
        # Where each edge stands in the rows of its source and of its target.
        rows = np.repeat(np.arange(n), np.diff(self.adjacency.indptr))
        forth = kernel.edges.source[self.adjacency.edge] == rows
        upper, lower = np.empty(count, np.int64), np.empty(count, np.int64)
        places = n + np.arange(2 * count)
        upper[self.adjacency.edge[forth]] = places[forth]
        lower[self.adjacency.edge[~forth]] = places[~forth]
        self.slots = Slots(np.arange(n, dtype=np.int64), upper, lower)
        self.values = np.empty(n + 2 * count)
        self.others = sparse.csr_array(
            (self.values[n:], self.adjacency.neighbor, self.adjacency.indptr), shape=(n, n)
        )
        """A view of what is not on the diagonal."""
        self.wide = graph_width(self.adjacency.indptr, self.adjacency.neighbor) > _WIDE

    def solve(self, right: Array, scale: Array, goal: float, *, krylov: bool) -> Array | None:
        """The solution, to a change of `goal` in mass per sweep; `None` where that takes too long.

        Rows have been divided by `scale`. With `krylov`, GMRES goes first.
        """
        x = right / self.values[: right.size]
        if krylov:
            x = gmres(
                self._preconditioned,
                _there_and_back(self.adjacency, self.values, right),
                tolerance=_KRYLOV,
                max_iterations=_ITERATIONS,
            ).x
        solved = gauss_seidel(self.adjacency, self.values, right, scale, x, goal, _SWEEPS)
        return x if solved else None

    def _preconditioned(self, x: Array) -> Array:
        image = self.values[: x.size] * x + self.others @ x
        return np.asarray(_there_and_back(self.adjacency, self.values, image))


@inner(cache=True, error_model="numpy")
def _solved_row(adjacency: Adjacency, values: Array, right: Array, x: Array, i: int) -> float:
    """The `x[i]` that solves equation `i`."""
    total = right[i]
    for k in range(adjacency.indptr[i], adjacency.indptr[i + 1]):
        total -= values[x.size + k] * x[adjacency.neighbor[k]]
    return total / values[i]


@njit(cache=True, error_model="numpy")
def gauss_seidel(
    adjacency: Adjacency, values: Array, right: Array, scale: Array, x: Array, goal: float,
    limit: int,
) -> bool:  # fmt: skip
    """Sweeps from `x`, in place, until one moves at most the mass `goal`; False if they do not.

    `scale` holds the factors by which rows were divided. Solutions are also accurate state by
    state, relative to their size, so that densities without mass are right, too.
    """
    n, before = x.size, math.inf
    for sweep in range(limit):
        moved, settled = 0.0, True
        for step in range(n):
            i = step if sweep % 2 == 0 else n - 1 - step
            total = _solved_row(adjacency, values, right, x, i)
            change = abs(total - x[i])
            moved += scale[i] * abs(values[i]) * change
            if not change <= _SETTLED * (abs(total) + _SETTLED):
                settled = False
            x[i] = total
        if moved <= goal and settled:
            return True
        if sweep >= _TRIAL:
            rate = moved / before
            if not moved * rate ** (limit - sweep) <= goal:
                return False
        before = moved
    return False


@njit(cache=True, error_model="numpy")
def _there_and_back(adjacency: Adjacency, values: Array, right: Array) -> Array:
    """One Gauss-Seidel sweep in each direction, from zero."""
    n = right.size
    x = np.zeros(n)
    for step in range(2 * n):
        i = step if step < n else 2 * n - 1 - step
        x[i] = _solved_row(adjacency, values, right, x, i)
    return x


def _elimination_order(kernel: MarkovKernel) -> Places:
    """The place of each state in an order of little fill (minimum degree, by SuperLU)."""
    n = kernel.n_states
    pattern = sparse.csc_matrix(
        (kernel.flow_matrix > 0).astype(np.float64) + sparse.diags_array(np.full(n, 2.0 * n))
    )
    factor = splu(
        pattern,
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    return np.asarray(factor.perm_c, dtype=np.int64)
