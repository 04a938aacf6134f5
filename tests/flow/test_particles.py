"""Finite populations: they follow the flow, at the rates that sampling and time steps predict."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from scipy.linalg import expm

from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow.integrate import gradient_flow
from thalweg.flow.particles import _Population, _ticks, simulate, transition_matrices
from thalweg.flow.rates import jump_rates
from thalweg.graphs import GRAPH_FAMILIES, cycle, make_graph
from thalweg.kernel import MarkovKernel
from thalweg.mobility import ArithmeticMean, GeometricMean, LogMean, Mobility
from thalweg.snapshots import hellinger

METHODS = [(m, r) for m in ("frozen", "tau-leap", "exact") for r in ("mean-field", "empirical")]
TIMES = np.linspace(0, 2, 5)


def case(
    family: str = "delaunay", n: int = 12, beta: float = 0.3, seed: int = 0
) -> tuple[MarkovKernel, FreeEnergy, np.ndarray]:
    rng = np.random.default_rng(seed)
    kernel = make_graph(family, n, rng=rng)
    return kernel, FreeEnergy(rng.normal(size=n), beta), rng.dirichlet(np.full(n, 2.0))


def frozen_recursion(
    kernel: MarkovKernel, energy: FreeEnergy, p0: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """`p <- p exp(dt Q(p))`, literally."""
    ps = [p0]
    for dt in np.diff(times):
        ps.append(ps[-1] @ expm(dt * jump_rates(kernel, energy, ps[-1] / ps[-1].sum()).toarray()))
    return np.array(ps) / np.sum(ps, axis=1, keepdims=True)


@pytest.mark.parametrize(("method", "rates"), METHODS)
def test_nobody_is_lost_and_the_generator_decides(method: Any, rates: Any) -> None:
    kernel, energy, p0 = case()
    one, again, other = (
        simulate(
            kernel, energy, p0, TIMES, 777, method=method, rates=rates, rng=np.random.default_rng(s)
        )
        for s in (1, 1, 2)
    )
    assert np.all(one.sizes == 777)
    assert np.all(np.asarray(one.counts) == np.round(one.counts))
    assert np.array_equal(one.counts, again.counts)
    assert not np.array_equal(one.counts, other.counts)


@pytest.mark.parametrize(("method", "rates"), METHODS)
def test_populations_converge_to_the_flow_like_one_over_root_n(method: Any, rates: Any) -> None:
    kernel, energy, p0 = case()
    limit = gradient_flow(kernel, energy, p0, TIMES).probabilities
    if method == "frozen":
        # The limit of frozen rates is their own recursion, which tends to the flow (see below).
        limit = frozen_recursion(kernel, energy, p0, TIMES)
    sizes = np.array([100, 1000, 10_000, 100_000])
    errors = []
    for n in sizes:
        gaps = [
            hellinger(
                simulate(
                    kernel,
                    energy,
                    p0,
                    TIMES,
                    int(n),
                    method=method,
                    rates=rates,
                    dt=None if method == "frozen" else 0.01,
                    rng=np.random.default_rng(seed),
                ).frequencies,
                limit,
            )[1:]
            for seed in range(6)
        ]
        errors.append(np.sqrt(np.mean(np.square(gaps))))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.57 < slope < -0.43
    if rates == "mean-field":
        # Independent individuals: the error is that of a multinomial, sqrt((N - 1) / (8 n)).
        np.testing.assert_allclose(errors, np.sqrt(11 / (8 * sizes)), rtol=0.25)


def test_frozen_rates_converge_to_the_flow_with_the_first_order_in_dt() -> None:
    kernel, energy, p0 = case()
    flow = gradient_flow(kernel, energy, p0, [0.0, 1.0]).probabilities[-1]
    steps = np.array([0.1, 0.05, 0.025])
    errors = []
    for dt in steps:
        times = dt * np.arange(round(1 / dt) + 1)
        errors.append(float(hellinger(frozen_recursion(kernel, energy, p0, times)[-1], flow)))
    slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert 0.9 < slope < 1.1


def test_frozen_transition_is_the_matrix_exponential_of_the_rates() -> None:
    for seed, beta in enumerate((0.0, 0.05, 0.5, 3.0)):
        kernel, energy, p = case(beta=beta, seed=seed)
        population = _Population(
            kernel, energy, LogMean(), "frozen", "mean-field", 0.5, None, np.random.default_rng(0)
        )
        exact = expm(0.7 * jump_rates(kernel, energy, p).toarray())
        np.testing.assert_allclose(population._transition(p, 0.7), exact, atol=1e-12)


def test_sparse_and_dense_frozen_steps_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, energy, p0 = case("watts_strogatz", 40)
    arguments: tuple[Any, ...] = (kernel, energy, LogMean(), "frozen", "mean-field", 0.5, None)
    dense = _Population(*arguments, np.random.default_rng(0))._frozen_step(
        p0, np.zeros(p0.size, int), 0.5
    )[0]
    counts = np.random.default_rng(1).multinomial(200_000, p0)
    monkeypatch.setattr("thalweg.flow.particles._DENSE_STATES", 0)
    population = _Population(*arguments, np.random.default_rng(0))
    p, moved = population._frozen_step(p0, counts, 0.5)
    np.testing.assert_allclose(p, dense, atol=1e-14)
    assert moved is not None
    assert hellinger(moved / moved.sum(), dense) < 1.5 * np.sqrt(39 / (8 * 200_000))


def test_exact_jumps_have_the_law_of_the_matrix_exponential() -> None:
    """All individuals start in one state of a fixed environment: counts are multinomial."""
    kernel, energy, p = case(n=6)
    population = _Population(
        kernel, energy, LogMean(), "exact", "mean-field", 0.5, None, np.random.default_rng(0)
    )
    start = int(np.argmax(energy.potential))
    counts = np.zeros(6, dtype=np.int64)
    counts[start] = 400_000
    after = population._move(p, counts, 1.3) / 400_000
    law = expm(1.3 * jump_rates(kernel, energy, p).toarray())[start]
    assert np.all(abs(after - law) < 5 * np.sqrt(law * (1 - law) / 400_000) + 1e-12)


def test_the_clock_has_a_poisson_law() -> None:
    for mean in (1e-6, 0.3, 40.0, 1000.0):
        weights, stop = _ticks(mean)
        survive = np.concatenate([[1.0], np.cumprod(1 - stop)[:-1]])
        np.testing.assert_allclose(survive * stop, weights, atol=1e-13)
        np.testing.assert_allclose(weights @ np.arange(weights.size), mean, rtol=1e-9)


@pytest.mark.parametrize(("method", "rates"), METHODS)
def test_free_energy_falls(method: Any, rates: Any) -> None:
    kernel, energy, p0 = case(beta=0.2)
    seen = simulate(
        kernel, energy, p0, TIMES, 50_000, method=method, rates=rates, rng=np.random.default_rng(0)
    )
    values = [energy(kernel, row) for row in np.asarray(seen.frequencies)]
    assert np.all(np.diff(values) < 0)
    assert values[0] - values[-1] > 0.1


@pytest.mark.parametrize("method", ["frozen", "tau-leap", "exact"])
def test_tracked_and_independent_snapshots_have_the_same_marginals(method: Any) -> None:
    kernel, energy, p0 = case(n=6)
    rng = np.random.default_rng(0)
    draws = {
        tracked: np.array(
            [
                simulate(
                    kernel,
                    energy,
                    p0,
                    [0, 0.5, 1.0],
                    50,
                    method=method,
                    rng=rng,
                    tracked=tracked,
                    dt=None if method == "frozen" else 0.04,
                ).counts
                for _ in range(200)
            ]
        )
        for tracked in (True, False)
    }
    mean, variance = draws[False].mean(axis=0), draws[False].var(axis=0)
    gap = abs(draws[True].mean(axis=0) - mean)
    assert np.all(gap < 4.5 * np.sqrt(2 * np.maximum(variance, 0.05) / 200) + 0.02 * mean)
    ratio = draws[True].var(axis=0)[mean > 2] / variance[mean > 2]
    assert np.all((ratio > 0.55) & (ratio < 1.8))

    # Tracked individuals remember where they were; freshly drawn ones do not.
    def memory(sample: np.ndarray) -> float:
        x = int(np.argmax(mean[1]))
        return float(np.corrcoef(sample[:, 1, x], sample[:, 2, x])[0, 1])

    assert memory(draws[True]) > 0.3
    assert abs(memory(draws[False])) < 0.2


@pytest.mark.parametrize("mobility", [GeometricMean(), ArithmeticMean()])
def test_other_mobilities_follow_their_flow(mobility: Mobility) -> None:
    kernel, energy, p0 = case()
    flow = gradient_flow(kernel, energy, p0, TIMES, mobility=mobility).probabilities
    for method in ("tau-leap", "exact"):
        seen = simulate(
            kernel,
            energy,
            p0,
            TIMES,
            100_000,
            method=method,  # type: ignore[arg-type]
            mobility=mobility,
            rng=np.random.default_rng(0),
        )
        assert hellinger(seen.frequencies, flow).max() < 2 * np.sqrt(11 / 800_000)


@pytest.mark.parametrize("family", GRAPH_FAMILIES)
def test_small_beta_does_not_break_any_method(family: str) -> None:
    """States empty in finite time here, and rates from them exceed any bound."""
    kernel, energy, p0 = case(family, 6, beta=0.01, seed=3)
    times = np.linspace(0, 5, 11)
    for method, rates in METHODS:
        seen = simulate(
            kernel,
            energy,
            p0,
            times,
            2000,
            method=method,  # type: ignore[arg-type]
            rates=rates,  # type: ignore[arg-type]
            rng=np.random.default_rng(0),
            dt=0.05,
        )
        assert np.all(seen.sizes == 2000)
        assert energy(kernel, seen.frequencies[-1]) < energy(kernel, seen.frequencies[0])


@pytest.mark.parametrize("method", ["frozen", "tau-leap", "exact"])
def test_empty_states_need_no_pseudo_count(method: Any) -> None:
    kernel, p0 = cycle(8), np.eye(8)[0]
    energy = FreeEnergy(np.zeros(8), 1.0)
    seen = simulate(
        kernel, energy, p0, [0.0, 1.0], 20_000, method=method, rates="empirical", dt=0.01,
        pseudo_count=0.0, rng=np.random.default_rng(0),
    )  # fmt: skip
    flow = gradient_flow(kernel, energy, p0, [0.0, 1.0]).probabilities
    assert hellinger(seen.frequencies, flow)[1] < 2 * np.sqrt(7 / 160_000)


def test_populations_may_start_in_one_state() -> None:
    kernel = cycle(8)
    energy = FreeEnergy(np.zeros(8), 1.0)
    p0 = np.eye(8)[0]
    heat = expm(2.0 * (kernel.matrix.toarray() - np.eye(8)))[0]
    for method, rates in METHODS:
        seen = simulate(
            kernel,
            energy,
            p0,
            [0, 1, 2],
            50_000,
            method=method,  # type: ignore[arg-type]
            rates=rates,  # type: ignore[arg-type]
            rng=np.random.default_rng(0),
            dt=0.02,
        )
        assert hellinger(seen.frequencies[-1], heat) < 0.02
    interaction = np.eye(8)
    crowd = FreeEnergy(np.zeros(8), 0.1, interaction)
    seen = simulate(kernel, crowd, p0, [0, 1], 100, method="tau-leap", rng=np.random.default_rng(0))
    assert seen.sizes[-1] == 100


def test_sizes_may_differ_between_independent_snapshots() -> None:
    kernel, energy, p0 = case()
    seen = simulate(
        kernel, energy, p0, [0, 1, 4], [10, 500, 3], tracked=False, rng=np.random.default_rng(0)
    )
    assert seen.sizes.tolist() == [10, 500, 3]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rates"), METHODS)
def test_a_million_individuals_on_a_thousand_states(method: Any, rates: Any) -> None:
    kernel = make_graph("delaunay", 1000, rng=np.random.default_rng(0))
    assert kernel.coordinates is not None
    x, y = kernel.coordinates.T
    energy = FreeEnergy(np.cos(3 * x) + np.sin(4 * y), 0.3)
    p0 = kernel.stationary * np.exp(-8 * ((x - 0.3) ** 2 + (y - 0.3) ** 2))
    p0 /= p0.sum()
    times = np.linspace(0, 5, 11)
    seen = simulate(
        kernel, energy, p0, times, 10**6, method=method, rates=rates, rng=np.random.default_rng(0)
    )
    flow = gradient_flow(kernel, energy, p0, times).probabilities
    assert hellinger(seen.frequencies, flow).max() < 0.03


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "euler"}, "method is 'euler'; choose 'frozen' or 'tau-leap' or 'exact'"),
        ({"rates": "none"}, "rates is 'none'"),
        ({"n_particles": 0}, "positive integer"),
        ({"n_particles": 10.5}, "positive integer"),
        ({"n_particles": [5, 6, 7]}, "single number"),
        ({"n_particles": [5, 6], "tracked": False}, "2 numbers of particles for 3 times"),
        ({"tracked": False, "rates": "empirical"}, "no population"),
        ({"times": [0, 2, 1]}, "sort the times"),
        ({"p0": np.ones(12)}, "p0 sums to 12"),
        ({"dt": -1.0}, "dt is -1"),
        (
            {
                "energy": FreeEnergy(np.zeros(12), 1, np.eye(12)),
                "method": "exact",
                "rates": "empirical",
            },
            "use method='tau-leap'",
        ),
        ({"energy": FreeEnergy(np.zeros(3), 1)}, "potential has 3 entries"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(change: dict[str, Any], message: str) -> None:
    kernel, energy, p0 = case()
    arguments: dict[str, Any] = {
        "kernel": kernel,
        "energy": energy,
        "p0": p0,
        "times": [0, 1, 2],
        "n_particles": 10,
        "rng": np.random.default_rng(0),
        **change,
    }
    with pytest.raises(InputError, match=message):
        simulate(**arguments)


@pytest.mark.parametrize("method", ["exact", "frozen"])
def test_transition_matrices_carry_the_flow(method: Literal["exact", "frozen"]) -> None:
    rng = np.random.default_rng(0)
    kernel = make_graph("delaunay", 8, rng=rng)
    energy, times = FreeEnergy(rng.normal(size=8), 0.4), np.array([0.0, 0.5, 500.0])
    p0 = rng.dirichlet(np.ones(8))
    matrices = transition_matrices(kernel, energy, p0, times, method=method, mobility=LogMean())
    seen = simulate(
        kernel, energy, p0, times, 4_000_000, rng=rng, method=method, tracked=False
    )  # fmt: skip
    p = p0
    for k, matrix in enumerate(matrices):
        np.testing.assert_allclose(matrix.sum(axis=1), 1.0)
        p = p @ matrix
        np.testing.assert_allclose(p, seen.counts[k + 1] / 4_000_000, atol=2e-3)
