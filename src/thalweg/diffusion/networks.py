"""Small denoisers in torch: the clean token at each position, given the noisy ones.

A network takes noisy tokens `(batch, length)` and the token time `(batch,)`, and returns logits
`(batch, length, n_tokens)` of the *context*: the clean token at a position, given the other noisy
tokens. The information in the noisy token itself is known exactly and is added by Bayes' rule
(`HammingProcess.posterior`), so the network need not learn it.
"""

from __future__ import annotations

from typing import Any

from thalweg._optional import optional
from thalweg.errors import InputError

optional("torch", extra="neural", what="a denoiser")
import torch  # noqa: E402
from torch import nn  # noqa: E402

_FREQUENCIES = 8
"""Sines and cosines of the clock that the network sees."""


class _TimeFeatures(nn.Module):
    """Sines and cosines of the logarithm of the time, which is what the noise level follows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("frequency", 0.5 * 1.6 ** torch.arange(_FREQUENCIES))
        self.project = nn.Sequential(
            nn.Linear(2 * _FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width)
        )

    def forward(self, time: Any) -> Any:
        phase = torch.log(time.clamp_min(1e-6))[:, None] * self.frequency
        return self.project(torch.cat([phase.sin(), phase.cos()], -1))


class _Denoiser(nn.Module):
    """Base of all denoisers: their sizes, and no logit for a token that is never data."""

    def __init__(self, n_tokens: int, length: int, mask: int | None) -> None:
        super().__init__()
        for name, value, least in (("n_tokens", n_tokens, 2), ("length", length, 1)):
            if value < least:
                raise InputError(f"{name} is {value}; give at least {least}.")
        self.n_tokens, self.length, self.mask = n_tokens, length, mask
        barred = torch.zeros(n_tokens)
        if mask is not None:
            barred[mask] = -1e9
        self.register_buffer("barred", barred)


class MLPDenoiser(_Denoiser):
    """A residual multilayer perceptron on the whole sequence: for short ones.

    >>> network = MLPDenoiser(n_tokens=4, length=6)
    >>> network(torch.zeros(2, 6, dtype=torch.long), torch.ones(2)).shape
    torch.Size([2, 6, 4])
    """

    def __init__(
        self, n_tokens: int, length: int, *, mask: int | None = None, width: int = 256,
        depth: int = 2,
    ) -> None:  # fmt: skip
        super().__init__(n_tokens, length, mask)
        self.embed = nn.Linear(n_tokens * length, width)
        self.time = _TimeFeatures(width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(),
                          nn.Linear(width, width))
            for _ in range(depth)
        )  # fmt: skip
        self.head = nn.Linear(width, n_tokens * length)

    def forward(self, tokens: Any, time: Any) -> Any:
        flat = nn.functional.one_hot(tokens, self.n_tokens).flatten(1).to(self.barred.dtype)
        hidden = self.embed(flat) + self.time(time)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        logits = self.head(nn.functional.silu(hidden))
        return logits.view(-1, self.length, self.n_tokens) + self.barred


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.split, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
        )
        # Initial attention: near tokens matter more, differently in each head.
        offset = torch.arange(1 - length, length).abs().float()
        slope = 2.0 ** -torch.arange(heads).float()
        self.bias = nn.Parameter(-slope[:, None] * offset)
        place = torch.arange(length)
        self.register_buffer("offset", place[:, None] - place + length - 1, persistent=False)

    def forward(self, hidden: Any) -> Any:
        batch, length, width = hidden.shape
        parts = self.split(self.before(hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=self.bias[:, self.offset]
        )
        hidden = hidden + self.merge(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.feed(self.after(hidden))


class TransformerDenoiser(_Denoiser):
    """A small transformer with relative positions, beside a linear table of the near tokens.

    The table (`reach` tokens to each side, straight to the logits) learns in the first few hundred
    steps what a bigram model knows; the transformer adds the rest.

    >>> network = TransformerDenoiser(n_tokens=5, length=8, width=16, depth=1, heads=2)
    >>> network(torch.zeros(2, 8, dtype=torch.long), torch.ones(2)).shape
    torch.Size([2, 8, 5])
    """

    def __init__(
        self, n_tokens: int, length: int, *, mask: int | None = None, width: int = 96,
        depth: int = 3, heads: int = 4, reach: int = 4,
    ) -> None:  # fmt: skip
        super().__init__(n_tokens, length, mask)
        if width % heads:
            raise InputError(f"width {width} is not a multiple of {heads} heads; make it one.")
        self.embed = nn.Embedding(n_tokens, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        self.time = _TimeFeatures(width)
        self.blocks = nn.ModuleList(_Block(width, heads, length) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_tokens)
        self.near = nn.Conv1d(n_tokens, n_tokens, 2 * reach + 1, padding=reach)
        for parameter in (self.near.weight, self.head.weight):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Any, time: Any) -> Any:
        hidden = self.embed(tokens) + self.place + self.time(time)[:, None]
        for block in self.blocks:
            hidden = block(hidden)
        exact = nn.functional.one_hot(tokens, self.n_tokens).to(hidden.dtype)
        near = self.near(exact.transpose(1, 2)).transpose(1, 2)
        return self.head(self.norm(hidden)) + near + self.barred
