"""Newton's system for a path on a staggered mesh.

Unknowns: the change `x` of the density at the nodes in time that may move (all but the first, and
but the last unless the end is free), and the new potential `psi` on the intervals between them.
With `v = (x_{k-1} + x_k) / 2` on interval `k`, of width `h`,

    pi (x_k - x_{k-1}) - h (A v + M psi_k) = right_psi,
    pi (psi_k - psi_{k+1}) - (h/2) (A^T psi + K v)_k - (h/2) (A^T psi + K v)_{k+1} + d x_k = right_x

is symmetric and quasi-definite: positive in `x` (a concave mean makes `-K` so, and the barrier
gives `d > 0`), negative in `psi`. `incomplete` solves it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import njit
from thalweg._types import Array
from thalweg.kernel import MarkovKernel


@dataclass(frozen=True, eq=False)
class SpaceTime:
    """The symmetric system at one iterate; `x` has a row less than `psi` if the end is fixed."""

    kernel: MarkovKernel
    widths: Array
    table: Array
    """Per interval and edge: `c m, c g m_s, c g m_t, c g^2 m''/2` (three)."""
    damping: Array
    """`d`, at the nodes that move."""
    scale: tuple[Array, Array]
    """Units of `x` and of `psi` in which the entries are of order one."""
    coupling: Callable[[Array], Array] | None = None
    """The part that a free end adds to the last row of `x`."""

    def product(self, x: Array, psi: Array) -> tuple[Array, Array]:
        """The matrix times `(x, psi)`."""
        source, target, _ = self.kernel.edges
        top, bottom = _product(
            source, target, self.kernel.stationary, self.widths, self.table, self.damping, x, psi
        )
        if self.coupling is not None:
            top[-1] += self.coupling(x[-1])
        return top, bottom


@njit(cache=True, error_model="numpy")
def _product(
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    pi: Array,
    h: Array,
    table: Array,
    damping: Array,
    x: Array,
    psi: Array,
) -> tuple[Array, Array]:
    count, n = psi.shape
    moving = x.shape[0]
    top, bottom = damping * x, np.zeros((count, n))
    v, force = np.zeros(n), np.zeros(n)
    for k in range(count):
        for i in range(n):
            after = x[k, i] if k < moving else 0.0
            before = x[k - 1, i] if k > 0 else 0.0
            v[i] = 0.5 * (before + after)
            force[i] = 0.0
            bottom[k, i] = pi[i] * (after - before)
        for e in range(source.size):
            p, q = source[e], target[e]
            difference = psi[k, p] - psi[k, q]
            a, b = table[k, e, 1], table[k, e, 2]
            flux = h[k] * (table[k, e, 0] * difference + a * v[p] + b * v[q])
            bottom[k, p] -= flux
            bottom[k, q] += flux
            cross = table[k, e, 4]
            force[p] += a * difference + table[k, e, 3] * v[p] + cross * v[q]
            force[q] += b * difference + cross * v[p] + table[k, e, 5] * v[q]
        for i in range(n):
            half = 0.5 * h[k] * force[i]
            if k < moving:
                top[k, i] += pi[i] * psi[k, i] - half
            if k > 0:
                top[k - 1, i] -= pi[i] * psi[k, i] + half
    return top, bottom
