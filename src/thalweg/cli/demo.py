"""`thalweg demo`: a population, the landscape that moved it recovered, and a page to open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from rich.console import Console

from thalweg import plots
from thalweg._files import atomic_write
from thalweg.cli.progress import progress_bars
from thalweg.energy import FreeEnergy, centred
from thalweg.flow import Trajectory, gradient_flow
from thalweg.graphs import make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor
from thalweg.report import Section, findings, page
from thalweg.snapshots import Snapshots

__all__ = ["run"]

Array = NDArray[np.float64]

BETA, HORIZON, SNAPSHOTS, INDIVIDUALS = 0.1, 10.0, 21, 10_000


def run(out: Path, n_states: int, seed: int) -> None:
    """Make the population, recover what moved it, and write `index.html` to `out`."""
    console = Console(stderr=True)
    rng = np.random.default_rng(seed)
    console.print(f"a Delaunay graph of {n_states} places", highlight=False)
    kernel = make_graph("delaunay", n_states, rng=rng)
    truth, start = _problem(kernel)
    times = np.linspace(0, HORIZON, SNAPSHOTS)
    console.print(f"{SNAPSHOTS} snapshots of {INDIVIDUALS} individuals", highlight=False)
    flow = gradient_flow(kernel, truth, start, times, rtol=1e-6)
    counts = [rng.multinomial(INDIVIDUALS, p / p.sum()) for p in flow.probabilities]
    seen = Snapshots.from_counts(times, counts)
    console.print("recovering the landscape from the snapshots alone", highlight=False)
    with progress_bars() as progress:
        model = FreeEnergyRegressor(progress=progress, seed=seed).fit(kernel, seen)
    console.print("drawing the page", highlight=False)
    longer = np.linspace(0, 5 * HORIZON, 26)
    ahead = gradient_flow(kernel, model.energy_, model.initial_, longer, rtol=1e-5)
    target = out / "index.html"
    with atomic_write(target) as file:
        file.write(_page(truth, model, seen, ahead))
    Console().print(f"open {target} in a browser", highlight=False, soft_wrap=True)


def _problem(kernel: MarkovKernel) -> tuple[FreeEnergy, Array]:
    """Several valleys, and a start around the centre."""
    assert kernel.coordinates is not None
    x, y = kernel.coordinates.T
    energy = FreeEnergy(1.5 * np.sin(3 * np.pi * x) * np.cos(2 * np.pi * y), BETA)
    start = kernel.stationary * np.exp(-4 * ((x - 0.5) ** 2 + (y - 0.5) ** 2))
    return energy, start / start.sum()


def _page(truth: FreeEnergy, model: FreeEnergyRegressor, seen: Snapshots, ahead: Trajectory) -> str:
    kernel = model.kernel_
    potential = centred(truth.potential, kernel)
    likeness = float(np.corrcoef(potential, model.potential_)[0, 1])
    inside = float(np.mean(abs(model.potential_ - potential) < 2 * model.potential_stderr_))
    energies = [model.energy_(kernel, p) for p in ahead.probabilities]
    falling = go.Figure(go.Scatter(x=ahead.times, y=energies, mode="lines"))
    falling.update_layout(
        template="plotly_white", xaxis_title="time", yaxis_title="free energy F", height=320
    )
    sections = [
        Section(
            "What was seen",
            (
                f"{INDIVIDUALS} individuals on {kernel.n_states} places, drawn afresh at "
                f"{SNAPSHOTS} times up to {HORIZON:g}. Nobody was followed. Points are what was "
                "counted, lines what the recovered landscape makes of it.",
            ),
            (plots.fit(kernel, seen.times, np.asarray(seen.frequencies),
                       model.predict(None, seen.times).probabilities, sizes=seen.sizes),),
        ),
        Section(
            "The landscape, recovered",
            (
                f"From the snapshots alone. It agrees with the landscape that made them (below) "
                f"with a correlation of {likeness:.3f}; {inside:.0%} of the places lie within two "
                "standard errors.",
            ),
            (
                plots.landscape(
                    kernel, model.potential_, stderr=model.potential_stderr_, title="recovered V"
                ),
                plots.landscape(kernel, potential, title="the V that made the data"),
            ),
        ),
        Section(
            "Where the population goes",
            (
                "The recovered flow, five times as long as the data. Press play: the population "
                "leaves the hills and gathers in the valleys, spread a little by noise.",
            ),
            (plots.flow(kernel, ahead.times, ahead.probabilities, title="density p / pi"),),
        ),
        Section(
            "The free energy falls",
            ("The flow is the steepest descent of F = V + beta H in the transport metric W_K.",),
            (falling,),
        ),
        Section("What the data say", findings(model)),
        Section(
            "Numbers",
            facts={
                "states, edges": f"{kernel.n_states}, {kernel.n_edges}",
                "beta, true": f"{truth.beta:g}",
                "beta, recovered": f"{model.beta_:.4f} ± {model.beta_stderr_:.4f}",
                "correlation of the potentials": f"{likeness:.4f}",
                "fit": model.status_.value,
            },
        ),
    ]  # fmt: skip
    return page(
        "A population finds its valleys",
        "A simulated population on a planar graph, and the energy landscape that drives it, "
        "recovered from snapshots.",
        sections,
    )
