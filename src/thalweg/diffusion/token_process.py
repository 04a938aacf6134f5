"""`TokenProcess`: the interface of noise on one token, and tokens drawn from tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from thalweg._compile import njit
from thalweg._types import Array, Tokens
from thalweg.kernel import MarkovKernel


def draw_from_rows(weights: Array, uniforms: Array) -> Tokens:
    """One token from each row of `weights` (any positive scale) by inversion of `uniforms`."""
    flat = np.ascontiguousarray(weights.reshape(-1, weights.shape[-1]))
    return np.asarray(_draw(flat, uniforms.ravel()).reshape(uniforms.shape))


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


class TokenProcess(ABC):
    """The noise on one token: a reversible chain on `n_tokens` tokens.

    By default its rates are constant in time, and `columns` and `inflow` follow from the rows by
    detailed balance, `pi_a P_t(a, x) = pi_x P_t(x, a)`. A process whose rates depend on time
    overrides both.
    """

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
    def apply(self, weights: Any, time: Any) -> Any:
        """`sum_a w_a P_t(a, .)`: weights over clean tokens, noised. Arrays or torch tensors."""

    @abstractmethod
    def outflow(self, tokens: Tokens, time: Array) -> Array:
        """The forward rates `Q_t(x, y)` from each token, zero at `y = x`."""

    def rows(self, tokens: Tokens, time: Array) -> Array:
        """`P_t(x, .)`: the distribution of each token at its time."""
        clean = np.zeros((*tokens.shape, self.n_tokens))
        np.put_along_axis(clean, tokens[..., None], 1.0, -1)
        return np.asarray(self.apply(clean, time))

    def columns(self, tokens: Tokens, start: Array, stop: Array) -> Array:
        """`P_(start, stop)(., x)`: the probability that each earlier token leads to this one."""
        return self._balanced(self.rows(tokens, np.asarray(stop) - start), tokens)

    def inflow(self, tokens: Tokens, time: Array) -> Array:
        """The forward rates `Q_t(y, x)` into each token, zero at `y = x`."""
        return self._balanced(self.outflow(tokens, time), tokens)

    def _balanced(self, forward: Array, tokens: Tokens) -> Array:
        own = at_tokens(self.stationary, tokens)[..., None]
        return np.asarray(forward * (own / self.stationary))

    @abstractmethod
    def fastest(self, time: float) -> Array:
        """The largest rate of leaving any token: one number, or one per position."""

    def sample(self, tokens: Tokens, time: Array, *, rng: np.random.Generator) -> Tokens:
        """Each token after its time."""
        return draw_from_rows(self.rows(tokens, time), rng.random(tokens.shape))

    def sample_stationary(self, shape: tuple[int, int], *, rng: np.random.Generator) -> Tokens:
        """Tokens drawn from the stationary distribution."""
        return draw_from_base(self.stationary, shape, rng)

    def token_kernel(self, position: int = 0) -> MarkovKernel:
        """The chain at one position as an explicit kernel."""
        n = self.n_tokens
        rates = self.outflow(every_token(n, self.n_positions or 1), np.zeros(n))
        matrix = rates[:, position if self.n_positions else 0]
        return MarkovKernel.from_matrix(matrix + np.diag(np.maximum(1 - matrix.sum(axis=1), 0.0)))


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


def every_token(n_tokens: int, length: int) -> Tokens:
    """Sequences of one repeated token, one for each token."""
    return np.repeat(np.arange(n_tokens)[:, None], length, axis=1)


def at_tokens(table: Array, tokens: Tokens) -> Array:
    """`table[token]`, or `table[position, token]` if it is given per position."""
    if table.ndim == 1:
        return np.asarray(table[tokens])
    return np.asarray(table[np.arange(tokens.shape[-1]), tokens])


def like(weights: Any, array: Array) -> Any:
    """`array` in the form of `weights`: an array, or a tensor of its type on its device."""
    return array if isinstance(weights, np.ndarray) else weights.new_tensor(array)
