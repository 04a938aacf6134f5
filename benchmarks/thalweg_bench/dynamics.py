"""`thalweg bench dynamics`: fates, passage times, comparison and steering against other methods.

One row per figure: what was measured, the target, whether it is met. Times are CPU seconds of one
process. Finished parts are kept in the folder's journals, and the same command resumes from them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from thalweg import FreeEnergy, LogMean, TransportGeometry, make_graph
from thalweg._types import Array
from thalweg.dynamics import (
    Landscape,
    committor,
    fate_probabilities,
    mean_first_passage_time,
    steer,
    transition_rates,
)
from thalweg.dynamics.walk import resting_walk
from thalweg.graphs import lattice
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg_bench import BenchResult, BenchSettings
from thalweg_bench.dynamics_statistics import coverage_rows, level_rows, power_rows, sweep
from thalweg_bench.sweep import Cell

__all__ = ["run"]

Row = dict[str, Any]


def run(settings: BenchSettings) -> BenchResult:
    """All figures; `quick` keeps to small graphs and few data sets."""
    return _result(settings, figure_rows, coverage_rows, level_rows, power_rows)


def run_figures(settings: BenchSettings) -> BenchResult:
    """Agreement with other methods, and steering."""
    return _result(settings, figure_rows)


def run_coverage(settings: BenchSettings) -> BenchResult:
    """Coverage of intervals."""
    return _result(settings, coverage_rows)


def run_level(settings: BenchSettings) -> BenchResult:
    """The level of `compare`; `instances` are pairs of data sets per size."""
    return _result(settings, level_rows)


def run_power(settings: BenchSettings) -> BenchResult:
    """The power of `compare`."""
    return _result(settings, power_rows)


def _result(
    settings: BenchSettings, *parts: Callable[[BenchSettings], Iterator[Row]]
) -> BenchResult:
    rows = [row for part in parts for row in part(settings)]
    table = pd.DataFrame(rows, columns=["case", "figure", "measured", "target", "met"])
    asked = table[table["target"] != ""]
    notes = [f"{int(asked['met'].sum())} of {len(asked)} figures met."] if len(asked) else []
    if figure_rows in parts and not any("deeptime" in case for case in table["case"]):
        notes.append("deeptime is not installed, so it was not compared; pip install deeptime.")
    if settings.quick:
        notes.append("With few data sets, shares may be far from their targets by chance.")
    return BenchResult(table, notes=tuple(notes))


def figure_rows(settings: BenchSettings) -> Iterator[Row]:
    """Figures of one computation each, kept in a journal one by one."""
    sizes: dict[str, tuple[int, ...]] = {
        "dense": (20, 200) if settings.quick else (20, 200, 1000),
        "simulated": (10_000 if settings.quick else 100_000,),
        "deeptime": (200,) if settings.quick else (200, 1000),
        "large": (100 if settings.quick else 1000,),
        "steering": (10, 100) if settings.quick else (10, 100, 300, 1000),
        "steep steering": (10,) if settings.quick else (10, 100, 300),
        "waiting": (8,) if settings.quick else (5, 8, 10),
        "geodesic": (30,),
    }
    cells = [{"part": part, "size": n} for part, each in sizes.items() for n in each]
    for row in sweep(settings, "figures", one_figure, cells).itertuples():
        if row.status == "ok":
            yield from json.loads(row.rows)
        else:
            yield _row(f"{row.part}, {row.size}", "", str(row.status), "computed", False)


def one_figure(cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    """The rows of one part at one size, as text."""
    parts: dict[str, Callable[[int, int], Iterator[Row]]] = {
        "dense": _dense,
        "simulated": _simulated,
        "deeptime": _deeptime,
        "large": _large,
        "steering": lambda n, seed: _steering(n, seed, 3.0),
        "steep steering": lambda n, seed: _steering(n, seed, 10.0),
        "waiting": _waiting,
        "geodesic": _geodesic,
    }
    seed = int(rng.integers(2**31))
    return {"rows": json.dumps(list(parts[cell["part"]](int(cell["size"]), seed)))}


def _row(case: str, figure: str, measured: str, target: str, met: bool) -> Row:
    return {"case": case, "figure": figure, "measured": measured, "target": target, "met": met}


def _case(n: int, seed: int, amplitude: float = 1.0) -> Landscape:
    rng = np.random.default_rng(seed)
    kernel = make_graph("delaunay", n, rng=rng)
    return Landscape(kernel, FreeEnergy(amplitude * rng.normal(size=n), 0.3))


def _dense(n: int, seed: int) -> Iterator[Row]:
    """Against numpy's solve of the boundary-value problems."""
    land = _case(n, seed)
    q = transition_rates(land.kernel, land.energy).toarray()
    a, b = 0, 1
    inside = np.setdiff1d(np.arange(n), [a, b])
    exact = np.linalg.solve(q[np.ix_(inside, inside)], -q[inside, b])
    found = committor(land, a, b).value[inside]
    fates = fate_probabilities(land, [a, b]).probabilities.value[inside, 1]
    off = np.setdiff1d(np.arange(n), [a])
    times = np.linalg.solve(q[np.ix_(off, off)], -np.ones(n - 1))
    tau = mean_first_passage_time(land, a).value[off]
    for name, error in (
        ("committor", np.abs(found - exact).max()),
        ("fates", np.abs(fates - exact).max()),
        ("passage times, relative", np.abs(tau / times - 1).max()),
    ):
        yield _row(
            f"{n} states against dense linear algebra", name, f"{error:.1e}", "1e-8",
            bool(error <= 1e-8),
        )  # fmt: skip


def _simulated(count: int, seed: int) -> Iterator[Row]:
    """Against individuals that jump one by one."""
    land = _case(12, seed)
    rng = np.random.default_rng(seed)
    rates = transition_rates(land.kernel, land.energy)
    low = np.argsort(land.energy.potential)[:2]
    start = int(np.argmax(land.energy.potential))
    stop = np.zeros(12, dtype=np.bool_)
    stop[low] = True
    where, when = sample_paths(rates, np.full(count, start), stop, rng=rng)
    share = float(np.mean(where == low[1]))
    exact = float(committor(land, int(low[0]), int(low[1])).value[start])
    z = (share - exact) / np.sqrt(exact * (1 - exact) / count)
    tau = float(mean_first_passage_time(land, low).value[start])
    z_time = (when.mean() - tau) / (when.std() / np.sqrt(count))
    case = f"{count} simulated individuals"
    for name, ours, theirs, score in (
        ("fate", exact, share, z), ("passage time", tau, float(when.mean()), z_time),
    ):  # fmt: skip
        yield _row(
            case, name, f"{theirs:.5g} against {ours:.5g}, {abs(score):.1f} standard errors",
            "below 3.3", bool(abs(score) < 3.3),
        )  # fmt: skip


def eliminated(rates: Array, stop: list[int], at_stop: list[float], cost: float) -> Array:
    """`h = at_stop` in `stop`, and `sum_y r_xy (h_y - h_x) = -cost` elsewhere, without subtraction.

    States are eliminated one by one (Grassmann, Taksar and Heyman): all numbers stay positive, so
    every entry has nearly all its digits however slow the walk is. The referee between solvers.
    """
    n = len(rates)
    r, spent, left = rates.copy(), np.full(n, cost), np.ones(n, dtype=np.bool_)
    np.fill_diagonal(r, 0.0)
    out = np.zeros(n)
    out[stop] = at_stop
    inside = np.setdiff1d(np.arange(n), stop)
    for x in inside:
        left[x] = False
        r[x] *= left
        total = r[x].sum()
        r[x] /= total
        spent[x] /= total
        into = r[:, x] * left
        r += np.outer(into, r[x])
        np.fill_diagonal(r, 0.0)
        spent += into * spent[x]
    for x in inside[::-1]:
        out[x] = spent[x] + r[x] @ out
    return out


def _deeptime(n: int, seed: int) -> Iterator[Row]:
    """The same chain, uniformised, in deeptime; elimination without subtraction is the referee."""
    try:
        from deeptime.markov.tools import analysis
    except ImportError:
        return
    for amplitude in (0.2,) if n < 1000 else (0.2, 1.0):
        land = _case(n, seed, amplitude)
        q = transition_rates(land.kernel, land.energy).toarray()
        fastest = float(-q.diagonal().min())
        p = np.eye(n) + q / fastest
        for name, ours, theirs, exact in (
            ("committor", lambda: committor(land, 0, 1).value,
             lambda: analysis.committor(p, [0], [1]), eliminated(q, [0, 1], [0.0, 1.0], 0.0)),
            ("passage times, relative", lambda: mean_first_passage_time(land, 0).value,
             lambda: analysis.mfpt(p, 0) / fastest, eliminated(q, [0], [0.0], 1.0)),
        ):  # fmt: skip
            seconds, found = [], []
            for work in (ours, theirs):
                started = time.process_time()
                found.append(work()[2:])
                seconds.append(time.process_time() - started)
            scale = 1.0 if name == "committor" else exact[2:]
            between, us, them = (
                float(np.abs((one - other) / scale).max())
                for one, other in (found, (found[0], exact[2:]), (found[1], exact[2:]))
            )
            steep = "gentle" if amplitude < 1 else "steep"
            # `1 - P_xx` of a slow state loses the digits that P rounds off: where deeptime is off
            # by more, the referee decides.
            yield _row(
                f"{n} states against deeptime, {steep} landscape", name,
                f"{between:.1e}; from the referee {us:.1e}, deeptime {them:.1e} "
                f"({1e3 * seconds[0]:.0f} ms, deeptime {1e3 * seconds[1]:.0f} ms)",
                "1e-8" if amplitude < 1 else "ours from the referee 1e-8",
                bool((between if amplitude < 1 else us) <= 1e-8),
            )  # fmt: skip


def _large(side: int, seed: int) -> Iterator[Row]:
    """A committor in units of one Laplacian solve on the same graph and weights."""
    kernel: MarkovKernel = lattice((side, side))
    x = np.linspace(-1, 1, side)
    well = (x[:, None] ** 2 - 0.25) ** 2 * 4 + x[None] ** 2
    land = Landscape(kernel, FreeEnergy(well.ravel(), 0.3))
    walk = resting_walk(land)
    n = side * side
    solver = LaplacianSolver.for_kernel(kernel)
    right = np.zeros(n)
    right[[0, -1]] = 1.0, -1.0
    solver.factor(walk.conductance).solve(right, tolerance=1e-10)  # compiles
    started = time.process_time()
    LaplacianSolver.for_kernel(kernel).factor(walk.conductance).solve(right, tolerance=1e-10)
    one = time.process_time() - started
    middle = side // 2 * side + side // 2
    a, b = middle - side // 4 * side, middle + side // 4 * side
    started = time.process_time()
    found = committor(land, a, b)
    ours = time.process_time() - started
    yield _row(
        f"{n} states", "committor, in Laplacian solves",
        f"{ours / one:.2f} ({ours:.1f} s against {one:.1f} s, {found.status.name})", "at most 3",
        bool(ours <= 3 * one and found.status),
    )  # fmt: skip


def _steering(n: int, seed: int, drop: float) -> Iterator[Row]:
    """Distance from the target, gap to the bound; the steepest edge drops by `drop` beta."""
    rng = np.random.default_rng(seed)
    kernel = make_graph("delaunay", n, rng=rng)
    v = rng.normal(size=n)
    source, target, _ = kernel.edges
    beta = 0.3
    v *= drop * beta / np.abs(v[source] - v[target]).max()
    land = Landscape(kernel, FreeEnergy(v, beta))
    p0, q = rng.dirichlet(np.full(n, 3.0), size=2)
    started = time.process_time()
    plan = steer(land, p0, q, 2.0)
    seconds = time.process_time() - started
    yield _row(
        f"steering {n} states, steepest edge {drop:g} beta", "target missed; gap to bound",
        f"{plan.missed:.0e}; {abs(plan.gap):.1e} ({seconds:.1f} s, {plan.status.name}, "
        f"{'convex' if plan.convex else 'not convex'}, least curvature {plan.curvature:.2g})",
        "1e-6; 1e-4", bool(plan.missed <= 1e-6 and abs(plan.gap) <= 1e-4),
    )  # fmt: skip


def _waiting(drop: int, seed: int) -> Iterator[Row]:
    """Two states, an edge of `drop` beta, a long horizon: the cheapest plan is known.

    Sliding down and waiting at rest are free, and a slow climb costs twice the free energy.
    """
    pair = MarkovKernel.from_weights([[0, 1], [1, 0]])
    share = np.random.default_rng(seed).uniform(0.3, 0.7)
    energy = FreeEnergy([0.0, 0.3 * drop], 0.3)
    plan = steer(Landscape(pair, energy), [0.6, 0.4], [1 - share, share], 20.0 / drop)
    exact = 2 * (energy(pair, [1 - share, share]) - energy(pair, energy.equilibrium(pair)))
    error = float(plan.cost.value) / exact - 1
    yield _row(
        f"steering 2 states, edge of {drop} beta, long horizon", "cost over the known one, less 1",
        f"{error:.1e} (gap to bound {plan.gap:.2g}, {plan.status.name})", "1e-4",
        bool(abs(error) <= 1e-4),
    )  # fmt: skip


def _geodesic(n: int, seed: int) -> Iterator[Row]:
    """Steering where there is no landscape."""
    rng = np.random.default_rng(seed)
    kernel = make_graph("delaunay", n, rng=rng)
    p0, q = rng.dirichlet(np.full(n, 3.0), size=2)
    cost = float(steer(Landscape(kernel, FreeEnergy(np.zeros(n), 0.0)), p0, q, 1.0).cost.value)
    exact = TransportGeometry(kernel, LogMean()).distance(p0, q) ** 2
    yield _row(
        "steering without a landscape", "2 cost / W_K^2 - 1", f"{2 * cost / exact - 1:.1e}", "1e-6",
        bool(abs(2 * cost / exact - 1) < 1e-6),
    )  # fmt: skip


def sample_paths(
    rates: sparse.csr_array,
    starts: Sequence[int] | NDArray[np.integer],
    stop: NDArray[np.bool_],
    *,
    rng: np.random.Generator,
    max_jumps: int = 1_000_000,
) -> tuple[NDArray[np.int64], Array]:
    """Simulate individuals until they enter a stopping state; return the state and the time.

    All of them jump together, so the work is one array pass per jump.
    """
    indptr, indices, data = rates.indptr, rates.indices, rates.data
    off = np.repeat(np.arange(rates.shape[0]), np.diff(indptr)) != indices
    values = np.where(off, data, 0.0)
    cumulative = np.cumsum(values)
    before = np.concatenate([[0.0], cumulative])[indptr[:-1]]
    total = np.add.reduceat(values, indptr[:-1])
    x = np.array(starts, dtype=np.int64)
    t = np.zeros(x.size)
    active = np.flatnonzero(~stop[x])
    for _ in range(max_jumps):
        if not active.size:
            break
        here = x[active]
        t[active] += rng.exponential(size=active.size) / total[here]
        draw = before[here] + rng.random(active.size) * total[here]
        k = np.searchsorted(cumulative, draw, side="right")
        k = np.clip(k, indptr[here], indptr[here + 1] - 1)
        x[active] = indices[k]
        active = active[~stop[x[active]]]
    return x, t
