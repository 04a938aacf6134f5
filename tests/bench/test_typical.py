"""The benchmark of few individuals: its rivals and its rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import expm

from thalweg import FreeEnergyRegressor, Snapshots, make_graph
from thalweg_bench import BENCHMARKS, BenchSettings
from thalweg_bench.sweep import cell_generator
from thalweg_bench.typical import cells, summary
from thalweg_bench.typical_cases import METHODS, make_data, one_data_set
from thalweg_bench.typical_rivals import ReversibleChain, chain_objective, fokker_planck

CELL = {
    "source": "flow", "n_states": 8, "graph": "path", "size": 200, "potential": "smooth",
    "beta": 0.2, "index": 0,
}  # fmt: skip


@pytest.mark.parametrize("free", [False, True])
def test_the_chains_gradient_is_its_derivative(free: bool) -> None:
    rng = np.random.default_rng(1)
    kernel = make_graph("delaunay", 8, rng=rng)
    counts = rng.multinomial(100, np.ones(8) / 8, size=3).astype(np.float64)
    objective = chain_objective(kernel, np.array([0.0, 1.0, 2.5]), counts, 0.1, free=free)
    z = 0.5 * rng.normal(size=17 + (kernel.n_edges if free else 0))
    slopes = [(objective(z + e)[0] - objective(z - e)[0]) / 2e-5 for e in 1e-5 * np.eye(z.size)]
    np.testing.assert_allclose(objective(z)[1], slopes, atol=1e-5)


def test_a_chain_is_its_generators_exponential() -> None:
    rng = np.random.default_rng(2)
    kernel = make_graph("delaunay", 7, rng=rng)
    u, p = rng.normal(size=7), rng.dirichlet(np.ones(7))
    chain = ReversibleChain(kernel, u, np.full(kernel.n_edges, np.log(0.3)), p, 0.0)
    rates = 0.3 * kernel.matrix.toarray() * np.exp(0.5 * (u[:, None] - u[None, :]))
    np.fill_diagonal(rates, 0.0)
    rates -= np.diag(rates.sum(axis=1))
    np.testing.assert_allclose(chain.predict(np.array([1.7]))[0], p @ expm(1.7 * rates), atol=1e-10)


def test_the_fokker_planck_chain_recovers_itself() -> None:
    cell = {**CELL, "source": "chain", "size": 50_000, "beta": 1.0}
    data = make_data(cell, cell_generator("typical", 0, cell))
    found = fokker_planck(data.kernel, data.times, data.counts).predict(data.asked)
    assert np.abs(found - data.truth).max() < 0.01


def test_a_data_set_has_every_method_and_a_row() -> None:
    import pandas as pd

    row = one_data_set(CELL, cell_generator("typical", 0, CELL))
    assert not [key for key in row if key.endswith("_failed")]
    for name in METHODS:
        assert 0.0 <= row[f"{name}_ahead"] <= 1.0
    table = summary(pd.DataFrame([{**CELL, **row}]))
    assert table["sets"] == 1
    assert 0.0 <= table["V covered"] <= 1.0


def test_the_grid_is_the_announced_one() -> None:
    assert "typical" in BENCHMARKS
    full = cells(BenchSettings())
    assert {cell["n_states"] for cell in full} == {10, 30, 100, 300}
    assert {cell["source"] for cell in full} == {"flow", "chain"}
    assert len(full) == 312
    assert len({tuple(cell.values()) for cell in full}) == 312
    assert len(cells(BenchSettings(instances=1))) == 768
    assert len(cells(BenchSettings(quick=True))) == 16
    # A run stopped after a quarter has covered every row where the model holds.
    part = [(cell["n_states"], cell["size"]) for cell in full[:78] if cell["source"] == "flow"]
    assert {(n, size) for n in (10, 30) for size in (100, 300, 1000, 5000)} <= set(part)


def test_a_path_cut_by_an_empty_state_is_averaged_over_priors() -> None:
    """An ordinary fit of it converged with a potential wrong by 600 and an error of 51."""
    cell = {
        "source": "chain", "n_states": 100, "graph": "path", "size": 5000, "potential": "rough",
        "beta": 1.0, "index": 0,
    }  # fmt: skip
    data = make_data(cell, cell_generator("typical", 77881, cell))
    model = FreeEnergyRegressor().fit(data.kernel, Snapshots.from_counts(data.times, data.counts))
    error = np.abs(model.potential_ - data.potential)
    assert np.mean(error < 1.96 * model.potential_stderr_) > 0.8
