"""The paper's network, and networks of features that carry over to other graphs."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from literal_flow import gradient_flow, random_kernel
from thalweg import FreeEnergyRegressor, Snapshots
from thalweg.energy import centred
from thalweg.errors import InputError, MissingDependencyError
from thalweg.geometry.operators import transport_laplacian
from thalweg.kernel import MarkovKernel
from thalweg.learn.network.features import WeakLoss, fit_feature_network
from thalweg.learn.network.paper import Training, fit_neural, geodesic_velocity
from thalweg.learn.weak.fit import fit_weak
from thalweg.learn.weak.options import WeakOptions
from thalweg.mobility import LogMean
from thalweg.status import Status

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    kernel = random_kernel(rng, 5)
    v = centred(rng.uniform(-1, 1, 5), kernel)
    times = np.linspace(0, 2, 11)
    p = gradient_flow(kernel, v, 0.2, np.full(5, 0.2), times)
    counts = np.array([rng.multinomial(2000, row) for row in p])
    return kernel, v, times, p, counts


def test_schur_cholesky_is_one_laplacian_solve() -> None:
    rng = np.random.default_rng(1)
    kernel = random_kernel(rng, 7)
    p, q = rng.dirichlet(np.ones(7), 2)
    psi = geodesic_velocity(kernel, p, q - p, pinned=3)
    assert psi[3] == 0
    assert np.allclose(transport_laplacian(kernel, p, LogMean()) @ psi, q - p, atol=1e-10)


def test_the_paper_method_approaches_the_minimiser_of_its_loss(problem) -> None:
    kernel, _, times, _, counts = problem
    smoothed = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
    fit = fit_neural(kernel, times, counts, smoothed, seed=1, training=Training(learning_rate=5e-3))
    closed = fit_weak(
        kernel, times, smoothed, options=WeakOptions(quadrature="right", weighting="paper")
    )
    assert fit.status is Status.CONVERGED
    assert fit.losses[-1] < 0.9 * fit.losses[0]
    assert fit.n_steps == 2 * -(-20_000 // 128)
    assert np.abs(fit.energy.potential - closed.potential).max() < 0.15
    assert abs(fit.energy.beta - closed.beta) < 0.1


def test_same_seed_same_network_and_the_global_generator_is_left_alone(problem) -> None:
    import torch

    kernel, _, times, p, counts = problem
    state = torch.random.get_rng_state()
    fits = [fit_neural(kernel, times, counts[:, :] // 20, p, seed=7) for _ in range(2)]
    assert np.array_equal(fits[0].gradient, fits[1].gradient)
    assert torch.equal(state, torch.random.get_rng_state())


def planar(seed: int, n: int) -> MarkovKernel:
    points = np.random.default_rng(seed).random((n, 2))
    distance = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    w = np.exp(-distance / 0.02) * (distance < 0.09)
    np.fill_diagonal(w, 0.0)
    return MarkovKernel.from_weights(w, coordinates=points)


def landscape(kernel: MarkovKernel) -> np.ndarray:
    x, y = kernel.coordinates.T
    return centred(np.sin(3 * x) * np.cos(2 * y), kernel)


def test_a_network_of_features_carries_over_to_another_graph() -> None:
    kernel, other = planar(0, 60), planar(1, 45)
    times = np.linspace(0, 3, 31)
    p = gradient_flow(kernel, landscape(kernel), 0.2, kernel.stationary, times)
    fit = fit_feature_network(WeakLoss(kernel, times, p), kernel.coordinates, hidden=(16, 16))
    assert fit.loss > 0.98
    assert fit.energy.beta == pytest.approx(0.2, abs=0.03)
    assert np.corrcoef(fit.energy.potential, landscape(kernel))[0, 1] > 0.99
    carried = fit.network.predict_potential(other.coordinates)
    assert np.corrcoef(carried, landscape(other))[0, 1] > 0.98
    with pytest.raises(InputError, match="columns"):
        fit.network.predict_potential(np.ones((3, 5)))


def test_without_torch_the_error_names_the_cure(problem, monkeypatch) -> None:
    kernel, _, times, p, counts = problem
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'thalweg\[neural\]'"):
        fit_neural(kernel, times, counts, p)


def test_bad_shapes_are_refused(problem) -> None:
    kernel, _, times, p, counts = problem
    with pytest.raises(InputError, match="one row per time"):
        fit_neural(kernel, times, counts[:-1], p)
    with pytest.raises(InputError, match="one row per state"):
        fit_feature_network(WeakLoss(kernel, times, p), np.ones((4, 2)))


@pytest.mark.parametrize("features", [None, np.linspace(0.0, 1.0, 4)[:, None]])
def test_a_network_keeps_to_its_time(features) -> None:  # type: ignore[no-untyped-def]
    kernel = MarkovKernel.from_weights(np.diag(np.ones(3), 1) + np.diag(np.ones(3), -1))
    seen = Snapshots.from_counts([0, 1, 2], [[90, 60, 30, 20], [70, 60, 40, 30], [50, 50, 50, 50]])
    model = FreeEnergyRegressor(method="neural", features=features, max_seconds=1e-9)
    model.fit(kernel, seen)
    assert model.status_ is Status.TIME_LIMIT
    assert np.isfinite(model.potential_).all()
