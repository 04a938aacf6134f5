"""The gallery draws every graph, and its gaps are the known ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from thalweg.graphs import GRAPH_FAMILIES, cycle, hypercube, lattice, make_graph, path
from thalweg_bench import BenchSettings, load_benchmark
from thalweg_bench.gallery import layout, spectral_gap


def test_every_graph_is_in_the_table_and_in_the_figure() -> None:
    steps = []
    settings = BenchSettings(progress=lambda what, done, total: steps.append((done, total)))
    result = load_benchmark("gallery")(settings)
    assert set(GRAPH_FAMILIES) < set(result.table.graph)
    assert len(result.figures["gallery"].data) == 2 * len(result.table)
    assert steps == [(k, len(result.table)) for k in range(len(result.table))]
    assert result.table.spectral_gap.min() > 0


def test_spectral_gaps_are_the_known_ones() -> None:
    assert abs(spectral_gap(path(9)) - (1 - math.cos(math.pi / 8))) < 1e-12
    assert abs(spectral_gap(hypercube(6)) - 2 / 6) < 1e-12
    assert abs(spectral_gap(cycle(600)) - (1 - math.cos(2 * math.pi / 600))) < 1e-9
    box = spectral_gap(lattice((40, 40), periodic=True))
    assert abs(box - (1 - math.cos(2 * math.pi / 40)) / 2) < 1e-9


@pytest.mark.parametrize("family", GRAPH_FAMILIES)
def test_drawings_fill_the_unit_box_and_part_the_states(family: str) -> None:
    kernel = make_graph(family, 30, rng=np.random.default_rng(0))
    xy = layout(family, kernel, 0)
    assert abs(abs(xy).max() - 1) < 1e-12
    gap = np.linalg.norm(xy[:, None] - xy[None], axis=2) + 9 * np.eye(30)
    assert gap.min() > 1e-3


def test_faces_of_the_apollonian_drawing_have_equal_areas() -> None:
    kernel = make_graph("apollonian", 25, rng=np.random.default_rng(1))
    assert kernel.coordinates is not None
    xy = kernel.coordinates
    adjacent = kernel.matrix.toarray() > 0
    face = np.sqrt(0.75) / 2 / (2 * 25 - 5)
    areas = [
        abs(np.linalg.det([xy[b] - xy[a], xy[c] - xy[a]])) / 2
        for a in range(25)
        for b in range(a)
        for c in range(b)
        if adjacent[a, b] and adjacent[b, c] and adjacent[a, c]
    ]
    # Every triangle of the network is a face, or was one before it was split.
    multiples = np.array(areas) / face
    np.testing.assert_allclose(multiples, multiples.round(), atol=1e-9)
    assert (multiples.round() == 1).sum() == 2 * 25 - 5
