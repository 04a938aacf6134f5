"""Graphs from files."""

from __future__ import annotations

import io
import zipfile

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from thalweg.adapters.edges import read_graph
from thalweg.errors import ThalwegError

EDGES = "source,target,weight\na,b,1\nb,c,3\n"


def _write(folder, text, name="edges.csv"):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_an_edge_list(tmp_path):
    kernel, messages, _ = read_graph(_write(tmp_path, EDGES))
    assert kernel.names == ("a", "b", "c")
    np.testing.assert_allclose(kernel.stationary, [1 / 8, 1 / 2, 3 / 8])
    assert messages == ("edges run from 'source' to 'target'", "weight is 'weight'")


def test_edges_given_both_ways_count_once(tmp_path):
    both, *_ = read_graph(_write(tmp_path, EDGES + "b,a,1\nc,b,3\n"))
    np.testing.assert_allclose(both.stationary, [1 / 8, 1 / 2, 3 / 8])


def test_unnamed_columns_and_no_weights(tmp_path):
    kernel, messages, _ = read_graph(_write(tmp_path, "x,z\n1,2\n2,3\n"))
    assert kernel.names == ("1", "2", "3")
    assert "every edge counts 1" in messages


def test_graphml_with_positions(tmp_path):
    graph = nx.path_graph(4)
    nx.set_node_attributes(graph, {n: {"x": float(n), "y": 0.0} for n in graph})
    nx.write_graphml(graph, tmp_path / "g.graphml")
    kernel, *_ = read_graph(tmp_path / "g.graphml")
    assert kernel.n_edges == 3
    assert kernel.coordinates is not None


def test_npz(tmp_path):
    sparse.save_npz(tmp_path / "g.npz", sparse.csr_array([[0, 1, 0], [1, 0, 3], [0, 3, 0.0]]))
    kernel, *_ = read_graph(tmp_path / "g.npz")
    np.testing.assert_allclose(kernel.stationary, [1 / 8, 1 / 2, 3 / 8])


def test_pieces_are_refused_or_the_largest_kept(tmp_path):
    path = _write(tmp_path, EDGES + "y,z,1\n")
    with pytest.raises(ThalwegError, match="2 components of sizes 3, 2"):
        read_graph(path)
    kernel, messages, _ = read_graph(path, largest_component=True)
    assert kernel.names == ("a", "b", "c")
    assert "kept the largest component: 3 of 5 states" in messages


def _bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", b"0" * 1000)
    raw = bytearray(buffer.getvalue())
    # The central directory claims 0xF0000000 bytes for each of three entries' sizes.
    at = raw.rfind(b"PK\x01\x02") + 24
    raw[at : at + 4] = b"\x00\x00\x00\xf0"
    return bytes(raw)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("e.csv", "source,target,weight\na,b,heavy\n", "weight is 'heavy' in row 2"),
        ("e.csv", "source,target,weight\na,b,-1\n", "weight is '-1' in row 2"),
        ("e.csv", "source,target\na,\n", "row 2 is missing"),
        ("e.csv", "source\na\n", "one column"),
        ("e.npz", "no archive", "not a sparse matrix"),
        ("e.npz", _bomb(), "not a sparse matrix"),
        ("e.graphml", "<graphml><node", "not readable GraphML"),
        ("e.graphml", "", "GraphML"),
    ],
)
def test_damage_gets_one_sentence(tmp_path, name, content, sentence):
    with pytest.raises(ThalwegError, match=sentence) as caught:
        read_graph(_write(tmp_path, content, name))
    assert "\n" not in str(caught.value)


def test_pickles_are_never_loaded(tmp_path):
    np.savez(tmp_path / "p.npz", data=np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(ThalwegError, match="not a sparse matrix"):
        read_graph(tmp_path / "p.npz")


@given(st.binary(max_size=300), st.sampled_from(["csv", "npz", "graphml", "tsv"]))
def test_no_bytes_cause_a_traceback(tmp_path_factory, data, kind):
    try:
        read_graph(_write(tmp_path_factory.mktemp("fuzz"), data, f"g.{kind}"))
    except ThalwegError as error:
        assert str(error)
