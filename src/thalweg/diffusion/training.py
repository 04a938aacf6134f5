"""Training a denoiser on sequences: batches, noise, Adam, checkpoints, and the bound on held-out
data.

`train` is resumable: with a `checkpoint` it writes its whole state at intervals, and a second call
with the same arguments continues from there, to the same numbers as an uninterrupted run.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from thalweg import _checks
from thalweg._door import named
from thalweg._files import atomic_write
from thalweg._optional import optional
from thalweg._types import Array, Progress, Tokens
from thalweg.diffusion.losses import (
    context_log_ratios,
    cross_entropy,
    noisy_batch,
    score_entropy,
)
from thalweg.diffusion.models import ContextModel, ScoreModel
from thalweg.diffusion.schedules import Schedule
from thalweg.diffusion.sequences import HammingProcess
from thalweg.errors import InputError
from thalweg.status import Status

optional("torch", extra="neural", what="training a denoiser")
import torch  # noqa: E402

Loss = Literal["cross-entropy", "score-entropy"]
Head = Literal["context", "score"]
Draw = Callable[[np.random.Generator, int], Tokens]


class _Network(ScoreModel):
    """A network with what is needed to evaluate it."""

    def __init__(
        self, process: HammingProcess, network: Any, *, device: str = "cpu", batch: int = 8192
    ) -> None:
        super().__init__(process)
        self.network, self.device, self.batch = network.to(device).eval(), device, batch

    def outputs(self, sequences: Tokens, clock: Array) -> Array:
        """The network's outputs, computed in batches."""
        time = self.process.token_time(clock, sequences)
        out = np.empty((*sequences.shape, self.process.n_tokens))
        with torch.no_grad():
            for first in range(0, sequences.shape[0], self.batch):
                part = slice(first, first + self.batch)
                tokens = torch.as_tensor(sequences[part], device=self.device)
                times = torch.as_tensor(time[part], dtype=torch.float32, device=self.device)
                out[part] = self.network(tokens, times).double().cpu().numpy()
        return out


class NetworkModel(_Network, ContextModel):
    """A trained network in the form that samplers take: arrays in, arrays out."""

    def context(self, sequences: Tokens, clock: Array) -> Array:
        return np.asarray(softmax(self.outputs(sequences, clock), axis=-1))


class NetworkScores(_Network):
    """A network whose outputs are scores, `log s_y = g_y - g_x`, without a context behind them."""

    def ratios(self, sequences: Tokens, clock: Array) -> Array:
        outputs = self.outputs(sequences, clock)
        own = np.take_along_axis(outputs, sequences[..., None], -1)
        return np.asarray(np.exp(np.clip(outputs - own, -60.0, 60.0)))


@dataclass(frozen=True)
class TrainingResult:
    """The trained model (averaged weights), the loss of each step, and how training ended."""

    model: NetworkModel | NetworkScores
    losses: Array
    status: Status

    @property
    def network(self) -> Any:
        return self.model.network


@dataclass(frozen=True)
class Training:
    """How a denoiser is trained: the options of `train`.

    Parameters
    ----------
    loss : {"cross-entropy", "score-entropy"}
        Conditional cross-entropy per token that the noise has changed, or score entropy weighted
        so that it is the likelihood bound.
    head : {"context", "score"}
        The meaning of the network's outputs: the clean token given the others (both losses), or
        the ratios themselves (score entropy only).
    n_steps, batch_size : int
        Number of steps, and of sequences per step.
    learning_rate : float
        The largest rate of Adam.
    averaging : float
        Decay of the running average of the weights, which is returned.
    first_time : float
        Times are drawn between this and 1.
    seed : int
        Seed of every random number generator used.
    device : str
        The torch device.
    checkpoint_every : int
        Steps between two checkpoints.
    """

    loss: Loss = "cross-entropy"
    head: Head = "context"
    n_steps: int = 1000
    batch_size: int = 256
    learning_rate: float = 2e-3
    averaging: float = 0.995
    first_time: float = 1e-3
    seed: int = 0
    device: str = "cpu"
    checkpoint_every: int = 200

    def __post_init__(self) -> None:
        _checks.word(self.loss, "loss", Loss)
        _checks.word(self.head, "head", Head)
        if self.head == "score" and self.loss == "cross-entropy":
            raise InputError("a network of scores has no clean tokens; use loss='score-entropy'.")
        if self.n_steps < 1 or self.batch_size < 1:
            raise InputError(
                f"n_steps is {self.n_steps} and batch_size {self.batch_size}; both must be at "
                "least 1."
            )

    def rate(self, step: int) -> float:
        """A rise over the first twentieth (at most 100 steps), then half a cosine to 1 %."""
        warm = max(1, min(100, self.n_steps // 20))
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        turn = math.pi * (step - warm) / max(1, self.n_steps - warm)
        return self.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(turn)))


def train(
    process: HammingProcess,
    schedule: Schedule,
    network: Any,
    data: ArrayLike | Draw,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    **options: Any,
) -> TrainingResult:
    """Train `network` to denoise `data` under the noise of `process` and `schedule`.

    Parameters
    ----------
    process : HammingProcess
        The noise on sequences.
    schedule : Schedule
        The clock at each time.
    network : torch.nn.Module
        Maps noisy tokens and token times to logits, as in `thalweg.diffusion.networks`.
    data : array or callable
        Clean sequences, one per row, or a function `(rng, n) -> n sequences`.
    checkpoint : path, optional
        File for the state of the training, from which a later call continues.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    stop : callable, optional
        Called at each step; if it returns `True`, a checkpoint is written and the result carries
        `Status.INTERRUPTED`.
    **options
        Of `Training`: `loss`, `n_steps`, `batch_size`, `seed` and others.
    """
    how = named(Training, options)
    draw = _batches(process, data)
    torch.manual_seed(how.seed)
    rng = np.random.default_rng(how.seed)
    network = network.to(how.device).train()
    average = {key: value.detach().clone() for key, value in network.state_dict().items()}
    optimizer = torch.optim.AdamW(network.parameters(), lr=how.learning_rate, weight_decay=1e-4)
    settings = {
        "format": 1, **asdict(how), "n_tokens": process.n_tokens, "length": process.length,
        "schedule": repr(schedule),
    }  # fmt: skip
    del settings["device"], settings["checkpoint_every"]
    run = _Run(settings, network, average, optimizer, rng, [])
    file = None if checkpoint is None else Path(checkpoint)
    if file is not None and file.exists():
        run.restore(file, how.device)
    status = Status.CONVERGED
    while len(run.losses) < how.n_steps:
        if stop is not None and stop():
            status = Status.INTERRUPTED
            break
        step = len(run.losses)
        for group in optimizer.param_groups:
            group["lr"] = how.rate(step)
        value = _loss(process, schedule, network, draw(rng, how.batch_size), how, rng)
        if not torch.isfinite(value):
            status = Status.NOT_FINITE
            break
        run.step(value, min(how.averaging, (step + 1) / (step + 10)))
        if file is not None and (step + 1) % how.checkpoint_every == 0:
            run.save(file)
        if progress is not None:
            progress("training", step + 1, how.n_steps)
    if file is not None:
        run.save(file)
    network.load_state_dict(average)
    kind = NetworkModel if how.head == "context" else NetworkScores
    return TrainingResult(kind(process, network, device=how.device), np.array(run.losses), status)


def _loss(
    process: HammingProcess, schedule: Schedule, network: Any, clean: Tokens, how: Training,
    rng: np.random.Generator,
) -> Any:  # fmt: skip
    """The loss of a batch at times spread over the schedule."""
    spread = (np.arange(how.batch_size) + rng.random()) / how.batch_size
    time = how.first_time + (1 - how.first_time) * spread
    batch = noisy_batch(
        process, clean, schedule.clock(time), rng=rng, device=how.device,
        ratios=how.loss == "score-entropy",
    )  # fmt: skip
    outputs = network(batch.noisy, batch.time)
    if how.loss == "cross-entropy":
        # Per token that the noise has changed, so that little noise counts as much as a lot;
        # below a share of 0.05 the quotient would be mostly chance.
        share = batch.lost.clamp_min(0.05)[:, None]
        return (cross_entropy(outputs, batch) / share).mean()
    # Per unit of schedule time: the integral over t is the likelihood bound.
    weight = torch.as_tensor(
        schedule.rate(time) / process.length, dtype=torch.float32, device=how.device
    )
    scores = _log_scores(process, how.head, outputs, batch)
    return (weight[:, None] * score_entropy(scores, batch)).mean()


@dataclass(frozen=True)
class Bound:
    """An upper bound on the negative log-likelihood, in bits per token, and its standard error."""

    bits: float
    stderr: float


def likelihood_bound(
    model: NetworkModel | NetworkScores,
    schedule: Schedule,
    data: ArrayLike,
    *,
    n_times: int = 16,
    first_time: float = 1e-3,
    rng: np.random.Generator,
) -> Bound:
    """An upper bound on the bits per token that the model needs for `data`; lower is better.

    Three parts: the noise that is left at the end, `KL(p(x_1 | x_0) | base)`; the score entropy
    integrated over the clock (stratified in time, `n_times` draws for each sequence); and the
    cross-entropy of the clean tokens at `first_time`. The last needs a context model.
    """
    process = model.process
    clean = process.check(data)
    head: Head = "context" if isinstance(model, NetworkModel) else "score"
    end = np.full(clean.shape[0], float(schedule.clock(1.0)))
    rows = process.conditional(clean, end)
    base = np.broadcast_to(process.tokens.stationary, rows.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.where(rows > 0, rows * np.log(rows / base), 0.0).sum(axis=(1, 2))
    shift = rng.random(clean.shape[0])
    with torch.no_grad():
        for k in range(n_times):
            time = first_time + (1 - first_time) * (k + (shift + k * 0.618) % 1.0) / n_times
            batch = noisy_batch(process, clean, schedule.clock(time), rng=rng, device=model.device)
            outputs = model.network(batch.noisy, batch.time)
            scores = _log_scores(process, head, outputs, batch)
            each = score_entropy(scores, batch).sum(-1).double().cpu().numpy()
            total += (1 - first_time) / n_times * schedule.rate(time) / process.length * each
        start = np.full(clean.shape[0], float(schedule.clock(first_time)))
        batch = noisy_batch(process, clean, start, rng=rng, device=model.device, ratios=False)
        if head == "context":
            outputs = model.network(batch.noisy, batch.time)
            total += cross_entropy(outputs, batch).sum(-1).double().cpu().numpy()
    bits = total / (process.length * math.log(2))
    return Bound(float(bits.mean()), float(bits.std(ddof=1) / math.sqrt(max(bits.size, 2))))


# -------------------------------------------------------------------- parts


def _log_scores(process: HammingProcess, head: Head, outputs: Any, batch: Any) -> Any:
    if head == "context":
        return context_log_ratios(process, outputs, batch)
    return outputs - outputs.gather(-1, batch.noisy[..., None])


def _batches(process: HammingProcess, data: ArrayLike | Draw) -> Draw:
    if callable(data):
        return lambda rng, n: process.check(data(rng, n))
    rows = process.check(data)
    if rows.shape[0] == 0:
        raise InputError("data holds no sequences; give at least one row.")
    mask = process.tokens.mask
    if mask is not None and (rows == mask).any():
        raise InputError(f"data contains the mask, token {mask}; clean sequences have none.")
    return lambda rng, n: rows[rng.integers(rows.shape[0], size=n)]


@dataclass(frozen=True)
class _Run:
    """The state of a training: what a checkpoint holds."""

    settings: dict[str, Any]
    """What a training that continues must have in common with this one."""
    network: Any
    average: dict[str, Any]
    optimizer: Any
    rng: np.random.Generator
    losses: list[float]

    def step(self, value: Any, decay: float) -> None:
        """Follow the gradient of a loss, and average the weights."""
        self.optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        with torch.no_grad():
            for key, weight in self.network.state_dict().items():
                if weight.dtype.is_floating_point:
                    self.average[key].lerp_(weight, 1 - decay)
                else:
                    self.average[key].copy_(weight)
        self.losses.append(float(value.detach()))

    def save(self, file: Path) -> None:
        buffer = io.BytesIO()
        state = {
            "settings": json.dumps(self.settings),
            "network": self.network.state_dict(),
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
            "rng": json.dumps(self.rng.bit_generator.state),
            "torch_rng": torch.get_rng_state(),
            "losses": torch.tensor(self.losses, dtype=torch.float64),
        }
        torch.save(state, buffer)
        with atomic_write(file, "wb") as out:
            out.write(buffer.getvalue())

    def restore(self, file: Path, device: str) -> None:
        try:
            state = torch.load(file, map_location=device, weights_only=True)
            saved = json.loads(state["settings"])
        except Exception as error:
            raise InputError(
                f"{file} is not a checkpoint of this kind ({type(error).__name__}); delete it or "
                "give another path."
            ) from None
        for key, value in self.settings.items():
            if saved.get(key) != value:
                raise InputError(
                    f"the checkpoint {file} was written with {key} = {saved.get(key)!r}, not "
                    f"{value!r}; delete it to start anew, or give another path."
                )
        self.network.load_state_dict(state["network"])
        for key, value in state["average"].items():
            self.average[key].copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng.bit_generator.state = json.loads(state["rng"])
        torch.set_rng_state(state["torch_rng"].cpu())
        self.losses.extend(float(value) for value in state["losses"])
