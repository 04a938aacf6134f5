"""Interventions on a fitted model."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg import (
    FreeEnergy,
    FreeEnergyRegressor,
    InputError,
    Snapshots,
    gradient_flow,
    make_graph,
)
from thalweg.dynamics import perturb, without


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    kernel = make_graph("delaunay", 8, rng=rng).with_labels(names=list("abcdefgh"))
    energy = FreeEnergy(0.5 * rng.normal(size=8), 0.3)
    times = np.linspace(0, 2, 5)
    flow = gradient_flow(kernel, energy, rng.dirichlet(np.full(8, 2.0)), times).probabilities
    counts = [rng.multinomial(3000, p / p.sum()) for p in flow]
    return FreeEnergyRegressor().fit(kernel, Snapshots.from_counts(times, counts, names="abcdefgh"))


def test_nothing_changed_changes_nothing(model):
    same = perturb(model)
    one, other = model.forecast(model.times_), same.forecast(model.times_)
    assert np.allclose(one.probabilities, other.probabilities, atol=1e-9)
    assert np.allclose(one.lower, other.lower, atol=1e-7)
    assert np.allclose(one.upper, other.upper, atol=1e-7)


def test_a_pushed_state_empties_with_bands(model):
    pushed = perturb(model, potential={"c": 1.0})
    before, after = (m.forecast(np.linspace(0, 2, 3)) for m in (model, pushed))
    assert after.status
    assert after.upper[-1, 2] < before.lower[-1, 2]
    # Few data are averaged over several landscapes: each of them is pushed.
    fitted = model.fitted_
    if fitted.members is None:
        parts = [(1.0, model.potential_, model.beta_, model.initial_)]
    else:
        m = fitted.members
        parts = list(zip(m.weights, m.potentials, m.betas, m.initials, strict=True))
    flow = np.zeros(8)
    for weight, potential, beta, start in parts:
        v = potential.copy()
        v[2] += 1.0
        flow += weight * gradient_flow(model.kernel_, FreeEnergy(v, beta), start, [0, 2]).final
    assert np.allclose(after.probabilities[-1], flow, atol=1e-5)


def test_removed_edge_keeps_the_other_rates_or_renormalises(model):
    kernel = model.kernel_
    x, y = int(kernel.edges.source[0]), int(kernel.edges.target[0])
    old = kernel.matrix.toarray()
    keep = perturb(model, remove_edges=[(x, y)]).kernel_
    new = keep.matrix.toarray()
    off = ~np.eye(8, dtype=bool)
    off[x, y] = off[y, x] = False
    assert new[x, y] == 0
    assert np.allclose(new[off], old[off])
    assert np.allclose(keep.stationary, kernel.stationary)
    anew = perturb(model, remove_edges=[(x, y)], rates="renormalise").kernel_.matrix.toarray()
    assert anew[x].sum() == pytest.approx(1)
    others = [z for z in range(8) if z != x and old[x, z] > 0 and z != y]
    assert np.all(anew[x, others] > old[x, others] * 1.01)


def test_removed_state_and_other_noise(model):
    less = perturb(model, remove_states="d", beta=0.7)
    assert less.kernel_.names == tuple("abcefgh")
    assert less.beta_ == 0.7
    assert less.beta_stderr_ == 0
    rest = [0, 1, 2, 4, 5, 6, 7]
    assert np.allclose(np.diff(less.potential_), np.diff(model.potential_[rest]))
    assert less.initial_.sum() == pytest.approx(1)
    band = less.forecast([0.0, 1.0])
    assert np.all(band.lower <= band.probabilities)
    assert np.all(band.upper >= band.probabilities)


def test_a_kernel_without_states_given_by_name(model):
    graph, kept = without(model.kernel_, remove_states="d", remove_edges=[])
    assert graph.names == tuple("abcefgh")
    assert list(kept) == [0, 1, 2, 4, 5, 6, 7]
    assert without(model.kernel_, remove_states={3, "d"})[0].names == graph.names


def test_bad_interventions_get_one_sentence(model):
    with pytest.raises(InputError, match="no edge between"):
        perturb(model, remove_edges=[("a", "a")])
    with pytest.raises(InputError, match="falls into"):
        edges = model.kernel_.edges
        touching = [
            (int(x), int(y)) for x, y in zip(edges.source, edges.target, strict=True) if 0 in (x, y)
        ]
        perturb(model, remove_edges=touching)
    with pytest.raises(InputError, match="keep at least two"):
        perturb(model, remove_states=list("abcdefg"))
    with pytest.raises(InputError, match="not in the graph"):
        perturb(model, potential={"zz": 1.0})
