"""Running the noise backwards: from the base distribution to data, with learned or true scores.

| method | a step from clock `t` down to `s` | error |
| --- | --- | --- |
| `"tau-leap"` | rates frozen at `t`, each position jumps at most once | first order |
| `"posterior"` | exact for each token given its context, frozen at `t` | first order, smaller |
| `"exact"` | candidate jumps at a bounding rate, kept or not (uniformisation) | none |

The first two change all positions at once and cost one evaluation of the model per step; the third
one evaluation per candidate jump. All stop at a small clock, where the clean tokens are drawn from
their posterior. `corrector_steps` adds, after each step, moves that leave `p_s` invariant:
`"langevin"` is one step of the heat-bath chain of `p_s`, `thalweg.diffusion.tilted_kernel` with
`V = -log rho_s` (one position of each sequence, no step size, invariant without error);
`"birth-death"` adds forward and reverse rates and moves all positions at once for a short time,
the choice for masking noise, which the first would hardly ever unmask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import named
from thalweg._types import Array, Index, Progress, Tokens
from thalweg.diffusion.models import ContextModel, ScoreModel, TemperedModel
from thalweg.diffusion.schedules import Schedule
from thalweg.diffusion.scores import quotient
from thalweg.diffusion.sequences import HammingProcess
from thalweg.diffusion.token_process import draw_from_rows, every_token
from thalweg.errors import InputError

Method = Literal["posterior", "tau-leap", "exact"]
Corrector = Literal["langevin", "birth-death"]

_MAX_TABLE = 2**27
"""Largest number of entries in the table of the rate bound: 1 GB."""
FREE = -1
"""Marks a token to be filled in."""


@dataclass(frozen=True)
class Sampling:
    """How the process is run backwards: the options of `sample` and `infill`.

    Parameters
    ----------
    n_steps : int
        Steps of equal schedule time; for `"exact"`, windows that halve the clock replace them.
    method : {"posterior", "tau-leap", "exact"}
        How a step is taken; see the table above.
    corrector : {"langevin", "birth-death"}
        The moves that follow each step.
    corrector_steps : int
        Number of corrector moves after each step.
    corrector_time : float
        Token time of each birth-death move.
    temperature : float
        Below 1 it sharpens the model's context.
    last_time : float
        The time at which the steps end and the clean tokens are drawn; a `ScoreModel` without a
        context returns the tokens there.
    """

    n_steps: int = 100
    method: Method = "posterior"
    corrector: Corrector = "langevin"
    corrector_steps: int = 0
    corrector_time: float = 0.02
    temperature: float = 1.0
    last_time: float = 1e-3

    def __post_init__(self) -> None:
        _checks.word(self.method, "method", Method)
        _checks.word(self.corrector, "corrector", Corrector)
        if self.n_steps < 1 or not 0 < self.last_time < 1:
            raise InputError(
                f"n_steps is {self.n_steps} and last_time {self.last_time:g}; give at least one "
                "step, and a last time between 0 and 1."
            )

    def applied(self, model: ScoreModel) -> ScoreModel:
        """The model at this temperature; rejected if it cannot do what is asked."""
        if not isinstance(model, ContextModel):
            if self.method != "tau-leap":
                raise InputError(
                    f"method {self.method!r} needs a model with a context; this one knows only "
                    "scores: use method='tau-leap'."
                )
            if self.temperature != 1.0:
                raise InputError("temperature needs a model with a context, not only scores.")
        if self.method == "exact" and not model.process.tokens.homogeneous:
            raise InputError(
                "the rates of this noise change with time, and no bound on the reverse rates is "
                "known; use method='posterior'."
            )
        if isinstance(model, ContextModel) and self.temperature != 1.0:
            return TemperedModel(model, self.temperature)
        return model


def sample(
    model: ScoreModel,
    schedule: Schedule,
    n_samples: int,
    *,
    rng: np.random.Generator,
    start: ArrayLike | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Tokens:
    """`n_samples` sequences from the reversed process, started from the base distribution.

    Parameters
    ----------
    model : ScoreModel
        Scores, or a context from which they follow.
    schedule : Schedule
        The clock at each time.
    n_samples : int
        Number of sequences.
    rng : numpy.random.Generator
        Source of random numbers.
    start : array, optional
        Sequences to start from instead of the base distribution.
    progress : callable, optional
        Called as steps finish.
    **options
        Of `Sampling`: `n_steps`, `method`, `corrector`, `temperature` and others.

    >>> from thalweg.diffusion import ConstantSchedule, ExactModel, HammingProcess, uniform_tokens
    >>> model = ExactModel(HammingProcess(uniform_tokens(2), 2), [0.5, 0.0, 0.0, 0.5])
    >>> x = sample(model, ConstantSchedule(8.0), 4, rng=np.random.default_rng(0))
    >>> bool((x[:, 0] == x[:, 1]).all())
    True
    """
    steps, process = named(Sampling, options), model.process
    x = _start(process, n_samples, start, rng)
    fixed = np.full(process.length, FREE, dtype=np.int64)
    return _Sampler(steps.applied(model), fixed, rng).run(schedule, x, steps, progress)


def infill(
    model: ContextModel,
    schedule: Schedule,
    template: ArrayLike,
    n_samples: int,
    *,
    rng: np.random.Generator,
    progress: Progress | None = None,
    **options: Any,
) -> Tokens:
    """Sequences that agree with `template` wherever it is not -1.

    With masking noise the given tokens are simply shown: the model conditions on visible tokens, so
    this is exact up to the steps and the backward rate. With other noise a given token enters at
    each clock as its own noisy copy, which is approximate (copies at different clocks are
    independent); corrector moves on the free tokens reduce the error, one after each step by
    default. The other parameters are those of `sample`, without `method`.
    """
    if "method" in options:
        raise InputError("infill fills in by the posterior; leave method out.")
    steps, process = named(Sampling, {"corrector_steps": 1, **options}), model.process
    fixed = np.asarray(template)
    if fixed.shape != (process.length,) or fixed.dtype.kind not in "iu":
        raise InputError(
            f"template has shape {fixed.shape} and type {fixed.dtype}; give {process.length} "
            f"integers, {FREE} where the token is free."
        )
    process.check(np.where(fixed == FREE, 0, fixed))
    x = _start(process, n_samples, None, rng)
    fixed = fixed.astype(np.int64)
    return _Sampler(steps.applied(model), fixed, rng).run(schedule, x, steps, progress)


# -------------------------------------------------------------------- the run


@dataclass(frozen=True)
class _Sampler:
    """A model run backwards, with the tokens of `fixed` that are not `FREE` given."""

    model: ScoreModel
    fixed: Tokens
    rng: np.random.Generator

    def run(
        self, schedule: Schedule, x: Tokens, steps: Sampling, progress: Progress | None
    ) -> Tokens:
        """The clean sequences to which the noisy ones `x` lead."""
        model = self.model
        clocks = schedule.clock(np.linspace(1.0, steps.last_time, steps.n_steps + 1))
        if steps.method == "exact":
            # Windows that halve the clock.
            count = max(1, int(np.ceil(np.log2(clocks[0] / clocks[-1]))))
            clocks = np.geomspace(clocks[0], clocks[-1], count + 1)
        x = self.given(x, clocks[0])
        for step, (now, after) in enumerate(zip(clocks[:-1], clocks[1:], strict=True)):
            if steps.method == "exact":
                x = self.exact_window(x, now, after)
            elif steps.method == "posterior":
                x = self.drawn(x, lambda z: _posterior_step(model, z, now, after))
            else:
                x = self.drawn(x, lambda z: _jump(_reverse(model, z, now), z, now - after))
            x = self.given(x, after)
            for _ in range(steps.corrector_steps):
                if steps.corrector == "langevin":
                    x = self.langevin(x, after)
                else:
                    duration = steps.corrector_time * model.process.length
                    x = self.drawn(x, lambda z: _birth_death(model, z, after, duration))
                    x = self.given(x, after)
            if progress is not None:
                progress("sampling", step + 1, clocks.size - 1)
        if isinstance(model, ContextModel):
            x = self.drawn(x, lambda z: model.posterior(z, np.full(len(z), clocks[-1])))
        return np.where(self.fixed != FREE, self.fixed, x)

    def given(self, x: Tokens, clock: float) -> Tokens:
        """`x` with the given tokens: as they are for masking noise, otherwise noisy copies."""
        given = self.fixed != FREE
        if not given.any():
            return x
        process, known = self.model.process, np.where(given, self.fixed, 0)
        if process.tokens.mask is None:
            known = process.noise(np.tile(known, (len(x), 1)), clock, rng=self.rng)
        return np.where(given, known, x)

    def drawn(self, x: Tokens, weights: Callable[[Tokens], Array]) -> Tokens:
        """Draw every token from its row of `weights(x)`; equal sequences share an evaluation."""
        distinct, which = _distinct(self.model.process, x)
        return draw_from_rows(weights(distinct)[which], self.rng.random(x.shape))

    def langevin(self, x: Tokens, clock: float) -> Tokens:
        """Propose a kernel move at one free position, accept with `rho_y / (rho_x + rho_y)`.

        In detailed balance with `p_t`: `langevin_rates` of the sequence kernel, one jump at a time.
        """
        process = self.model.process
        free = np.flatnonzero(self.fixed == FREE)
        if not free.size:
            return x
        here = np.arange(len(x))
        position = free[self.rng.integers(free.size, size=len(x))]
        distinct, which = _distinct(process, x)
        time = process.token_time(clock, distinct)
        ratios = self.model.ratios(distinct, np.full(len(distinct), clock))
        forth = process.tokens.outflow(distinct, time)[which][here, position]
        back = (process.tokens.inflow(distinct, time) * ratios)[which][here, position]
        # The reverse rate is K(x, y) rho_y / rho_x, so the acceptance is back / (forth + back).
        moves = forth * quotient(back, forth + back)
        # Divided by the fastest rate at its position, the rates become a kernel.
        fastest = process.tokens.fastest(clock / process.length)
        moves /= np.broadcast_to(fastest, process.length)[position][:, None]
        own = x[here, position][:, None]
        np.put_along_axis(moves, own, 0.0, -1)
        stay = np.maximum(1 - moves.sum(axis=-1, keepdims=True), 0.0)
        np.put_along_axis(moves, own, stay, -1)
        x = x.copy()
        x[here, position] = draw_from_rows(moves, self.rng.random(len(x)))
        return x

    def exact_window(self, x: Tokens, now: float, after: float) -> Tokens:
        """Candidate jumps at the bounding rate; at each, one position jumps or nothing does."""
        process = self.model.process
        bound = rate_bound(process, after) * (1 + 1e-9)
        clock = np.full(len(x), now)
        x = x.copy()
        active = np.arange(len(x))
        while True:
            clock[active] -= self.rng.exponential(1 / bound, active.size)
            active = active[clock[active] > after]
            if not active.size:
                return x
            rates = _reverse(self.model, x[active], clock[active]).reshape(active.size, -1)
            rest = np.maximum(bound - rates.sum(axis=1), 0.0)
            choice = draw_from_rows(np.column_stack([rates, rest]), self.rng.random(active.size))
            jumps = choice < rates.shape[1]
            position, token = np.divmod(choice[jumps], process.n_tokens)
            x[active[jumps], position] = token


def _start(
    process: HammingProcess, n_samples: int, start: ArrayLike | None, rng: np.random.Generator
) -> Tokens:
    if n_samples < 1:
        raise InputError(f"n_samples is {n_samples}; ask for at least one.")
    if start is None:
        return process.sample_base(n_samples, rng=rng)
    x = process.check(start)
    if x.shape[0] != n_samples:
        raise InputError(f"start holds {x.shape[0]} sequences for {n_samples} samples.")
    return x


def _distinct(process: HammingProcess, x: Tokens) -> tuple[Tokens, Index | slice]:
    """The distinct sequences, and the index of each; all of them where that would not pay."""
    if process.n_states > x.shape[0]:
        return x, slice(None)
    codes = process.encode(x)
    seen = np.bincount(codes, minlength=process.n_states) > 0
    return process.decode(np.flatnonzero(seen)), (np.cumsum(seen) - 1)[codes]


# -------------------------------------------------------------------- weights of the next tokens


def _posterior_step(model: ScoreModel, x: Tokens, now: float, after: float) -> Array:
    """`p(x_s^i = y | x_t)`, proportional to `c_s(y) P_(s,t)(y, x_i)` with the noised context."""
    assert isinstance(model, ContextModel)
    process = model.process
    start, stop = process.token_time(after, x), process.token_time(now, x)
    noised = process.tokens.apply(model.context(x, np.full(len(x), now)), start)
    return np.asarray(noised * process.tokens.columns(x, start, stop))


def _reverse(model: ScoreModel, x: Tokens, clock: float | Array) -> Array:
    """The rates of the reversed process for each change of a token, per unit of clock."""
    process = model.process
    ratios = model.ratios(x, np.broadcast_to(clock, len(x)))
    return process.tokens.inflow(x, process.token_time(clock, x)) * ratios / process.length


def _birth_death(model: ScoreModel, x: Tokens, clock: float, duration: float) -> Array:
    """Forward and reverse jumps together: they cancel in the mean where the law is `p_t`."""
    process = model.process
    forth = process.tokens.outflow(x, process.token_time(clock, x)) / process.length
    return _jump(forth + _reverse(model, x, clock), x, duration)


def _jump(rates: Array, x: Tokens, duration: float) -> Array:
    """Stay with probability `exp(-rate * duration)`, otherwise jump in proportion to the rates."""
    total = rates.sum(axis=-1, keepdims=True)
    leave = -np.expm1(-duration * total)
    out = rates * quotient(leave, total)
    np.put_along_axis(out, x[..., None], 1 - leave, -1)
    return out


# -------------------------------------------------------------------- exact jumps


def rate_bound(process: HammingProcess, clock: float) -> float:
    """A bound on the total reverse rate of any sequence at this clock and at all larger ones.

    The rate at one position is an average over clean tokens `a` of
    `sum_y Q(y, x) P_t(a, y) / P_t(a, x)`; its largest value over `a` and `x` falls with `t`,
    because `P_(t+s)(a, .)` is a mixture of the `P_t(b, .)`. So the bound at the end of a window
    holds in it.
    """
    n = process.n_tokens
    if n * n * process.length > _MAX_TABLE:
        raise InputError(
            f"exact jumps need a table of {n} x {n} tokens at {process.length} positions; use "
            "method='posterior'."
        )
    every = every_token(n, process.length)
    inflow = process.tokens.inflow(every, process.token_time(clock, every))
    reached = process.transitions(clock)
    gained = np.einsum("xiy,iay->iax", inflow, reached)
    mask = process.tokens.mask
    if mask is not None:
        gained, reached = np.delete(gained, mask, 1), np.delete(reached, mask, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = np.where(gained > 0, gained / reached, 0.0).max(axis=(1, 2))
    if not np.all(np.isfinite(worst)):
        raise InputError(
            "the noise cannot reach every token within the last clock; raise last_time, or use "
            "method='posterior'."
        )
    return float(worst.sum() / process.length)
