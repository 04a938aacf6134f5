"""Cells of the comparisons, the limit, and the page made from results."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import expm

from thalweg.cli.options import Running
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import jump_rates
from thalweg.graphs import make_graph
from thalweg.learn.likelihood.chain.steps import LEAST
from thalweg.learn.likelihood.frozen import frozen_chain as fitted_chain
from thalweg.learn.likelihood.model import FlowModel
from thalweg.snapshots import hellinger
from thalweg_bench import BENCHMARKS, comparison, load_benchmark, mobility, scale
from thalweg_bench import command as bench
from thalweg_bench.population import follow, follow_itself, frozen_chain, transition_matrix
from thalweg_bench.reproduce import find_runs, make_page
from thalweg_bench.statistical_limit import chain_limit
from thalweg_bench.sweep import cell_generator

CELL = {
    "beta": 0.2, "family": "grid", "instance": 0, "horizon": 2.0, "steps": 10, "n_states": 6,
    "n": 2000,
}  # fmt: skip


def test_a_mean_field_fit_is_as_likely_as_the_truth_where_descending_is_not() -> None:
    # Nearly empty states flicker: descending ended with a deviance of 1.2 per degree of freedom.
    cell = CELL | {
        "family": "torus", "problem": "T = 5, beta = 0.1", "reading": "mean-field",
        "horizon": 5.0, "steps": 50, "beta": 0.1, "n": 10_000,
    }  # fmt: skip
    data = comparison.draw(cell, cell_generator("inferior", 903, cell))
    fit = comparison.ENERGY_METHODS["likelihood"](data)
    assert fit.status == "CONVERGED"
    assert data.deviance_per_degree(fit.energy) < data.deviance_per_degree(data.energy) + 0.05


def test_the_transition_matrix_is_the_exponential() -> None:
    rng = np.random.default_rng(0)
    kernel = make_graph("grid", 6, rng=rng)
    energy = FreeEnergy(rng.uniform(-1, 1, kernel.n_states), 0.3)
    p = rng.dirichlet(np.ones(kernel.n_states))
    exact = expm(0.7 * jump_rates(kernel, energy, p).toarray())
    assert np.allclose(transition_matrix(kernel, energy, p, 0.7), exact, atol=1e-12)


def test_nearly_empty_states_do_not_break_the_chain() -> None:
    rng = np.random.default_rng(1)
    kernel = make_graph("complete", 6, rng=rng)
    energy = FreeEnergy(rng.uniform(-1, 1, 6), 0.01)
    p0 = np.array([1 - 5e-200, *[1e-200] * 5])
    p, matrices = frozen_chain(kernel, energy, p0, np.linspace(0, 5, 51))
    assert np.isfinite(p).all()
    assert np.allclose(matrices.sum(axis=2), 1)
    counts, transitions = follow(p0, matrices, 500, rng)
    assert (counts.sum(axis=1) == 500).all()
    assert np.array_equal(transitions.sum(axis=2), counts[:-1])
    assert np.array_equal(transitions.sum(axis=1), counts[1:])


def test_population_and_fit_agree_where_a_state_empties_beyond_the_smallest_float() -> None:
    cell = {
        **CELL, "family": "apollonian", "n_states": 10, "horizon": 5.0, "steps": 50,
        "amplitude": 4.0, "reading": "mean-field",
    }  # fmt: skip
    emptied = 0
    for seed in range(12):
        data = comparison.draw(cell, np.random.default_rng(seed))
        model = FlowModel(data.kernel, data.times, fixed_initial=data.p0)
        theta = np.append(data.energy.potential, np.log(data.energy.beta))
        chain = fitted_chain(model, theta, slopes=False)
        emptied += data.truth.min() < 2 * LEAST
        assert np.abs(chain.probabilities - data.truth).max() < 1e-7
    assert emptied


def test_a_population_in_its_own_rates_is_followed() -> None:
    data = comparison.draw(CELL, np.random.default_rng(0))
    counts, transitions = follow_itself(
        data.kernel, data.energy, data.p0, data.times, 5000, np.random.default_rng(1)
    )
    assert np.array_equal(transitions.sum(axis=2), counts[:-1])
    assert np.array_equal(transitions.sum(axis=1), counts[1:])
    # Five thousand individuals stay near the infinite population's chain.
    assert np.mean(hellinger(counts / 5000, data.truth)) < 0.03


@pytest.mark.parametrize("reading", ["empirical", "mean-field"])
def test_the_limit_falls_with_the_root_of_the_sample(reading) -> None:
    data = comparison.draw(CELL, np.random.default_rng(0))
    share = data.seen.counts / data.size if reading == "empirical" else None
    few, many = (
        chain_limit(
            data.kernel, data.energy, data.p0, data.times, n,
            counts=None if share is None else n * share,
        )
        for n in (10_000, 1_000_000)
    )  # fmt: skip
    assert not few.chaotic
    assert few.value / many.value == pytest.approx(10, rel=0.02)


def test_a_start_that_has_to_be_learned_costs_accuracy() -> None:
    data = comparison.draw(CELL, np.random.default_rng(0))
    problem = (data.kernel, data.energy, data.p0, data.times, 10_000)
    known, free = (chain_limit(*problem, known_start=known).value for known in (True, False))
    assert known < free


def test_each_reading_is_described_by_its_own_fit_only() -> None:
    """Deviance per degree of freedom: one for the right reading, above one for the other."""
    cell = {**CELL, "n": 10_000, "beta": 0.1, "horizon": 5.0, "steps": 20}
    for reading in ("empirical", "mean-field"):
        data = comparison.draw({**cell, "reading": reading}, np.random.default_rng(2))
        fit = comparison.ENERGY_METHODS["likelihood"](data)
        assert fit.status == "CONVERGED"
        assert fit.likelihood.deviance_per_degree < 1.6
        assert not fit.likelihood.rejected
        assert data.deviance_per_degree(data.energy) < 1.6
    other = dataclasses.replace(data, reading="empirical")
    assert other.deviance_per_degree(data.energy) > 3


def test_rejected_and_partial_fits_are_counted_in_the_summary() -> None:
    cells = [{"reading": "mean-field", "status": "ok", "seconds": 1.0, "x": 1}] * 2
    extra = {"error_cramer_rao_limit": 0.01, "rms_cramer_rao_limit": 0.01}
    rows = [
        {
            **cell, **extra, "error_likelihood": 0.02, "rms_likelihood": 0.02,
            "seconds_likelihood": 0.5, "deviance_likelihood": deviance,
            "seconds_cramer_rao_limit": 0.1, "rejected_likelihood": deviance > 5,
            "status_likelihood": status,
        }
        for cell, deviance, status in zip(
            cells, (1.0, 9.0), ("CONVERGED", "SHORTER_HORIZON"), strict=True
        )
    ]  # fmt: skip
    table = comparison.summary(pd.DataFrame(rows), ["x"]).set_index("method")
    ours = table.loc["likelihood"]
    assert ours["over_limit"] == pytest.approx(2.0)
    assert ours["over_limit_stderr"] == 0
    rows[1] |= {"rms_likelihood": 0.03, "error_likelihood": 0.03}
    wider = comparison.summary(pd.DataFrame(rows), ["x"]).set_index("method").loc["likelihood"]
    # Squares of 4 and 9 limits: 6.5 +- 2.5, whose root is 2.55 +- 2.5 / (2 * 2.55).
    assert wider["over_limit_stderr"] == pytest.approx(2.5 / (2 * 6.5**0.5))
    assert (ours["rejected"], ours["unconverged"], ours["deviance"]) == (1, 1, 5.0)


def test_methods_that_do_not_apply_say_so() -> None:
    methods = ["truth", "markov_state_model"]
    for change, why in (({"frozen": False}, "trajectories"), ({"grid": "random"}, "one lag time")):
        row = comparison.compare({**CELL, "methods": methods, **change}, np.random.default_rng(0))
        assert row["error_markov_state_model"] is None
        assert why in row["failure_markov_state_model"]
        assert row["error_truth"] == 0
        assert row["error_cramer_rao_limit"] > 0


def test_the_held_out_likelihood_tells_an_arithmetic_mean_from_a_logarithmic_one() -> None:
    cell = {**CELL, "true": "arithmetic", "n": 1_000_000, "horizon": 4.0}
    row = mobility.choose(cell, np.random.default_rng(2))
    assert row["chosen"] == "arithmetic"
    assert row["margin"] > 0


def test_exponents_are_slopes() -> None:
    edges = pd.Series([10.0, 100.0, 1000.0, 10_000.0])
    assert scale._slope(edges, edges**1.5) == pytest.approx(1.5)


def test_every_benchmark_has_its_function() -> None:
    for name in BENCHMARKS:
        assert callable(load_benchmark(name))


def test_files_of_a_run_and_the_page_made_from_them(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bench, "static_pictures", lambda figures: {})
    bench.run("w2", Running(quick=True, out=tmp_path / "w2"))
    assert "static pictures" in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "w2").iterdir()}
    assert {"w2.csv", "w2.json", "w2-speed.html"} <= written
    settings = json.loads((tmp_path / "w2" / "w2.json").read_text())
    assert settings["quick"] is True
    assert "numpy" in settings["packages"]
    page, pictures = make_page(tmp_path)
    assert "`thalweg bench w2 --quick --out results/w2`" in page
    assert "Errata" in page
    assert "`table1`" in page  # named as missing
    assert pictures == {}


def test_a_full_run_counts_before_a_quick_one(tmp_path) -> None:
    for folder, quick in (("a", False), ("b", True)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "w2.json").write_text(json.dumps({"benchmark": "w2", "quick": quick}))
        (tmp_path / folder / "w2.csv").write_text("x\n1\n")
    assert find_runs(tmp_path)["w2"].folder.name == "a"


def _results(folder, name: str, rows: list[dict[str, object]]) -> None:
    folder.mkdir()
    (folder / f"{name}.json").write_text(json.dumps({"benchmark": name}))
    pd.DataFrame(rows).to_csv(folder / f"{name}.csv", index=False)


def test_the_page_shows_speeds_by_size_and_energies_row_by_row(tmp_path) -> None:
    timed = {"hellinger": 0.25, "status": "CONVERGED"}
    _results(
        tmp_path / "speed",
        "speed",
        [
            {"case": "grid, beta = 0.1", "method": "weak", "seconds": 0.5, **timed},
            {"case": "growing, N = 6", "method": "weak", "seconds": 0.125, **timed},
            {"case": "growing, N = 50", "method": "weak", "seconds": 2.0, "status": "STALLED"},
            {"case": "99 states", "method": "weak", "seconds": 3.0, "one solve": 1.5},
        ],
    )
    value = {"method": "weak", "error": 0.5, "deviation": 0.125, "failed": 0, "runs": 12}
    _results(tmp_path / "energy", "energy", [{"amplitude": 2.0, "beta": 0.05, **value}])
    page, _ = make_page(tmp_path)
    assert "| weak | 0.5 | 0.2500 | 1 |" in page
    assert "| weak | 0.125 (0.2500) | 2, STALLED |" in page
    assert "| 99 states | weak | 3 | 1.5 |" in page
    assert "| ± 2 | 0.05 | 0.5000 ± 0.1250 |" in page


def test_sections_without_results_are_kept_from_the_page(tmp_path) -> None:
    _results(tmp_path / "w2", "w2", [{"x": 1}])
    before = (
        "# Old\n\n## Graph size\n\n`thalweg bench size`\n\nold words\n\n| Cramér-Rao limit |\n\n"
        "## The pipeline\n\n`thalweg bench pipeline`\n\nold words\n\n| table |\n"
    )
    page, _ = make_page(tmp_path, before)
    assert page.count("## Errata of the paper") == 1
    assert "# Old" not in page
    assert "old words" not in page
    assert "*Kept from an earlier run.*\n\n| table |" in page
    assert make_page(tmp_path, page)[0] == page


def test_no_results_no_page(tmp_path) -> None:
    with pytest.raises(InputError, match="no results"):
        make_page(tmp_path)
