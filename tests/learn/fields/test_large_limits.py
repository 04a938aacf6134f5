"""What the matrix-free likelihood lacks goes to the dense one, or is refused with the remedy."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import gradient_flow
from thalweg.graphs import make_graph
from thalweg.learn import answer
from thalweg.learn.answer import Settings, fit_snapshots
from thalweg.learn.fields import LargeFit
from thalweg.mobility import GeometricMean
from thalweg.snapshots import Snapshots
from thalweg.status import Status


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
    monkeypatch.setattr(answer, "FEW_STATES", 5)
    kernel = make_graph("grid", 9, rng=np.random.default_rng(0))
    dense = fit_snapshots(kernel, snapshots(9), Settings(mobility=GeometricMean()))
    assert dense.joint_covariance is not None
    large = fit_snapshots(kernel, snapshots(9), Settings())
    assert isinstance(large.source, LargeFit)


@pytest.mark.parametrize(
    "kind",
    [
        "true",
        pytest.param("rest", marks=pytest.mark.slow),
        pytest.param("wrong", marks=pytest.mark.slow),
    ],
)
def test_many_states_say_what_they_cannot(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The flow fits, or nothing moved, or it is rejected and its error bars hold the misfit."""
    monkeypatch.setattr(answer, "SMALL_STATES", 5)
    monkeypatch.setattr(answer, "FEW_STATES", 5)
    rng = np.random.default_rng(3)
    kernel = make_graph("delaunay", 40, rng=rng)
    energy = FreeEnergy(np.sin(5 * kernel.coordinates[:, 0]), 0.2)
    times = np.linspace(0.0, 3.0, 5)
    p = gradient_flow(kernel, energy, rng.dirichlet(np.full(40, 5.0)), times).probabilities
    if kind == "rest":
        p = np.repeat(p[-1:], 5, axis=0)
    elif kind == "wrong":
        p = p[::-1]
    counts = np.array([rng.multinomial(40_000, row) for row in p])
    fit = fit_snapshots(kernel, Snapshots.from_counts(times, counts), Settings())
    if kind == "rest":
        assert fit.status is Status.UNDETERMINED
        assert fit.beta_stderr == np.inf
        assert "No movement was seen" in str(fit.beta_verdict)
    elif kind == "true":
        assert fit.summary["p_value"] > 0.01
        assert "errors_widened_by" not in fit.summary
    else:
        assert fit.summary["p_value"] < 1e-6
        factor = fit.summary["errors_widened_by"]
        assert factor > 1.1
        # Reversed in time, the snapshots are best described without any noise: no beta is sure.
        assert fit.status is Status.UNDETERMINED
        assert np.isposinf(fit.potential_stderr).all()


@pytest.mark.parametrize("use_coordinates", [True, False])
def test_many_states_stop_where_they_are_asked_to(
    monkeypatch: pytest.MonkeyPatch, use_coordinates: bool
) -> None:
    monkeypatch.setattr(answer, "SMALL_STATES", 5)
    monkeypatch.setattr(answer, "FEW_STATES", 5)
    rng = np.random.default_rng(4)
    kernel = make_graph("delaunay", 40, rng=rng)
    moved = np.array([rng.multinomial(4000, rng.dirichlet(np.ones(40))) for _ in range(3)])
    settings = Settings(max_iterations=1, use_coordinates=use_coordinates)
    fit = fit_snapshots(kernel, Snapshots.from_counts([0.0, 1.0, 2.0], moved), settings)
    assert fit.status is Status.MAX_ITERATIONS
    assert np.all(np.isfinite(fit.energy.potential))
