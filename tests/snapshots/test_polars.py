"""Real polars frames."""

from __future__ import annotations

import pytest

from thalweg.snapshots import Snapshots

polars = pytest.importorskip("polars", reason="polars is not installed")


def test_a_polars_frame_counts_like_a_pandas_one():
    data = {"day": [2, 0, 0, 2], "kind": ["b", "a", "b", "b"], "n": [5, 1, 2, 3]}
    frame = polars.DataFrame(data)
    seen = Snapshots.from_frame(frame, time="day", state="kind", count="n", states=["a", "b"])
    assert seen.counts.tolist() == [[1, 2], [0, 8]]
