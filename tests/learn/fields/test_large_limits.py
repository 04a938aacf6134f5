"""What the matrix-free likelihood lacks goes to the dense one, or is refused with the remedy."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.errors import InputError
from thalweg.graphs import make_graph
from thalweg.learn import answer
from thalweg.learn.answer import Settings, fit_snapshots
from thalweg.mobility import GeometricMean
from thalweg.snapshots import Snapshots


def snapshots(n: int) -> Snapshots:
    counts = np.random.default_rng(0).multinomial(2 * n, np.full(n, 1 / n), size=3)
    return Snapshots.from_counts([0.0, 1.0, 2.0], counts)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mobility", Settings(mobility=GeometricMean())),
        ("observation='tracked'", Settings(observation="tracked")),
        ("features", Settings(features=np.ones((600, 1)))),
    ],
)
def test_what_is_lacking_is_refused_with_the_remedy(name: str, settings: Settings) -> None:
    kernel = make_graph("grid", 600, rng=np.random.default_rng(0))
    with pytest.raises(InputError, match=f"{name}.*{answer.DENSE_STATES} states.*method='weak'"):
        fit_snapshots(kernel, snapshots(600), settings)


def test_growth_is_refused_without_naming_the_weak_form() -> None:
    kernel = make_graph("grid", 600, rng=np.random.default_rng(0))
    with pytest.raises(InputError, match=r"growth.*join states into groups\.$"):
        fit_snapshots(kernel, snapshots(600), Settings(growth="states"))


def test_where_the_states_allow_the_dense_fit_steps_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "SMALL_STATES", 5)
    kernel = make_graph("grid", 9, rng=np.random.default_rng(0))
    dense = fit_snapshots(kernel, snapshots(9), Settings(mobility=GeometricMean()))
    assert dense.joint_covariance is not None
    large = fit_snapshots(kernel, snapshots(9), Settings())
    assert large.draws is not None
