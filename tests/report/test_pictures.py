"""What a page holds: pictures that play without a plotting library, and data to save."""

from __future__ import annotations

import csv
import io
import json

import pytest

from thalweg._spreadsheet import unguarded
from thalweg.cli import main
from thalweg.report.svg import apart, table_text


@pytest.mark.parametrize("command", ["geodesic", "interpolate"])
def test_a_path_is_a_page_with_a_slider_and_no_library(command, tmp_path, capsys):
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,c\n")
    for name, rows in (("first", "a,0.8\nb,0.1\nc,0.1\n"), ("second", "a,0.1\nb,0.1\nc,0.8\n")):
        (tmp_path / f"{name}.csv").write_text(f"state,p\n{rows}")
    (tmp_path / "seen.csv").write_text("time,a,b,c\n0,80,10,10\n1,10,10,80\n")
    files = ["first.csv", "second.csv", "--steps", "5"]
    if command == "interpolate":
        files = ["seen.csv", "--times", "0.25,0.5,0.75"]
    given = [str(tmp_path / f) if f.endswith(".csv") else f for f in files]
    page = tmp_path / "path.html"
    with pytest.raises(SystemExit) as ended:
        main([command, *given, "--graph", str(tmp_path / "edges.csv"), "--out", str(page)])
    assert not ended.value.code
    text = page.read_text(encoding="utf-8")
    assert len(text) < 100_000
    assert 'class="play"' in text
    frames = text.partition('<script type="application/json">')[2].partition("</script>")[0]
    assert json.loads(frames)["labels"] == [f"time {t}" for t in ("0", "0.25", "0.5", "0.75", "1")]


def test_saved_data_are_quoted_as_all_other_tables_are():
    names = ["=1+1", "＝1+1", "'=x", "-3", "-x", "liver"]
    rows = list(csv.reader(io.StringIO(table_text(["state"], [[name] for name in names]))))[1:]
    assert [row[0][0] for row in rows] == ["'", "'", "'", "-", "'", "l"]
    assert [unguarded(row[0]) for row in rows] == names


def test_labels_move_apart_and_only_where_they_are_in_the_way():
    assert apart([10.0, 11.0, 80.0, 99.0], 13.0, 100.0) == [10.0, 23.0, 80.0, 99.0]
    assert apart([95.0, 97.0, 99.0], 13.0, 100.0) == [74.0, 87.0, 100.0]
