"""Sparse matrices from outside are checked before compiled code follows their indices."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

from thalweg import FreeEnergy, MarkovKernel, Snapshots
from thalweg._sparse import as_sparse
from thalweg.errors import InputError

W = np.array([[0.0, 1, 0, 2], [1, 0, 3, 0], [0, 3, 0, 1], [2, 0, 1, 0]])
FORMATS = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")


def _broken(format: str, part: str, values: object) -> sparse.sparray:
    """A matrix whose part was replaced after it was built, as a hostile file would."""
    matrix = sparse.csr_array(W).asformat(format)
    setattr(matrix, part, values)
    return matrix


BROKEN = {
    "column out of range": lambda: _broken(
        "csr", "indices", np.array([1, 3, 0, 2, 1, 3, 0, 2**30])
    ),
    "negative column": lambda: _broken("csr", "indices", np.array([1, 3, 0, 2, 1, 3, 0, -7])),
    "row out of range": lambda: _broken("csc", "indices", np.array([1, 3, 0, 2, 1, 3, 0, 4])),
    "falling pointers": lambda: _broken("csr", "indptr", np.array([0, 6, 2, 6, 8])),
    "negative pointers": lambda: _broken("csr", "indptr", np.array([0, -5, 4, 6, 8])),
    "pointers past the end": lambda: _broken("csr", "indptr", np.array([0, 2, 4, 6, 2**40])),
    "pointers that start late": lambda: _broken("csr", "indptr", np.array([1, 2, 4, 6, 8])),
    "too few pointers": lambda: _broken("csr", "indptr", np.array([0, 8])),
    "pointers that are no integers": lambda: _broken("csr", "indptr", np.array([0, 2.5, 4, 6, 8])),
    "too few values": lambda: _broken("csr", "data", np.ones(3)),
    "table of values": lambda: _broken("csr", "data", np.ones((8, 2))),
    "coo row": lambda: _broken("coo", "coords", (np.full(8, 10**9), np.zeros(8, int))),
    "coo sizes": lambda: _broken("coo", "coords", (np.zeros(3, int), np.zeros(8, int))),
    "blocks": lambda: _broken("bsr", "indices", np.full(8, 10**6)),
    "block shape": lambda: _broken("bsr", "data", np.ones((8, 3, 3))),
    "diagonals": lambda: _broken("dia", "offsets", np.zeros(9, int)),
    "diagonals that are no integers": lambda: _broken("dia", "offsets", np.full(6, np.nan)),
    "lil": lambda: _broken("lil", "rows", np.array([[10**6], [0], [1], [2]] + [[]], object)[:4]),
    "complex": lambda: sparse.csr_array(W.astype(complex)),
    "objects": lambda: _broken("csr", "data", np.array(["a"] * 8, object)),
    "times": lambda: _broken("csr", "data", np.zeros(8, "datetime64[s]")),
    "not a number": lambda: _broken("csr", "data", np.array([1, 2, 1, 3, 3, 1, 2, np.nan])),
    "infinite": lambda: _broken("coo", "data", np.array([1, 2, 1, 3, 3, 1, np.inf, 1])),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_refused_in_one_sentence(what):
    for use in (
        lambda m: as_sparse(m, "weights"),
        MarkovKernel.from_weights,
        MarkovKernel.from_matrix,
        lambda m: FreeEnergy(np.zeros(4), 0.1, m),
        lambda m: Snapshots.from_counts([0, 1, 2, 3], m),
    ):
        with pytest.raises(InputError) as caught:
            use(BROKEN[what]())
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "u1", "?"])
def test_every_sound_format_is_read(format, dtype):
    table = (W > 0).astype(dtype)
    given = sparse.csr_array(table).asformat(format)
    read = as_sparse(given, "weights")
    assert isinstance(read, sparse.csr_array)
    assert read.dtype == np.float64
    assert np.array_equal(read.toarray(), table)
    read.data[:] = 7.0
    assert np.array_equal(given.toarray(), table)


def test_unsorted_and_repeated_entries_are_merged():
    twice = sparse.csr_array(([1.0, 2, 3, 4], [3, 0, 0, 3], [0, 4, 4, 4, 4]), shape=(4, 4))
    read = as_sparse(twice, "weights")
    assert read.has_canonical_format
    assert read.toarray()[0].tolist() == [5, 0, 0, 5]


def test_an_interaction_is_copied():
    w = sparse.csr_array(W)
    energy = FreeEnergy(np.zeros(4), 0.1, w)
    w.data[:] = 1e6
    assert np.array_equal(energy.interaction.toarray(), W)


CRASH = """
import sys, numpy as np
from thalweg.cli import main
folder = sys.argv[1]
n = 200
row = np.arange(n)
for number, (indices, indptr) in enumerate([
    (np.full(n, 2**31 - 1), np.arange(n + 1)),
    (np.full(n, -2**31), np.arange(n + 1)),
    ((row + 1) % n, np.concatenate([[0], np.full(n - 1, -10**6), [n]])),
    ((row + 1) % n, np.concatenate([[0], np.full(n - 1, 2**31 - 1), [n]])),
]):
    np.savez(f"{folder}/{number}.npz", format=np.array(b"csr"), shape=np.array([n, n]),
             data=np.ones(n), indices=indices.astype("i4"), indptr=indptr.astype("i4"))
    try:
        main(["check", f"{folder}/seen.csv", "--graph", f"{folder}/{number}.npz"])
        print("accepted")
    except SystemExit as ended:
        print(ended.code)
"""


def test_hostile_npz_graphs_end_with_a_sentence_and_not_with_a_signal(tmp_path):
    (tmp_path / "seen.csv").write_text("time,state,count\n0,0,5\n1,1,5\n2,2,4\n")
    ended = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["2"] * 4
    assert "Traceback" not in ended.stderr
