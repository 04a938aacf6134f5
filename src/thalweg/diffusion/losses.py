"""The two training losses of discrete diffusion, token by token, in torch.

`cross_entropy` (Campbell et al.) trains for the clean token; `score_entropy` (Lou et al.) for the
ratios `p_t(y) / p_t(x)` directly, by a Bregman divergence,

    sum_y Q(y, x) [s_y - r_y log s_y + r_y (log r_y - 1)],    r_y = p_t(y | x_0) / p_t(x | x_0),

which is non-negative, zero exactly at `s = r`, and in the mean over `x_0` smallest at the true
ratios. Integrated over the clock it bounds the log-likelihood. (The squared loss printed in the
paper has neither property.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg._optional import optional
from thalweg.diffusion.sequences import HammingProcess

optional("torch", extra="neural", what="training a denoiser")
import torch  # noqa: E402

_TINY = 1e-30
"""Least probability whose logarithm is taken."""


@dataclass(frozen=True)
class NoisyBatch:
    """Clean and noisy tokens, with tables of the known noise around them, as tensors."""

    clean: Any
    noisy: Any
    time: Any
    """The token time of each sequence: its clock over the length."""
    log_columns: Any
    """`log P_t(a, x_t)`: the log probability that each clean token leads to the noisy one."""
    log_ratios: Any
    """`log r_y`: the conditional ratios `P_t(x_0, y) / P_t(x_0, x_t)`."""
    inflow: Any
    """`Q(y, x_t)`, per unit of token time."""
    lost: Any
    """The probability that a clean token has changed, averaged over each sequence."""


def noisy_batch(
    process: HammingProcess,
    clean: NDArray[np.int64],
    clock: NDArray[np.float64],
    *,
    rng: np.random.Generator,
    device: str = "cpu",
    ratios: bool = True,
) -> NoisyBatch:
    """Draw `x_t` given `x_0` and tabulate the noise around it; `ratios=False` skips the ratios."""
    tokens = process.tokens
    time = process.token_time(clock, clean)
    noisy = tokens.sample(clean, time, rng=rng)
    zero = np.zeros_like(time)

    def tensor(array: NDArray[Any]) -> Any:
        kind = torch.long if array.dtype.kind == "i" else torch.float32
        return torch.as_tensor(array, dtype=kind, device=device)

    columns = np.log(np.maximum(tokens.columns(noisy, zero, time), _TINY))
    rows = tokens.rows(clean, time)
    lost = 1 - np.take_along_axis(rows, clean[..., None], -1)[..., 0].mean(axis=1)
    log_ratios = inflow = np.zeros((0,))
    if ratios:
        rows = np.log(np.maximum(rows, _TINY))
        log_ratios = rows - np.take_along_axis(rows, noisy[..., None], -1)
        inflow = tokens.inflow(noisy, time)
    return NoisyBatch(
        tensor(clean), tensor(noisy), tensor(time), tensor(columns), tensor(log_ratios),
        tensor(inflow), tensor(lost),
    )  # fmt: skip


def cross_entropy(logits: Any, batch: NoisyBatch) -> Any:
    """`-log p(x_0^i | x_t)` for each token: shape `(batch, length)`."""
    posterior = torch.log_softmax(logits + batch.log_columns, -1)
    return -posterior.gather(-1, batch.clean[..., None])[..., 0]


def context_log_ratios(process: HammingProcess, logits: Any, batch: NoisyBatch) -> Any:
    """`log s_y` of the network: its context, noised, at `y` against at `x_t`."""
    weights = torch.softmax(logits, -1)
    noised = process.tokens.apply(weights, batch.time.detach().cpu().double().numpy())
    log_noised = torch.log(noised.clamp_min(_TINY))
    return log_noised - log_noised.gather(-1, batch.noisy[..., None])


def score_entropy_terms(log_score: Any, log_ratio: Any) -> Any:
    """`s - r log s + r (log r - 1)` from `log s` and `log r`, never negative.

    Computed as `r (e^z - 1 - z)` with `z = log s - log r`, which does not cancel near `s = r`.

    >>> score_entropy_terms(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0]))
    tensor([0.0000, 0.7183])
    """
    z = (log_score - log_ratio).clamp(-60.0, 60.0)
    small = z.abs() < 1e-2
    near = z * z / 2 * (1 + z / 3)
    large = torch.where(small, torch.ones_like(z), z)
    far = torch.expm1(large) - large
    return torch.exp(log_ratio) * torch.where(small, near, far)


def score_entropy(log_scores: Any, batch: NoisyBatch) -> Any:
    """The Bregman loss of each token, per unit of token time: shape `(batch, length)`."""
    return (batch.inflow * score_entropy_terms(log_scores, batch.log_ratios)).sum(-1)
