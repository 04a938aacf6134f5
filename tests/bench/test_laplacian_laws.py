"""The benchmark's rows: they measure what they say."""

from __future__ import annotations

import pandas as pd

from thalweg.laplacian import Method
from thalweg_bench.laplacian import LAWS, Case, _measure, _notes


def test_rows_and_notes() -> None:
    methods: tuple[Method, ...] = ("approxchol", "superlu")
    rows = [
        _measure(Case(part, "torus", 300, law, methods), seed=1)
        for part in ("flat", "growth")
        for law in LAWS
    ]
    table = pd.DataFrame(rows)
    assert (table["approxchol error"] < 1e-8).all()
    assert (table["superlu error"] < 1e-8).all()
    assert (table["approxchol status"] == "CONVERGED").all()
    assert table["bytes per edge"].max() < 100
    notes = list(_notes(table))
    assert any("largest energy error" in note for note in notes)
    assert not any("CHOLMOD" in note for note in notes)
