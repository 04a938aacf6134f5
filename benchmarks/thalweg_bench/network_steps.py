"""The training steps of the paper's network, compiled.

A batch of the paper's training is a handful of states, each many times: at `N = 6` the network
computes the same six outputs 128 times. Here it computes them once per state, and the batch enters
through sums. With `x` the state, `g_x` its row and `h_x` its noise output, `s` and `v` the rows of
the samples, `B` their number,

    loss = 1/B sum_b |g_x + beta s - v|^2,    beta = softplus(1/B sum_b h_x)

has the derivatives `2/B (n_x g_x + beta S_x - U_x)` in `g_x`, where `n_x` counts the samples and
`S_x`, `U_x` sum their `s` and `v`. The steps, and Adam, are those of torch up to rounding.
`fit_neural(..., training=Training(engine=grouped_steps))` takes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import inner, njit
from thalweg._types import Array, Single
from thalweg.learn.network.paper import Training

__all__ = ["MOST_GROUPED", "grouped_steps"]

MOST_GROUPED = 64
"""Number of states up to which a batch holds each state many times, so that grouping pays."""

Layers = tuple[Single, Single, Single, Single, Single, Single]


class _Pace(NamedTuple):
    """The settings of Adam, and its step count."""

    batch_size: int
    step: int
    learning_rate: float
    weight_decay: float


def grouped_steps(
    torch: Any, layers: list[Any], log_rho: Any, psi: Any, training: Training
) -> Callable[[Any], Array]:
    """The training steps for `fit_neural`, each state of a batch once."""
    weights = tuple(
        np.ascontiguousarray(q.detach().cpu().numpy().T)
        for layer in layers
        for q in (layer.weight, layer.bias)
    )
    moments, squares = (tuple(np.zeros_like(w) for w in weights) for _ in range(2))
    rho32, psi32 = log_rho.cpu().numpy(), psi.cpu().numpy()
    size, step = training.batch_size, 0

    def train(samples: Any) -> Array:
        nonlocal step
        losses = np.empty(-(-samples.numel() // size))
        pace = _Pace(size, step, training.learning_rate, training.weight_decay)
        step = _train(weights, moments, squares, samples.numpy(), rho32, psi32, pace, losses)
        with torch.no_grad():
            for layer, w, b in zip(layers, weights[::2], weights[1::2], strict=True):
                layer.weight.copy_(torch.as_tensor(w.T))
                layer.bias.copy_(torch.as_tensor(b))
        return losses

    return train


@njit(cache=True)
def _train(
    weights: Layers,
    moments: Layers,
    squares: Layers,
    samples: NDArray[np.int64],
    log_rho: Single,
    psi: Single,
    pace: _Pace,
    losses: NDArray[np.float64],
) -> int:
    """One pass over the samples, in their order; weights, moments and losses change in place.

    Weights are stored input by output (torch's transposed), each layer's before its bias.
    `samples` holds `k n + x` for the state `x` seen in interval `k`; `losses` gets one number per
    batch. Gives the steps taken so far, counting from `pace.step`.
    """
    w1, b1, w2, b2, w3, b3 = weights
    batch_size, step, learning_rate, weight_decay = pace
    n, hidden = w1.shape
    score_sum, velocity_sum = np.empty((n, n), np.float32), np.empty((n, n), np.float32)
    number = np.empty(n, np.float32)
    by_out = np.empty((n, n + 1), np.float32)
    for done in range(losses.size):
        batch = samples[done * batch_size : (done + 1) * batch_size]
        size = batch.size
        number[:], score_sum[:], velocity_sum[:] = 0.0, 0.0, 0.0
        score_square, cross, velocity_square = 0.0, 0.0, 0.0
        for code in batch:
            k, x = code // n, code % n
            number[x] += 1.0
            for y in range(n):
                s, v = log_rho[k, x] - log_rho[k, y], psi[k, x] - psi[k, y]
                score_sum[x, y] += s
                velocity_sum[x, y] += v
                score_square += s * s
                cross += s * v
                velocity_square += v * v
        # The first layer of a basis vector is a row of its weights.
        before1 = w1 + b1
        first = np.maximum(before1, np.float32(0))
        before2 = np.dot(first, w2) + b2
        second = np.maximum(before2, np.float32(0))
        out = np.dot(second, w3) + b3
        level = 0.0
        for x in range(n):
            level += number[x] * out[x, n]
        level /= size
        beta = max(level, 0.0) + math.log1p(math.exp(-abs(level)))
        by_beta, square, along = beta * score_square - cross, 0.0, 0.0
        for x in range(n):
            for y in range(n):
                g = out[x, y]
                by_beta += g * score_sum[x, y]
                square += number[x] * g * g
                along += g * (beta * score_sum[x, y] - velocity_sum[x, y])
                by_out[x, y] = (
                    2.0 * (number[x] * g + beta * score_sum[x, y] - velocity_sum[x, y]) / size
                )
        quadratic = beta * beta * score_square - 2 * beta * cross + velocity_square
        losses[done] = (square + 2 * along + quadratic) / size
        by_level = 2.0 * by_beta / size / (1.0 + math.exp(-level))
        for x in range(n):
            by_out[x, n] = by_level * number[x] / size
        by_w3, by_b3 = np.dot(second.T, by_out), by_out.sum(axis=0)
        by_second = np.dot(by_out, w3.T)
        for x in range(n):
            for j in range(hidden):
                if before2[x, j] <= 0:
                    by_second[x, j] = 0.0
        by_w2, by_b2 = np.dot(first.T, by_second), by_second.sum(axis=0)
        by_first = np.dot(by_second, w2.T)
        for x in range(n):
            for j in range(hidden):
                if before1[x, j] <= 0:
                    by_first[x, j] = 0.0
        step += 1
        _adam(w1, by_first, moments[0], squares[0], step, learning_rate, weight_decay)
        _adam(b1, by_first.sum(axis=0), moments[1], squares[1], step, learning_rate, weight_decay)
        _adam(w2, by_w2, moments[2], squares[2], step, learning_rate, weight_decay)
        _adam(b2, by_b2, moments[3], squares[3], step, learning_rate, weight_decay)
        _adam(w3, by_w3, moments[4], squares[4], step, learning_rate, weight_decay)
        _adam(b3, by_b3, moments[5], squares[5], step, learning_rate, weight_decay)
    return step


@inner(cache=True)
def _adam(
    w: Single,
    gradient: Single,
    moment: Single,
    square: Single,
    step: int,
    rate: float,
    decay: float,
) -> None:
    """Adam as torch has it: decay added to the gradient, both moments corrected, eps = 1e-8."""
    w, gradient, moment, square = w.ravel(), gradient.ravel(), moment.ravel(), square.ravel()
    scale = np.float32(rate / (1 - 0.9**step))
    root = np.float32(1 / math.sqrt(1 - 0.999**step))
    keep, keep_square = np.float32(0.1), np.float32(0.001)
    decay32, eps = np.float32(decay), np.float32(1e-8)
    for i in range(w.size):
        g = gradient[i] + decay32 * w[i]
        moment[i] += keep * (g - moment[i])
        square[i] += keep_square * (g * g - square[i])
        w[i] -= scale * moment[i] / (np.sqrt(square[i]) * root + eps)
