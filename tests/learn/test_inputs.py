"""Graphs and tables in the forms that users have give the same fit as kernels and snapshots."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor
from thalweg.snapshots import Snapshots

NAMES = ["a", "b", "c"]
GRAPH = nx.path_graph(NAMES)
COUNTS = np.array([[80.0, 15, 5], [60, 29, 11], [47, 37, 16]])
TIMES = [0.0, 0.5, 1.0]
KERNEL = MarkovKernel.from_networkx(GRAPH)
SEEN = Snapshots.from_counts(TIMES, COUNTS, names=NAMES)
WIDE = pd.DataFrame(COUNTS, columns=NAMES).assign(time=TIMES)
LONG = WIDE.melt(id_vars="time", var_name="state", value_name="count")
MODEL = FreeEnergyRegressor(method="weak")


@pytest.mark.parametrize("graph", [KERNEL, GRAPH])
@pytest.mark.parametrize("data", [SEEN, WIDE, LONG, WIDE.set_index("time"), LONG.sample(frac=1)])
def test_every_form_gives_the_same_landscape(graph, data) -> None:
    expected = MODEL.fit(KERNEL, SEEN).potential_
    np.testing.assert_allclose(MODEL.fit(graph, data).potential_, expected, atol=1e-12)


def test_a_sparse_matrix_and_other_column_names() -> None:
    weights = sparse.csr_matrix(nx.to_numpy_array(GRAPH))
    frame = pd.DataFrame({"day": [0, 0, 1, 1], "box": [0, 1, 1, 2], "n": [9, 2, 5, 5]})
    model = MODEL.fit(weights, frame, time="day", state="box", count="n")
    assert model.times_.tolist() == [0, 1]
    assert model.fitted_.visits.tolist() == [9, 7, 5]


def test_columns_with_well_known_names_need_not_be_given() -> None:
    long = LONG.rename(columns={"time": "day", "state": "place", "count": "n"})
    expected = MODEL.fit(KERNEL, SEEN).potential_
    np.testing.assert_allclose(MODEL.fit(GRAPH, long).potential_, expected, atol=1e-12)


def test_a_matrix_takes_the_names_of_a_wide_frame(caplog) -> None:
    weights = sparse.csr_array(nx.to_numpy_array(GRAPH))
    model = MODEL.fit(weights, WIDE)
    assert model.kernel_.names == ("a", "b", "c")
    assert "the frame's columns in their order (a, b, c)" in caplog.text
    np.testing.assert_allclose(model.potential_, MODEL.fit(KERNEL, SEEN).potential_, atol=1e-12)
    with pytest.raises(InputError, match=r"from_weights\(matrix, names="):
        MODEL.fit(weights, LONG)


def test_a_column_of_counts_is_not_taken_for_individuals() -> None:
    visitors = LONG.rename(columns={"count": "visitors"})
    with pytest.raises(InputError, match="give count='visitors'"):
        MODEL.fit(GRAPH, visitors)
    assert MODEL.fit(GRAPH, visitors, count="visitors").fitted_.visits.sum() == COUNTS.sum()
    individuals = LONG.loc[LONG.index.repeat(LONG["count"]), ["time", "state"]].assign(size=7.0)
    assert MODEL.fit(GRAPH, individuals).fitted_.visits.sum() == COUNTS.sum()


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InputError, match="the graph is a str; give a MarkovKernel, a networkx"):
        MODEL.fit("edges.csv", SEEN)
    with pytest.raises(InputError, match=r"none for 1 of 3 states"):
        MODEL.fit(GRAPH, WIDE.drop(columns="c"))


def test_forecasts_begin_anywhere_and_keep_names() -> None:
    model = FreeEnergyRegressor().fit(GRAPH, WIDE)
    late, whole = model.forecast([2.0, 3.0]), model.forecast([0.0, 2.0, 3.0])
    np.testing.assert_allclose(late.probabilities, whole.probabilities[1:], atol=1e-6)
    np.testing.assert_allclose(late.upper, whole.upper[1:], atol=1e-6)
    frame = late.to_frame()
    assert frame["state"].tolist() == NAMES * 2
    assert frame["time"].unique().tolist() == [2.0, 3.0]
    path = model.predict(None, [2.0, 3.0])
    assert path.to_frame().columns.tolist() == NAMES
    for answer in (late, path):
        assert len(repr(answer)) < 100
        assert "<svg" in answer._repr_html_()


def test_frames_of_answers_are_in_the_dates_of_the_data() -> None:
    dated = WIDE.assign(time=["2024-03-01", "2024-03-05", "2024-03-09"])
    model = FreeEnergyRegressor().fit(GRAPH, dated)
    later = ["2024-03-09", "2024-03-20"]
    assert model.forecast(later).to_frame()["time"].unique().tolist() == later
    path = model.predict(None, later)
    assert path.to_frame().index.tolist() == later
    assert "from 2024-03-09 to 2024-03-20" in repr(path)
