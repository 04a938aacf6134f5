"""The figures on real data, where the data folder is given."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg import FreeEnergyRegressor, Snapshots, hellinger
from thalweg.points import leave_one_time_out
from thalweg_bench.realdata_sets import UsStates, blood_cells, data_folder

REASON = "the data folder is absent: set THALWEG_DATA, or put it at ../shared/data"
blood = pytest.mark.skipif(data_folder("hematopoiesis") is None, reason=REASON)
census = pytest.mark.skipif(data_folder("us_states") is None, reason=REASON)


@blood
def test_day_four_of_the_blood_cells_left_out() -> None:
    folder = data_folder("hematopoiesis")
    assert folder is not None
    times, clouds = blood_cells(folder)
    table = leave_one_time_out(
        times, clouds, n_states=30, n_partitions=2, most=800, methods=["auto"],
        baselines=["mixture of neighbours", "nearest snapshot"],
    ).set_index("method")  # fmt: skip
    assert table.loc["auto", "w1"] < 0.17
    assert table.loc["mixture of neighbours", "w1"] > 0.3
    assert table.loc["nearest snapshot", "w1"] > 0.3


@census
def test_us_states_beat_persistence() -> None:
    folder = data_folder("us_states")
    assert folder is not None
    data = UsStates.read(folder)
    years = [1980, 1990, 2000, 2010]
    people, last = data.at(years), data.at([2025])[0]
    model = FreeEnergyRegressor().fit(data.kernel, Snapshots.from_counts(years, people / 1e4))
    now = people[-1] / people[-1].sum()
    ahead = model.predict(now, [2010, 2025]).probabilities[-1]
    truth = last / last.sum()
    assert hellinger(ahead, truth) <= hellinger(now, truth)
    assert np.isclose(hellinger(now, truth), 0.0268, atol=1e-3)
