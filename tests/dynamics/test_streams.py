"""Streams between groups, as numbers and as pictures."""

from __future__ import annotations

import numpy as np
import pytest

from strategies import random_kernel
from thalweg import FreeEnergy, InputError
from thalweg.dynamics import Landscape, streams, transition_matrix
from thalweg.plots import arrows, sankey
from thalweg.report.dynamics import stream_picture


def case():
    rng = np.random.default_rng(0)
    land = Landscape(random_kernel(6, rng), FreeEnergy(rng.normal(size=6), 0.5))
    return land, rng.dirichlet(np.full(6, 2.0)), np.array([0, 0, 1, 1, 2, 2])


def test_streams_are_sums_of_the_transition_matrix():
    land, p0, labels = case()
    found = streams(land, p0, [0.0, 0.5, 2.0], labels)
    exact = transition_matrix(land, p0, (0.0, 0.5))
    for a in range(3):
        for b in range(3):
            share = p0[labels == a] @ exact[np.ix_(labels == a, labels == b)].sum(axis=1)
            assert found.moved[0, a, b] == pytest.approx(share, abs=1e-4)
    assert np.allclose(found.moved.sum(axis=2), found.shares[:-1], atol=1e-9)
    assert np.allclose(found.moved.sum(axis=1), found.shares[1:], atol=1e-3)
    with pytest.raises(InputError, match="number of a group"):
        streams(land, p0, [0.0, 1.0], [0, 1])


def test_pictures_hold_what_moved():
    land, p0, labels = case()
    found = streams(land, p0, [0.0, 0.5, 2.0], labels)
    figure = sankey(found, ["a", "b", "c"])
    assert np.sum(figure.data[0].link.value) == pytest.approx(2.0)
    picture = stream_picture(found, ["a", "b", "<c>"])
    assert "&lt;c&gt;" in picture.svg
    assert picture.data.count("\n") == 1 + 2 * 9
    xy = np.random.default_rng(1).random((200, 2))
    drawn = arrows(xy, np.tile([1.0, 0.0], (200, 1)))
    ends = np.array([x for x in drawn.data[0].x if x is not None], dtype=float)
    assert np.isfinite(ends).all()
