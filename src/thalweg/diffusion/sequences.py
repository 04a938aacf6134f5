"""Noise on sequences: the Hamming kernel as a product of token processes, never enumerated.

The kernel changes the token at one random position, `K = (1 / length) sum_i K_i`. The terms
commute, so the heat flow factorises: `exp(t (K - I))` is at each position the token flow at time
`t / length`. Everything that training and sampling need is therefore done token by token; only the
functions that say so enumerate the `n_tokens ** length` states.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._types import Array, Tokens
from thalweg.diffusion.token_process import TokenProcess, every_token
from thalweg.errors import InputError
from thalweg.graphs import hamming_kernel
from thalweg.kernel import MarkovKernel

_MAX_STATES = 10**6
"""Largest number of sequences that are enumerated."""


@dataclass(frozen=True, eq=False)
class HammingProcess:
    """The noising process of sequences of `length` tokens.

    Parameters
    ----------
    tokens : TokenProcess
        The noise on one token, such as `uniform_tokens(n)`.
    length : int
        Number of positions.

    >>> from thalweg.diffusion.tokens import uniform_tokens
    >>> process = HammingProcess(uniform_tokens(50257), length=1024)
    >>> clean = np.zeros((1, 1024), dtype=int)
    >>> noisy = process.noise(clean, clock=1024.0, rng=np.random.default_rng(0))
    >>> noisy.shape, bool(abs((noisy == 0).mean() - np.exp(-1)) < 0.05)
    ((1, 1024), True)
    """

    tokens: TokenProcess
    length: int

    def __post_init__(self) -> None:
        _checks.whole(self.length, "length", 1)
        given = self.tokens.n_positions
        if given not in (None, self.length):
            raise InputError(
                f"the token process is given for {given} positions, but sequences have "
                f"{self.length}; make them agree."
            )

    @property
    def n_tokens(self) -> int:
        return self.tokens.n_tokens

    @property
    def n_states(self) -> int:
        """The number of sequences, enumerated or not."""
        return self.n_tokens**self.length

    # ---------------------------------------------------------------- per token

    def noise(self, sequences: ArrayLike, clock: ArrayLike, *, rng: np.random.Generator) -> Tokens:
        """A sample of `x_t` given `x_0`; one clock for all sequences, or one for each."""
        x = self.check(sequences)
        return self.tokens.sample(x, self.token_time(clock, x), rng=rng)

    def conditional(self, sequences: ArrayLike, clock: ArrayLike) -> Array:
        """`p(x_t | x_0)`, which is a product: one distribution per position."""
        x = self.check(sequences)
        return self.tokens.rows(x, self.token_time(clock, x))

    def flow_marginals(self, marginals: ArrayLike, clock: float) -> Array:
        """The heat flow of a product distribution, given and returned as its `(length, n)` factors.

        The marginals of any distribution move in the same way.
        """
        factors = _checks.as_probabilities(marginals, self.n_tokens, "marginals")
        if factors.shape[0] != self.length:
            raise InputError(
                f"{factors.shape[0]} marginals for sequences of {self.length}; give one per "
                "position."
            )
        time = np.array([float(clock) / self.length])
        return np.asarray(self.tokens.apply(factors[None], time)[0])

    def sample_base(self, n_samples: int, *, rng: np.random.Generator) -> Tokens:
        """Sequences of pure noise."""
        return self.tokens.sample_stationary((n_samples, self.length), rng=rng)

    def token_time(self, clock: ArrayLike, sequences: Tokens) -> Array:
        """The clock of one token, `clock / length`, one for each sequence."""
        time = np.asarray(clock, dtype=np.float64) / self.length
        return np.array(np.broadcast_to(time, sequences.shape[:1]))

    # ---------------------------------------------------------------- reverse, from a context

    def posterior(self, context: Array, sequences: Tokens, clock: ArrayLike) -> Array:
        """`p(x_0^i | x_t)` from the context `p(x_0^i | the other noisy tokens)`, by Bayes' rule."""
        time = self.token_time(clock, sequences)
        out = context * self.tokens.columns(sequences, np.zeros_like(time), time)
        return np.asarray(out / out.sum(axis=-1, keepdims=True))

    def ratios(self, context: Array, sequences: Tokens, clock: ArrayLike) -> Array:
        """`p_t(y) / p_t(x)` for every change of one token `x_i` to `y_i`, from the context.

        The context is noised, `c_t = c P_t`; the ratio is `c_t(y_i) / c_t(x_i)`.
        """
        noised = self.tokens.apply(context, self.token_time(clock, sequences))
        return np.asarray(noised / np.take_along_axis(noised, sequences[..., None], -1))

    # ---------------------------------------------------------------- enumerated

    def kernel(self) -> MarkovKernel:
        """The kernel on all sequences, explicit: for at most 10^6 states."""
        if self.tokens.n_positions is not None:
            raise InputError(
                "the noise differs between positions; the explicit kernel is for one token kernel "
                "at all positions."
            )
        return hamming_kernel(self.n_tokens, self.length, self.tokens.token_kernel())

    def heat_flow(self, p: ArrayLike, clock: float) -> Array:
        """The distribution over all sequences after the clock, position by position."""
        self._check_enumerable()
        p = _checks.as_probability(p, self.n_states)
        return np.asarray(self.noised(p, self.transitions(clock)).ravel())

    def noised(self, p: Array, transitions: Array, kept: int | None = None) -> Array:
        """`p` after these transitions, one axis per position; the position `kept` stays clean."""
        tensor = p.reshape((self.n_tokens,) * self.length)
        for position, matrix in enumerate(transitions):
            if position != kept:
                moved = np.tensordot(tensor, matrix, axes=(position, 0))
                tensor = np.moveaxis(moved, -1, position)
        return tensor

    def transitions(self, clock: float) -> Array:
        """`P_t` at each position: `(length, n_tokens, n_tokens)`. For small alphabets."""
        every = every_token(self.n_tokens, self.length)
        return self.tokens.rows(every, self.token_time(clock, every)).transpose(1, 0, 2)

    def encode(self, sequences: ArrayLike) -> Tokens:
        """The number that each sequence spells in base `n_tokens`, first position first.

        It is the state of the sequence in `kernel()`.
        """
        self._check_enumerable()
        x = self.check(sequences)
        powers = self.n_tokens ** np.arange(self.length - 1, -1, -1)
        return np.asarray(x @ powers)

    def decode(self, states: ArrayLike) -> Tokens:
        """The sequences with these numbers."""
        self._check_enumerable()
        index = np.asarray(states, dtype=np.int64)
        digits = np.unravel_index(index, (self.n_tokens,) * self.length)
        return np.stack(digits, axis=-1).astype(np.int64)

    def base(self) -> Array:
        """The stationary distribution over all sequences."""
        self._check_enumerable()
        factors = np.broadcast_to(self.tokens.stationary, (self.length, self.n_tokens))
        return reduce(np.kron, factors)

    # ---------------------------------------------------------------- checks

    def check(self, sequences: ArrayLike) -> Tokens:
        """`sequences` as integers of shape `(batch, length)`, all of them tokens."""
        x = np.asarray(sequences)
        if x.dtype.kind not in "iu":
            raise InputError(f"sequences have type {x.dtype}; give integers, one per token.")
        x = np.atleast_2d(x).astype(np.int64)
        if x.ndim != 2 or x.shape[1] != self.length:
            raise InputError(
                f"sequences have shape {x.shape}; give one row of {self.length} tokens each."
            )
        if x.size and (x.min() < 0 or x.max() >= self.n_tokens):
            bad = np.argwhere((x < 0) | (x >= self.n_tokens))[0]
            raise InputError(
                f"token {int(x[tuple(bad)])} in sequence {int(bad[0])} at position {int(bad[1])} "
                f"is not one of 0 .. {self.n_tokens - 1}; encode the text with one alphabet."
            )
        return x

    def _check_enumerable(self) -> None:
        if self.n_states > _MAX_STATES:
            raise InputError(
                f"{self.n_tokens} tokens at {self.length} positions make {self.n_states:.3g} "
                f"states, more than {_MAX_STATES}; work token by token (noise, conditional, "
                "flow_marginals)."
            )
