"""`Snapshots`: every constructor gives the same counts, bad input is named, values stay frozen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from thalweg.errors import InputError
from thalweg.graphs import path
from thalweg.kernel import MarkovKernel
from thalweg.snapshots import Snapshots, snapshots

COUNTS = np.array([[8, 0, 2], [5, 1, 5], [1, 0, 3], [0, 0, 7]], dtype=float)
TIMES = np.array([0.0, 0.5, 2.0, 7.0])


def as_frame(counts: np.ndarray, names: list[Any], seed: int) -> pd.DataFrame:
    rows = [
        (TIMES[k], names[x])
        for k in range(counts.shape[0])
        for x in range(counts.shape[1])
        for _ in range(int(counts[k, x]))
    ]
    frame = pd.DataFrame(rows, columns=["day", "type"])
    return frame.sample(frac=1, random_state=seed)


def test_constructors_agree() -> None:
    one = Snapshots.from_counts(TIMES, COUNTS)
    samples = [np.repeat(np.arange(3), row.astype(int)) for row in COUNTS]
    two = Snapshots.from_samples(TIMES, samples, 3)
    three = Snapshots.from_frame(
        as_frame(COUNTS, ["c", "a", "b"], 0), time="day", state="type", states=["c", "a", "b"]
    )
    named = path(3).with_labels(names=["c", "a", "b"])
    four = Snapshots.from_frame(
        as_frame(COUNTS, ["c", "a", "b"], 1), time="day", state="type", states=named
    )
    five = Snapshots.from_frame(as_frame(COUNTS, [0, 1, 2], 2), time="day", state="type", states=3)
    grouped = as_frame(COUNTS, [0, 1, 2], 2).groupby(["day", "type"]).size().reset_index(name="n")
    six = Snapshots.from_frame(grouped, time="day", state="type", count="n")
    seven = Snapshots.from_counts(TIMES, sparse.csr_array(COUNTS))
    for other in (two, three, four, five, six, seven):
        assert np.array_equal(one.times, other.times)
        assert np.array_equal(one.counts, other.counts)
    assert three.names == four.names == ("c", "a", "b")
    assert one.sizes.tolist() == [10, 11, 4, 7]
    np.testing.assert_allclose(one.frequencies.sum(axis=1), 1)


def test_categorical_and_foreign_frames_are_read() -> None:
    frame = as_frame(COUNTS, ["c", "a", "b"], 0).astype({"type": "category"})
    one = Snapshots.from_frame(frame, time="day", state="type")
    assert one.names == ("a", "b", "c")
    assert np.array_equal(one.counts, COUNTS[:, [1, 2, 0]])

    class Foreign:
        def to_pandas(self) -> pd.DataFrame:
            return frame

    two = Snapshots.from_frame(Foreign(), time="day", state="type")
    assert np.array_equal(one.counts, two.counts)


def test_points_count_for_the_nearest_state() -> None:
    kernel = path(4)
    clouds = [np.array([[0.2, 0.1], [2.9, -0.3]]), np.array([[1.4, 5.0]])]
    seen = Snapshots.from_points([0, 1], clouds, kernel=kernel)
    assert seen.counts.tolist() == [[1, 0, 0, 1], [0, 1, 0, 0]]
    bare = MarkovKernel.from_weights([[0, 1], [1, 0]])
    with pytest.raises(InputError, match="no coordinates"):
        Snapshots.from_points([0], [np.zeros((1, 2))], kernel=bare)


def test_large_tables_are_sparse_and_behave_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = Snapshots.from_counts(TIMES, COUNTS)
    monkeypatch.setattr(snapshots, "DENSE_LIMIT", 3)
    samples = [np.repeat(np.arange(3), row.astype(int)) for row in COUNTS]
    for thin in (
        Snapshots.from_counts(TIMES, sparse.csr_array(COUNTS)),
        Snapshots.from_samples(TIMES, samples, 3),
    ):
        assert thin.is_sparse
        assert np.array_equal(thin.counts.toarray(), COUNTS)
        np.testing.assert_allclose(thin.frequencies.toarray(), dense.frequencies)
        assert np.array_equal(thin.drop(TIMES[0]).counts.toarray(), COUNTS[1:])
        again = thin.resample(rng=np.random.default_rng(0))
        assert np.array_equal(again.sizes, dense.sizes)


def test_values_are_frozen() -> None:
    source = COUNTS.copy()
    seen = Snapshots.from_counts(TIMES, source)
    source[0, 0] = 99
    assert seen.counts[0, 0] == 8
    with pytest.raises(ValueError, match="read-only"):
        seen.counts[0, 0] = 1
    with pytest.raises(AttributeError):
        seen.times = TIMES  # type: ignore[misc]


@given(st.integers(0, 3))
def test_drop_and_select_are_complements(k: int) -> None:
    seen = Snapshots.from_counts(TIMES, COUNTS, names=["a", "b", "c"])
    one, rest = seen.select([k]), seen.drop(TIMES[k])
    assert np.array_equal(np.sort(np.concatenate([one.times, rest.times])), TIMES)
    assert np.array_equal(rest.counts, np.delete(COUNTS, k, axis=0))
    assert rest.names == ("a", "b", "c")
    assert np.array_equal(seen.select(slice(1, 3)).times, TIMES[1:3])
    assert np.array_equal(seen[:-1].times, TIMES[:-1])
    assert np.array_equal(seen.between(TIMES[1], TIMES[2]).times, TIMES[1:3])
    assert len(seen) == len(TIMES)
    assert len(seen[k]) == 1
    with pytest.raises(InputError, match=r"between\(start, stop\) selects by time"):
        seen[0.5:1.5]


def test_resample_is_the_bootstrap_and_thin_is_binomial() -> None:
    seen = Snapshots.from_counts([0.0], [[60, 0, 40]])
    rng = np.random.default_rng(0)
    replicates = np.array([seen.resample(rng=rng).counts[0] for _ in range(4000)])
    assert np.all(replicates.sum(axis=1) == 100)
    assert np.all(replicates[:, 1] == 0)
    assert abs(replicates[:, 0].mean() - 60) < 0.4
    assert abs(replicates[:, 0].var() - 24) < 2.5
    thinned = np.array([seen.thin(0.25, rng=rng).counts[0] for _ in range(4000)])
    assert abs(thinned[:, 0].mean() - 15) < 0.25
    assert abs(thinned[:, 0].var() - 11.25) < 1.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Snapshots.from_counts([0, 1], [[1, 2], [np.nan, 1]]), "counts is nan at position"),
        (lambda: Snapshots.from_counts([0, 1], [[1, 2], [3, -1]]), "-1 at time 1, state 1"),
        (lambda: Snapshots.from_counts([0, 0], [[1], [1]]), "repeats"),
        (lambda: Snapshots.from_counts([1, 0], [[1], [1]]), "comes after"),
        (lambda: Snapshots.from_counts([0, 2.5], [[1, 1], [0, 0]]), "at time 2.5 .row 1. is empty"),
        (lambda: Snapshots.from_counts([0, 1], [[1, 1]]), "one row per time"),
        (lambda: Snapshots.from_counts([0], [[1, 1]], names=["a"]), "1 names"),
        (lambda: Snapshots.from_samples([0], [[0, 5]], 3), "state 5 at time 0 is outside 0 to 2"),
        (lambda: Snapshots.from_samples([0], [[0.5]], 3), "float64 values"),
        (lambda: Snapshots.from_samples([0, 1], [[0]], 3), "1 samples for 2 times"),
        (lambda: Snapshots.from_samples([0, 4], [[0], []], 3), "time 4 .row 1. is empty"),
        (
            lambda: Snapshots.from_counts([0], [[1, 1]]).drop(3),
            "no snapshot at time 3; the nearest is at 0",
        ),
        (lambda: Snapshots.from_counts([0], [[1, 1]]).drop(0), "keep at least one"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"time": "hour"}, "no column 'hour' for time; it has day, type"),
        ({"type": ["alpha", "beta", "betta"]}, {}, "state 'betta' in row 2.*did you mean 'beta'"),
        ({"type": ["alpha", None, "beta"]}, {}, "'type' is empty in row 1"),
        ({"day": [0, np.nan, 1]}, {}, "'day': the time is missing in row 1"),
        ({"n": ["1", "2", "3"]}, {"count": "n"}, "'n' holds values that are not numbers"),
        ({}, {"states": 4}, "the states are numbered"),
        ({"type": [0, 1, 7]}, {"states": 4}, "state 7 in row 2 is outside 0 to 3"),
        ({"n": [1, -1, 1]}, {"count": "n"}, "-1 at time 0, state 1"),
    ],
)
def test_bad_frames_are_refused_in_a_sentence(
    change: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    frame = pd.DataFrame({"day": [0, 0, 1], "type": ["alpha", "beta", "beta"]}).assign(**change)
    arguments = {"time": "day", "state": "type", "states": ["alpha", "beta"], **options}
    with pytest.raises(InputError, match=message):
        Snapshots.from_frame(frame, **arguments)


@pytest.mark.parametrize("individuals", [1.0, 0.5])
def test_shares_of_replicates_are_rejected_as_those_of_one_population_are(individuals):
    shares = individuals * np.array([[0.2, 0.8], [0.4, 0.6], [0.5, 0.5], [1.0, 0.0]])
    with pytest.raises(InputError, match="shares do not say how many"):
        Snapshots.from_counts([0, 0, 1, 1], shares, replicates=["a", "b", "a", "b"])


def test_one_snapshot_is_dropped_where_times_are_large_and_close() -> None:
    times = 1.7e9 + np.arange(3)
    seen = Snapshots.from_counts(times, [[1, 2]] * 3)
    np.testing.assert_array_equal(seen.drop(times[1]).times, times[[0, 2]])


def test_thinning_keeps_replicates_apart() -> None:
    rows = [[800, 200], [600, 400], [500, 500], [300, 700]]
    seen = Snapshots.from_counts([0, 0, 1, 1], rows, replicates=["a", "b", "a", "b"])
    thin = seen.thin(0.5, rng=np.random.default_rng(0))
    assert thin.replicates is not None
    np.testing.assert_allclose(thin.replicates.counts, 0.5 * np.array(rows), atol=60)
    np.testing.assert_array_equal(thin.replicates.pooled(2), thin.counts)
