"""How far it goes: time and peak memory of a whole fit, from a thousand to a million states.

Graphs of 15 nearest neighbours of points in the plane, 20 snapshots. Each size runs in a process of
its own, whose peak of memory is counted from just before the fit; time is processor time, compiled
code being ready. The weak form goes all the way, the likelihood as far as is sensible.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.energy import FreeEnergy, centred
from thalweg.flow import gradient_flow
from thalweg.kernel import MarkovKernel
from thalweg.learn.fields import fit_likelihood_large
from thalweg.learn.weak.fit import fit_weak
from thalweg.plots.layout import PALETTE
from thalweg_bench import BenchResult, BenchSettings

__all__ = ["measure", "run", "smooth_population"]


N_SNAPSHOTS, N_NEIGHBORS = 20, 15
WEAK = (1000, 10_000, 100_000, 1_000_000)
"""Numbers of states for the weak form,"""
LIKELIHOOD = (300, 1000, 3000, 10_000)
"""and for the likelihood."""
_WARM = {"weak": 2000, "likelihood": 300}
"""Number of states of a warm-up fit, which takes the same paths through the code."""


@single_threaded
def measure(method: str, n_states: int, seed: int) -> dict[str, Any]:
    """One fit in this process: seconds, memory beyond that used before, and the correlation."""
    rng = np.random.default_rng([seed, n_states])
    _fit(method, *_seen(method, _WARM[method], np.random.default_rng(0))[1:])  # compiles
    v, kernel, times, p, counts = _seen(method, n_states, rng)
    before = _reset_peak()
    started = time.process_time()
    potential, status = _fit(method, kernel, times, p, counts)
    seconds = time.process_time() - started
    return {
        "method": method,
        "states": n_states,
        "edges": kernel.n_edges,
        "seconds": seconds,
        "peak MB": (_peak() - before) / 1024,
        "bytes per edge": 1024 * (_peak() - before) / kernel.n_edges,
        "correlation": float(np.corrcoef(potential, v)[0, 1]),
        "status": status,
    }


def smooth_population(n: int, rng: np.random.Generator) -> tuple[Array, MarkovKernel, Array, Array]:
    """A smooth potential on `n` points, their graph, times, and the flow at them."""
    points = rng.random((n, 2))
    kernel = MarkovKernel.from_points(points, n_neighbors=N_NEIGHBORS)
    x, y = points.T
    v = centred(1.5 * np.sin(3 * np.pi * x) * np.cos(2 * np.pi * y), kernel)
    p0 = kernel.stationary * np.exp(-4 * ((x - 0.5) ** 2 + (y - 0.5) ** 2))
    times = np.linspace(0, 10, N_SNAPSHOTS)
    path = gradient_flow(kernel, FreeEnergy(v, 0.1), p0 / p0.sum(), times, rtol=1e-6)
    p = path.probabilities / path.probabilities.sum(axis=1, keepdims=True)
    return v, kernel, times, p


def _seen(method: str, n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    """The population, and samples of it where the likelihood needs them."""
    v, kernel, times, p = smooth_population(n, rng)
    counts = None
    if method != "weak":
        counts = np.array([rng.multinomial(10 * n, row) for row in p])
    return v, kernel, times, p, counts


def _fit(method: str, kernel: MarkovKernel, times: Any, p: Any, counts: Any) -> tuple[Any, str]:
    if method == "weak":
        # Few jumps fit into the horizon of a graph this fine: only huge samples show them.
        found = fit_weak(kernel, times, p, sizes=np.full(len(times), 1e9 * kernel.n_states))
        return found.potential, found.status.name
    large = fit_likelihood_large(kernel, times, counts)
    return large.potential, large.status.name


def _reset_peak() -> float:
    """Memory in use now, in KB, from where the peak is counted anew if the system lets us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return 0.0


def _peak() -> float:
    try:
        return _status("VmHWM")
    except OSError:
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return float(line.split()[1])
    raise OSError(f"no {key} in /proc/self/status")


def run(settings: BenchSettings) -> BenchResult:
    """The table, and growth exponents in edges."""
    weak = (1000, 5000, 25_000) if settings.quick else WEAK
    likelihood = LIKELIHOOD[:1] if settings.quick else LIKELIHOOD
    jobs = [("weak", n) for n in weak] + [("likelihood", n) for n in likelihood]
    rows = []
    for done, (method, n) in enumerate(jobs):
        settings.progress("fits", done, len(jobs))
        command = [sys.executable, "-m", __name__, method, str(n), str(settings.seed)]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode == 0:
            rows.append(json.loads(finished.stdout.splitlines()[-1]))
        else:
            last = (finished.stderr.strip().splitlines() or ["no message"])[-1]
            killed = f"process ended with {finished.returncode}: {last}"
            rows.append({"method": method, "states": n, "status": killed[:200]})
    table = pd.DataFrame(rows)
    notes = []
    for method, part in table.dropna(subset=["seconds"]).groupby("method", sort=False):
        if len(part) > 1:
            time_, memory = (_slope(part["edges"], part[c]) for c in ("seconds", "peak MB"))
            notes.append(
                f"{method}: time grows like edges^{time_:.2f}, peak memory like "
                f"edges^{memory:.2f} over the last sizes."
            )
    return BenchResult(table, {"growth": _figure(table)}, tuple(notes))


def _slope(edges: pd.Series, values: pd.Series) -> float:
    """The exponent over the largest three sizes, where fixed costs no longer matter."""
    x, y = np.log(edges.to_numpy()[-3:]), np.log(np.maximum(values.to_numpy()[-3:], 1e-6))
    return float(np.polyfit(x, y, 1)[0])


def _figure(table: pd.DataFrame) -> go.Figure:
    figure = go.Figure()
    for color, (method, part) in zip(PALETTE, table.groupby("method", sort=False), strict=False):
        for column, dash in (("seconds", "solid"), ("peak MB", "dot")):
            figure.add_scatter(
                x=part["edges"], y=part[column], name=f"{method}: {column}",
                mode="lines+markers", line={"color": color, "dash": dash},
            )  # fmt: skip
    figure.update_layout(
        template="plotly_white",
        title="A whole fit against the size of the graph",
        xaxis={"title": "edges", "type": "log"},
        yaxis={"title": "processor seconds, megabytes", "type": "log"},
    )
    return figure


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
