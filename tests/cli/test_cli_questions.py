"""`thalweg fates`, `compare` and `steer` on files: answers, and one sentence for each mistake."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
import pytest

from thalweg import FreeEnergy, FreeEnergyRegressor, MarkovKernel, Snapshots, gradient_flow
from thalweg.cli import main

NAMES = ["hill", "slope", "valley", "pond", "ridge"]
RING = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
TIMES = [0.0, 1.0, 2.0, 4.0]


def _run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    out = capsys.readouterr()
    return ended.value.code or 0, out.out, out.err


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    w = np.zeros((5, 5))
    for x, y in RING:
        w[x, y] = w[y, x] = 1.0
    kernel = MarkovKernel.from_weights(w, names=NAMES)
    rng = np.random.default_rng(0)
    for name, valley in (("control", 0.0), ("treated", 0.6)):
        energy = FreeEnergy([1.0, 0.5, valley, 0.3, 0.9], 0.4)
        path = gradient_flow(kernel, energy, [0.5, 0.2, 0.1, 0.1, 0.1], TIMES).probabilities
        counts = [rng.multinomial(3000, p / p.sum()) for p in path]
        seen = Snapshots.from_counts(TIMES, counts, names=NAMES)
        rows = ["day,place,n"]
        for t, row in zip(TIMES, counts, strict=True):
            rows += [f"{t},{place},{n}" for place, n in zip(NAMES, row, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(rows))
        if name == "control":
            FreeEnergyRegressor().fit(kernel, seen).save(folder / "model.thalweg")
    edges = ["source,target"] + [f"{NAMES[x]},{NAMES[y]}" for x, y in RING]
    (folder / "edges.csv").write_text("\n".join(edges))
    return folder


def test_fates_of_named_sets_and_of_found_ones(capsys, files):
    code, text, _ = _run(
        capsys, "fates", files / "model.thalweg", "--target", "top=hill,ridge", "--target", "valley"
    )
    assert code == 0
    table = pd.read_csv(io.StringIO(text))
    assert table.groupby("state")["probability"].sum().to_numpy() == pytest.approx(np.ones(5))
    slope = table[(table["state"] == "slope") & (table["fate"] == "valley")].iloc[0]
    assert slope["lower"] < slope["probability"] < slope["upper"]
    code, text, said = _run(capsys, "fates", files / "model.thalweg")
    assert code == 0
    assert "hold an individual longest" in said
    code, text, _ = _run(capsys, "fates", files / "model.thalweg", "--when", "--json")
    answer = json.loads(text)
    assert answer["status"] == "CONVERGED"
    assert {"state", "target", "mean_time", "stderr"} <= set(answer["passage_times"][0])


def test_compare_names_the_treated_state(capsys, files):
    page = files / "difference.html"
    code, text, _ = _run(
        capsys, "compare", files / "control.csv", files / "treated.csv", "--graph",
        files / "edges.csv", "--out", page, "--json",
    )  # fmt: skip
    assert code == 0
    answer = json.loads(text)
    assert answer["same"]["p_value"] < 0.01
    assert answer["different_states"] == ["valley"]
    html = page.read_text()
    assert "Where they differ" in html
    assert "http" not in html.replace("http://www.w3.org", "")


def test_compare_says_which_way_a_difference_goes(capsys, files):
    code, text, _ = _run(
        capsys, "compare", files / "control.csv", files / "treated.csv", "--graph",
        files / "edges.csv",
    )  # fmt: skip
    assert code == 0
    assert "control.csv minus that behind treated.csv" in text
    assert "valley: -" in text  # treated individuals find the valley higher


def test_steer_writes_a_plan_that_arrives(capsys, files):
    out = files / "plan.csv"
    code, text, _ = _run(
        capsys, "steer", files / "model.thalweg", "--horizon", 2, "--raise", "pond=0.5", "--out",
        out, "--json",
    )  # fmt: skip
    assert code == 0
    facts = json.loads(text)
    assert facts["missed"] < 1e-6
    assert facts["cost"] == pytest.approx(facts["lower_bound"], rel=1e-4)
    plan = pd.read_csv(out)
    end = plan[plan["time"] == plan["time"].max()].set_index("state")["probability"]
    assert end["pond"] == pytest.approx(0.5, abs=1e-6)
    code, text, _ = _run(
        capsys, "steer", files / "model.thalweg", "--horizon", 2, "--target",
        files / "control.csv", "--from", files / "treated.csv", "--json",
    )  # fmt: skip
    assert code == 0
    code, text, _ = _run(
        capsys, "steer", files / "model.thalweg", "--horizon", 2, "--raise", "pond=0.5", "--few", 1,
    )  # fmt: skip
    assert code == 0
    assert "pond" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fates", "M", "--target", "hill"], "fates need at least two"),
        (["fates", "M", "--target", "a=", "--target", "hill"], "is empty"),
        (["fates", "M", "--target", "a=nowhere", "--target", "hill"], "not in the graph"),
        (
            ["fates", "M", "--target", "a=hill,slope,valley", "--target", "b=pond,ridge"],
            "cover all",
        ),
        (["fates", "M", "--target", "a=hill", "--target", "b=hill"], "keep the sets disjoint"),
        (["steer", "M", "--horizon", "1"], "either --target FILE"),
        (["steer", "M", "--horizon", "1", "--raise", "pond"], "like a,b=0.6"),
        (["steer", "M", "--horizon", "1", "--raise", "pond=1.5"], "between 0 and 1"),
        (["steer", "M", "--horizon", "-1", "--raise", "pond=0.5"], "horizon"),
        (["steer", "M", "--horizon", "0.01", "--raise", "pond=0.99", "--few", "1"], "allow more"),
        (["compare", "C", "C", "--graph", "E", "--out", "x.txt"], ".html"),
    ],
)
def test_mistakes_get_one_sentence(capsys, files, arguments, sentence):
    names = {"M": "model.thalweg", "C": "control.csv", "E": "edges.csv"}
    code, _, said = _run(capsys, *(files / names[a] if a in names else a for a in arguments))
    assert code == 2
    assert sentence in " ".join(said.split())
    assert "Traceback" not in said


def test_models_with_births_forecast_from_their_file_and_say_what_is_left_out(
    capsys, files, tmp_path
):
    out, later = tmp_path / "out", tmp_path / "later.csv"
    graph = ("--graph", files / "edges.csv")
    _run(capsys, "fit", files / "control.csv", *graph, "--growth", "shares", "--out", out)
    model = out / "model.thalweg"
    code, _, said = _run(capsys, "forecast", model, "--times", "4,6", "--out", later)
    assert (code, "no bands" in said) == (0, True)
    written = pd.read_csv(later)
    same = pd.read_csv(out / "forecast.csv").query("time == 4")
    assert written["probability"][:5].to_numpy() == pytest.approx(
        same["probability"].to_numpy(), abs=1e-3
    )
    assert _run(capsys, "report", model, "--out", tmp_path / "again.html")[0] == 0
    steer = ["steer", model, "--horizon", "1", "--raise", "pond=0.3"]
    for question in (["fates", model, "--target", "hill", "--target", "valley"], steer):
        code, _, said = _run(capsys, *question)
        assert (code, "births and deaths, which are left out" in said) == (0, True)
    answer = json.loads(_run(capsys, "forecast", model, "--times", "4,6", "--json")[1])
    assert any("no bands" in line for line in answer["cautions"])
    assert "individuals only move" in (out / "report.html").read_text()
