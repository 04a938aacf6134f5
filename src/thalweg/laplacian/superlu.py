"""Sparse LU of the grounded Laplacian (scipy's SuperLU): the reference that others must beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import SuperLU, splu

from thalweg.laplacian.pattern import Array, Pattern


@dataclass(frozen=True, eq=False)
class SuperLUAnalysis:
    """SuperLU cannot reuse its ordering: nothing is kept between factorisations."""

    pattern: Pattern

    def factor(self, weights: Array) -> SuperLUFactor:
        n, source, target = self.pattern.n_nodes, self.pattern.source, self.pattern.target
        off = sparse.coo_array((weights, (source, target)), shape=(n, n)).tocsr()
        off = off + off.T
        degree = np.asarray(off.sum(axis=1)).ravel()
        m = sparse.csc_array(sparse.diags_array(degree) - off)
        ground = int(np.argmax(degree))
        keep = np.delete(np.arange(n), ground)
        lu = splu(
            sparse.csc_array(m[keep][:, keep]),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
        return SuperLUFactor(n, keep, lu)


@dataclass(frozen=True, eq=False)
class SuperLUFactor:
    n_nodes: int
    keep: np.ndarray[tuple[int], np.dtype[np.intp]]
    lu: SuperLU

    def apply(self, r: Array) -> Array:
        z = np.zeros(self.n_nodes)
        z[self.keep] = self.lu.solve(r[self.keep])
        return z
