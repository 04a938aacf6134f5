"""Each picture is a plotly figure that holds what it was given."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import pytest

from thalweg import plots
from thalweg.errors import InputError
from thalweg.geometry import TransportGeometry
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor
from thalweg.plots.fluxes import mean_fluxes
from thalweg.snapshots import Snapshots

RNG = np.random.default_rng(0)
KERNEL = make_graph("delaunay", 25, rng=RNG)
P = RNG.dirichlet(np.ones(25), size=4)
TIMES = np.arange(4.0)


def test_landscape_shows_values_and_errors():
    v = np.linspace(-1, 1, 25)
    figure = plots.landscape(KERNEL, v, stderr=np.full(25, 0.25))
    assert isinstance(figure, go.Figure)
    np.testing.assert_allclose(figure.data[1].marker.color, v)
    assert "± 0.25" in figure.data[1].text[0]


def test_flow_has_a_frame_a_time():
    figure = plots.flow(KERNEL, TIMES, P)
    assert len(figure.frames) == len(figure.layout.sliders[0].steps) == 4


def test_fit_and_forecast_and_potential():
    assert len(plots.fit(KERNEL, TIMES, P, P, sizes=[9] * 4, most=3).data) == 6
    banded = plots.forecast(KERNEL, TIMES, P, lower=P / 2, upper=P, start=1.0, most=3)
    assert len(banded.data) == 6
    ranked = plots.potential(KERNEL, np.arange(25.0), np.ones(25))
    assert list(ranked.data[0].x) == sorted(ranked.data[0].x)
    np.testing.assert_allclose(ranked.data[0].error_x.array, 2)


def test_geodesic_starts_and_ends_where_it_should():
    path = TransportGeometry(KERNEL).geodesic(P[0], P[1])
    figure = plots.geodesic(KERNEL, path, n_steps=3)
    assert len(figure.frames) == 3
    assert f"{P[0][0]:.3g}" in figure.frames[0].data[0].text[0]
    assert f"{P[1][0]:.3g}" in figure.frames[2].data[0].text[0]


def test_gallery_shares_one_scale():
    figure = plots.gallery(KERNEL, {"a": np.zeros(25), "b": np.ones(25), "<i>": np.ones(25)})
    states = [t for t in figure.data if t.mode == "markers"]
    assert {(t.marker.cmin, t.marker.cmax) for t in states} == {(0.0, 1.0)}
    assert [a.text for a in figure.layout.annotations] == ["a", "b", "&lt;i&gt;"]
    with pytest.raises(InputError, match="nothing to draw"):
        plots.gallery(KERNEL, {})


@pytest.mark.parametrize("n_times", [2, 4])
def test_arrows_show_where_the_population_went(n_times):
    hill = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    counts = [[412, 71, 17], [290, 133, 77], [205, 150, 145], [140, 139, 221]]
    seen = Snapshots.from_counts([0.0, 2.0, 4.0, 7.0][:n_times], counts[:n_times])
    model = FreeEnergyRegressor().fit(hill, seen)  # two times leave beta open: landscapes averaged
    path = model.predict(None, np.linspace(0, seen.times[-1], 61)).probabilities
    gained = (path[-1] - path[0]) / seen.times[-1]
    np.testing.assert_allclose(mean_fluxes(model), [-gained[0], gained[2]], rtol=0.15)


def test_many_states_are_drawn_as_patches_that_keep_the_mass():
    kernel = make_graph("grid", 10_000, rng=RNG)
    p = RNG.dirichlet(np.ones(10_000))
    figure = plots.flow(kernel, [0.0], p[None])
    assert len(figure.data[1].x) <= 4000


def test_names_are_text():
    kernel = MarkovKernel.from_weights([[0, 1], [1, 0]], names=["<b>", "b"])
    assert "<b>" not in str(plots.landscape(kernel, [0.0, 1.0]).data[1].text)


def test_more_states_than_colours_are_drawn():
    n = 12
    kernel = MarkovKernel.from_weights(np.ones((n, n)))
    p = np.random.default_rng(0).dirichlet(np.ones(n), size=3)
    assert len(plots.fit(kernel, [0, 1, 2], p, p, most=10).data) == 20
    assert len(plots.forecast(kernel, [0, 1, 2], p, most=10).data) == 10
