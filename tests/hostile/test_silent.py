"""No silent guesses: ambiguous input is rejected, and whatever is dropped is reported."""

from __future__ import annotations

import json

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from thalweg import (
    FreeEnergy,
    FreeEnergyRegressor,
    HarmonicMean,
    InputError,
    MarkovKernel,
    Snapshots,
    TransportGeometry,
)
from thalweg.adapters.edges import read_graph
from thalweg.adapters.tables import read_snapshots
from thalweg.cli import main
from thalweg.snapshots.columns import Oddity

PATH = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
EDGES = "source,target\na,b\nb,c\n"


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    try:
        main([str(a) for a in arguments])
        code = 0
    except SystemExit as end:
        code = end.code or 0
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def files(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


# ------------------------------------------------------------------------ times in files


@pytest.mark.parametrize(
    ("column", "times", "unit"),
    [
        (pd.to_datetime(["2024-01-01", "2024-01-04"]), [0, 3], "days since 2024-01-01"),
        (pd.to_timedelta([2, 5], unit="h"), [2, 5], "hours"),
        (pd.Series(["day-2", "day-4"]), [2, 4], "days"),
        (pd.Series(["3h", "6h"], dtype="category"), [3, 6], "hours"),
    ],
)
def test_parquet_and_csv_read_the_same_times(tmp_path, column, times, unit):
    frame = pd.DataFrame({"time": column, "state": ["a", "b"]})
    frame.to_parquet(tmp_path / "s.parquet")
    found = [read_snapshots(tmp_path / "s.parquet")]
    if unit != "hours" or frame["time"].dtype == "category":
        frame.to_csv(tmp_path / "s.csv", index=False)
        found.append(read_snapshots(tmp_path / "s.csv"))
    for table in found:
        np.testing.assert_allclose(table.snapshots.times, times)
        assert str(table.snapshots.scale) == unit
        assert any("times" in text for text in table.messages)


def test_numbers_that_are_dates_are_asked_about(files):
    table = files("s.csv", "time,state\n20240227,a\n20240301,b\n")
    with pytest.raises(InputError, match="20240227 could be dates or numbers"):
        read_snapshots(table)


def test_a_forecast_speaks_in_dates(capsys, files, tmp_path):
    rows = [f"{d},{s},{n}" for d, c in zip(("2024-02-28", "2024-03-01", "2024-03-05"),
            ((80, 15, 5), (50, 30, 20), (40, 35, 25)), strict=True)
            for s, n in zip("abc", c, strict=True)]  # fmt: skip
    data = files("s.csv", "date,place,n\n" + "\n".join(rows))
    graph = files("e.csv", EDGES)
    out = tmp_path / "f"
    assert run(capsys, "fit", data, "--graph", graph, "--method", "weak", "--out", out)[0] == 0
    assert pd.read_csv(out / "forecast.csv")["time"].iloc[0].startswith("2024-02-28")
    model = out / "model.thalweg"
    code, text, _ = run(capsys, "forecast", model, "--times", "2024-03-01,2024-03-20", "--json")
    dated = json.loads(text)["forecast"]
    assert (code, dated[-1]["time"]) == (0, "2024-03-20")
    _, text, _ = run(capsys, "forecast", model, "--times", "2,21", "--json")
    assert [row["probability"] for row in json.loads(text)["forecast"]] == [
        row["probability"] for row in dated
    ]
    code, _, said = run(capsys, "forecast", model, "--times", "20240320")
    assert code == 2
    assert "could be dates or numbers" in said
    code, text, _ = run(capsys, "simulate", model, "--times", "2024-03-02", "--individuals", 5)
    assert (code, text.splitlines()[1][:10]) == (0, "2024-03-02")
    code, text, _ = run(capsys, "interpolate", data, "--graph", graph, "--model", model,
                        "--times", "2024-03-02", "--json")  # fmt: skip
    assert json.loads(text)["interpolation"][0]["time"] == "2024-03-02"


# ------------------------------------------------------------------------ counts


def test_a_column_of_numbers_left_over_is_asked_about(capsys, files):
    data = files("s.csv", "year,town,visitors\n2000,a,900\n2000,b,600\n2001,a,500\n2001,c,1000\n")
    graph = files("e.csv", EDGES)
    code, _, said = run(capsys, "check", data, "--graph", graph, "--state", "town")
    assert code == 2
    assert "--count visitors" in said
    arguments = ("check", data, "--graph", graph, "--state", "town", "--json")
    counted = json.loads(run(capsys, *arguments, "--count", "visitors")[1])
    assert counted["individuals"] == 3000
    rows = json.loads(run(capsys, *arguments, "--count", "none")[1])
    assert rows["individuals"] == 4
    assert any("not used: visitors" in text for text in rows["guesses"])


def test_shares_are_not_one_individual(capsys, files):
    with pytest.raises(InputError, match="shares do not say how many individuals"):
        Snapshots.from_counts([0, 1], [[0.5, 0.5], [0.25, 0.75]])
    Snapshots.from_counts([0, 1], [[1, 0], [0, 1]])  # one individual at each time
    Snapshots.from_counts([0, 1], [[0.5, 0.5], [1.5, 2.5]])  # individuals shared out
    data = files("s.csv", "time,state,count\n0,a,0.5\n0,b,0.5\n1,a,0.25\n1,c,0.75\n")
    graph = files("e.csv", EDGES)
    code, _, said = run(capsys, "check", data, "--graph", graph)
    assert (code, "--individuals" in said) == (2, True)
    code, text, _ = run(capsys, "check", data, "--graph", graph, "--individuals", 300, "--json")
    assert (code, json.loads(text)["individuals"]) == (0, 600)


# ------------------------------------------------------------------------ edges

ODD = [("a", "b", 3.0), ("a", "b", 5.0), ("b", "c", 1.0), ("c", "b", 100.0), ("a", "a", 2.0)]


def _formats(folder):
    pd.DataFrame(ODD, columns=["source", "target", "weight"]).to_csv(folder / "g.csv", index=False)
    graph = nx.MultiDiGraph()
    for x, y, w in ODD:
        graph.add_edge(x, y, weight=w)
    nx.write_graphml(graph, folder / "g.graphml")
    x, y, w = zip(*ODD, strict=True)
    place = {"a": 0, "b": 1, "c": 2}
    ends = ([place[s] for s in x], [place[s] for s in y])
    sparse.save_npz(folder / "g.npz", sparse.coo_array((w, ends), shape=(3, 3)))
    return [folder / f"g.{kind}" for kind in ("csv", "graphml", "npz")]


def test_one_rule_for_odd_edges_in_every_format(tmp_path):
    expected = MarkovKernel.from_weights([[2, 8, 0], [8, 0, 50.5], [0, 50.5, 0]])
    for path in _formats(tmp_path):
        kernel, messages, _ = read_graph(path)
        np.testing.assert_allclose(kernel.matrix.toarray(), expected.matrix.toarray())
        odd = [str(text) for text in messages if isinstance(text, Oddity)]
        assert len(odd) == 3, (path, odd)
        assert "listed more than once: 1" in odd[0]
        assert "to itself: 1" in odd[1]
        assert "different weights there and back: 1" in odd[2]


def test_parallel_edges_of_an_undirected_graphml_are_added(tmp_path):
    graph = nx.MultiGraph()
    for x, y, w in (("a", "b", 3.0), ("b", "a", 5.0), ("b", "c", 1.0)):
        graph.add_edge(x, y, weight=w)
    nx.write_graphml(graph, tmp_path / "g.graphml")
    kernel = read_graph(tmp_path / "g.graphml").kernel
    np.testing.assert_allclose(kernel.edges.conductance, np.array([8, 1]) / 18)


def test_graphml_weights_are_all_there_or_none(tmp_path):
    graph = nx.path_graph(3)
    graph.edges[0, 1]["weight"] = 2.0
    nx.write_graphml(graph, tmp_path / "g.graphml")
    with pytest.raises(InputError, match="from '1' to '2' has no attribute 'weight'"):
        read_graph(tmp_path / "g.graphml")
    with pytest.raises(InputError, match="no attribute 'w'"):
        read_graph(tmp_path / "g.graphml", weight="w")


def test_check_and_fit_warn_of_the_same(capsys, files, tmp_path):
    graph = files("e.csv", "source,target,weight\na,b,1\nb,a,9\nb,c,1\n")
    data = files("s.csv", "time,state,count\n0,a,30\n0,b,10\n1,a,20\n1,b,20\n")
    checked = json.loads(run(capsys, "check", data, "--graph", graph, "--json")[1])["warnings"]
    assert len(checked) == 3
    assert "there and back" in checked[0]
    arguments = ("fit", data, "--graph", graph, "--method", "weak", "--out", tmp_path / "f")
    assert json.loads(run(capsys, *arguments, "--json")[1])["warnings"] == checked
    said = run(capsys, *arguments)[2]
    assert all(warning in said for warning in checked)


def test_one_snapshot_cannot_be_fitted(capsys, files):
    data, graph = files("s.csv", "time,state\n0,a\n0,b\n"), files("e.csv", EDGES)
    code, text, said = run(capsys, "check", data, "--graph", graph)
    assert code == 2
    assert "nothing can be fitted" in said
    assert "cost" not in text


def test_the_largest_component_where_it_is_needed(capsys, files, tmp_path):
    graph = files("e.csv", EDGES + "y,z\n")
    data = files("s.csv", "time,state,count\n0,a,30\n0,b,10\n0,y,7\n1,a,20\n1,b,20\n")
    code, _, said = run(capsys, "fit", data, "--graph", graph)
    assert (code, "--largest-component" in said) == (2, True)
    code, text, _ = run(capsys, "check", data, "--graph", graph, "--largest-component", "--json")
    facts = json.loads(text)
    assert (code, facts["individuals"]) == (0, 80)
    assert any("7 individuals outside" in text for text in facts["warnings"])


@pytest.mark.parametrize(
    ("command", "suffix"),
    [("report", ".pdf"), ("forecast", ".xlsx"), ("simulate", ".html"), ("interpolate", ".pdf")],
)
def test_files_are_what_their_names_say(capsys, files, tmp_path, command, suffix):
    data = files("s.csv", "time,state\n0,a\n1,b\n")
    options = [] if command == "report" else ["--times", "1"]
    graph = ["--graph", files("e.csv", EDGES)] if command == "interpolate" else []
    target = tmp_path / f"x{suffix}"
    code, _, said = run(capsys, command, data, *options, *graph, "--out", target)
    assert (code, "end the name" in said, target.exists()) == (2, True, False)


# ------------------------------------------------------------------------ arrays


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (np.ma.array([0.5, 0.25, 0.25], mask=[0, 1, 0]), "masked"),
        ([0.5, 0.25, 0.25 + 1j], "complex"),
        (["0.5", "0.25", "0.25"], "text"),
        (np.array(["0.5", 0.25, 0.25], dtype=object), "text"),
        (np.array([1, 2, 3], dtype="datetime64[s]"), "dates"),
    ],
)
def test_arrays_that_numpy_would_bend_into_numbers(values, sentence):
    with pytest.raises(InputError, match=sentence):
        TransportGeometry(PATH).distance(values, [0.2, 0.3, 0.5])
    with pytest.raises(InputError, match=sentence):
        Snapshots.from_counts([0], [values])
    with pytest.raises(InputError, match=sentence):
        FreeEnergy(values, 1.0)
    with pytest.raises(InputError, match=sentence):
        MarkovKernel.from_weights([values, values, values])


def test_an_energy_keeps_its_own_interaction():
    for matrix in (sparse.csr_array(np.eye(3)), np.eye(3)):
        energy = FreeEnergy([0.0, 1.0, 2.0], 1.0, interaction=matrix)
        before = energy(PATH, [0.2, 0.3, 0.5])
        data = matrix.data if sparse.issparse(matrix) else matrix
        data[:] = 100.0
        assert energy(PATH, [0.2, 0.3, 0.5]) == before


# ------------------------------------------------------------------------ what a model keeps


@pytest.fixture(scope="module")
def tracked():
    """A population that follows itself, with a mean of its own."""
    rng = np.random.default_rng(0)
    energy = FreeEnergy([0.0, 1.0, -3.0], 0.2)
    model = FreeEnergyRegressor(
        method="weak", observation="tracked", environment="empirical", mobility=HarmonicMean()
    )
    from thalweg import simulate

    seen = simulate(
        PATH, energy, [0.9, 0.08, 0.02], [0, 1, 2], 2000, rng=rng, rates="empirical",
        mobility=HarmonicMean(), method="tau-leap",
    )  # fmt: skip
    return model.fit(PATH, seen)


def test_samples_honour_environment_and_mobility(tracked, monkeypatch):
    seen = {}
    from thalweg.learn import refits

    real = refits.simulate

    def spy(*arguments, **options):
        seen.update(options)
        return real(*arguments, **options)

    monkeypatch.setattr(refits, "simulate", spy)
    tracked.sample([0.0, 1.0], 50)
    assert (seen["rates"], seen["mobility"]) == ("empirical", HarmonicMean())
    seen.clear()
    tracked.bootstrap(tracked.sample([0.0, 1.0, 2.0], 50), 2)
    assert seen["rates"] == "empirical"


def test_a_tracked_sample_starts_when_the_data_do(tracked):
    late = tracked.sample([2.0], 20_000).frequencies[0]
    whole = tracked.sample([0.0, 2.0], 20_000).frequencies[1]
    assert abs(late - whole).max() < 0.03
    assert abs(late - tracked.initial_).max() > 0.05


def test_simulate_uses_the_saved_mobility(capsys, tmp_path):
    seen = Snapshots.from_counts([0, 1, 2], [[900, 90, 10], [600, 300, 100], [400, 400, 200]])
    model = FreeEnergyRegressor(method="weak", mobility=HarmonicMean(), beta=0.1).fit(PATH, seen)
    model.save(tmp_path / "m.thalweg")
    code, text, _ = run(
        capsys, "simulate", tmp_path / "m.thalweg", "--times", "3", "--individuals", 100_000,
        "--json",
    )  # fmt: skip
    assert code == 0
    counts = {row["state"]: row["count"] for row in json.loads(text)["snapshots"]}
    shares = np.array([counts.get(str(x), 0) for x in range(3)]) / 100_000
    expected = model.predict(None, [3.0]).probabilities[0]
    np.testing.assert_allclose(shares, expected, atol=0.02)
    other = FreeEnergyRegressor(method="weak", beta=0.1).fit(PATH, seen)
    other._adopt(PATH, model.fitted_)
    assert abs(other.predict(None, [3.0]).probabilities[0] - expected).max() > 0.1


def test_a_forecast_from_a_sample_starts_with_its_noise():
    seen = Snapshots.from_counts([0, 1, 2], [[900, 90, 10], [600, 300, 100], [400, 400, 200]])
    model = FreeEnergyRegressor().fit(PATH, seen)
    p0 = np.array([0.5, 0.3, 0.2])
    certain = model.forecast([0.0, 1.0], p0=p0)
    assert np.ptp([certain.lower[0], certain.upper[0]], axis=0).max() < 1e-9
    for times in ([0.0, 1.0], [0.0]):
        band = model.forecast(times, p0=p0, p0_size=100)
        expected = 1.96 * np.sqrt(p0 * (1 - p0) / 100)
        half = 0.5 * (band.upper[0] - band.lower[0])
        np.testing.assert_allclose(half, expected, rtol=0.15)
