"""Where one landscape is rejected, the remedy that is named is the one the data were made with."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from thalweg import FreeEnergy, FreeEnergyRegressor, MarkovKernel, Snapshots, gradient_flow, load
from thalweg.errors import InputError
from thalweg.geometry.operators import transport_laplacian
from thalweg.learn.remedies import REMEDIES, Remedies
from thalweg.mobility import LogMean
from thalweg.report import findings

TIMES = np.linspace(0.0, 4.0, 6)
START = np.array([0.5, 0.3, 0.1, 0.05, 0.03, 0.02])
HEIGHTS = np.array([0.5, 0.0, 0.4, -0.3, -0.5, -0.1])


def ring() -> MarkovKernel:
    weights = np.zeros((6, 6))
    for x in range(6):
        weights[x, (x + 1) % 6] = weights[(x + 1) % 6, x] = 1.0
    return MarkovKernel.from_weights(weights)


def switching(kernel: MarkovKernel) -> np.ndarray:
    """The landscape turns over at the third snapshot."""
    first = gradient_flow(kernel, FreeEnergy(HEIGHTS, 0.2), START, TIMES[:3]).probabilities
    later = TIMES[2:] - TIMES[2]
    second = gradient_flow(kernel, FreeEnergy(-HEIGHTS, 0.2), first[-1], later).probabilities
    return np.concatenate([first, second[1:]])


def growing(kernel: MarkovKernel) -> np.ndarray:
    """Two distant states multiply."""
    rates = np.array([0.0, 0.0, 0.9, 0.0, 0.0, 0.9])
    energy = FreeEnergy(HEIGHTS, 0.2)

    def moves(t: float, p: np.ndarray) -> np.ndarray:
        p = np.maximum(p, 1e-12)
        flux = transport_laplacian(kernel, p, LogMean()) @ energy.first_variation(kernel, p)
        return -flux + (rates - rates @ p) * p

    found = solve_ivp(moves, (0.0, 4.0), START, t_eval=TIMES, rtol=1e-8, atol=1e-10)
    return found.y.T


def rotating(kernel: MarkovKernel) -> np.ndarray:
    """A drift around the ring."""
    rates = np.zeros((6, 6))
    for x in range(6):
        rates[x, (x + 1) % 6], rates[x, (x - 1) % 6] = 0.9, 0.1
    rates -= np.diag(rates.sum(axis=1))
    return np.array([START @ expm(t * rates) for t in TIMES])


def sampled(p: np.ndarray, size: int, seed: int) -> Snapshots:
    rng = np.random.default_rng(seed)
    counts = [rng.multinomial(size, np.maximum(q, 0) / np.maximum(q, 0).sum()) for q in p]
    return Snapshots.from_counts(TIMES, counts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("truth", "name"),
    [
        (switching, "a landscape that jumps"),
        (growing, "growth"),
        (rotating, "free rates without a landscape"),
    ],
)
def test_the_right_remedy_is_named(truth, name, tmp_path) -> None:  # type: ignore[no-untyped-def]
    kernel = ring()
    seen = sampled(truth(kernel), 4000, seed=21)
    model = FreeEnergyRegressor().fit(kernel, seen)
    assert model.diagnostics_["p_value"] < 0.01
    found = model.remedies()
    assert found.winner == name, found.gains
    gain, error = found.gains[name]
    assert gain > 5 * error
    assert name in " ".join(findings(model, seen))
    model.save(tmp_path / "model.thalweg")
    assert name in " ".join(findings(load(tmp_path / "model.thalweg")))


def test_a_true_flow_needs_no_remedy() -> None:
    kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    times = np.linspace(0.0, 3.0, 4)
    flow = gradient_flow(kernel, FreeEnergy([0.4, 0.0, -0.4], 0.3), [0.7, 0.2, 0.1], times)
    rng = np.random.default_rng(3)
    counts = [rng.multinomial(1500, p / p.sum()) for p in flow.probabilities]
    model = FreeEnergyRegressor().fit(kernel, Snapshots.from_counts(times, counts))
    assert "remedies" not in " ".join(findings(model))  # not asked, and not offered
    found = model.remedies(n_folds=2)
    assert found.winner is None
    assert set(found.gains) | set(found.failures) == set(REMEDIES)
    assert all(gain < 3 * error + 1e-4 for gain, error in found.gains.values())
    assert "Nothing that was tried" in model.diagnostics_["remedies"]


def test_remedies_within_no_time_and_what_they_cannot_take() -> None:
    kernel = ring()
    seen = sampled(rotating(kernel), 200, seed=4)
    model = FreeEnergyRegressor().fit(kernel, seen)
    with pytest.raises(InputError, match="n_folds is 1"):
        model.remedies(n_folds=1)
    with pytest.raises(InputError, match="could not be fitted again: the time was up"):
        model.remedies(max_seconds=1e-9)
    weak = FreeEnergyRegressor(method="weak").fit(kernel, seen)
    with pytest.raises(InputError, match="method='likelihood'"):
        weak.remedies()


def test_a_gain_within_its_error_wins_nothing() -> None:
    assert Remedies({"growth": (0.01, 0.005)}, {}, {}).winner is None
    assert Remedies({"growth": (0.01, 0.001)}, {}, {}).winner == "growth"
    assert Remedies({}, {}, {"growth": "too slow"}).winner is None
