"""Drawing tokens from one distribution per position, or from one shared by many."""

from __future__ import annotations

import numpy as np

from thalweg._compile import njit
from thalweg._types import Array, Index, Tokens


def draw_from_rows(weights: Array, uniforms: Array) -> Tokens:
    """One token from each row of `weights` (any positive scale) by inversion of `uniforms`."""
    flat = np.ascontiguousarray(weights.reshape(-1, weights.shape[-1]))
    return np.asarray(_draw(flat, uniforms.ravel()).reshape(uniforms.shape))


def draw_from_table(weights: Array, which: Index, rng: np.random.Generator) -> Tokens:
    """One token for each position of each sample, from `weights[which[sample], position]`."""
    edges = np.cumsum(weights, axis=-1)
    return np.asarray(_draw_table(edges / edges[..., -1:], which, rng))


def draw_from_base(base: Array, shape: tuple[int, int], rng: np.random.Generator) -> Tokens:
    """Tokens of the given shape from `base`, or from `base[position]`."""
    u = rng.random(shape)
    if base.ndim == 1:
        edges = np.cumsum(base)
        return np.minimum(np.searchsorted(edges, u * edges[-1], side="right"), base.size - 1)
    out = np.empty(shape, dtype=np.int64)
    for position, row in enumerate(base):
        edges = np.cumsum(row)
        found = np.searchsorted(edges, u[:, position] * edges[-1], side="right")
        out[:, position] = np.minimum(found, row.size - 1)
    return out


@njit(cache=True)
def _draw(rows: Array, uniforms: Array) -> Tokens:
    out = np.empty(uniforms.size, dtype=np.int64)
    for i in range(uniforms.size):
        row, total = rows[i], 0.0
        for k in range(row.size):
            total += row[k]
        level, running, last = uniforms[i] * total, 0.0, 0
        for k in range(row.size):
            if row[k] > 0.0:
                last = k
                running += row[k]
                if level < running:
                    break
        out[i] = last
    return out


@njit(cache=True)
def _draw_table(edges: Array, which: Index, rng: np.random.Generator) -> Tokens:
    n_samples, length, last = which.size, edges.shape[1], edges.shape[2] - 1
    out = np.empty((n_samples, length), dtype=np.int64)
    for i in range(n_samples):
        row = edges[which[i]]
        for j in range(length):
            u = rng.random()
            k = 0
            while k < last and row[j, k] <= u:
                k += 1
            out[i, j] = k
    return out
