"""Macrostates, basins, and the kinship of individuals along the flow."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from strategies import random_kernel
from thalweg import FreeEnergy, MarkovKernel, gradient_flow
from thalweg.dynamics import (
    Landscape,
    ancestors,
    basins,
    descendants,
    macrostates,
    transition_matrix,
    transition_operator,
    transition_rates,
)
from thalweg.dynamics import kinship as kinship_module


def wells(n_wells: int, size: int = 6, bridge: float = 0.02) -> Landscape:
    """Cliques joined in a row by weak edges."""
    w = np.kron(np.eye(n_wells), np.ones((size, size)) - np.eye(size))
    for k in range(n_wells - 1):
        w[(k + 1) * size - 1, (k + 1) * size] = w[(k + 1) * size, (k + 1) * size - 1] = bridge
    rng = np.random.default_rng(n_wells)
    n = n_wells * size
    return Landscape(MarkovKernel.from_weights(w), FreeEnergy(0.1 * rng.normal(size=n), 1.0))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_both_answers_find_the_wells(count):
    land = wells(count)
    found = macrostates(land)
    assert found.n_macrostates == count
    assert found.gap > 3
    truth = np.repeat(np.arange(count), 6)
    for k in range(count):
        assert np.unique(truth[found.states(k)]).size == 1
    chi = found.memberships
    assert chi.min() >= 0
    assert np.allclose(chi.sum(axis=1), 1)
    assert np.allclose(found.weights, land.equilibrium @ chi)
    named = found.named_cores([f"s{x}" for x in range(6 * count)])
    surest = [int(np.argmax(chi[:, k])) for k in range(count)]
    assert list(named) == [f"set of s{x}" for x in surest]
    assert all(x in core for x, core in zip(surest, named.values(), strict=True))
    labels = basins(land).labels(count)
    for k in range(count):
        assert np.unique(truth[labels == k]).size == 1


def test_basins_of_a_path_by_hand():
    w = np.diag(np.ones(4), 1)
    kernel = MarkovKernel.from_weights(w + w.T)
    land = Landscape(kernel, FreeEnergy([0.0, 2.0, -0.5, 1.0, 0.2], beta=0.2))
    q = transition_rates(kernel, land.energy).toarray()
    p = land.equilibrium
    found = basins(land)
    assert found.bottom.tolist() == [2, 0, 4]
    # State 0 leaves over the edge with the smaller flux of its two; 4 likewise.
    assert found.saddle[1] == pytest.approx(-np.log(min(p[0] * q[0, 1], p[1] * q[1, 2])))
    assert found.saddle[2] == pytest.approx(-np.log(min(p[4] * q[4, 3], p[3] * q[3, 2])))
    assert found.parent.tolist() == [-1, 0, 0]
    assert found.terminal(2.0).tolist() == [2, 0, 4]


def test_descendants_and_ancestors_against_an_ode_solver():
    rng = np.random.default_rng(2)
    kernel = random_kernel(5, rng)
    energy = FreeEnergy(rng.normal(size=5), 0.5)
    p0 = rng.dirichlet(np.full(5, 3.0))
    flow = gradient_flow(kernel, energy, p0, np.linspace(0, 1, 401), rtol=1e-11)

    def rhs(t, r):
        k = np.searchsorted(flow.times, t)
        k = min(max(k, 1), 400)
        s = (t - flow.times[k - 1]) / (flow.times[k] - flow.times[k - 1])
        p = (1 - s) * flow.probabilities[k - 1] + s * flow.probabilities[k]
        q = transition_rates(kernel, energy, p / p.sum()).toarray()
        return (r.reshape(5, 5) @ q).ravel()

    exact = solve_ivp(rhs, (0, 1), np.eye(5).ravel(), rtol=1e-8, atol=1e-10).y[:, -1].reshape(5, 5)
    land = Landscape(kernel, energy)
    found = transition_matrix(land, p0, (0.0, 1.0))
    assert np.allclose(found, exact, atol=2e-5)
    assert np.allclose(p0 @ found, flow.final, atol=2e-5)
    operator = transition_operator(land, p0, (0.0, 1.0), n_steps=128)
    g, r = rng.normal(size=5), rng.dirichlet(np.ones(5))
    assert np.allclose(operator @ g, exact @ g, atol=1e-4)
    assert np.allclose(operator.T @ r, r @ exact, atol=1e-4)
    here = descendants(land, [1, 3], p0, (0.0, 1.0))
    start = np.zeros(5)
    start[[1, 3]] = p0[[1, 3]] / p0[[1, 3]].sum()
    assert here.status
    assert np.allclose(here.probabilities.value, start @ exact, atol=2e-5)
    before = ancestors(land, [0], p0, (0.0, 1.0))
    bayes = p0 * exact[:, 0]
    assert np.allclose(before.probabilities.value, bayes / bayes.sum(), atol=2e-5)


def test_sparse_chain_equals_dense(monkeypatch):
    rng = np.random.default_rng(9)
    kernel = random_kernel(9, rng)
    land = Landscape(kernel, FreeEnergy(rng.normal(size=9), 0.5))
    p0 = rng.dirichlet(np.full(9, 3.0))
    dense = descendants(land, 0, p0, (0.0, 1.0)).probabilities.value
    back = ancestors(land, 0, p0, (0.0, 1.0)).probabilities.value
    monkeypatch.setattr(kinship_module, "DENSE_STATES", 3)
    assert np.allclose(descendants(land, 0, p0, (0.0, 1.0)).probabilities.value, dense, atol=1e-9)
    assert np.allclose(ancestors(land, 0, p0, (0.0, 1.0)).probabilities.value, back, atol=1e-9)


def test_everybody_together_is_the_population():
    rng = np.random.default_rng(10)
    kernel = random_kernel(6, rng)
    land = Landscape(kernel, FreeEnergy(rng.normal(size=6), 0.3))
    p0 = rng.dirichlet(np.full(6, 3.0))
    everybody = descendants(land, range(6), p0, (0.0, 2.0)).probabilities.value
    assert np.allclose(everybody, gradient_flow(kernel, land.energy, p0, [0, 2]).final, atol=2e-6)
