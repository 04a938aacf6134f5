"""What a sampler needs from the data: scores, or a context from which they follow.

The *context* at position `i` is `p(x_0^i | the other noisy tokens)`. With the known noise it gives
both the posterior of the clean token and the ratios `p_t(y) / p_t(x)` for every change of that
token, exactly (`HammingProcess.posterior`, `.ratios`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._types import Array, Tokens
from thalweg.diffusion.sequences import HammingProcess


class ScoreModel(ABC):
    """A source of the ratios `p_t(y) / p_t(x)` for every change of one token."""

    def __init__(self, process: HammingProcess) -> None:
        self.process = process

    @abstractmethod
    def ratios(self, sequences: Tokens, clock: Array) -> Array:
        """Shape `(batch, length, n_tokens)`; 1 where `y` is the token itself."""


class ContextModel(ScoreModel):
    """A source of the clean token at each position, given the other noisy tokens."""

    @abstractmethod
    def context(self, sequences: Tokens, clock: Array) -> Array:
        """`p(x_0^i | x_t without i)`, shape `(batch, length, n_tokens)`."""

    def ratios(self, sequences: Tokens, clock: Array) -> Array:
        return self.process.ratios(self.context(sequences, clock), sequences, clock)

    def posterior(self, sequences: Tokens, clock: Array) -> Array:
        """`p(x_0^i | x_t)`."""
        return self.process.posterior(self.context(sequences, clock), sequences, clock)


class ExactModel(ContextModel):
    """The true context of a known distribution over at most 10^6 sequences.

    The output of a perfect network: the reference for samplers and for training.

    >>> from thalweg.diffusion.tokens import uniform_tokens
    >>> process = HammingProcess(uniform_tokens(2), length=2)
    >>> model = ExactModel(process, [0.5, 0.0, 0.0, 0.5])
    >>> model.context(np.array([[0, 1]]), np.array([1e-9])).round(6)
    array([[[0., 1.],
            [1., 0.]]])
    """

    def __init__(self, process: HammingProcess, p: ArrayLike) -> None:
        super().__init__(process)
        process._check_enumerable()
        self.p = _checks.as_probability(p, process.n_states)
        self._clock = -1.0
        self._tables: list[Array] = []

    def context(self, sequences: Tokens, clock: Array) -> Array:
        times = np.broadcast_to(np.asarray(clock, dtype=np.float64), sequences.shape[:1])
        out = np.empty((*sequences.shape, self.process.n_tokens))
        for moment in np.unique(times):
            chosen = times == moment
            for position, table in enumerate(self._at(float(moment))):
                others = np.delete(sequences[chosen], position, axis=1)
                out[chosen, position] = table[tuple(others.T)]
        return out

    def _at(self, clock: float) -> list[Array]:
        """The table `p(clean token | the other noisy tokens)` of each position."""
        if clock == self._clock:
            return self._tables
        process, transitions = self.process, self.process.transitions(clock)
        tables = []
        for position in range(process.length):
            table = np.moveaxis(process.noised(self.p, transitions, position), position, -1)
            total = table.sum(axis=-1, keepdims=True)
            even = 1.0 / process.n_tokens
            tables.append(np.where(total > 0, table / np.where(total > 0, total, 1.0), even))
        self._clock, self._tables = clock, tables
        return tables


class TemperedModel(ContextModel):
    """A context sharpened (`temperature < 1`) or flattened: `context ** (1 / temperature)`."""

    def __init__(self, model: ContextModel, temperature: float) -> None:
        super().__init__(model.process)
        self.model = model
        self.temperature = _checks.positive(temperature, "temperature")

    def context(self, sequences: Tokens, clock: Array) -> Array:
        context = self.model.context(sequences, clock)
        scaled = (context / context.max(axis=-1, keepdims=True)) ** (1 / self.temperature)
        return np.asarray(scaled / scaled.sum(axis=-1, keepdims=True))
