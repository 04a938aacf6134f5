"""Noise schedules: how fast the flow's own clock runs, `beta_t`, and the clock `sigma(t)`.

A schedule does not change the path of the noising process, only the speed along it:
`p_dot = beta_t (K - I) p` is the heat flow at the clock `sigma(t) = int_0^t beta`. Time runs from 0
(data) to 1 (noise); the clock from 0 to `total`. The clock is that of the kernel on sequences,
which changes one position at a time: a sequence of `length` tokens needs `length` times the clock
of one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._types import Array
from thalweg.errors import InputError


@dataclass(frozen=True)
class Schedule(ABC):
    """A time change: `clock(t)` rises from 0 to `total`; a subclass gives formulas for arrays."""

    total: float

    def __post_init__(self) -> None:
        for part in fields(self):
            _checks.positive(getattr(self, part.name), part.name)

    def rate(self, time: ArrayLike) -> Array:
        """`beta_t`, the derivative of the clock."""
        return np.asarray(self._rate(np.asarray(time, dtype=np.float64)))

    def clock(self, time: ArrayLike) -> Array:
        """`sigma(t) = int_0^t beta`."""
        return np.asarray(self._clock(np.asarray(time, dtype=np.float64)))

    def time(self, clock: ArrayLike) -> Array:
        """The time of a clock value: the inverse of `clock`."""
        return np.asarray(self._time(np.asarray(clock, dtype=np.float64)))

    @abstractmethod
    def _rate(self, t: Array) -> Array: ...
    @abstractmethod
    def _clock(self, t: Array) -> Array: ...
    @abstractmethod
    def _time(self, s: Array) -> Array: ...


@dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """`beta_t = total`.

    >>> float(ConstantSchedule(10.0).clock(0.25))
    2.5
    """

    def _rate(self, t: Array) -> Array:
        return np.full(t.shape, self.total)

    def _clock(self, t: Array) -> Array:
        return self.total * t

    def _time(self, s: Array) -> Array:
        return s / self.total


@dataclass(frozen=True)
class LinearSchedule(Schedule):
    """`beta_t` rises linearly; `start` is `beta_0` over the mean rate, between 0 and 2."""

    start: float = 0.1

    def __post_init__(self) -> None:
        _checks.positive(self.total, "total")
        if not 0 <= self.start <= 2:
            raise InputError(f"start is {self.start:g}; give a fraction of the mean, 0 to 2.")

    @property
    def _slope(self) -> float:
        return 2 * (1 - self.start)

    def _rate(self, t: Array) -> Array:
        return self.total * (self.start + self._slope * t)

    def _clock(self, t: Array) -> Array:
        return self.total * t * (self.start + self._slope * t / 2)

    def _time(self, s: Array) -> Array:
        s = s / self.total
        # The root of slope t^2 / 2 + start t = s in the form that does not cancel.
        root = np.sqrt(np.maximum(self.start**2 + 2 * self._slope * s, 0.0))
        with np.errstate(invalid="ignore"):
            return np.where(s > 0, 2 * s / (self.start + root), 0.0)


@dataclass(frozen=True)
class ExponentialSchedule(Schedule):
    """Geometric: `beta_t` is proportional to `growth^t`."""

    growth: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.growth == 1:
            raise InputError("growth is 1; use ConstantSchedule.")

    def _rate(self, t: Array) -> Array:
        log = math.log(self.growth)
        return self.total * log * np.exp(log * t) / (self.growth - 1)

    def _clock(self, t: Array) -> Array:
        return self.total * np.expm1(math.log(self.growth) * t) / (self.growth - 1)

    def _time(self, s: Array) -> Array:
        return np.log1p(s / self.total * (self.growth - 1)) / math.log(self.growth)


@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """A token that decays at rate 1 per `unit` of clock survives with probability `cos(a t)^2`.

    `sigma(t) = -2 unit log cos(a t)`, with `a` such that the clock ends at `total`. For sequences
    let `unit` be the length.
    """

    unit: float = 1.0

    @property
    def _angle(self) -> float:
        return math.acos(math.exp(-self.total / (2 * self.unit)))

    def _rate(self, t: Array) -> Array:
        return 2 * self.unit * self._angle * np.tan(self._angle * t)

    def _clock(self, t: Array) -> Array:
        # log cos^2 = log(1 - sin^2), which keeps its accuracy at short times.
        return -self.unit * np.log1p(-(np.sin(self._angle * t) ** 2))

    def _time(self, s: Array) -> Array:
        return np.arcsin(np.sqrt(-np.expm1(-s / self.unit))) / self._angle


@dataclass(frozen=True)
class LogLinearSchedule(Schedule):
    """A token that decays at rate 1 per `unit` of clock is lost with a probability linear in `t`.

    `sigma(t) = -unit log(1 - a t)`: the natural schedule of masking noise, where the number of
    masks grows steadily.
    """

    unit: float = 1.0

    @property
    def _lost(self) -> float:
        return -math.expm1(-self.total / self.unit)

    def _rate(self, t: Array) -> Array:
        return self.unit * self._lost / (1 - self._lost * t)

    def _clock(self, t: Array) -> Array:
        return -self.unit * np.log1p(-self._lost * t)

    def _time(self, s: Array) -> Array:
        return -np.expm1(-s / self.unit) / self._lost
