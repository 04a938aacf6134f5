"""Landscapes on large graphs from the graph alone: correlation, beta, status and cost.

Rough landscapes are independent and uniform in [-1, 1] with a random start (Dirichlet, 5), until
time 5; smooth ones are noise after eight steps of the lazy walk or, in the plane, waves, until time
10 per thousand states. `beta = 0.1`, 21 snapshots of 20 individuals per state. For rough landscapes
the table gives the information limit: the correlation that the posterior at the truth allows.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import linalg
from scipy.special import polygamma

from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.energy import FreeEnergy, centred
from thalweg.flow import gradient_flow
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.fields import fit_likelihood_large
from thalweg.learn.fields.flow_map import FlowMap
from thalweg.learn.fields.likelihood import Likelihood
from thalweg.snapshots import Snapshots
from thalweg_bench import BenchResult, BenchSettings

__all__ = ["Case", "draw", "information_limit", "run"]

BETA = 0.1
FAMILIES = ("watts_strogatz", "grid", "regular", "barabasi_albert")
SIZES = (3000, 10_000)
_PLANAR = ("grid", "delaunay")
_PER_STATE, _TIMES = 20, 21
_SLACK = 0.005
_SMOOTH = {"delaunay": 0.975}
_SECONDS = {1000: 20.0, 3000: 60.0, 10_000: 300.0}
_DENSE_STATES = 1500
"""Largest number of states for which the information limit is computed."""
_BATCH = 64
_WEAK_STATES = 2000
"""Up to this many states the weak form runs beside the likelihood."""
_CLOSE = 0.2
"""Relative error of beta that is asked of the weak form."""


class Case(NamedTuple):
    """A kernel, what is true on it, and counts drawn from it."""

    kernel: MarkovKernel
    potential: Array
    times: Array
    probabilities: Array
    counts: Array


def draw(family: str, n: int, rough: bool, seed: int) -> Case:
    """One landscape of a family, and snapshots of its flow."""
    rng = np.random.default_rng([seed, n, rough])
    kernel = make_graph(family, n, rng=rng)
    n, pi = kernel.n_states, kernel.stationary
    horizon = 5.0
    if rough:
        potential, start = rng.uniform(-1, 1, n), rng.dirichlet(np.full(n, 5.0))
    elif family in _PLANAR:
        assert kernel.coordinates is not None
        x = kernel.coordinates - kernel.coordinates.min(axis=0)
        x = x / x.max(axis=0)
        potential = 1.5 * np.sin(3 * np.pi * x[:, 0]) * np.cos(2 * np.pi * x[:, 1])
        start = pi * np.exp(-4 * ((x - 0.5) ** 2).sum(axis=1))
        horizon = 10.0 * n / 1000
    else:
        potential = 0.7 * _diffused(kernel, rng)
        start = pi * np.exp(0.7 * _diffused(kernel, rng))
    times = np.linspace(0, horizon, _TIMES)
    energy = FreeEnergy(potential, BETA)
    p = gradient_flow(kernel, energy, start / start.sum(), times, rtol=1e-6).probabilities
    p = p / p.sum(axis=1, keepdims=True)
    counts = np.array([rng.multinomial(_PER_STATE * n, row) for row in p], dtype=np.float64)
    return Case(kernel, potential, times, p, counts)


def _diffused(kernel: MarkovKernel, rng: np.random.Generator) -> Array:
    """Noise after eight steps of the lazy walk, of unit variance."""
    w = rng.standard_normal(kernel.n_states)
    for _ in range(8):
        w = 0.5 * (w + kernel.matrix @ w)
    w -= kernel.stationary @ w
    return np.asarray(w / np.sqrt(kernel.stationary @ w**2))


@single_threaded
def information_limit(case: Case) -> tuple[float, float]:
    """The correlation that the data allow for a rough landscape, and the error of log beta.

    From the posterior at the truth, with the variances that the truth was drawn with.
    """
    n, pi = case.kernel.n_states, case.kernel.stationary
    likelihood = Likelihood(FlowMap(case.kernel, case.times), case.counts)
    place = likelihood.at(np.log(case.probabilities[0] / pi), case.potential, np.log(BETA))
    assert place is not None
    p = np.exp(place.log_p)
    root = np.sqrt(likelihood.totals[:, None] * p)[:, :, None]
    size = 2 * n + 1
    jacobian = np.empty((p.size, size), dtype=np.float32)
    for first in range(0, size, _BATCH):
        columns = np.arange(first, min(first + _BATCH, size))
        unit = np.zeros((size, columns.size))
        unit[columns, np.arange(columns.size)] = 1.0
        pushed = place.push(unit[:n], unit[n:-1], unit[-1], tolerance=1e-4)
        pushed -= np.einsum("kx,kxj->kj", p, pushed)[:, None, :]
        jacobian[:, columns] = (root * pushed).reshape(-1, columns.size)
    information = (jacobian.T @ jacobian).astype(np.float64)
    prior = np.concatenate([np.full(n, 1 / polygamma(1, 5.0)), np.full(n, 3.0), [1e-6]])
    covariance = linalg.inv(information + np.diag(prior))
    part = covariance[n:-1, n:-1]
    across = part @ pi
    mean_square = pi @ np.diag(part) - 2 * pi @ across + pi @ across
    truth = centred(case.potential, case.kernel)
    limit = np.sqrt(max(0.0, 1.0 - float(mean_square) / float(pi @ truth**2)))
    return limit, float(np.sqrt(covariance[-1, -1]))


@single_threaded
def _row(family: str, n: int, rough: bool, seed: int) -> dict[str, Any]:
    case = draw(family, n, rough, seed)
    n = case.kernel.n_states
    began = time.process_time()
    fit = fit_likelihood_large(
        case.kernel, case.times, case.counts, rng=np.random.default_rng(seed)
    )
    seconds = time.process_time() - began
    pi, truth = case.kernel.stationary, centred(case.potential, case.kernel)
    cross, own = float((pi * fit.potential) @ truth), float(pi @ truth**2)
    correlation = cross / float(np.sqrt((pi @ fit.potential**2) * own))
    low, high = fit.beta_interval
    limit, asked = np.nan, _SMOOTH.get(family, 0.985)
    if rough:
        limit = information_limit(case)[0] if n <= _DENSE_STATES else np.nan
        asked = limit - _SLACK
    error = np.abs(fit.potential - truth)
    return {
        "family": family,
        "landscape": "rough" if rough else "smooth",
        "states": n,
        "edges": case.kernel.n_edges,
        "seed": seed,
        "limit": limit,
        "asked": asked,
        "correlation": correlation,
        "slope": cross / own,
        "beta": fit.beta,
        "beta low": low,
        "beta high": high,
        "covered": low <= BETA <= high,
        "V within 2 se": float(np.mean(error < 2 * fit.potential_stderr)),
        "CPU seconds": seconds,
        "status": fit.status.name,
        **_weak(case),
    }


@single_threaded
def _weak(case: Case) -> dict[str, Any]:
    """Beta by the weak form, through the estimator."""
    if case.kernel.n_states > _WEAK_STATES:
        return {}
    seen = Snapshots.from_counts(case.times, case.counts)
    began = time.process_time()
    model = FreeEnergyRegressor(method="weak").fit(case.kernel, seen)
    verdict = model.beta_verdict_
    return {
        "weak beta": model.beta_,
        "weak low": verdict.lower,
        "weak high": verdict.upper,
        "weak CPU seconds": time.process_time() - began,
    }


def run(settings: BenchSettings) -> BenchResult:
    """Every family, rough and smooth; sizes beyond 1000 once; a sentence on each question."""
    n = 150 if settings.quick else 1000
    kinds = [(family, rough) for rough in (True, False) for family in FAMILIES]
    kinds += [("delaunay", False)]
    seeds = range(settings.seed, settings.seed + (settings.instances or 1))
    plan = [(family, n, rough, seed) for seed in seeds for family, rough in kinds]
    if not settings.quick and settings.instances is None:
        plan += [("grid", size, True, settings.seed) for size in SIZES]
    _row("grid", 100, True, 0)  # compiles
    rows = []
    for done, (family, size, rough, seed) in enumerate(plan):
        settings.progress(f"large: {family}, seed {seed}", done, len(plan))
        rows.append(_row(family, size, rough, seed))
        if settings.folder is not None:
            settings.folder.mkdir(parents=True, exist_ok=True)
            pd.DataFrame(rows).to_csv(settings.folder / "large-so-far.csv", index=False)
    table = pd.DataFrame(rows)
    return BenchResult(table, {}, _notes(table))


def _notes(table: pd.DataFrame) -> tuple[str, ...]:
    judged = table[table["asked"].notna()]
    reached = int((judged["correlation"] >= judged["asked"]).sum())
    allowed = table["states"].map(lambda n: _SECONDS.get(int(n), np.inf))
    notes = [
        f"correlation as asked in {reached} of {len(judged)}; beta inside its interval in "
        f"{int(table['covered'].sum())} of {len(table)}; CONVERGED in "
        f"{int((table['status'] == 'CONVERGED').sum())} of {len(table)}; within the seconds "
        f"allowed in {int((table['CPU seconds'] <= allowed).sum())} of {len(table)}."
    ]
    limited = table[table["limit"].notna()]
    if len(limited):
        rows = (
            f"{row['family']} {row['correlation']:.4f} of {row['limit']:.4f}"
            for _, row in limited.iterrows()
        )
        notes.append(f"correlation and the limit that the information sets: {', '.join(rows)}.")
    weak = table[table["weak beta"].notna()]
    close = (weak["weak beta"] / BETA - 1.0).abs() <= _CLOSE
    covered = (weak["weak low"] <= BETA) & (weak["weak high"] >= BETA)
    notes.append(
        f"weak form: beta within {_CLOSE:.0%} in {int(close.sum())} of {len(weak)}, inside its "
        f"interval in {int(covered.sum())}, at most {weak['weak CPU seconds'].max():.1f} CPU s."
    )
    growing = table[(table["family"] == "grid") & (table["landscape"] == "rough")]
    growing = growing.groupby("states").first().reset_index()
    if len(growing) > 2:
        power = np.polyfit(np.log(growing["states"]), np.log(growing["CPU seconds"]), 1)[0]
        notes.append(f"on grids the time grows like states^{power:.2f}.")
    return tuple(notes)
