"""Gradient flows: steps, evaluations, error, mass, positivity and fall of the energy, by case.

`thalweg bench flow`. The error is the largest difference in any probability from an exact solution
where there is one (`expm`), otherwise from the same flow at a hundredth of the tolerance;
`seconds` are CPU seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.linalg import expm

from thalweg._types import Array
from thalweg.energy import FreeEnergy, PowerEnergy
from thalweg.flow import Trajectory, gradient_flow
from thalweg.graphs import GRAPH_FAMILIES, make_graph
from thalweg.kernel import MarkovKernel
from thalweg.mobility import (
    ArithmeticMean,
    GeometricMean,
    HarmonicMean,
    LogMean,
    Mobility,
    PowerProduct,
)
from thalweg_bench import BenchResult, BenchSettings

__all__ = ["run"]

TIMES = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
_DENSE_FAMILIES = ("complete", "k_partite", "block_model", "erdos_renyi")
"""Left out above 100 states: their edges grow with the square."""


@dataclass(frozen=True, eq=False)
class Case:
    """One flow to compute: everything that `gradient_flow` takes, and names for the table."""

    name: str
    graph: str
    kernel: MarkovKernel
    energy: FreeEnergy
    start: str
    p0: Array
    mobility: Mobility = field(default_factory=LogMean)
    times: tuple[float, ...] = TIMES
    rtol: float = 1e-8
    exact: Callable[[float], Array] | None = None
    compare: bool = True


def run(settings: BenchSettings) -> BenchResult:
    """The table of flows; `quick` keeps to small graphs and takes about a minute."""
    cases = [*_matched(settings), *_means(settings), *_corner(settings), *_large(settings)]
    rows = []
    for done, case in enumerate(cases):
        settings.progress(f"{case.name} {case.graph}", done, len(cases))
        rows.append(_row(case))
    settings.progress("flow", len(cases), len(cases))
    table = pd.DataFrame(rows)
    return BenchResult(table, {}, _notes(table))


def _row(case: Case) -> dict[str, object]:
    started = time.process_time()
    flow = _flow(case, case.rtol)
    seconds = time.process_time() - started
    error = np.nan
    if case.exact is not None:
        exact = np.array([case.exact(t - case.times[0]) for t in case.times])
        error = float(abs(flow.probabilities - exact).max())
    elif case.compare:
        error = float(abs(flow.probabilities - _flow(case, case.rtol / 100).probabilities).max())
    energies = [case.energy(case.kernel, p) for p in flow.probabilities]
    return {
        "case": case.name,
        "graph": case.graph,
        "states": case.kernel.n_states,
        "edges": case.kernel.n_edges,
        "beta": case.energy.beta,
        "start": case.start,
        "mean": type(case.mobility).__name__,
        "rtol": case.rtol,
        "status": flow.status.name,
        "method": flow.method,
        "steps": flow.n_steps,
        "evaluations": flow.n_evaluations,
        "error": error,
        "mass error": float(abs(flow.probabilities.sum(axis=1) - 1).max()),
        "least p": float(flow.probabilities.min()),
        "energy falls": bool(np.diff(energies).max() <= 1e-14 * (1 + abs(energies[0]))),
        "seconds": seconds,
    }


def _flow(case: Case, rtol: float) -> Trajectory:
    return gradient_flow(
        case.kernel, case.energy, case.p0, case.times, mobility=case.mobility, rtol=rtol
    )


# ------------------------------------------------------------------------------ the cases


def _matched(settings: BenchSettings) -> Iterator[Case]:
    """Flows with an exact solution: the heat flow, from each energy that has it."""
    rng = np.random.default_rng(settings.seed)
    kernel = make_graph("delaunay", 60, rng=rng)
    n = kernel.n_states
    generator = kernel.matrix.toarray() - np.eye(n)
    flat = np.zeros(n)
    for start, p0 in (("dirichlet", rng.dirichlet(np.ones(n))), ("delta", np.eye(n)[0])):

        def exact(t: float, p0: Array = p0) -> Array:
            return np.asarray(p0 @ expm(t * generator))

        yield Case("heat flow", "delaunay", kernel, FreeEnergy(flat, 1.0), start, p0, exact=exact)
        for q in (1.5, 2.0):
            internal = PowerEnergy(q)
            yield Case(
                f"heat flow, power energy {q:g}",
                "delaunay",
                kernel,
                FreeEnergy(flat, 1.0, internal=internal),
                start,
                p0,
                internal.heat_mobility,
                exact=exact,
            )
    internal = PowerEnergy(2.0)
    yield Case(
        "porous medium",
        "delaunay",
        kernel,
        FreeEnergy(flat, 1.0, internal=internal),
        "dirichlet",
        rng.dirichlet(np.ones(n)),
        internal.porous_mobility,
    )


def _means(settings: BenchSettings) -> Iterator[Case]:
    """Every mean, with a potential and an interaction."""
    rng = np.random.default_rng(settings.seed + 1)
    kernel = make_graph("watts_strogatz", 20, rng=rng)
    n = kernel.n_states
    w = rng.uniform(-1, 1, (n, n))
    p0 = rng.dirichlet(np.ones(n))
    v = rng.uniform(-1, 1, n)
    for mean in (
        LogMean(),
        GeometricMean(),
        ArithmeticMean(),
        HarmonicMean(),
        PowerProduct(0.3),
    ):
        for beta in (0.5, 0.02):
            energy = FreeEnergy(v, beta, interaction=(w + w.T) / 2)
            yield Case(
                "interaction", "watts_strogatz", kernel, energy, "dirichlet", p0, mean, rtol=1e-6
            )


def _corner(settings: BenchSettings) -> Iterator[Case]:
    """Small beta, a rough potential, states that run empty: the regime of the paper."""
    sizes = (6,) if settings.quick else (6, 30, 100, 300, 1000)
    for n in sizes:
        for family in GRAPH_FAMILIES:
            if n > 100 and family in _DENSE_FAMILIES:
                continue
            rng = np.random.default_rng([settings.seed, n])
            kernel = make_graph(family, n, rng=rng)
            count = kernel.n_states
            v = rng.uniform(-1, 1, count)
            delta = np.full(count, 1e-8)
            delta[int(np.argmax(v))] = 1.0
            starts = {"stationary": kernel.stationary, "near delta": delta / delta.sum()}
            for beta in (0.01, 0.001):
                for start, p0 in starts.items():
                    # An absolute error of about 1e-6: the tolerance is relative to the mean p.
                    rtol = 1e-8 if n == 6 else min(1e-6 * n / 10, 1e-4)
                    yield Case(
                        "small beta",
                        family,
                        kernel,
                        FreeEnergy(v, beta),
                        start,
                        p0,
                        rtol=rtol,
                        compare=n <= 300,
                    )


def _large(settings: BenchSettings) -> Iterator[Case]:
    """A smooth start on a torus with twelve neighbours per state."""
    side = 150 if settings.quick else 1000
    x, y = np.divmod(np.arange(side * side), side)
    rows, columns = [], []
    for dx, dy in ((0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0)):
        rows.append(x * side + y)
        columns.append((x + dx) % side * side + (y + dy) % side)
    i, j = np.concatenate(rows), np.concatenate(columns)
    w = sparse.coo_array((np.ones(i.size), (i, j)), shape=(side**2, side**2)).tocsr()
    kernel = MarkovKernel.from_weights(w + w.T)
    a, b = 2 * np.pi * x / side, 2 * np.pi * y / side
    p0 = np.exp(np.cos(a) + np.sin(b))
    smooth = np.sin(a) * np.cos(b)
    rough = np.random.default_rng(settings.seed).uniform(-1, 1, side**2)
    for name, v in (("large, smooth V", smooth), ("large, rough V", rough)):
        yield Case(
            name,
            "torus",
            kernel,
            FreeEnergy(v, 0.5),
            "smooth",
            p0 / p0.sum(),
            times=(0.0, 10.0),
            rtol=1e-6,
            compare=settings.quick,
        )


def _notes(table: pd.DataFrame) -> tuple[str, ...]:
    corner = table[table["case"] == "small beta"]
    large = table[table["case"].str.startswith("large")]
    heat = table[table["case"].str.startswith("heat")]
    failed = int((table["status"] != "CONVERGED").sum())
    falls = int((~table["energy falls"]).sum())
    return (
        f"{len(table)} flows, {failed} failed; the energy rose in {falls}; largest mass error "
        f"{table['mass error'].max():.1e}.",
        f"Small beta: at most {corner['steps'].max()} steps, largest error "
        f"{corner['error'].max():.1e}.",
        f"Heat flow against expm: largest error {heat['error'].max():.1e}.",
        f"Large graph ({large['states'].max()} states, {large['edges'].max()} edges) to t = 10 at "
        f"rtol 1e-6: {large['evaluations'].min()} to {large['evaluations'].max()} evaluations.",
    )
