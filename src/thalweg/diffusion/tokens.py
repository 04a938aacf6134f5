"""Noise on one token: reversible chains with their transition probabilities at any time.

A token process is the heat flow `P_t = exp(t (K - I))` of a reversible token kernel `K`. Three
forms cover what is used:

| class | kernel | `P_t` |
| --- | --- | --- |
| `RefreshTokens` | forget the token, draw a new one from a base distribution | closed form |
| `AbsorbingTokens` | fall to a mask; small backward rates make it reversible | closed form |
| `DenseTokens` | any reversible token matrix | positive scaling and squaring |

The closed forms need memory linear in the number of tokens. Arguments are batches: tokens of shape
`(batch, length)`, one time for each sequence, distributions of shape `(batch, length, n_tokens)`.
Every parameter may be given per position (`(length, ...)`), which is how a factorised potential
tilts the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import factorial

from thalweg import _checks
from thalweg._types import Array, Tokens
from thalweg.diffusion.token_process import (
    TableTokens,
    TokenProcess,
    draw_from_base,
    like,
    others,
)
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel

_TAYLOR_TERMS = 18
"""Terms of the series of a transition matrix."""
_TAYLOR_RADIUS = 0.5
"""Rate times time up to which the series is summed; longer times are squared."""


@dataclass(frozen=True, eq=False)
class RefreshTokens(TokenProcess):
    """Tokens that are forgotten at rate `rate` and drawn anew from `base`.

    `P_t = e^(-rate t) I + (1 - e^(-rate t)) 1 base^T`. Build the usual uniform noise with
    `uniform_tokens`.

    >>> RefreshTokens(np.array([0.5, 0.25, 0.25])).rows(np.array([[1]]), np.array([np.log(2)]))
    array([[[0.25 , 0.625, 0.125]]])
    """

    base: Array
    rate: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", _as_bases(self.base, "base"))
        highest = 1 / (1 - self.base.min())
        if _checks.positive(self.rate, "rate") > highest * (1 + 1e-12):
            raise InputError(
                f"rate is {self.rate:g}; above 1 / (1 - min base) = {highest:.6g} the kernel would "
                "need a negative probability of staying: lower the rate and lengthen the schedule."
            )

    @property
    def stationary(self) -> Array:
        return self.base

    def apply(self, weights: Any, time: Any) -> Any:
        keep = like(weights, np.exp(-self.rate * np.asarray(time)))[:, None, None]
        return keep * weights + (1 - keep) * weights.sum(-1)[..., None] * like(weights, self.base)

    def outflow(self, tokens: Tokens, time: Array) -> Array:
        rates = np.broadcast_to(self.rate * self.base, (*tokens.shape, self.n_tokens))
        return others(np.array(rates), tokens)

    def fastest(self, time: float) -> Array:
        return np.asarray(self.rate * (1 - self.base.min(axis=-1)))

    def sample(self, tokens: Tokens, time: Array, *, rng: np.random.Generator) -> Tokens:
        forget = rng.random(tokens.shape) >= np.exp(-self.rate * np.asarray(time))[:, None]
        out = tokens.copy()
        if self.base.ndim == 1:
            out[forget] = draw_from_base(self.base, (1, int(forget.sum())), rng)[0]
        else:
            out[forget] = draw_from_base(self.base, tokens.shape, rng)[forget]
        return out


@dataclass(frozen=True, eq=False)
class AbsorbingTokens(TokenProcess):
    """Tokens that fall to a mask, the last token, at rate 1, and come back at rate `backward`.

    A token that comes back is drawn from `returns`. The backward rate makes the chain irreducible
    and reversible: its stationary distribution is `1 / (1 + backward)` on the mask and
    `backward * returns / (1 + backward)` on the tokens. The chain is a star, so `P_t` has three
    time scales, `0`, `1` and `1 + backward`, and a closed form.
    """

    returns: Array
    backward: float = 1e-3

    def __post_init__(self) -> None:
        object.__setattr__(self, "returns", _as_bases(self.returns, "returns"))
        if _checks.positive(self.backward, "backward") > 1:
            raise InputError(
                f"backward is {self.backward:g}; the mask cannot be left with a probability above "
                "1: give a small number such as 1e-3."
            )

    @cached_property
    def stationary(self) -> Array:
        last = np.ones((*self.returns.shape[:-1], 1))
        return np.concatenate([self.backward * self.returns, last], -1) / (1 + self.backward)

    @cached_property
    def _padded(self) -> Array:
        return np.concatenate([self.returns, np.zeros((*self.returns.shape[:-1], 1))], -1)

    @property
    def mask(self) -> int:
        return self.n_tokens - 1

    def _scales(self, time: Array) -> tuple[Array, Array, Array]:
        """Never moved; masked, from a token; exchanged for a token drawn from `returns`."""
        time = np.asarray(time, dtype=np.float64)[:, None]
        kept = np.exp(-time)
        masked = -np.expm1(-(1 + self.backward) * time) / (1 + self.backward)
        exchanged = -np.expm1(-time) - masked
        # The difference cancels at short times, where its power series in t does not:
        # sum over k >= 2 of (-1)^k (a^(k-1) - 1) t^k / k!, a = 1 + backward.
        series, partial, power = np.zeros_like(time), 0.0, 1.0
        for k in range(2, 18):
            partial, power = partial + power, power * (1 + self.backward)
            series += (-1) ** k * self.backward * partial * time**k / math.factorial(k)
        return kept, masked, np.where(time < 0.5, series, exchanged)

    def apply(self, weights: Any, time: Any) -> Any:
        kept, masked, exchanged = (like(weights, part)[..., None] for part in self._scales(time))
        returns, at_mask = like(weights, self._padded), like(weights, np.eye(self.n_tokens)[-1])
        hidden = weights[..., -1:]
        data = weights * (1 - at_mask)
        total = data.sum(-1)[..., None]
        onto_data = kept * data + (exchanged * total + self.backward * masked * hidden) * returns
        return onto_data + (masked * total + (1 - self.backward * masked) * hidden) * at_mask

    def outflow(self, tokens: Tokens, time: Array) -> Array:
        hidden = (tokens == self.mask)[..., None]
        out = np.zeros((*tokens.shape, self.n_tokens))
        out[..., :-1] = np.where(hidden, self.backward * self.returns, 0.0)
        out[..., -1:] = np.where(hidden, 0.0, 1.0)
        return out

    def fastest(self, time: float) -> Array:
        return np.asarray(1.0)

    def sample(self, tokens: Tokens, time: Array, *, rng: np.random.Generator) -> Tokens:
        kept, masked, _ = self._scales(time)
        u = rng.random(tokens.shape)
        hidden = tokens == self.mask
        stays = np.where(hidden, u < 1 - self.backward * masked, u < kept)
        falls = ~hidden & ~stays & (u < kept + masked)
        out = np.where(falls, self.mask, tokens)
        fresh = ~stays & ~falls
        if fresh.any():
            out[fresh] = draw_from_base(self.returns, tokens.shape, rng)[fresh]
        return out


@dataclass(frozen=True, eq=False)
class DenseTokens(TableTokens):
    """The heat flow of any reversible token matrix, or of one matrix per position.

    `scale` is the rate of the chain: `P_t = exp(scale t (K - I))`. Transition matrices are
    computed by scaling and squaring in positive numbers, so that even the least likely transition
    keeps its relative accuracy, which is what ratios need.
    """

    kernels: tuple[MarkovKernel, ...]
    scale: float = 1.0
    base: int | None = None
    """The mask, if one token is noise and never data."""

    def __post_init__(self) -> None:
        sizes = {kernel.n_states for kernel in self.kernels}
        if len(sizes) != 1:
            raise InputError(
                f"the token kernels have {sorted(sizes)} tokens; give at least one, all of one "
                "size."
            )
        _checks.positive(self.scale, "scale")

    @cached_property
    def stationary(self) -> Array:
        stacked = np.stack([kernel.stationary for kernel in self.kernels])
        return stacked[0] if len(self.kernels) == 1 else stacked

    @property
    def mask(self) -> int | None:
        return self.base

    @cached_property
    def _matrices(self) -> Array:
        stacked = np.stack([kernel.matrix.toarray() for kernel in self.kernels])
        return stacked[0] if len(self.kernels) == 1 else stacked

    @cached_property
    def _powers(self) -> Array:
        powers = [np.broadcast_to(np.eye(self.n_tokens), self._matrices.shape)]
        for _ in range(_TAYLOR_TERMS):
            powers.append(powers[-1] @ self._matrices)
        return np.stack(powers)

    def transitions(self, time: Array) -> Array:
        """`P_t` for each time: shape `(batch, [length,] n_tokens, n_tokens)`."""
        distinct, back = np.unique(np.asarray(time, dtype=np.float64), return_inverse=True)
        scaled = self.scale * distinct
        longest = max(float(scaled.max(initial=0.0)), _TAYLOR_RADIUS)
        halvings = math.ceil(math.log2(longest / _TAYLOR_RADIUS))
        step = scaled / 2.0**halvings
        terms = np.arange(_TAYLOR_TERMS + 1)
        weights = np.exp(-step)[:, None] * step[:, None] ** terms / factorial(terms)
        out = np.tensordot(weights, self._powers, axes=1)
        for _ in range(halvings):
            out = out @ out
        out /= out.sum(axis=-1, keepdims=True)
        return np.asarray(out[back])

    def _moves(self, start: Array, stop: Array) -> Array:
        out = self.transitions(np.asarray(stop) - start)
        return out if self._matrices.ndim == 3 else out[:, None]

    def _generators_at(self, time: Array) -> Array:
        return np.asarray(self.scale * self._matrices)

    def fastest(self, time: float) -> Array:
        stay = np.diagonal(self._matrices, axis1=-2, axis2=-1)
        return np.asarray(self.scale * (1 - stay.min(axis=-1)))

    def token_kernel(self, position: int = 0) -> MarkovKernel:
        if self.scale != 1.0:
            raise InputError(
                f"the chain runs at {self.scale:g} times its kernel, so that no kernel of unit "
                "time has its rates; use kernels[position] and multiply the time by scale."
            )
        return self.kernels[position if len(self.kernels) > 1 else 0]


# -------------------------------------------------------------------- constructors


def uniform_tokens(n_tokens: int) -> RefreshTokens:
    """Uniform noise: a token moves to each other token with the same probability.

    It is a refresh from the uniform distribution at the rate `n / (n - 1)`.

    >>> uniform_tokens(4).token_kernel().matrix.toarray()[0].round(4).tolist()
    [0.0, 0.3333, 0.3333, 0.3333]
    """
    n = _checks.whole(n_tokens, "n_tokens", 2)
    return RefreshTokens(np.full(n, 1 / n), rate=n / (n - 1))


def absorbing_tokens(
    n_tokens: int, *, backward: float = 1e-3, returns: ArrayLike | None = None
) -> AbsorbingTokens:
    """Masking noise on `n_tokens` tokens and the mask, which becomes the token `n_tokens`.

    Parameters
    ----------
    n_tokens : int
        Number of tokens without the mask.
    backward : float
        The rate at which a mask turns back into a token.
    returns : array, optional
        The distribution of that token; by default uniform.

    >>> absorbing_tokens(2, backward=0.5).stationary.round(4).tolist()
    [0.1667, 0.1667, 0.6667]
    """
    n = _checks.whole(n_tokens, "n_tokens", 1)
    given = np.full(n, 1 / n) if returns is None else np.asarray(returns, dtype=np.float64)
    return AbsorbingTokens(given, backward)


def ordinal_tokens(n_tokens: int) -> DenseTokens:
    """Nearest-neighbour noise for tokens in an order: up or down with probability one half.

    At the two ends the walk stays with probability one half, so the uniform distribution is
    stationary.

    >>> ordinal_tokens(3).token_kernel().matrix.toarray().tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]]
    """
    n = _checks.whole(n_tokens, "n_tokens", 2)
    matrix = 0.5 * (np.eye(n, k=1) + np.eye(n, k=-1))
    matrix[0, 0] += 0.5
    matrix[-1, -1] += 0.5
    return DenseTokens((MarkovKernel.from_matrix(matrix),))


def tokens_from_kernel(kernel: MarkovKernel | ArrayLike) -> DenseTokens:
    """The noise of any reversible token matrix, given as a kernel or as a matrix."""
    if not isinstance(kernel, MarkovKernel):
        kernel = MarkovKernel.from_matrix(kernel)
    return DenseTokens((kernel,))


# -------------------------------------------------------------------- parts


def _as_bases(values: ArrayLike, name: str) -> Array:
    array = _checks.as_array(values, name)
    if array.ndim not in (1, 2) or array.size == 0:
        raise InputError(
            f"{name} has shape {array.shape}; give one number per token, or one row per position."
        )
    rows = _checks.as_probabilities(np.atleast_2d(array), array.shape[-1], name)
    if rows.min() <= 0:
        place = np.unravel_index(int(np.argmin(rows)), rows.shape)
        raise InputError(
            f"{name} is zero at token {int(place[1])}; noise that never reaches a token cannot be "
            "reversed there: give every token some probability, such as 1e-6."
        )
    return rows[0] if array.ndim == 1 else rows
