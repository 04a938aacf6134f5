"""`LaplacianSolver`: prepare a pattern once, factorise for many weights, solve many times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array, Index32
from thalweg.errors import InputError
from thalweg.laplacian import krylov, policy
from thalweg.laplacian.pattern import Analysis, Pattern, Preconditioner
from thalweg.laplacian.policy import Method
from thalweg.status import Status

if TYPE_CHECKING:
    from thalweg.kernel import MarkovKernel


SUM_TOLERANCE = 1e-6
"""Largest `|sum(b)|`, relative to `sum(|b|)`, when `M` is singular."""

WEIGHT_FLOOR = 1e-200
"""Weights below this fraction of the largest count as zero."""


@dataclass(frozen=True)
class Solution:
    """`x` with `M x = b`; how it ended; PCG sweeps; estimate of `|x - x*|_M / |x*|_M`."""

    x: Array
    status: Status
    iterations: int
    energy_error: float


class Prepared(NamedTuple):
    """A method's factorisation with the graph and the weights in the method's own order."""

    analysis: Analysis
    weights: Array
    preconditioner: Preconditioner

    @property
    def nodes(self) -> Any:
        """Where the method's nodes are in the user's order."""
        relabelling = self.analysis.relabelling
        return slice(None) if relabelling is None else relabelling.nodes

    def solve(self, b: Array, tolerance: float) -> krylov.Refined:
        solved = krylov.solve(
            self.analysis.pattern, self.weights, self.preconditioner, b[self.nodes], tolerance
        )
        x = np.empty_like(b)
        x[self.nodes] = solved.x
        return solved._replace(x=x)

    def roughly(self, b: Array, tolerance: float) -> Array:
        """`x` with `M x = b`: by a direct factor alone, by PCG to `tolerance` for any other."""
        if not self.analysis.direct:
            return self.solve(b, tolerance).x
        x, z = np.empty_like(b), np.empty_like(b)
        self.preconditioner.apply(b[self.nodes], z)
        x[self.nodes] = z
        return x


def prepare(analysis: Analysis, weights: Array) -> Prepared | None:
    """Factorise; `None` when a pivot vanishes."""
    if analysis.relabelling is not None:
        weights = weights[analysis.relabelling.edges]
    preconditioner = analysis.factor(weights)
    return None if preconditioner is None else Prepared(analysis, weights, preconditioner)


@dataclass(frozen=True, eq=False)
class Factor:
    """A factorised Laplacian: solves for as many right-hand sides as needed."""

    pattern: Pattern
    weights: Array
    """Weights divided by `scale`; where zero weights cut the graph, bridges carry one."""
    scale: float
    prepared: Prepared | None
    piece: Index32 | None
    """The component of each node when zero weights cut the graph, else `None`."""

    @cached_property
    def safe(self) -> Prepared:
        """A factor that cannot break down, for weights too extreme for a direct one."""
        prepared = self.prepared
        if prepared is None or prepared.analysis.direct:
            prepared = prepare(policy.analyse(self.pattern, "approxchol"), self.weights)
        assert prepared is not None  # approxchol has no vanishing pivots
        return prepared

    @single_threaded
    def solve(self, b: ArrayLike, *, tolerance: float = 1e-10, throw: bool = False) -> Solution:
        """`x` with `M x = b`, for one right-hand side `(n,)` or for each column of `(n, k)`.

        Without a ground `b` must sum to zero (what rounding left is removed in proportion to
        `|b|`, which perturbs every entry by rounding only), and `x` has mean zero. With several
        columns the result holds the worst status, the largest error and the most iterations.
        """
        right = _checks.as_array(b, "b")
        n = self.pattern.n_nodes - self.pattern.grounded
        if right.ndim not in (1, 2) or right.shape[0] != n:
            raise InputError(
                f"b has shape {right.shape}; give one number per node, shape ({n},) or ({n}, k)."
            )
        columns = [self._column(c, tolerance) for c in np.atleast_2d(right.T)]
        x = np.stack([c.x for c in columns], axis=1) if columns else np.zeros_like(right)
        failed = [c.status for c in columns if not c.status]
        solution = Solution(
            x.reshape(right.shape),
            failed[0] if failed else Status.CONVERGED,
            max((c.iterations for c in columns), default=0),
            max((c.energy_error for c in columns), default=0.0),
        )
        if throw:
            solution.status.check()
        return solution

    def _column(self, b: Array, tolerance: float) -> krylov.Refined:
        size = float(np.abs(b).max(initial=0.0))
        if size == 0.0:
            return krylov.Refined(np.zeros_like(b), Status.CONVERGED, 0, 0.0)
        b = b / size
        if self.pattern.grounded:
            b = np.append(b, -b.sum())
        else:
            total, absolute = float(b.sum()), float(np.abs(b).sum())
            if abs(total) > SUM_TOLERANCE * absolute:
                raise InputError(
                    f"b sums to {total * size:.6g} while its absolute values sum to "
                    f"{absolute * size:.6g}; the Laplacian is singular, so b must sum to zero: "
                    "subtract what does not belong, or ground the solver with a diagonal."
                )
            b = krylov.balanced(b)
        status: Status | None = None
        if self.piece is not None:
            gained = np.bincount(self.piece, weights=b)
            moved = np.bincount(self.piece, weights=np.abs(b))
            if np.any(np.abs(gained) > SUM_TOLERANCE * moved):
                status = Status.DISCONNECTED
            share = np.divide(gained, moved, out=np.zeros_like(gained), where=moved > 0)
            b = b - np.abs(b) * share[self.piece]
        solved = (self.prepared or self.safe).solve(b, tolerance)
        if not solved.status and self.safe is not self.prepared:
            second = self.safe.solve(b, tolerance)
            solved = min(solved, second, key=lambda answer: answer.energy_error)
        x = solved.x[:-1] - solved.x[-1] if self.pattern.grounded else solved.x - solved.x.mean()
        solved = solved._replace(x=x * (size / self.scale))
        if status is not None:
            solved = solved._replace(status=status, energy_error=np.inf)
        return solved


class LaplacianSolver:
    """Solves `M psi = b` for graph Laplacians `M = sum_e w_e (e_x - e_y)(e_x - e_y)^T`.

    The pattern is analysed once; `factor` is called for each set of weights, and `Factor.solve`
    for each right-hand side. With `grounded=True` the matrix is `M + diag(d)`.

    >>> solver = LaplacianSolver(3, [0, 1], [1, 2])
    >>> solver.factor([1.0, 2.0]).solve([1.0, 0.0, -1.0]).x.round(6)
    array([ 0.833333, -0.166667, -0.666667])
    >>> grounded = LaplacianSolver(3, [0, 1], [1, 2], grounded=True)
    >>> grounded.factor([1.0, 2.0], diagonal=[1.0, 0.0, 0.0]).solve([1.0, 0.0, 0.0]).x.round(6)
    array([1., 1., 1.])
    """

    def __init__(
        self,
        n_nodes: int,
        source: ArrayLike,
        target: ArrayLike,
        *,
        method: Method = "auto",
        grounded: bool = False,
    ) -> None:
        if method not in get_args(Method):
            raise InputError(f"method is {method!r}; choose one of {', '.join(get_args(Method))}.")
        self.pattern = Pattern.from_edges(n_nodes, source, target, grounded=grounded)
        self.method: Method = policy.choose(self.pattern) if method == "auto" else method
        if self.method == "tree" and self.pattern.n_edges != self.pattern.n_nodes - 1:
            raise InputError(
                f"method is 'tree', but the graph has {self.pattern.n_edges} edges on "
                f"{self.pattern.n_nodes} nodes{' with the ground' if grounded else ''}; "
                "choose 'auto'."
            )
        self._analysis = policy.analyse(self.pattern, self.method)

    @classmethod
    def for_kernel(
        cls, kernel: MarkovKernel, *, method: Method = "auto", grounded: bool = False
    ) -> LaplacianSolver:
        """The solver for the transport Laplacians of a kernel; weights follow `kernel.edges`."""
        source, target, _ = kernel.edges
        return cls(kernel.n_states, source, target, method=method, grounded=grounded)

    @property
    def n_nodes(self) -> int:
        return self.pattern.n_nodes - self.pattern.grounded

    @single_threaded
    def factor(self, weights: ArrayLike, diagonal: ArrayLike | None = None) -> Factor:
        """Factorise `M(weights)`, plus `diag(diagonal)` for a grounded solver.

        Weights are not negative. Those that are zero (below 1e-200 of the largest) cut the graph:
        a right-hand side that needs to cross such a cut ends with `Status.DISCONNECTED`.
        """
        full = self._weights(weights, diagonal)
        largest = float(full.max(initial=0.0))
        if largest == 0.0:
            raise InputError("all weights are zero; at least one edge must carry a flux.")
        scale = float(2.0 ** np.floor(np.log2(largest)))
        scaled = full / scale
        keep = scaled >= WEIGHT_FLOOR
        piece = None
        if not keep.all():
            scaled[~keep] = 0.0
            count, label = self.pattern.components(keep)
            if count > 1:
                # A bridge carries the imbalance of the piece behind it, which is zero: its weight
                # does not affect the solution, and only keeps the matrix connected.
                piece = label
                scaled[self.pattern.bridges(keep, label, count)] = 1.0
        return Factor(self.pattern, scaled, scale, prepare(self._analysis, scaled), piece)

    def _weights(self, weights: ArrayLike, diagonal: ArrayLike | None) -> Array:
        n_edges = self.pattern.n_edges - (self.n_nodes if self.pattern.grounded else 0)
        parts = [_not_negative(weights, n_edges, "weights", "edge")]
        if self.pattern.grounded:
            if diagonal is None:
                raise InputError(
                    "the solver is grounded but diagonal is missing; give one number per node."
                )
            parts.append(_not_negative(diagonal, self.n_nodes, "diagonal", "node"))
        elif diagonal is not None:
            raise InputError("a diagonal needs a solver made with grounded=True.")
        return np.concatenate(parts)


def _not_negative(values: ArrayLike, size: int, name: str, what: str) -> Array:
    array = _checks.as_array(values, name)
    if array.shape != (size,):
        raise InputError(f"{name} has shape {array.shape}; give one number per {what}, ({size},).")
    if size and array.min() < 0:
        worst = int(np.argmin(array))
        raise InputError(
            f"{name} is {array[worst]:.6g} at {what} {worst}; it cannot be negative: clip it at 0."
        )
    return array
