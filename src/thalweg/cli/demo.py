"""`thalweg demo`: a population on a landscape, and a page that shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from rich.console import Console

from thalweg import plots
from thalweg._files import atomic_write
from thalweg.energy import FreeEnergy, centred
from thalweg.flow import Trajectory, gradient_flow, simulate
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.report import Section, page
from thalweg.snapshots import Snapshots, hellinger

__all__ = ["run"]

BETA, HORIZON, SNAPSHOTS, PARTICLES = 0.1, 10.0, 21, 10_000


def run(out: Path, n_states: int, seed: int) -> None:
    """Make the population, and write `index.html` to `out`."""
    console = Console(stderr=True)
    rng = np.random.default_rng(seed)
    with console.status("building the graph"):
        kernel = make_graph("delaunay", n_states, rng=rng)
    energy, start = _problem(kernel)
    times = np.linspace(0, HORIZON, SNAPSHOTS)
    with console.status("following the population"):
        flow = gradient_flow(kernel, energy, start, times)
        snapshots = simulate(kernel, energy, start, times, PARTICLES, method="tau-leap", rng=rng)
    with console.status("drawing"):
        text = _page(kernel, energy, flow, snapshots)
    target = out / "index.html"
    with atomic_write(target) as file:
        file.write(text)
    Console().print(f"open {target} in a browser", highlight=False)


def _problem(kernel: MarkovKernel) -> tuple[FreeEnergy, NDArray[np.float64]]:
    """Several valleys, and a start around the centre."""
    assert kernel.coordinates is not None
    x, y = kernel.coordinates.T
    energy = FreeEnergy(1.5 * np.sin(3 * np.pi * x) * np.cos(2 * np.pi * y), BETA)
    start = kernel.stationary * np.exp(-4 * ((x - 0.5) ** 2 + (y - 0.5) ** 2))
    return energy, start / start.sum()


def _page(kernel: MarkovKernel, energy: FreeEnergy, flow: Trajectory, snapshots: Snapshots) -> str:
    drops = [energy(kernel, p) for p in flow.probabilities]
    falling = go.Figure(go.Scatter(x=flow.times, y=drops, mode="lines+markers"))
    falling.update_layout(
        template="plotly_white", xaxis_title="time", yaxis_title="free energy F", height=360
    )
    error = float(np.mean(hellinger(snapshots.frequencies, flow.probabilities)))
    sections = [
        Section(
            "The population in time",
            (
                f"{PARTICLES} individuals on {kernel.n_states} places, drawn at {SNAPSHOTS} times. "
                "Press play, or move the slider: the population leaves the hills and gathers in "
                "the valleys, spread a little by noise.",
            ),
            (plots.flow(kernel, flow.times, flow.probabilities, title="density p / pi"),),
        ),
        Section(
            "The landscape that drives it",
            ("Mass moves towards low V; noise of strength beta spreads it.",),
            (plots.landscape(kernel, centred(energy.potential, kernel), title="potential V"),),
        ),
        Section(
            "The free energy falls",
            ("The flow is the steepest descent of F = V + beta H in the transport metric W_K.",),
            (falling,),
        ),
        Section(
            "Numbers",
            facts={
                "states, edges": f"{kernel.n_states}, {kernel.n_edges}",
                "beta": f"{energy.beta:g}",
                "mean Hellinger distance, sample to flow": f"{error:.4f}",
                "flow": flow.status.value,
            },
        ),
    ]
    return page(
        "A population finds its valleys",
        "A simulated population on a planar graph, and the energy landscape that drives it.",
        sections,
    )
