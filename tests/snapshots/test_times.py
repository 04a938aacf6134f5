"""Times of every kind by one parser: how they are read, and which are ambiguous."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg import FreeEnergyRegressor, InputError, MarkovKernel, Snapshots, TimeScale, load
from thalweg.snapshots import read_times

DAYS = ["2024-02-28", "2024-03-01", "2024-03-05"]
COUNTS = [[80, 15, 5], [50, 30, 20], [40, 35, 25]]


@pytest.mark.parametrize(
    ("values", "numbers", "scale"),
    [
        ([0, 2.5], [0, 2.5], TimeScale()),
        (["0", " 2.5 ", "1e2"], [0, 2.5, 100], TimeScale()),
        (["\u22122", "3"], [-2, 3], TimeScale()),
        (["day-2", "day-4", "day-7"], [2, 4, 7], TimeScale("days")),
        (["day -2", "day 0"], [-2, 0], TimeScale("days")),
        (["-2 d", "3 d"], [-2, 3], TimeScale("days")),
        (["D2", "d4"], [2, 4], TimeScale("days")),
        (["3h", "6 hours"], [3, 6], TimeScale("hours")),
        (["90min", "2h"], [90, 120], TimeScale("minutes")),
        (["E8.5", "E9.25"], [8.5, 9.25], TimeScale("E")),
        (["month 1", "month 3"], [1, 3], TimeScale("months")),
        (DAYS, [0, 2, 6], TimeScale("days", "2024-02-28")),
        (["2024-01", "2024-02"], [0, 31], TimeScale("days", "2024-01-01")),
        (["2024-01-01T10:00Z", "2024-01-01T10:05Z"], [0, 5],
         TimeScale("minutes", "2024-01-01 10:00:00")),
        (pd.to_datetime(DAYS), [0, 2, 6], TimeScale("days", "2024-02-28")),
        (pd.to_datetime(DAYS).as_unit("s"), [0, 2, 6], TimeScale("days", "2024-02-28")),
        (pd.to_datetime(DAYS, utc=True), [0, 2, 6], TimeScale("days", "2024-02-28")),
        ([datetime.date(2024, 2, 28), datetime.date(2024, 3, 1)], [0, 2],
         TimeScale("days", "2024-02-28")),
        (pd.to_timedelta([3, 6, 12], unit="h"), [3, 6, 12], TimeScale("hours")),
        (np.array([1, 2], dtype="timedelta64[D]"), [1, 2], TimeScale("days")),
        (pd.Series([1, 2], dtype="Int64"), [1, 2], TimeScale()),
    ],
)  # fmt: skip
def test_what_times_are_read_as(values, numbers, scale):
    found, meaning = read_times(values)
    np.testing.assert_allclose(found, numbers, rtol=1e-15)
    assert meaning == scale


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([20240227, 20240301], "20240227 could be dates or numbers; write 2024-02-27"),
        (["20240227"], "could be dates or numbers"),
        (["day-2", "day0"], "is the hyphen of 'day-2' a minus"),
        (["E18.5", "P0"], "'E18.5' and as 'P0'; give all of them in one unit"),
        (["month 1", "day 3"], "give all of them in one unit"),
        ([1, 2, "3h"], "the time is '3h' at position 2"),
        (["2024-01-01", "soon", "2024-01-02"], "the time is 'soon' at position 1"),
        (["2024-02-30", "2024-03-01"], "the time is '2024-02-30'"),
        ([0.0, np.nan], "the time is missing at position 1"),
        (pd.to_datetime(["2024-01-01", None]), "the time is missing at position 1"),
        (["2024-01-01T10:00Z", "2024-01-01T11:00"], "some dates have a time zone"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), "masked"),
        (["1_0", "2"], "the time is '1_0'"),
        ([[1, 2]], "shape"),
        ("soon", "shape"),
        ([1 + 2j], "position 0"),
    ],
)
def test_what_is_asked_about(values, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        read_times(values)
    assert "\n" not in str(caught.value)


texts = st.text(max_size=12) | st.sampled_from(["day-2", "3h", "2024-01-01", "5", "-", "1e999"])


@given(st.lists(texts | st.floats() | st.integers() | st.none() | st.dates(), max_size=4))
def test_anything_is_read_or_refused_in_a_sentence(values):
    try:
        numbers, scale = read_times(values)
    except InputError:
        return
    assert np.isfinite(numbers).all()
    # A scale reads its own labels back.
    np.testing.assert_allclose(scale.numbers(scale.labels(numbers)), numbers, rtol=1e-9, atol=1e-8)


@given(st.lists(st.datetimes(), min_size=2, max_size=5, unique=True))
def test_dates_survive_labels_and_other_origins(moments):
    numbers, scale = read_times(moments)
    days = TimeScale("days", "2000-01-01")
    back = days.converted(scale.converted(numbers, days), scale)
    np.testing.assert_allclose(back, numbers, rtol=1e-9, atol=1e-3 * max(1, numbers.max()))
    assert list(np.argsort(numbers)) == list(np.argsort(np.array(moments)))


@pytest.fixture(scope="module")
def model():
    kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    return FreeEnergyRegressor(method="weak").fit(kernel, Snapshots.from_counts(DAYS, COUNTS))


def test_a_model_answers_in_the_time_of_its_data(model, tmp_path):
    model.save(tmp_path / "m.thalweg")
    again = load(tmp_path / "m.thalweg")
    for fitted in (model, again):
        assert fitted.time_scale_ == TimeScale("days", "2024-02-28")
        by_date = fitted.predict(None, ["2024-03-01", "2024-03-20"])
        np.testing.assert_array_equal(by_date.times, [2, 21])
        by_number = fitted.predict(None, [2.0, 21.0])
        np.testing.assert_array_equal(by_date.probabilities, by_number.probabilities)


def test_later_snapshots_are_scored_at_their_own_dates(model):
    later = Snapshots.from_counts(["2024-03-05", "2024-03-09"], COUNTS[1:])
    assert later.times[0] == 0
    moved = Snapshots.from_counts([6.0, 10.0], COUNTS[1:])
    assert model.score(later) == pytest.approx(model.score(moved), rel=1e-12)
    with pytest.raises(InputError, match="cannot be compared"):
        model.score(Snapshots.from_counts(["3h", "6h"], COUNTS[1:]))


def test_parts_keep_the_scale():
    seen = Snapshots.from_counts(pd.to_datetime(DAYS), COUNTS)
    rng = np.random.default_rng(0)
    for part in (
        seen.drop(0),
        seen.select([1, 2]),
        seen.resample(rng=rng),
        seen.thin(0.9, rng=rng),
    ):
        assert part.scale == seen.scale
    np.testing.assert_array_equal(seen.drop(0).times, [2, 6])
    frame = pd.DataFrame({"day": pd.to_datetime(DAYS), "state": [0, 1, 2]})
    np.testing.assert_array_equal(
        Snapshots.from_frame(frame, time="day", state="state").times, [0, 2, 6]
    )


def test_a_time_beyond_the_calendar_is_named():
    with pytest.raises(InputError, match=r"time -1e\+09 days is beyond the calendar"):
        TimeScale("days", "2024-02-28").labels([0.0, 5.0, -1e9])
