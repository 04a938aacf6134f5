"""Schedules: the clock is the integral of the rate, and time its inverse."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad

from thalweg import InputError
from thalweg.diffusion import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    LogLinearSchedule,
    Schedule,
)

SCHEDULES: list[Schedule] = [
    ConstantSchedule(7.0),
    LinearSchedule(7.0),
    LinearSchedule(7.0, start=0.0),
    LinearSchedule(7.0, start=1.0),
    LinearSchedule(7.0, start=2.0),
    ExponentialSchedule(7.0),
    ExponentialSchedule(7.0, growth=0.1),
    CosineSchedule(7.0, unit=2.0),
    LogLinearSchedule(7.0, unit=2.0),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_the_clock_integrates_the_rate(schedule: Schedule) -> None:
    assert float(schedule.clock(0.0)) == 0
    assert float(schedule.clock(1.0)) == pytest.approx(schedule.total, rel=1e-12)
    for time in (0.1, 0.5, 0.95):
        area, _ = quad(lambda t: float(schedule.rate(t)), 0, time)
        assert float(schedule.clock(time)) == pytest.approx(area, rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_time_undoes_the_clock(schedule: Schedule) -> None:
    times = np.array([0.0, 1e-6, 0.01, 0.3, 0.77, 0.999])
    np.testing.assert_allclose(schedule.time(schedule.clock(times)), times, rtol=1e-7, atol=1e-15)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(InputError, match="total"):
        ConstantSchedule(0.0)
    with pytest.raises(InputError, match="ConstantSchedule"):
        ExponentialSchedule(1.0, growth=1.0)
    with pytest.raises(InputError, match="start"):
        LinearSchedule(1.0, start=3.0)
