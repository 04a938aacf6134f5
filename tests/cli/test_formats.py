"""Every kind of file that the command line reads gives the same answer; every command has JSON."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import warnings

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from thalweg.cli import main

PLACES = ["hill", "slope", "välley", "pond"]
COUNTS = np.array([[560, 160, 40, 40], [320, 240, 160, 80], [160, 240, 280, 120]])


@pytest.fixture
def data(tmp_path):
    frame = pd.DataFrame(
        [(d, s, COUNTS[d, k]) for d in range(3) for k, s in enumerate(PLACES)],
        columns=["day", "place", "n"],
    )
    edges = pd.DataFrame({"source": PLACES[:-1], "target": PLACES[1:], "weight": [1.0, 2.0, 1.0]})
    frame.to_csv(tmp_path / "seen.csv", index=False)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    return tmp_path, frame, edges


def _json(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), "--json"])
    out = capsys.readouterr()
    assert not ended.value.code, out.err
    return json.loads(out.out)


def _check(capsys, snapshots, graph):
    facts = _json(capsys, "check", snapshots, "--graph", graph)
    return {key: facts[key] for key in ("states", "edges", "times", "individuals")}


EXPECTED = {"states": 4, "edges": 3, "times": 3, "individuals": 2400.0}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_encodings_and_separators(capsys, data, encoding, separator):
    folder, frame, edges = data
    frame.to_csv(folder / "s.csv", index=False, encoding=encoding, sep=separator)
    edges.to_csv(folder / "e.csv", index=False, encoding=encoding, sep=separator)
    assert _check(capsys, folder / "s.csv", folder / "e.csv") == EXPECTED


def test_every_kind_of_table(capsys, data):
    folder, frame, _ = data
    frame.to_csv(folder / "s.tsv", index=False, sep="\t")
    frame.to_parquet(folder / "s.parquet")
    with gzip.open(folder / "s.csv.gz", "wt", encoding="utf-8") as file:
        frame.to_csv(file, index=False)
    wide = frame.pivot(index="day", columns="place", values="n").reset_index()
    wide.to_csv(folder / "wide.csv", index=False)
    single = frame.loc[frame.index.repeat(frame["n"]), ["day", "place"]]
    single.to_csv(folder / "single.csv", index=False)
    dates = frame.assign(day=[f"2024-03-{d + 1:02d}" for d in frame["day"]])
    dates.to_csv(folder / "dates.csv", index=False)
    for name in ("s.tsv", "s.parquet", "s.csv.gz", "wide.csv", "single.csv", "dates.csv"):
        assert _check(capsys, folder / name, folder / "edges.csv") == EXPECTED, name
    facts = _json(capsys, "check", folder / "dates.csv", "--graph", folder / "edges.csv")
    assert facts["first_time"] == "2024-03-01"


def test_every_kind_of_graph(capsys, data):
    folder, frame, edges = data
    graph = nx.from_pandas_edgelist(edges, edge_attr="weight")
    nx.write_graphml(graph, folder / "g.graphml")
    assert _check(capsys, folder / "seen.csv", folder / "g.graphml") == EXPECTED
    weights = np.diag([1.0, 2.0, 1.0], 1)
    sparse.save_npz(folder / "g.npz", sparse.csr_array(weights + weights.T))
    numbered = frame.assign(place=[PLACES.index(s) for s in frame["place"]])
    numbered.to_csv(folder / "numbered.csv", index=False)
    assert _check(capsys, folder / "numbered.csv", folder / "g.npz") == EXPECTED


def test_polars_frames(data):
    polars = pytest.importorskip("polars")
    from thalweg.snapshots import Snapshots

    _, frame, _ = data
    seen = Snapshots.from_frame(
        polars.from_pandas(frame), time="day", state="place", count="n", states=PLACES
    )
    np.testing.assert_array_equal(seen.counts, COUNTS)


def test_every_command_has_json(capsys, data):
    folder, _, _ = data
    seen, graph, out = folder / "seen.csv", folder / "edges.csv", folder / "out"
    fitted = _json(capsys, "fit", seen, "--graph", graph, "--out", out)
    assert fitted["status"] == "CONVERGED"
    model = out / "model.thalweg"
    rows = _json(capsys, "forecast", model, "--times", "2,4")["forecast"]
    assert all(0 <= r["lower"] <= r["probability"] <= r["upper"] <= 1 for r in rows)
    assert sum(r["probability"] for r in rows) == pytest.approx(2)
    assert _json(capsys, "report", model, "--out", folder / "r.html")["findings"]
    drawn = _json(capsys, "simulate", model, "--times", "1,2", "--individuals", 50)["snapshots"]
    assert sum(r["count"] for r in drawn) == 100
    for k in (0, 2):
        pd.DataFrame({"state": PLACES, "p": COUNTS[k]}).to_csv(folder / f"{k}.csv", index=False)
    ends = (folder / "0.csv", folder / "2.csv", "--graph", graph)
    distance = _json(capsys, "distance", *ends)["distance"]
    path = _json(capsys, "geodesic", *ends, "--steps", 3)
    assert path["distance"] == pytest.approx(distance)
    assert len(path["geodesic"]) == 12
    assert _json(capsys, "demo", "--list")["valleys"]
    assert len(_json(capsys, "bench", "w2", "--quick")["table"]) > 1


@pytest.mark.parametrize("method", ["flow", "geodesic", None])
def test_interpolation_meets_the_snapshots_and_stays_between(capsys, data, method):
    folder, _, _ = data
    asked = [] if method is None else ["--method", method]
    seen, graph = folder / "seen.csv", folder / "edges.csv"
    answer = _json(capsys, "interpolate", seen, "--graph", graph, "--times", "0,0.5,1,2", *asked)
    assert answer["method"] == (method or "flow")
    p = np.array([r["probability"] for r in answer["interpolation"]]).reshape(4, 4)
    shares = COUNTS / COUNTS.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(p[[0, 2, 3]], shares, atol=2e-3)
    # Half-way the hill is lower than before and higher than after, and nothing is lost.
    assert shares[1, 0] < p[1, 0] < shares[0, 0]
    np.testing.assert_allclose(p.sum(axis=1), 1)


def test_interpolation_to_files_and_its_mistakes(capsys, data):
    folder, _, _ = data
    base = ("interpolate", folder / "seen.csv", "--graph", folder / "edges.csv")
    for name in ("i.csv", "i.html"):
        answer = _json(capsys, *base, "--times", "0.5,1.5", "--method", "geodesic", "--out",
                       folder / name)  # fmt: skip
        assert answer["files"] == [str(folder / name)]
    assert len(pd.read_csv(folder / "i.csv")) == 8
    for times, method, sentence in (
        ("5,6", "flow", "lies outside the snapshots (0 to 2)"),
        ("1,0.5", "flow", "rising numbers"),
        ("1", "magic", "choose flow or geodesic"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in (*base, "--times", times, "--method", method)])
        assert ended.value.code == 2
        assert sentence in capsys.readouterr().err


def test_cells_through_the_command_line(capsys, tmp_path):
    anndata = pytest.importorskip("anndata")
    scanpy = pytest.importorskip("scanpy")
    rng = np.random.default_rng(0)
    days = np.repeat([0, 1, 2], 80)
    points = rng.normal(size=(240, 2)) * 0.5 + np.column_stack([days, 0 * days])
    adata = anndata.AnnData(points.astype(np.float32))
    adata.obs["day"] = [f"day {d}" for d in days]
    adata.obs["type"] = pd.Categorical(np.floor(points[:, 0]).clip(-1, 2).astype(int).astype(str))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scanpy.pp.neighbors(adata, n_neighbors=10, use_rep="X", method="gauss")
        adata.write_h5ad(tmp_path / "cells.h5ad")
    answer = _json(capsys, "fit", tmp_path / "cells.h5ad", "--time-key", "day", "--state-key",
                   "type", "--out", tmp_path / "out")  # fmt: skip
    states = pd.read_csv(tmp_path / "out" / "states.csv").sort_values("state")
    assert answer["status"] == "CONVERGED"
    # Cells move right: the landscape falls that way.
    assert states["potential"].iloc[0] > states["potential"].iloc[-1]


def test_groups_of_cells_mean_nothing_in_another_file(capsys, tmp_path):
    anndata = pytest.importorskip("anndata")
    scanpy = pytest.importorskip("scanpy")
    days = np.repeat([0, 1, 2], 110)
    for seed, name in enumerate(("one.h5ad", "two.h5ad")):
        points = np.random.default_rng(seed).normal(size=(330, 2)) + days[:, None]
        adata = anndata.AnnData(points.astype(np.float32))
        adata.obs["day"] = days
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scanpy.pp.neighbors(adata, n_neighbors=10, use_rep="X", method="gauss")
            adata.write_h5ad(tmp_path / name)
    one, two, model = tmp_path / "one.h5ad", tmp_path / "two.h5ad", tmp_path / "m" / "model.thalweg"
    _json(capsys, "fit", one, "--out", model.parent, "--method", "weak")
    between = ("--model", model, "--times", "0.5")
    assert _json(capsys, "interpolate", one, *between)["interpolation"]
    for command, sentence in (
        (("compare", one, two), "groups of its own cells"),
        (("interpolate", two, *between), "fitted on other states"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in command])
        assert ended.value.code == 2
        assert sentence in capsys.readouterr().err


def test_demo_names(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["demo", "cell"])
    assert ended.value.code == 2
    assert "did you mean 'cells'" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell):
    if shutil.which("bash") is None:
        pytest.skip("needs a shell")
    code = (
        "import os, sys; os.environ['_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION'] = '1'; "
        f"sys.argv = ['thalweg', '--show-completion', '{shell}']; "
        "from thalweg.cli import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0
    assert "_THALWEG_COMPLETE" in ended.stdout


def test_completion_knows_the_commands():
    # What the shell asks for when the user types `thalweg int` and presses Tab.
    code = (
        "import os; os.environ.update(_THALWEG_COMPLETE='complete_bash', COMP_WORDS='thalweg int',"
        "COMP_CWORD='1'); import sys; sys.argv = ['thalweg']; from thalweg.cli import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "interpolate" in ended.stdout


def test_a_million_lines(capsys, tmp_path):
    rng = np.random.default_rng(0)
    n = 1_000_000
    pd.DataFrame({"time": rng.integers(0, 5, n), "state": rng.integers(0, 50, n)}).to_csv(
        tmp_path / "s.csv", index=False
    )
    pd.DataFrame({"source": range(49), "target": range(1, 50)}).to_csv(
        tmp_path / "e.csv", index=False
    )
    facts = _json(capsys, "check", tmp_path / "s.csv", "--graph", tmp_path / "e.csv")
    assert facts["individuals"] == n
    assert facts["times"] == 5
