"""matplotlib's pictures: the same names as plotly's, drawn where asked, saved where asked."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib", reason="needs matplotlib")
matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402

from thalweg import pl, plots  # noqa: E402
from thalweg.errors import InputError  # noqa: E402
from thalweg.kernel import MarkovKernel  # noqa: E402
from thalweg.learn import FreeEnergyRegressor  # noqa: E402
from thalweg.plots import mpl  # noqa: E402
from thalweg.report import findings, fit_page  # noqa: E402
from thalweg.snapshots import Snapshots  # noqa: E402

NAMES = ["north", "cost $5", "south"]
KERNEL = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]], names=NAMES)
COUNTS = [[800, 150, 50], [600, 290, 110], [470, 370, 160], [400, 410, 190]]
SEEN = Snapshots.from_counts([0.0, 0.5, 1.0, 1.5], COUNTS, names=NAMES)
MODEL = FreeEnergyRegressor(method="weak").fit(KERNEL, SEEN)


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.mark.parametrize("name", ["landscape", "flow", "fit", "forecast", "potential", "geodesic"])
def test_both_backends_have_one_vocabulary(name):
    here, there = (
        list(inspect.signature(getattr(module, name)).parameters) for module in (mpl, plots)
    )
    leading = [p for p in there if p not in ("title", "n_steps", "stderr")]
    assert [p for p in here if p in leading] == leading


def test_a_picture_is_drawn_on_the_axes_given_and_saved(tmp_path):
    _, axes = plt.subplots()
    target = tmp_path / "landscape.png"
    assert pl.landscape(MODEL, ax=axes, save=target) is axes
    assert target.stat().st_size > 2000
    written = [text.get_text() for text in axes.texts]
    assert {"north", r"cost \$5", "south"} <= set(written)
    points = axes.collections[-1]
    np.testing.assert_allclose(points.get_array(), MODEL.potential_)
    pl.landscape(MODEL, color=[1.0, 2.0, 3.0])


def test_curves_show_the_numbers():
    axes = pl.fit(MODEL, SEEN)
    drawn = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert set(drawn) >= {"north", "south"}
    np.testing.assert_allclose(drawn["north"][0], MODEL.initial_[0], atol=1e-9)
    p = MODEL.predict(None, [0.0, 4.0]).probabilities
    banded = mpl.forecast(KERNEL, [0.0, 4.0], p, lower=p / 2, upper=p, start=1.5, color=["k"])
    assert len(banded.collections) == 3
    ranked = mpl.potential(KERNEL, [2.0, 0.0, 1.0], [0.1, 0.1, np.inf])
    assert next(t.get_text() for t in ranked.get_yticklabels()) == r"cost \$5"
    every = pl.flow(MODEL, [0.0, 1.0, 2.0])
    assert [axes.get_title() for axes in every][:3] == ["time 0", "time 1", "time 2"]


def test_wrong_input_is_a_sentence():
    with pytest.raises(InputError, match="draws AnnData or a fitted model, not a dict"):
        pl.landscape({})
    with pytest.raises(InputError, match="one per time"):
        mpl.flow(KERNEL, [0.0, 1.0], [[1, 0, 0], [0, 1, 0]], ax=[plt.subplots()[1]])


def test_plotly_is_not_needed():
    code = (
        "import sys; sys.modules['plotly'] = None\n"
        "import matplotlib; matplotlib.use('agg')\n"
        "import thalweg.pl, thalweg.report"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_later_snapshots_are_drawn_at_their_own_dates():
    counts = [[80, 20], [60, 40], [50, 50]]
    kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    seen = Snapshots.from_counts(["2024-03-01", "2024-03-02", "2024-03-04"], counts)
    model = FreeEnergyRegressor(method="weak").fit(kernel, seen)
    later = Snapshots.from_counts(["2024-03-06", "2024-03-08"], counts[1:])
    axes = pl.fit(model, later)
    drawn = [line.get_xdata() for line in axes.get_lines()]
    assert any(np.array_equal(x, [5.0, 7.0]) for x in drawn)
    text = fit_page(model, snapshots=later)
    assert "2024" in text
    assert "\\r\\n5," in text  # the data of the curves begin five days after the first snapshot
    assert findings(model, later) == findings(model, later.on(model.time_scale_))
