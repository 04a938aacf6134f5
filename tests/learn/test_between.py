"""`interpolate`: populations between snapshots, by the flow or by geodesics."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg import FreeEnergyRegressor, MarkovKernel, Snapshots, TransportGeometry, interpolate
from thalweg.errors import InputError
from thalweg.learn.between import smoothed_shares

KERNEL = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
COUNTS = [[8000, 1500, 500], [6000, 2900, 1100], [4700, 3700, 1600]]
SEEN = Snapshots.from_counts([0.0, 0.5, 1.0], COUNTS)


@pytest.mark.parametrize("method", ["flow", "geodesic"])
def test_it_meets_the_snapshots(method):
    found = interpolate(KERNEL, SEEN, [0.0, 0.25, 0.5, 1.0], method=method)
    assert found.status
    assert found.method == method
    np.testing.assert_allclose(found.probabilities[[0, 2, 3]], SEEN.frequencies, atol=2e-4)
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1.0)
    between = found.probabilities[1]
    low, high = np.sort(found.probabilities[[0, 2]], axis=0)
    assert ((low < between) & (between < high)).all()


def test_geodesics_are_those_of_the_geometry():
    found = interpolate(KERNEL, SEEN[:2], [0.2], method="auto")
    assert found.method == "geodesic"
    ends = [smoothed_shares(KERNEL, SEEN, k) for k in (0, 1)]
    point = TransportGeometry(KERNEL).geodesic(*ends).at([0.0, 0.4, 1.0])
    np.testing.assert_allclose(found.probabilities[0], point.probabilities[1], atol=1e-12)


def test_a_fitted_model_is_used_as_it_is():
    model = FreeEnergyRegressor(method="weak").fit(KERNEL, SEEN)
    before = model.potential_.copy()
    found = interpolate(KERNEL, SEEN[:2], [0.25], model=model)
    assert found.method == "flow"
    np.testing.assert_array_equal(model.potential_, before)
    flow = model.predict(None, [0.0, 0.25]).probabilities[1]
    np.testing.assert_allclose(found.probabilities[0], flow, atol=0.02)


def test_sparse_counts_and_dates():
    from scipy import sparse

    days = ["2024-03-01", "2024-03-03", "2024-03-05"]
    dated = Snapshots.from_counts(days, sparse.csr_array(np.array(COUNTS, dtype=float)))
    plain = Snapshots.from_counts([0.0, 2.0, 4.0], COUNTS)
    there = interpolate(KERNEL, dated, ["2024-03-02"], method="geodesic")
    here = interpolate(KERNEL, plain, [1.0], method="geodesic")
    np.testing.assert_allclose(there.probabilities, here.probabilities, atol=1e-12)


@pytest.mark.parametrize(
    ("snapshots", "times", "message"),
    [
        (SEEN, [0.5, 2.0], r"time 2 lies outside the snapshots \(0 to 1\)"),
        (SEEN[:1], [0.0], "Only one snapshot was given"),
        (SEEN, [0.5, 0.2], "sort the times"),
    ],
)
def test_wrong_times_are_a_sentence(snapshots, times, message):
    with pytest.raises(InputError, match=message):
        interpolate(KERNEL, snapshots, times)


def test_a_model_of_later_data_is_refused():
    late = FreeEnergyRegressor(method="weak").fit(KERNEL, SEEN[1:])
    with pytest.raises(InputError, match=r"begins at time 0\.5, after the first snapshot at 0"):
        interpolate(KERNEL, SEEN, [0.25], model=late)
