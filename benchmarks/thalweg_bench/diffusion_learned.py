"""Learned denoisers on a known distribution over 4^6 sequences: both losses, tilted or not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from thalweg._types import Array, Tokens
from thalweg.diffusion import (
    ExactModel,
    HammingProcess,
    LogLinearSchedule,
    MLPDenoiser,
    TokenProcess,
    TrainingResult,
    sample,
    tilted_tokens,
    train,
    uniform_tokens,
)
from thalweg_bench import BenchSettings

__all__ = ["LENGTH", "N_TOKENS", "LearnedResult", "learned_rows", "potts", "total_variation"]

Row = dict[str, object]

N_TOKENS, LENGTH = 4, 6


def figure_row(
    case: str, setting: str, figure: str, value: float, target: float, seconds: float
) -> Row:
    """A row of the table; without a target (NaN) nothing is judged."""
    return {
        "case": case, "setting": setting, "figure": figure, "value": value, "target": target,
        "met": "" if np.isnan(target) else str(value <= target), "cpu seconds": seconds,
    }  # fmt: skip


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch on one thread inside, so that CPU seconds can be compared."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class LearnedResult:
    """Rows of the table, the loss curves by name, and sentences."""

    rows: list[Row]
    losses: dict[str, Array]
    notes: tuple[str, ...]


def potts(n_tokens: int, length: int, rng: np.random.Generator) -> Array:
    """A law in which every pair of positions is coupled: `exp(sum h_i + sum J_ij)`, normalised."""
    grid = np.indices((n_tokens,) * length).reshape(length, -1)
    energy = np.zeros(n_tokens**length)
    for i in range(length):
        energy += 0.7 * rng.normal(size=n_tokens)[grid[i]]
        for j in range(i):
            energy += 0.5 * rng.normal(size=(n_tokens, n_tokens))[grid[i], grid[j]]
    p = np.exp(energy - energy.max())
    return np.asarray(p / p.sum())


def total_variation(p: Array, q: Array) -> float:
    return float(0.5 * abs(p - q).sum())


@one_torch_thread()
def learned_rows(settings: BenchSettings) -> LearnedResult:
    """Train with each loss, generate, and compare with the law and with an independent sample."""
    rng = np.random.default_rng(settings.seed)
    p = potts(N_TOKENS, LENGTH, rng)
    n_samples = 10**5 if settings.quick else 10**6
    n_steps = 300 if settings.quick else 3000
    fresh = np.mean(
        [total_variation(rng.multinomial(n_samples, p) / n_samples, p) for _ in range(5)]
    )
    target = float(2 * fresh + 0.02)
    uniform = uniform_tokens(N_TOKENS)
    seen = _draw(p, rng, 10**5)
    marginals = np.stack(
        [np.bincount(seen[:, i], minlength=N_TOKENS) / seen.shape[0] for i in range(LENGTH)]
    )
    tilted = tilted_tokens(uniform, -np.log(marginals))
    cases: list[tuple[str, TokenProcess, str]] = [
        ("uniform noise, cross-entropy", uniform, "cross-entropy"),
        ("uniform noise, score entropy", uniform, "score-entropy"),
        ("tilted noise, cross-entropy", tilted, "cross-entropy"),
        ("tilted noise, score entropy", tilted, "score-entropy"),
    ]
    rows = sampler_rows(p, {"uniform noise": uniform, "tilted noise": tilted}, settings)
    losses: dict[str, Array] = {}
    found: dict[tuple[str, int], float] = {}
    for k, (name, tokens, loss) in enumerate(cases):
        process = HammingProcess(tokens, LENGTH)
        schedule = LogLinearSchedule(6.0 * LENGTH, unit=float(LENGTH))
        started = time.process_time()
        result = _train(process, schedule, p, loss, n_steps, settings, k, len(cases))
        losses[name] = result.losses
        trained = time.process_time() - started
        for sampling_steps in (64, 8):
            started = time.process_time()
            drawn = sample(
                result.model,
                schedule,
                n_samples,
                rng=np.random.default_rng(settings.seed + 1),
                n_steps=sampling_steps,
            )
            counts = np.bincount(process.encode(drawn), minlength=p.size)
            found[name, sampling_steps] = total_variation(counts / n_samples, p)
            seconds = trained + time.process_time() - started
            setting = f"{n_steps} training steps, {sampling_steps} sampling steps"
            aim, value = target if sampling_steps == 64 else np.nan, found[name, sampling_steps]
            case = f"learned denoiser, 4^6: {name}"
            rows.append(figure_row(case, setting, "total variation", value, aim, seconds))
    notes = [
        f"An independent sample of {n_samples} sequences is {fresh:.4f} away from the law; the "
        f"target is twice that plus 0.02, {target:.4f}."
    ]
    for (plain, _, loss), (steered, _, _) in zip(cases[:2], cases[2:], strict=True):
        for steps in (64, 8):
            ratio = found[plain, steps] / found[steered, steps]
            notes.append(
                f"Tilted against uniform noise, {loss}, {steps} sampling steps, same network and "
                f"budget: {found[steered, steps]:.4f} against {found[plain, steps]:.4f}, "
                f"{ratio:.2f} times lower (below 1: higher)."
            )
    return LearnedResult(rows, losses, tuple(notes))


def sampler_rows(p: Array, noises: dict[str, TokenProcess], settings: BenchSettings) -> list[Row]:
    """The sampler alone: 10^5 sequences with the true scores, many steps and few."""
    n_samples = 10**5
    fresh = np.random.default_rng(settings.seed).multinomial(n_samples, p) / n_samples
    rows: list[Row] = []
    for name, tokens in noises.items():
        process = HammingProcess(tokens, LENGTH)
        schedule = LogLinearSchedule(6.0 * LENGTH, unit=float(LENGTH))
        for n_steps in (64, 8):
            started = time.process_time()
            rng = np.random.default_rng(settings.seed + 1)
            drawn = sample(ExactModel(process, p), schedule, n_samples, rng=rng, n_steps=n_steps)
            counts = np.bincount(process.encode(drawn), minlength=p.size)
            setting = (
                f"10^5 sequences, {n_steps} sampling steps "
                f"(independent sample: {total_variation(fresh, p):.4f})"
            )
            rows.append(
                figure_row(
                    f"true scores, 4^6: {name}", setting, "total variation",
                    total_variation(counts / n_samples, p), np.nan, time.process_time() - started,
                )
            )  # fmt: skip
    return rows


def _draw(p: Array, rng: np.random.Generator, n: int) -> Tokens:
    edges = np.cumsum(p)
    states = np.minimum(np.searchsorted(edges, rng.random(n) * edges[-1]), p.size - 1)
    return np.stack(np.unravel_index(states, (N_TOKENS,) * LENGTH), axis=-1).astype(np.int64)


def _train(
    process: HammingProcess,
    schedule: LogLinearSchedule,
    p: Array,
    loss: str,
    n_steps: int,
    settings: BenchSettings,
    case: int,
    n_cases: int,
) -> TrainingResult:
    import torch

    torch.manual_seed(settings.seed)
    network = MLPDenoiser(N_TOKENS, LENGTH, width=256, depth=2)
    return train(
        process,
        schedule,
        network,
        lambda rng, n: _draw(p, rng, n),
        loss="cross-entropy" if loss == "cross-entropy" else "score-entropy",
        n_steps=n_steps,
        batch_size=512,
        learning_rate=3e-3,
        averaging=0.999 if n_steps > 1000 else 0.98,
        seed=settings.seed,
        progress=lambda what, done, total: settings.progress(
            "denoisers", case * total + done, n_cases * total
        ),
    )
