"""The speed benchmark runs, and its rows are complete."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from thalweg_bench import speed


def test_small_rows_and_their_sentences() -> None:
    pytest.importorskip("torch")
    rows = speed.compare_small("complete", 0.2, np.random.default_rng(0), n_samples=200, repeats=3)
    assert [row["method"] for row in rows] == [
        "weak",
        "likelihood",
        "neural",
        "neural, compiled",
    ]
    assert all(row["seconds"] > 0 for row in rows)
    error = {row["method"]: row["hellinger"] for row in rows}
    assert error["likelihood"] < error["neural"]
    notes = speed._small_notes(pd.DataFrame(rows))
    assert len(notes) == 4
    assert "compiled" in notes[1]
    assert "times faster" in notes[0]


def test_growing_rows() -> None:
    pytest.importorskip("torch")
    rows = speed._growing(12, np.random.default_rng(0), n_samples=100)
    methods = [row["method"] for row in rows]
    assert methods == ["weak", "likelihood", "double Cholesky", "neural"]
    assert all(row["seconds"] > 0 for row in rows)
    table = pd.DataFrame(rows)
    assert "faster than double Cholesky" in speed._growth_notes(table)[0]
    assert len(speed._growth_figure(table).data) == 4


def test_large_row() -> None:
    row = speed._large(1500, np.random.default_rng(0))
    assert row["status"] == "CONVERGED"
    assert row["correlation"] > 0.99
    assert "Laplacian solve" in speed._large_note(row)
