"""`exp(-t S) v` for all times at once: sums of exponentials from one rational Krylov space.

`S = D^-1/2 (A + ground) D^-1/2` is symmetric. Small problems are diagonalised. Large ones are
projected onto the span of `v` and of products with `(I + g S)^-1`, the poles `g` cycling through
the requested decades of time: each product is one grounded Laplacian solve.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from thalweg._types import Array, Index
from thalweg.edges.static import symmetrised
from thalweg.laplacian import LaplacianSolver
from thalweg.status import Status

DENSE = 600
"""Number of states up to which problems are diagonalised."""
MOST_VECTORS = 60
"""Largest dimension of the Krylov space."""
ENOUGH = 1e-7
"""Relative change between two subspaces below which a large problem stops."""


class Exponentials(NamedTuple):
    """`f_x(t) = sum_k weights[x, k] exp(-rates[k] t)`."""

    weights: Array
    rates: Array
    status: Status
    error: float
    """Change of the last values when the subspace grew; 0 if it is exact."""

    def at(self, t: Array) -> Array:
        """The function of each row at its own time (`t` of shape `(rows,)`) or at common times.

        With `t` of shape `(rows, m)` each row has its own `m` times.
        """
        if t.ndim == 1:
            return np.asarray(np.einsum("xk,xk->x", self.weights, np.exp(-np.outer(t, self.rates))))
        return np.stack([self.at(column) for column in t.T], axis=1)

    def common(self, t: Array) -> Array:
        """All rows at common times, `(times, rows)`."""
        return np.asarray(np.exp(-np.outer(t, self.rates)) @ self.weights.T)


class Killed(NamedTuple):
    """A chain with absorption: the generator `G = -diag(1/mass) (A + diag(ground))`."""

    source: Index
    target: Index
    conductance: Array
    ground: Array
    """Rates of absorption, times mass."""
    mass: Array
    """The reversible measure."""

    def projected(self, basis: Array, norm: float) -> Exponentials:
        """The answer in the span of orthonormal rows, the first of them that of the start."""
        scaled = basis / np.sqrt(self.mass)
        drop = scaled[:, self.source] - scaled[:, self.target]
        h = (drop * self.conductance) @ drop.T + (scaled * self.ground) @ scaled.T
        rates, vectors = np.linalg.eigh(0.5 * (h + h.T))
        weights = (scaled.T @ vectors) * (vectors[0] * norm)
        return Exponentials(weights, np.maximum(rates, 0.0), Status.CONVERGED, np.inf)


def exponentials(chain: Killed, start: Array, times: tuple[float, float]) -> Exponentials:
    """`exp(t G) start`, from the shortest to the longest of `times`."""
    root = np.sqrt(chain.mass)
    v = root * start
    if root.size <= DENSE:
        s = symmetrised(*chain[:3], chain.mass, chain.ground)
        rates, vectors = np.linalg.eigh(s)
        weights = vectors * (vectors.T @ v) / root[:, None]
        return Exponentials(weights, np.maximum(rates, 0.0), Status.CONVERGED, 0.0)
    solver = LaplacianSolver(root.size, *chain[:2], grounded=True)
    low, high = times
    poles = np.geomspace(max(low, 1e-12), high, max(2, int(np.log10(high / low)) + 1)) / 5.0
    factors = [solver.factor(chain.conductance, chain.ground + chain.mass / g) for g in poles]
    norm = float(np.linalg.norm(v))
    basis = [v / norm]
    checks = np.geomspace(low, high, 7)
    last: Array | None = None
    error, best = np.inf, None
    for k in range(MOST_VECTORS):
        g = k % len(poles)
        w = root * factors[g].solve(root * basis[-1] / poles[g], tolerance=1e-11).x
        for _ in range(2):
            for b in basis:
                w = w - b * (b @ w)
        size = float(np.linalg.norm(w))
        if size < 1e-13:
            break
        basis.append(w / size)
        if (k + 1) % (2 * len(poles)) == 0 or k == MOST_VECTORS - 1:
            found = chain.projected(np.array(basis), norm)
            values = found.common(checks)
            if last is not None:
                error = float(np.abs(values - last).max() / max(np.abs(values).max(), 1e-300))
            last, best = values, found
            if error < ENOUGH:
                break
    if best is None or error > ENOUGH:
        best = chain.projected(np.array(basis), norm)
        change = 0.0 if last is None else np.abs(best.common(checks) - last).max()
        error = min(error, float(change)) if last is not None and change > 0 else error
    status = Status.CONVERGED if error < 1e2 * ENOUGH else Status.MAX_ITERATIONS
    return best._replace(status=status, error=error)
