"""Drawing tokens from one distribution per position, or from one shared by many."""

from __future__ import annotations

import numpy as np

from thalweg._compile import inner, njit
from thalweg._types import Array, Index, Tokens


def draw_from_rows(weights: Array, uniforms: Array) -> Tokens:
    """One token from each row of `weights` (any positive scale) by inversion of `uniforms`."""
    flat = np.ascontiguousarray(weights.reshape(-1, weights.shape[-1]))
    where = np.arange(flat.shape[0])
    return np.asarray(_draw(flat, where, uniforms.ravel()).reshape(uniforms.shape))


def draw_from_table(weights: Array, which: Index, rng: np.random.Generator) -> Tokens:
    """One token for each position of each sample, from `weights[which[sample], position]`."""
    edges = np.cumsum(weights, axis=-1)
    return np.asarray(_draw_table(edges / edges[..., -1:], which, rng))


def codes_of(sequences: Tokens, n_tokens: int) -> Index:
    """The number that each sequence spells in base `n_tokens`, first position first."""
    return np.asarray(_codes(sequences, n_tokens))


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


@inner(cache=True)
def _pick(row: Array, u: float) -> int:
    total = 0.0
    for k in range(row.size):
        total += row[k]
    level = u * total
    running = 0.0
    last = 0
    for k in range(row.size):
        if row[k] > 0.0:
            last = k
            running += row[k]
            if level < running:
                return k
    return last


@njit(cache=True)
def _draw(rows: Array, where: Index, uniforms: Array) -> Tokens:
    out = np.empty(uniforms.size, dtype=np.int64)
    for i in range(uniforms.size):
        out[i] = _pick(rows[where[i]], uniforms[i])
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


@njit(cache=True)
def _codes(sequences: Tokens, n_tokens: int) -> Index:
    out = np.empty(sequences.shape[0], dtype=np.int64)
    for i in range(sequences.shape[0]):
        code = 0
        for j in range(sequences.shape[1]):
            code = code * n_tokens + sequences[i, j]
        out[i] = code
    return out
