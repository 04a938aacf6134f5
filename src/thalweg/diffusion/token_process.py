"""`TokenProcess`: the interface of noise on one token, and how tables are read by token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from thalweg._compile import njit
from thalweg._types import Array, Index, Tokens
from thalweg.kernel import MarkovKernel


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


class TokenProcess(ABC):
    """The noise on one token: a chain on `n_tokens` tokens, homogeneous in time by default."""

    @property
    @abstractmethod
    def stationary(self) -> Array:
        """The stationary distribution: `(n_tokens,)`, or `(length, n_tokens)` per position."""

    @property
    def n_tokens(self) -> int:
        return int(self.stationary.shape[-1])

    @property
    def n_positions(self) -> int | None:
        """The number of positions if parameters are given per position, otherwise `None`."""
        return int(self.stationary.shape[0]) if self.stationary.ndim == 2 else None

    @property
    def mask(self) -> int | None:
        """The token that is noise and never data, if there is one."""
        return None

    @property
    def homogeneous(self) -> bool:
        """Whether the rates are constant in time."""
        return True

    @abstractmethod
    def rows(self, tokens: Tokens, time: Array) -> Array:
        """`P_t(x, .)`: the distribution of each token at its time."""

    @abstractmethod
    def columns(self, tokens: Tokens, start: Array, stop: Array) -> Array:
        """`P_(start, stop)(., x)`: the probability that each earlier token leads to this one."""

    @abstractmethod
    def apply(self, weights: Any, time: Any) -> Any:
        """`sum_a w_a P_t(a, .)`: weights over clean tokens, noised. Arrays or torch tensors."""

    @abstractmethod
    def outflow(self, tokens: Tokens, time: Array) -> Array:
        """The forward rates `Q_t(x, y)` from each token, zero at `y = x`."""

    @abstractmethod
    def inflow(self, tokens: Tokens, time: Array) -> Array:
        """The forward rates `Q_t(y, x)` into each token, zero at `y = x`."""

    @abstractmethod
    def fastest(self, time: float) -> Array:
        """The largest rate of leaving any token: one number, or one per position."""

    def sample(self, tokens: Tokens, time: Array, *, rng: np.random.Generator) -> Tokens:
        """Each token after its time."""
        return draw_from_rows(self.rows(tokens, time), rng.random(tokens.shape))

    def sample_stationary(self, shape: tuple[int, int], *, rng: np.random.Generator) -> Tokens:
        """Tokens drawn from the stationary distribution."""
        return draw_from_base(self.stationary, shape, rng)

    @abstractmethod
    def token_kernel(self, position: int = 0) -> MarkovKernel:
        """The chain at one position as an explicit kernel."""


class TableTokens(TokenProcess):
    """Tokens whose matrices are tables, `(batch, length, n_tokens, n_tokens)` or broadcast."""

    @abstractmethod
    def _moves(self, start: Array, stop: Array) -> Array:
        """`P_(start, stop)` for each pair of times."""

    @abstractmethod
    def _generators_at(self, time: Array) -> Array:
        """`Q_t` for each time."""

    def rows(self, tokens: Tokens, time: Array) -> Array:
        return _picked(self._moves(np.zeros_like(time), time), tokens, -2)

    def columns(self, tokens: Tokens, start: Array, stop: Array) -> Array:
        return _picked(self._moves(start, stop), tokens, -1)

    def apply(self, weights: Any, time: Any) -> Any:
        when = np.asarray(time, dtype=np.float64)
        table = like(weights, self._moves(np.zeros_like(when), when))
        return (weights[..., None, :] @ table)[..., 0, :]

    def outflow(self, tokens: Tokens, time: Array) -> Array:
        return others(_picked(self._generators_at(time), tokens, -2), tokens)

    def inflow(self, tokens: Tokens, time: Array) -> Array:
        return others(_picked(self._generators_at(time), tokens, -1), tokens)


def _picked(table: Array, tokens: Tokens, axis: int) -> Array:
    """The row (`axis=-2`) or column of each token in its matrix."""
    full = np.broadcast_to(table, (*tokens.shape, *table.shape[-2:]))
    return np.take_along_axis(full, tokens[..., None, None], axis=axis).squeeze(axis)


def others(rates: Array, tokens: Tokens) -> Array:
    """The rates without those of a token to itself."""
    np.put_along_axis(rates, tokens[..., None], 0.0, -1)
    return rates


def one_hot(tokens: Tokens, n_tokens: int) -> Array:
    out = np.zeros((*tokens.shape, n_tokens))
    np.put_along_axis(out, tokens[..., None], 1.0, -1)
    return out


def at_tokens(table: Array, tokens: Tokens) -> Array:
    """`table[token]`, or `table[position, token]` if it is given per position."""
    if table.ndim == 1:
        return np.asarray(table[tokens])
    return np.asarray(table[np.arange(tokens.shape[-1]), tokens])


def like(weights: Any, array: Array) -> Any:
    """`array` in the form of `weights`: an array, or a tensor of its type on its device."""
    return array if isinstance(weights, np.ndarray) else weights.new_tensor(array)
