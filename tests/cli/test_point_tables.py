"""Clouds of points through the command line and AnnData."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from thalweg.adapters.points import embedded_cells, read_points
from thalweg.cli import main
from thalweg.errors import InputError


def run(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0


def table(n: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    parts = []
    for day in (0, 1, 2):
        x = rng.normal([2.0 * day, 0.0], 0.4, size=(n, 2))
        parts.append(pd.DataFrame({"day": day, "x": x[:, 0], "y": x[:, 1], "name": "cell"}))
    return pd.concat(parts)


def test_a_table_of_points_is_interpolated(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "cells.csv"
    table().to_csv(path, index=False)
    run(["interpolate", str(path), "--times", "0.5", "--points", "--method", "displacement",
          "--json"])  # fmt: skip
    answer = json.loads(capsys.readouterr().out)
    assert answer["interpolate"][0]["method"] == "displacement"
    rows = pd.DataFrame(answer["points"])
    assert set(rows) == {"time", "weight", "x", "y"}
    assert np.isclose(rows["weight"].sum(), 1)
    assert abs((rows["weight"] * rows["x"]).sum() - 1.0) < 0.2
    out = tmp_path / "ahead.csv"
    run(["forecast", str(path), "--times", "3", "--points", "--method", "persistence", "--out",
          str(out)])  # fmt: skip
    assert len(pd.read_csv(out)) == 40


def test_cells_of_an_h5ad_are_interpolated_and_forecast(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    anndata = pytest.importorskip("anndata")
    frame = table()
    cells = anndata.AnnData(np.zeros((len(frame), 1)))
    cells.obs["day"] = frame["day"].to_numpy()
    cells.obsm["X_pca"] = frame[["x", "y"]].to_numpy()
    cells.write_h5ad(tmp_path / "cells.h5ad")
    for task, time, mean in (("interpolate", "0.5", 1.0), ("forecast", "3", 6.0)):
        run([task, str(tmp_path / "cells.h5ad"), "--times", time, "--points", "--method",
             "displacement", "--json"])  # fmt: skip
        answer = json.loads(capsys.readouterr().out)
        rows = pd.DataFrame(answer["points"])
        assert set(rows) == {"time", "weight", "X_pca_1", "X_pca_2"}
        assert abs((rows["weight"] * rows["X_pca_1"]).sum() - mean) < 0.4


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    table().assign(x="left").to_csv(path, index=False)
    with pytest.raises(InputError, match="not a number"):
        read_points(path, coordinates="x,y")
    with pytest.raises(InputError, match="no column 'z'"):
        read_points(path, coordinates="z")
    table()[["day", "name"]].to_csv(path, index=False)
    with pytest.raises(InputError, match="no column of numbers"):
        read_points(path)
    table().drop(columns="day").to_csv(path, index=False)
    with pytest.raises(InputError, match="looks like a time"):
        read_points(path)


def test_cells_get_a_velocity_and_a_cloud() -> None:
    anndata = pytest.importorskip("anndata")
    from thalweg import tl

    frame = table(60)
    cells = anndata.AnnData(np.zeros((len(frame), 1)))
    cells.obs["day"] = frame["day"].to_numpy()
    cells.obsm["X_pca"] = frame[["x", "y"]].to_numpy()
    model = tl.landscape(cells, time_key="day", n_centers=0, steps=1, beta=0.0)
    assert cells.obsm["velocity_pca"].shape == (180, 2)
    assert abs(cells.obsm["velocity_pca"][:120, 0].mean() - 2.0) < 0.5
    assert cells.uns["thalweg_landscape"]["warning"] == model.warning_
    before = cells.obsm["velocity_pca"].copy()
    tl.velocity(cells, model, basis="pca")
    assert np.allclose(cells.obsm["velocity_pca"], before)
    guess = tl.interpolate(cells, time_key="day", time=1.5, method="displacement")
    assert cells.uns["thalweg_interpolation"]["method"] == guess.method
    assert abs(guess.points.mean[0] - 3.0) < 0.2
    with pytest.raises(InputError, match="obsm has no 'X_umap'"):
        embedded_cells(cells, "day", "X_umap")


def test_a_missing_coordinate_is_named_by_its_row(tmp_path, capsys):
    (tmp_path / "p.csv").write_text("time,x,y\n0,1,2\n0,3,\n1,2,2\n1,1,0\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    (tmp_path / "seen.csv").write_text("time,a,b\n0,9,1\n1,5,5\n2,3,7\n")
    (tmp_path / "place.csv").write_text("state,x,y\nc,,\nb,1,inf\na,0,0\n")
    points = ["forecast", "p.csv", "--points", "--times", "2"]
    graph = ["check", "seen.csv", "--graph", "edges.csv", "--positions", "place.csv", "--no-cost"]
    for command in (points, graph):
        with pytest.raises(SystemExit) as ended:
            main([str(tmp_path / a) if a.endswith(".csv") else a for a in command])
        assert ended.value.code == 2
        assert "missing or infinite in 1 of" in (said := " ".join(capsys.readouterr().err.split()))
        assert "row 3 for one" in said
