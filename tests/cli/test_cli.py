"""The command line, driven as a user drives it: results complete, mistakes in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg import __version__
from thalweg.cli import main

EDGES = "source,target\nhill,slope\nslope,valley\nvalley,pond\n"


def _run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    out = capsys.readouterr()
    return ended.value.code or 0, out.out, out.err


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    shares = [[0.7, 0.2, 0.05, 0.05], [0.4, 0.3, 0.2, 0.1], [0.2, 0.3, 0.35, 0.15]]
    rows = ["day,place,n"]
    for day, p in enumerate(shares):
        for place, n in zip(
            ("hill", "slope", "valley", "pond"), rng.multinomial(800, p), strict=True
        ):
            rows.append(f"{day},{place},{n}")
    (tmp_path / "seen.csv").write_text("\n".join(rows))
    (tmp_path / "edges.csv").write_text(EDGES)
    return tmp_path


def test_version_and_help(capsys):
    assert _run(capsys, "--version")[:2] == (0, f"thalweg {__version__}\n")
    code, text, _ = _run(capsys, "--help")
    assert code == 0
    assert "landscape" in text


def test_fit_writes_everything_and_forecast_reads_it(capsys, files):
    out = files / "out"
    code, text, said = _run(
        capsys, "fit", files / "seen.csv", "--graph", files / "edges.csv", "--out", out
    )
    assert code == 0
    assert "time is column 'day'" in said
    assert "report.html" in text
    # The verdict of the goodness-of-fit test is printed, with its p-value.
    assert "(p = " in text
    assert {p.name for p in out.iterdir()} == {
        "model.thalweg",
        "states.csv",
        "forecast.csv",
        "report.html",
    }
    states = pd.read_csv(out / "states.csv")
    assert list(states["state"]) == ["hill", "slope", "valley", "pond"]
    assert states["potential"][0] > states["potential"][2]
    assert states["equilibrium"].sum() == pytest.approx(1)
    code, text, _ = _run(capsys, "forecast", out / "model.thalweg", "--times", "2,4")
    assert code == 0
    assert text.count("\n") == 1 + 2 * 4
    code, text, _ = _run(
        capsys, "forecast", out / "model.thalweg", "--times", "0:1:2", "--from", files / "seen.csv",
        "--json",
    )  # fmt: skip
    assert code == 0
    rows = json.loads(text)["forecast"]
    assert sum(r["probability"] for r in rows) == pytest.approx(2)
    assert _run(capsys, "report", out / "model.thalweg", "--out", files / "again.html")[0] == 0
    assert "<svg" in (files / "again.html").read_text(encoding="utf-8")


def test_check_says_what_is_odd(capsys, files):
    code, text, _ = _run(
        capsys, "check", files / "seen.csv", "--graph", files / "edges.csv", "--json"
    )
    facts = json.loads(text)
    assert code == 0
    assert facts["times"] == 3
    assert facts["n_states_never_seen"] == 0
    assert "of computing" in facts["cost"]
    (files / "edges.csv").write_text(EDGES + "pond,sea\n")
    code, text, _ = _run(
        capsys, "check", files / "seen.csv", "--graph", files / "edges.csv", "--no-cost"
    )
    assert "1 of 5 states were never seen" in text.replace("\n", " ")
    assert code == 0
    assert "cost:" not in text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: (f / "edges.csv").unlink(), "there is no file"),
        (lambda f: (f / "edges.csv").write_text("source,target\nhill,slope\n"), "'valley'"),
        (
            lambda f: (f / "edges.csv").write_text(EDGES + "x,y\n"),
            "2 components of sizes 4, 2 (state 'x'",
        ),
        (lambda f: (f / "seen.csv").write_text("day,place\n0,hill\n"), "one snapshot"),
        (lambda f: (f / "seen.csv").write_text(""), "empty"),
        (lambda f: (f / "seen.csv").write_text("day,place,n\n0,hill,\n1,hill,2\n"), "in row 2"),
        (
            lambda f: (f / "seen.csv").write_text("day,hill,pond\n0,1,1\n1,2,-3\n"),
            "-3 in row 3",
        ),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(capsys, files, change, sentence):
    change(files)
    code, _, said = _run(
        capsys, "fit", files / "seen.csv", "--graph", files / "edges.csv", "--out", files / "out"
    )
    assert code == 2
    last = said.strip().splitlines()[-1]
    assert last.startswith("thalweg: ")
    assert sentence in last
    assert "Traceback" not in said
    assert not (files / "out").exists()


@pytest.mark.slow
def test_a_fit_that_the_deviance_rejects_is_not_shown_without_a_word(capsys, files):
    """A population that oscillates follows no landscape, whatever the status."""
    shares = ([4000, 3000, 2000, 1000], [1000, 2000, 3000, 4000])
    rows = [
        f"{day},{place},{n}"
        for day in range(5)
        for place, n in zip(("hill", "slope", "valley", "pond"), shares[day % 2], strict=True)
    ]
    (files / "seen.csv").write_text("\n".join(["day,place,n", *rows]))
    out = files / "out"
    _, text, _ = _run(
        capsys, "fit", files / "seen.csv", "--graph", files / "edges.csv", "--out", out, "--json"
    )
    answer = json.loads(text)
    assert "does not describe these snapshots" in answer["advice"]
    assert any("does not explain" in sentence for sentence in answer["findings"])
    assert "does not describe these snapshots" in (out / "report.html").read_text(encoding="utf-8")


def test_counts_given_twice_are_mentioned(capsys, files):
    first = (files / "seen.csv").read_text().splitlines()
    (files / "seen.csv").write_text("\n".join([*first, first[1]]))
    _, text, _ = _run(
        capsys, "check", files / "seen.csv", "--graph", files / "edges.csv", "--no-cost"
    )
    assert "1 count repeats the time and state of another" in text
    code, _, said = _run(capsys, "check", files / "seen.csv", "--graph", files / "seen.csv")
    assert code == 2
    assert "given as snapshots and as graph" in said


def test_a_landscape_that_a_census_rejects_comes_with_warnings(capsys, files):
    """With 10^8 individuals the p-value is 0.0 and time steps must be finer than usual."""
    shares = [[824, 142, 34], [580, 266, 154], [410, 300, 290], [280, 278, 442]]
    rows = [
        f"{day},{place},{100_000 * n}"
        for day, row in zip((0, 2, 4, 7), shares, strict=True)
        for place, n in zip(("hill", "slope", "valley"), row, strict=True)
    ]
    (files / "seen.csv").write_text("\n".join(["day,place,n", *rows]))
    (files / "edges.csv").write_text("source,target\nhill,slope\nslope,valley\n")
    out = files / "out"
    code, text, _ = _run(
        capsys, "fit", files / "seen.csv", "--graph", files / "edges.csv", "--out", out, "--json"
    )
    answer = json.loads(text)
    assert code == 0
    assert "left-out individuals" in answer["findings"][0]  # remedies were tried without asking
    assert "almost any model is rejected" in answer["findings"][0]
    assert "last snapshot" in answer["findings"][1]
    assert answer["beta_lower"] < answer["beta"] < answer["beta_upper"]
    code, _, said = _run(capsys, "forecast", out / "model.thalweg", "--times", "8")
    assert "does not explain these data" in said


@pytest.mark.parametrize("damage", ["cut", "flip", "text"])
def test_damaged_models_are_refused(capsys, tmp_path, files, damage):
    out = files / "out"
    _run(capsys, "fit", files / "seen.csv", "--graph", files / "edges.csv", "--out", out,
         "--method", "weak")  # fmt: skip
    path = out / "model.thalweg"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[len(content) // 2] ^= 4
    else:
        content = bytearray(b"hello")
    path.write_bytes(bytes(content))
    code, _, said = _run(capsys, "forecast", path, "--times", "1,2")
    assert code == 2
    assert said.startswith("thalweg: ")


def test_an_unwritable_folder(capsys, files):
    (files / "taken").write_text("a file")
    code, _, said = _run(
        capsys, "fit", files / "seen.csv", "--graph", files / "edges.csv", "--out",
        files / "taken" / "out", "--method", "weak",
    )  # fmt: skip
    assert code == 2
    assert "Traceback" not in said


def test_unknown_benchmarks_are_named(capsys):
    code, _, said = _run(capsys, "bench", "laplacain")
    assert code == 2
    assert "did you mean 'laplacian'" in said


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["0", "1", "2", "2024-01-01", "x", "", "1e999", "-3"]),
            st.sampled_from(["hill", "slope", "valley", "pond", "sea", "", "<b>"]),
            st.sampled_from(["1", "5", "0", "-1", "nan", "many", "1e300"]),
        ),
        max_size=8,
    ),
    st.sampled_from(["likelihood", "weak", "magic"]),
)
def test_no_table_makes_fit_fall_over(tmp_path_factory, rows, method):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "e.csv").write_text(EDGES)
    text = "\n".join(["day,place,n", *[",".join(row) for row in rows]])
    (folder / "s.csv").write_text(text)
    arguments = ["fit", str(folder / "s.csv"), "--graph", str(folder / "e.csv")]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--out", str(folder / "out"), "--method", method])
    assert ended.value.code in (0, 2, 3, None)
    if ended.value.code == 2:
        assert not (folder / "out").exists()


def test_the_module_runs_as_the_script_does() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "thalweg", "fit", "nothing.csv"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("thalweg: the graph is missing")
    assert "Traceback" not in ended.stderr
