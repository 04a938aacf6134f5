"""Tables of snapshots: shapes, detected columns, dates, one sentence for each kind of damage."""

from __future__ import annotations

import gzip
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.adapters.pieces import as_numbers
from thalweg.adapters.tables import read_snapshots
from thalweg.errors import ThalwegError
from thalweg.snapshots.times import TimeScale

LONG = "day,place,n\n0,a,3\n0,b,1\n2,a,2\n2,b,2\n2,b,1\n"
WIDE = "t,a,b\n0,3,1\n2,2,3\n"


def _write(folder, text, name="data.csv", encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("text", [LONG, WIDE, LONG.replace(",", ";"), LONG.replace("\n", "\r\n")])
def test_long_and_wide_tables_say_the_same(tmp_path, text):
    table = read_snapshots(_write(tmp_path, text))
    assert table.states == ("a", "b")
    np.testing.assert_allclose(table.snapshots.times, [0, 2])
    np.testing.assert_allclose(table.snapshots.counts, [[3, 1], [2, 3]])


def test_the_guesses_are_said(tmp_path):
    table = read_snapshots(_write(tmp_path, LONG))
    assert table.messages == (
        "time is column 'day'",
        "state is column 'place'",
        "count is column 'n'",
        "1 count repeats the time and state of another; they are added",
    )
    given = read_snapshots(_write(tmp_path, LONG), time="day", state="place", count="n")
    assert given.messages == table.messages[-1:]


def test_the_graph_says_which_column_holds_states(tmp_path):
    path = _write(tmp_path, "year,usps,kind,n\n0,NY,a,3\n1,CA,b,2\n")
    table = read_snapshots(path, states=("CA", "NY"))
    assert "state is column 'usps'" in table.messages
    np.testing.assert_allclose(table.snapshots.counts, [[0, 3], [2, 0]])
    with pytest.raises(ThalwegError, match="no column that looks like a state"):
        read_snapshots(path, states=("CA", "NY", "a", "b"))  # two columns could be


def test_rows_are_individuals_without_a_count(tmp_path):
    table = read_snapshots(_write(tmp_path, "time,state\n0,x\n0,x\n1,y\n"))
    np.testing.assert_allclose(table.snapshots.counts, [[2, 0], [0, 1]])
    assert "each row is one individual" in table.messages


def test_a_column_of_numbers_is_the_count_only_where_its_name_says_so(tmp_path):
    table = read_snapshots(_write(tmp_path, "day,town,people\n0,x,3\n0,y,1\n1,x,2\n"))
    np.testing.assert_allclose(table.snapshots.counts, [[3, 1], [2, 0]])
    assert "count is column 'people'" in table.messages
    with pytest.raises(ThalwegError, match="--count height"):
        read_snapshots(_write(tmp_path, "day,town,height\n0,x,3\n0,y,1\n1,x,2\n"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings(tmp_path, encoding):
    text = LONG.replace("a,", "Zürich,")
    assert read_snapshots(_write(tmp_path, text, encoding=encoding)).states == ("Zürich", "b")


def test_packed_tab_separated_and_parquet(tmp_path):
    packed = tmp_path / "data.csv.gz"
    packed.write_bytes(gzip.compress(LONG.encode()))
    pd.read_csv(_write(tmp_path, LONG)).to_parquet(tmp_path / "data.parquet")
    for path in (
        packed,
        tmp_path / "data.parquet",
        _write(tmp_path, LONG.replace(",", "\t"), "d.tsv"),
    ):
        np.testing.assert_allclose(read_snapshots(path).snapshots.counts, [[3, 1], [2, 3]])


def test_dates_become_days(tmp_path):
    table = read_snapshots(
        _write(tmp_path, "date,state\n2024-03-01,a\n2024-02-28,b\n2024-03-01,b\n")
    )
    np.testing.assert_allclose(table.snapshots.times, [0, 2])
    assert table.snapshots.scale == TimeScale("days", "2024-02-28")


def test_the_kernels_order_of_states(tmp_path):
    table = read_snapshots(_write(tmp_path, WIDE), states=["b", "c", "a"])
    np.testing.assert_allclose(table.snapshots.counts, [[1, 0, 3], [3, 0, 2]])
    numbered = read_snapshots(_write(tmp_path, "time,state\n0,1.0\n1,0\n"), states=[0, 1])
    np.testing.assert_allclose(numbered.snapshots.counts, [[0, 1], [1, 0]])


def test_many_pieces_are_added_up(tmp_path, monkeypatch):
    monkeypatch.setattr("thalweg.adapters.pieces._CHUNK", 7)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"time": rng.integers(0, 4, 200), "state": rng.integers(0, 5, 200)})
    frame.to_csv(tmp_path / "x.csv", index=False)
    table = read_snapshots(tmp_path / "x.csv", states=range(5))
    expected = np.zeros((4, 5))
    np.add.at(expected, (frame["time"], frame["state"]), 1)
    np.testing.assert_allclose(table.snapshots.counts, expected)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("time,state\n", "no rows"),
        ("time,state\n0,a\nsoon,a\n", "time is 'soon' in row 3"),
        ("time,state\n0,a\ninf,a\n", "time is 'inf' in row 3"),
        ("time,state,count\n0,a,few\n1,a,2\n", "count is 'few' in row 2"),
        ("time,state,count\n0,a,-2\n1,a,2\n", "-2"),
        ("time,state,count\n0,a,inf\n1,a,2\n", "inf"),
        ("time,state,count\n0,,3\n1,a,2\n", "state is missing in row 2"),
        ("colour,taste\nred,sweet\n", "no column that looks like a time; name it with --time"),
        ("time,shape,colour\n0,a,b\n1,a,b\n", "no column that looks like a state"),
        ("time,day,state\n0,1,a\n", None),
        ("day,hour,state\n0,1,a\n", "several columns that could be the time: day, hour"),
        ("time,a,b\n0,1,2\n1,0,0\n", "no sample|empty|no count|no individual"),
        ("time,a,b\n0,1,x\n1,0,3\n", "is not a number in row 2|no column that looks like a state"),
        ('time,state\n0,"a\n1,b\n', "not a readable table"),
        (b"\x00\x01\x02\x03", "binary"),
        ("time,state\n0,zz\n1,zz\n", "zz"),
    ],
)
def test_damage_gets_one_sentence(tmp_path, text, sentence):
    path = _write(tmp_path, text)
    if sentence is None:
        read_snapshots(path)
        return
    with pytest.raises(ThalwegError, match=sentence) as caught:
        read_snapshots(path, states=["a", "b"] if b"zz" in path.read_bytes() else None)
    assert "\n" not in str(caught.value)


def test_missing_files_folders_and_kinds(tmp_path):
    with pytest.raises(ThalwegError, match="there is no file"):
        read_snapshots(tmp_path / "nowhere.csv")
    with pytest.raises(ThalwegError, match="folder"):
        read_snapshots(tmp_path)
    with pytest.raises(ThalwegError, match=r"\.xlsx"):
        read_snapshots(_write(tmp_path, "x", "a.xlsx"))
    with pytest.raises(ThalwegError, match="gzip"):
        read_snapshots(_write(tmp_path, "not packed", "a.csv.gz"))
    with pytest.raises(ThalwegError, match="Parquet"):
        read_snapshots(_write(tmp_path, "not parquet", "a.parquet"))
    with pytest.raises(ThalwegError, match="no column 'dya' for the time; did you mean 'day'"):
        read_snapshots(_write(tmp_path, LONG), time="dya")


@given(st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_no_bytes_cause_a_traceback(tmp_path_factory, data):
    path = _write(tmp_path_factory.mktemp("fuzz"), data)
    try:
        read_snapshots(path)
    except ThalwegError as error:
        assert str(error)


cells = st.sampled_from(["0", "1", "2.5", "a", "b", "", "nan", "inf", "-1", "2024-01-01", '"', "é"])


@given(st.lists(st.lists(cells, min_size=1, max_size=4).map(",".join), max_size=8))
def test_no_table_causes_a_traceback(tmp_path_factory, rows):
    path = _write(tmp_path_factory.mktemp("fuzz"), "\n".join(["time,state,count", *rows]))
    try:
        read_snapshots(path)
    except ThalwegError as error:
        assert str(error)


@pytest.mark.parametrize("other", ["2", "few"])
def test_an_endless_exponent_is_rejected_and_crashes_nothing(tmp_path, other):
    path = _write(tmp_path, f"time,state,count\n0,a,1e999999999999999\n1,a,{other}\n")
    code = f"from thalweg.adapters.tables import read_snapshots; read_snapshots({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "count is inf in row 2" in done.stderr or "count is 'few' in row 3" in done.stderr


def test_numbers_in_text_are_read_as_python_reads_them():
    column = pd.Series(["1.5", " 2 ", "1_000", "x", None, "-3e2", "0.1"], dtype=object)
    expected = [1.5, 2.0, np.nan, np.nan, np.nan, -300.0, 0.1]
    np.testing.assert_array_equal(as_numbers(column), expected)
    assert np.isnan(as_numbers(pd.Series(pd.to_datetime(["2024-01-01"])))).all()


def test_repeated_counts_are_reported_beside_individuals_left_out(tmp_path):
    text = "time,state,count\n0,b,5\n0,far,3\n1,a,1\n1,a,2\n1,b,4\n"
    table = read_snapshots(_write(tmp_path, text), states=["a", "b"], outside=["far"])
    np.testing.assert_array_equal(table.snapshots.counts, [[0, 5], [3, 4]])
    said = " ".join(table.messages)
    assert "1 count repeats the time and state of another" in said
    assert "3 individuals outside the largest component are left out" in said
    with pytest.raises(ThalwegError, match=r"snapshot at time 0 .* is empty"):
        lost = _write(tmp_path, "time,state,count\n0,far,5\n1,a,3\n")
        read_snapshots(lost, states=["a", "b"], outside=["far"])
