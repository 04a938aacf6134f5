"""Laws of the gradient flow, oracles, and agreement of its two methods."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from strategies import MOBILITIES
from thalweg.energy import FreeEnergy, PowerEnergy
from thalweg.errors import ConvergenceError, InputError
from thalweg.flow import gradient_flow, velocity
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.mobility import ArithmeticMean, PorousMediumMean
from thalweg.status import Status


def setting(seed: int, n: int = 6) -> tuple[MarkovKernel, np.random.Generator, np.ndarray]:
    rng = np.random.default_rng(seed)
    weights = rng.random((n, n)) * (rng.random((n, n)) < 0.6) + np.eye(n, k=1)
    return MarkovKernel.from_weights(weights + weights.T), rng, rng.dirichlet(np.ones(n))


def energies(kernel, energy, flow):
    return np.array([energy(kernel, p) for p in flow.probabilities])


# ------------------------------------------------------------------------------ laws


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(MOBILITIES),
    st.sampled_from([0.01, 0.1, 1.0]),
    st.sampled_from(["auto", "implicit"]),
)
def test_mass_positivity_and_energy(seed, mobility, beta, method):
    kernel, rng, p0 = setting(seed)
    energy = FreeEnergy(rng.uniform(-1, 1, 6), beta)
    times = np.cumsum(rng.exponential(0.5, 8))
    flow = gradient_flow(kernel, energy, p0, times, mobility=mobility, rtol=1e-6, method=method)
    assert flow.status is Status.CONVERGED
    np.testing.assert_array_equal(flow.probabilities[0], p0 / p0.sum())
    assert abs(flow.probabilities.sum(axis=1) - 1).max() < 1e-15
    assert (flow.probabilities > 0).all()
    assert np.diff(energies(kernel, energy, flow)).max() <= 1e-14


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.5]))
def test_relabelling_the_states_changes_nothing(seed, beta):
    kernel, rng, p0 = setting(seed)
    v, order = rng.uniform(-1, 1, 6), rng.permutation(6)
    w = kernel.flow_matrix.toarray() + np.diag(
        kernel.stationary - kernel.flow_matrix.toarray().sum(axis=1)
    ).clip(0)
    other = MarkovKernel.from_weights(w[np.ix_(order, order)])
    times = [0.0, 0.5, 3.0]
    a = gradient_flow(kernel, FreeEnergy(v, beta), p0, times, rtol=1e-9)
    b = gradient_flow(other, FreeEnergy(v[order], beta), p0[order], times, rtol=1e-9)
    np.testing.assert_allclose(a.probabilities[:, order], b.probabilities, atol=1e-6)


@pytest.mark.parametrize("method", ["explicit", "implicit"])
def test_time_translation_and_restart(method):
    kernel, rng, p0 = setting(5)
    energy = FreeEnergy(rng.uniform(-1, 1, 6), 0.3)
    whole = gradient_flow(kernel, energy, p0, [2.0, 3.0, 5.0], method=method)
    late = gradient_flow(kernel, energy, whole.probabilities[1], [0.0, 2.0], method=method)
    np.testing.assert_allclose(late.final, whole.final, atol=1e-7)


@pytest.mark.parametrize("mobility", MOBILITIES, ids=repr)
@pytest.mark.parametrize("internal", [None, PowerEnergy(2.0)], ids=repr)
def test_the_flow_ends_at_equilibrium(mobility, internal):
    kernel, rng, p0 = setting(1)
    energy = FreeEnergy(rng.uniform(-1, 1, 6), 0.8, internal=internal)
    flow = gradient_flow(kernel, energy, p0, [0.0, 1e4], mobility=mobility)
    # A power energy may leave states empty, where means that vanish slow the end.
    atol = 1e-7 if internal is None else 1e-3
    np.testing.assert_allclose(flow.final, energy.equilibrium(kernel), atol=atol)


# ------------------------------------------------------------------------------ oracles


@pytest.mark.parametrize("method", ["auto", "explicit", "implicit"])
def test_entropy_alone_is_the_heat_flow(method):
    kernel, _, p0 = setting(2)
    times = np.array([0.0, 0.3, 1.0, 5.0])
    flow = gradient_flow(kernel, FreeEnergy(np.zeros(6), 1.0), p0, times, rtol=1e-10, method=method)
    generator = kernel.matrix.toarray() - np.eye(6)
    exact = np.array([p0 @ expm(t * generator) for t in times])
    np.testing.assert_allclose(flow.probabilities, exact, atol=1e-9)


@pytest.mark.parametrize("q", [0.5, 1.5, 2.0])
def test_power_energies_under_their_heat_mean_are_the_heat_flow(q):
    kernel, _, p0 = setting(4)
    internal = PowerEnergy(q)
    flow = gradient_flow(
        kernel,
        FreeEnergy(np.zeros(6), 1.0, internal=internal),
        p0,
        [0.0, 2.0],
        mobility=internal.heat_mobility,
        rtol=1e-10,
    )
    exact = p0 @ expm(2 * (kernel.matrix.toarray() - np.eye(6)))
    np.testing.assert_allclose(flow.final, exact, atol=1e-9)


@pytest.mark.parametrize("q", [0.5, 2.0, 3.0])
@pytest.mark.parametrize("method", ["explicit", "implicit"])
def test_the_porous_medium_equation(q, method):
    kernel, _, p0 = setting(6)
    internal, pi = PowerEnergy(q), kernel.stationary
    generator = kernel.matrix.toarray() - np.eye(6)
    reference = solve_ivp(
        lambda t, rho: generator @ rho**q,
        (0, 2),
        p0 / pi,
        method="Radau",
        rtol=1e-10,
        atol=1e-12,
    )
    flow = gradient_flow(
        kernel,
        FreeEnergy(np.zeros(6), 1.0, internal=internal),
        p0,
        [0.0, 2.0],
        mobility=internal.porous_mobility,
        rtol=1e-9,
        method=method,
    )
    np.testing.assert_allclose(flow.final, pi * reference.y[:, -1], atol=2e-8)


@pytest.mark.parametrize("mobility", MOBILITIES, ids=repr)
@pytest.mark.parametrize("kind", ["none", "dense", "sparse"])
def test_explicit_and_implicit_agree_with_scipy(mobility, kind):
    kernel, rng, p0 = setting(7)
    w = rng.uniform(-1, 1, (6, 6))
    w = w + w.T
    interaction = {"none": None, "dense": w, "sparse": sparse.csr_array(w)}[kind]
    energy = FreeEnergy(rng.uniform(-1, 1, 6), 0.5, interaction=interaction)
    explicit, implicit = (
        gradient_flow(kernel, energy, p0, [0, 0.4, 3], mobility=mobility, method=m).final
        for m in ("explicit", "implicit")
    )
    reference = solve_ivp(
        lambda t, p: velocity(kernel, energy, p / p.sum(), mobility),
        (0, 3),
        p0,
        rtol=1e-10,
        atol=1e-13,
    ).y[:, -1]
    np.testing.assert_allclose(explicit, reference, atol=1e-7)
    np.testing.assert_allclose(implicit, reference, atol=1e-7)


def test_interaction_on_many_states_by_quasi_newton():
    rng = np.random.default_rng(0)
    kernel = make_graph("grid", 225, rng=rng)
    n = kernel.n_states
    w = np.exp(-abs(np.arange(n)[:, None] - np.arange(n)) / 5)
    energy = FreeEnergy(rng.uniform(-1, 1, n), 0.3, interaction=w)
    p0 = rng.dirichlet(np.ones(n))
    a = gradient_flow(kernel, energy, p0, [0, 0.5], method="explicit", rtol=1e-6)
    b = gradient_flow(kernel, energy, p0, [0, 0.5], method="implicit", rtol=1e-6)
    assert b.status is Status.CONVERGED
    np.testing.assert_allclose(a.final, b.final, atol=1e-7)


# ------------------------------------------------------------------------------ orders and cost


@pytest.mark.parametrize("method", ["explicit", "implicit"])
def test_the_error_follows_the_tolerance(method):
    kernel, rng, p0 = setting(8)
    energy = FreeEnergy(rng.uniform(-1, 1, 6), 0.4)
    times = [0.0, 1.0, 2.0]
    best = gradient_flow(kernel, energy, p0, times, rtol=1e-12, method="explicit").final
    tolerances = np.array([1e-4, 1e-6, 1e-8, 1e-10])
    errors = [
        abs(gradient_flow(kernel, energy, p0, times, rtol=r, method=method).final - best).max()
        for r in tolerances
    ]
    slope = np.polyfit(np.log(tolerances), np.log(errors), 1)[0]
    assert 0.75 < slope < 1.3
    assert (errors < 10 * tolerances).all()


def test_a_smooth_start_on_a_large_graph_is_cheap():
    side = 100
    i = np.arange(side * side)
    ring = sparse.diags_array([np.ones(side - 1), [1.0]], offsets=[1, side - 1])
    ring = ring + ring.T
    eye = sparse.eye_array(side)
    kernel = MarkovKernel.from_weights(sparse.kron(ring, eye) + sparse.kron(eye, ring))
    x, y = i // side / side, i % side / side
    p0 = np.exp(-8 * ((x - 0.5) ** 2 + (y - 0.4) ** 2))
    energy = FreeEnergy(np.sin(2 * np.pi * x) * np.cos(2 * np.pi * y), 0.5)
    flow = gradient_flow(kernel, energy, p0 / p0.sum(), [0, 10], rtol=1e-6)
    assert flow.method == "explicit"
    assert flow.n_evaluations <= 250


def test_dense_output_times_do_not_change_the_answer():
    kernel, rng, p0 = setting(9)
    energy = FreeEnergy(rng.uniform(-1, 1, 6), 0.01)
    few = gradient_flow(kernel, energy, p0, [0, 4])
    many = gradient_flow(kernel, energy, p0, np.linspace(0, 4, 201))
    np.testing.assert_allclose(few.final, many.final, atol=1e-6)
    assert many.n_steps < 200 + 3 * few.n_steps


# ------------------------------------------------------------------------------ bad input


def test_statuses_and_messages():
    kernel, rng, p0 = setting(0)
    energy = FreeEnergy(rng.uniform(-1, 1, 6), 0.3)
    short = gradient_flow(kernel, energy, p0, [0, 1, 50], max_steps=5)
    assert short.status is Status.MAX_STEPS
    assert np.isfinite(short.probabilities).all()
    with pytest.raises(ConvergenceError, match="step limit"):
        gradient_flow(kernel, energy, p0, [0, 1, 50], max_steps=5, throw=True)
    with pytest.raises(InputError, match="method"):
        gradient_flow(kernel, energy, p0, [0, 1], method="magic")
    with pytest.raises(InputError, match="rtol"):
        gradient_flow(kernel, energy, p0, [0, 1], rtol=0)
    with pytest.raises(InputError, match="potential"):
        gradient_flow(kernel, FreeEnergy([0.0], 1.0), p0, [0, 1])
    single = gradient_flow(kernel, energy, p0, [3.0])
    assert single.probabilities.shape == (1, 6)
    assert single.status
    frame = gradient_flow(kernel, energy, p0, [0, 1]).to_frame()
    assert frame.shape == (2, 6)
    assert frame.index.name == "time"


def test_equal_means_move_the_same_mass_into_empty_states_without_noise():
    kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    energy, start = FreeEnergy([1.0, 0.5, 0.0], 0.0), [1.0, 0.0, 0.0]
    found = [
        gradient_flow(kernel, energy, start, [0, 1.0], mobility=mobility).probabilities[-1]
        for mobility in (ArithmeticMean(), PorousMediumMean(2.0))
    ]
    assert found[0] == pytest.approx([49 / 64, 14 / 64, 1 / 64], rel=1e-6)
    assert found[1] == pytest.approx(found[0], rel=1e-6)
