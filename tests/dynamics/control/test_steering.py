"""Steering: the geodesic, the flow, its bound, its derivatives, and few pushed states."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad, minimize
from scipy.special import expit

from strategies import generators, random_kernel
from thalweg import (
    FreeEnergy,
    InputError,
    LogMean,
    MarkovKernel,
    TransportGeometry,
    gradient_flow,
    make_graph,
)
from thalweg.dynamics import Landscape, push_few, steer
from thalweg.dynamics.control.action import Action
from thalweg.dynamics.control.bound import humps
from thalweg.dynamics.control.curve import Curve
from thalweg.dynamics.control.few import _Task
from thalweg.dynamics.control.newton import PlanProblem
from thalweg.dynamics.control.wish import Share, Target
from thalweg.mobility import HarmonicMean


def case(n, rng, amplitude=0.2, beta=0.3):
    kernel = random_kernel(n, rng)
    land = Landscape(kernel, FreeEnergy(amplitude * rng.normal(size=n), beta))
    return land, rng.dirichlet(np.full(n, 4.0)), rng.dirichlet(np.full(n, 4.0))


@given(st.integers(2, 6), st.floats(0.3, 6.0), generators)
@settings(max_examples=6)
def test_the_plan_arrives_and_nothing_is_cheaper(n, horizon, rng):
    land, p0, q = case(n, rng)
    plan = steer(land, p0, q, horizon)
    assert plan.status
    assert plan.missed < 1e-7
    if plan.convex:
        assert abs(plan.gap) < 1e-4
    assert plan.lower_bound <= float(plan.cost.value) * (1 + 1e-8)


@pytest.mark.parametrize("mobility", [LogMean(), HarmonicMean()])
def test_without_a_landscape_it_is_the_geodesic(mobility):
    rng = np.random.default_rng(0)
    kernel = random_kernel(6, rng)
    p0, q = rng.dirichlet(np.full(6, 4.0), size=2)
    land = Landscape(kernel, FreeEnergy(np.zeros(6), 0.0), mobility)
    plan = steer(land, p0, q, 2.0)
    geodesic = TransportGeometry(kernel, mobility).geodesic(p0, q, tolerance=1e-10)
    assert float(plan.cost.value) == pytest.approx(geodesic.distance**2 / 4.0, rel=1e-8)
    assert plan.lower_bound == pytest.approx(geodesic.distance**2 / 4.0, rel=1e-7)
    along = geodesic.at(plan.times / 2.0).probabilities
    assert np.allclose(plan.probabilities, along, atol=1e-6)


def test_where_the_flow_goes_nothing_is_added():
    land, p0, _ = case(5, np.random.default_rng(1))
    end = gradient_flow(land.kernel, land.energy, p0, [0, 2.0], rtol=1e-11).final
    plan = steer(land, p0, end, 2.0)
    assert float(plan.cost.value) == 0
    assert np.all(plan.potential == 0)
    near = end + 1e-5 * np.array([1, -1, 1, -1, 0])
    close = steer(land, p0, near, 2.0)
    assert 0 < float(close.cost.value) < 1e-8
    assert abs(close.gap) < 1e-3
    share = float(end[:2].sum())
    assert float(steer(land, p0, horizon=2.0, raise_mass=([0, 1], 0.9 * share)).cost.value) == 0


@given(st.integers(3, 6), generators)
@settings(max_examples=3)
def test_raised_mass_is_the_best_of_all_targets(n, rng):
    land, p0, _ = case(n, rng)
    share = 0.5 * (1 + gradient_flow(land.kernel, land.energy, p0, [0, 1.5]).final[0])
    plan = steer(land, p0, horizon=1.5, raise_mass=(0, share))
    assert plan.status
    assert plan.reached[0] == pytest.approx(share, abs=1e-9)
    again = steer(land, p0, plan.reached, 1.5)
    assert float(again.cost.value) == pytest.approx(float(plan.cost.value), rel=1e-5)
    moved = plan.reached * np.exp(0.05 * rng.normal(size=n))
    moved[0], moved[1:] = share, moved[1:] * (1 - share) / moved[1:].sum()
    assert float(steer(land, p0, moved, 1.5).cost.value) > float(plan.cost.value)
    # At the end only the members are pushed, all alike (transversality).
    assert np.ptp(plan.at(1.5)[1:]) < 1e-3 * np.ptp(plan.at(1.5))


def test_long_horizons_are_resolved_until_the_simulation_arrives():
    rng = np.random.default_rng(11)
    kernel = make_graph("barabasi_albert", 60, rng=rng)
    v = rng.normal(size=60)
    source, target, _ = kernel.edges
    v *= 0.9 / np.abs(v[source] - v[target]).max()
    p0, q = rng.dirichlet(np.full(60, 3.0), size=2)
    plan = steer(Landscape(kernel, FreeEnergy(v, 0.3)), p0, q, 20.0)
    assert plan.status
    assert plan.missed < 1e-6
    assert abs(plan.gap) < 1e-5
    assert plan.curvature > 0.1


def test_gradient_and_curvature_of_the_action():
    rng = np.random.default_rng(3)
    land, p0, q = case(4, rng)
    action = Action(land.kernel, land.energy, LogMean())
    problem = PlanProblem(action, Curve(np.array([0.0, 1.0])), p0, Target(q))
    tau = problem.curve.nodes[:, None]
    nodes = (1 - tau) * p0 + tau * q + 0.02 * np.sin(np.pi * tau) * (p0 - q)[::-1]
    shape = nodes[problem.free].shape

    def full(z):
        out = nodes.copy()
        change = z.reshape(shape)
        out[problem.free] += change - change.mean(axis=1, keepdims=True)
        return out

    zero = np.zeros(shape).ravel()

    def gradient(z):
        force = problem.force(full(z), problem.moments(full(z)))
        return force - force.mean(axis=1, keepdims=True)

    wrong = check_grad(lambda z: problem.value(full(z)), lambda z: gradient(z).ravel(), zero)
    assert wrong < 1e-5
    change = rng.normal(size=shape)
    change -= change.mean(axis=1, keepdims=True)
    h = 1e-6
    slopes = [gradient(s * change.ravel()) for s in (h, -h)]
    product = problem.bent(nodes, problem.moments(nodes), change)
    product -= product.mean(axis=1, keepdims=True)
    assert np.allclose(product, (slopes[0] - slopes[1]) / (2 * h), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("members", [None, [True, True, False, False]])
def test_steps_multiply_shares(members):
    rng = np.random.default_rng(3)
    land, p0, q = case(4, rng)
    action = Action(land.kernel, land.energy, LogMean())
    inside = None if members is None else np.array(members)
    curve = Curve(np.array([0.0, 1.0]))
    goal = Target(q) if inside is None else Share(inside, float(q[inside].sum()))
    problem = PlanProblem(action, curve, p0, goal)
    nodes = np.linspace(p0, q, curve.nodes.size)
    at = problem.moments(nodes)
    change = rng.normal(size=nodes[problem.free].shape)
    after, before = (problem.moved(nodes, sign * 1e-5 * change) for sign in (1, -1))
    slope = (problem.value(after) - problem.value(before)) / 2e-5
    assert np.vdot(problem.gradient(nodes, at), change) == pytest.approx(slope, rel=1e-6)
    bend = [problem.gradient(x, problem.moments(x)) for x in (after, before)]
    expected = (bend[0] - bend[1]) / 2e-5
    assert np.allclose(problem.product(nodes, at, change), expected, atol=1e-6)
    kept = slice(None) if inside is None else inside
    assert problem.moved(nodes, 5 * change)[-1, kept].sum() == pytest.approx(q[kept].sum())


def test_a_steep_plan_slides_down_waits_and_climbs_late():
    """Down is free, waiting at rest is free, and a slow climb costs twice the free energy."""
    pair = MarkovKernel.from_weights([[0, 1], [1, 0]])
    energy = FreeEnergy([0.0, 3.0], 0.3)
    plan = steer(Landscape(pair, energy), [0.6, 0.4], [0.4, 0.6], 2.0, tolerance=1e-3)
    assert plan.status
    assert not plan.convex
    assert plan.missed < 1e-6
    assert plan.curvature > 0
    rest = energy.equilibrium(pair)
    assert plan.probabilities[16] == pytest.approx(rest, abs=1e-6)
    climb = energy(pair, [0.4, 0.6]) - energy(pair, rest)
    assert float(plan.cost.value) == pytest.approx(2 * climb, rel=1e-3)
    # The bound is not sharp here, but it holds, and the words say so.
    assert 0 < plan.lower_bound < float(plan.cost.value)
    assert "a cheaper plan may exist" in str(plan)


def test_humps_are_where_the_envelope_is_flat():
    z = np.linspace(-300, 300, 600_001)
    s, t = expit(z), expit(-z)
    for alpha in (-13.0, -50.0, -2000.0, -2e4):
        h = alpha * LogMean()(s, t) - (s - t) * z
        ratio, height = humps(np.array([alpha * 0.04]), 0.2)
        assert height[0] == pytest.approx(0.04 * h.max(), rel=1e-6)
        assert abs(abs(z[np.argmax(h)]) - ratio[0]) < 2e-2


def test_error_of_the_cost():
    rng = np.random.default_rng(5)
    land, p0, q = case(5, rng)
    row = 0.1 * rng.normal(size=(1, 6))
    known = steer(Landscape(land.kernel, land.energy, directions=row), p0, q, 1.0)
    h = 1e-4
    ends = [
        float(
            steer(
                Landscape(
                    land.kernel,
                    FreeEnergy(land.energy.potential + s * row[0, :5], 0.3 + s * row[0, 5]),
                ), p0, q, 1.0,
            ).cost.value
        )
        for s in (h, -h)
    ]  # fmt: skip
    slope = abs(ends[0] - ends[1]) / (2 * h)
    assert float(known.cost.stderr) == pytest.approx(slope, rel=1e-3)


def test_few_pushed_states_are_the_best_of_all_pairs():
    rng = np.random.default_rng(6)
    land, p0, _ = case(4, rng)
    share = float(gradient_flow(land.kernel, land.energy, p0, [0, 2.0]).final[2]) + 0.15
    plan = push_few(land, p0, (2, share), 2.0, most=2)
    assert plan.status
    assert plan.reached == pytest.approx(share, abs=1e-5)
    assert np.count_nonzero(plan.potential) == 2
    assert plan.costs[1] <= plan.costs[0]
    whole = steer(land, p0, horizon=2.0, raise_mass=(2, share))
    assert float(whole.cost.value) <= plan.cost
    members = np.arange(4) == 2
    task = _Task(land, p0, members, share, 2.0)
    every = [
        task.cheapest(list(pair), np.zeros(4))[1] for pair in itertools.combinations(range(4), 2)
    ]
    assert plan.cost <= 1.02 * min(every)


def test_a_push_on_all_states_against_a_plain_optimiser():
    rng = np.random.default_rng(7)
    land, p0, _ = case(3, rng)
    share = float(gradient_flow(land.kernel, land.energy, p0, [0, 2.0]).final[0]) + 0.1
    task = _Task(land, p0, np.arange(3) == 0, share, 2.0)
    found = minimize(
        lambda z: task.run(np.append(z, 0.0))[1], [-1.0, 0.0], method="COBYLA",
        constraints={"type": "ineq", "fun": lambda z: task.run(np.append(z, 0.0))[0] - share},
        options={"maxiter": 300, "rhobeg": 0.3},
    )  # fmt: skip
    assert push_few(land, p0, (0, share), 2.0, most=2).cost == pytest.approx(found.fun, rel=0.02)


def test_wishes_that_cannot_be_met_get_one_sentence():
    land, p0, q = case(4, np.random.default_rng(8))
    with pytest.raises(InputError, match="either a target or raise_mass"):
        steer(land, p0)
    with pytest.raises(InputError, match="empty state can neither"):
        steer(land, p0, [1.0, 0.0, 0.0, 0.0])
    with pytest.raises(InputError, match="names all states"):
        steer(land, p0, raise_mass=(range(4), 0.5))
    with pytest.raises(InputError, match="raise_mass is empty"):
        steer(land, p0, raise_mass=([], 0.5))
    with pytest.raises(InputError, match="between 0 and 1"):
        steer(land, p0, raise_mass=(0, 1.5))
    with pytest.raises(InputError, match="horizon"):
        steer(land, p0, q, 0.0)
    with pytest.raises(InputError, match="logarithmic mean"):
        steer(Landscape(land.kernel, land.energy, HarmonicMean()), p0, q)
    with pytest.raises(InputError, match="allow more states"):
        push_few(land, p0, (0, 0.99), 0.01, most=1)
    with pytest.raises(InputError, match="needs noise"):
        flat = Landscape(MarkovKernel.from_weights([[0, 1], [1, 0]]), FreeEnergy([0.0, 0.0], 0.0))
        steer(flat, [0.5, 0.5], raise_mass=(0, 0.7))
