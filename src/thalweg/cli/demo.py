"""`thalweg demo`: a population, the landscape that moved it recovered, and a page to open."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from rich.console import Console

from thalweg._files import atomic_write
from thalweg.cli.demo_populations import Population, population
from thalweg.cli.output import say
from thalweg.cli.progress import progress_bars
from thalweg.energy import centred
from thalweg.flow import Trajectory, gradient_flow
from thalweg.learn import FreeEnergyRegressor
from thalweg.report import Section, findings, page
from thalweg.report.curves import fitted_curves, line
from thalweg.report.graph import drawn, landscape_picture, moving_picture
from thalweg.snapshots import Snapshots


def run_demo(name: str, out: Path, n_states: int | None, seed: int, as_json: bool) -> None:
    """Make the population, recover what moved it, and write `index.html` to `out`."""
    console = Console(stderr=True, quiet=as_json, highlight=False)
    rng = np.random.default_rng(seed)
    people = population(name, n_states, rng)
    kernel, times = people.kernel, people.times
    console.print(f"a graph of {kernel.n_states} {people.noun}")
    console.print(f"{times.size} snapshots of {people.individuals} individuals")
    flow = gradient_flow(kernel, people.truth, people.start, times, rtol=1e-6)
    counts = [rng.multinomial(people.individuals, p / p.sum()) for p in flow.probabilities]
    seen = Snapshots.from_counts(times, counts)
    console.print("recovering the landscape from the snapshots alone")
    with progress_bars() as progress:
        model = FreeEnergyRegressor(progress=progress, seed=seed).fit(kernel, seen)
    console.print("drawing the page")
    longer = np.linspace(0, 5 * times[-1], 26)
    ahead = gradient_flow(kernel, model.energy_, model.initial_, longer, rtol=1e-5)
    target = out / "index.html"
    potential = centred(people.truth.potential, kernel)
    likeness = float(np.corrcoef(potential, model.potential_)[0, 1])
    with atomic_write(target) as file:
        file.write(_page(people, model, seen, ahead, likeness))
    if as_json:
        answer = {
            "demo": name,
            "beta": model.beta_,
            "true_beta": people.truth.beta,
            "correlation": likeness,
            "status": model.status_.name,
            "files": [str(target)],
        }
        print(json.dumps(answer, indent=2))
    else:
        say(f"open {target} in a browser")


def _page(
    people: Population,
    model: FreeEnergyRegressor,
    seen: Snapshots,
    ahead: Trajectory,
    likeness: float,
) -> str:
    kernel, truth = model.kernel_, people.truth
    potential = centred(truth.potential, kernel)
    inside = float(np.mean(abs(model.potential_ - potential) < 2 * model.potential_stderr_))
    energies = [model.energy_(kernel, p) for p in ahead.probabilities]
    shown = drawn(kernel)
    falling = line(ahead.times, np.array(energies), "time", "free energy F", "free-energy")
    fine = np.linspace(seen.times[0], seen.times[-1], 61)
    fitted = model.predict(None, fine).probabilities
    said, p = findings(model), model.diagnostics_.get("p_value")
    if p is not None and p < 0.05:
        said.append(
            f"These data were drawn from one landscape: a p-value of {p:.2g} is chance, and about "
            f"{p:.1%} of such demos have one that small."
        )
    sections = [
        Section(
            "What was seen",
            (
                f"{people.individuals} individuals on {kernel.n_states} {people.noun}, drawn anew "
                f"at {seen.n_times} times up to {seen.times[-1]:g}. No individual was followed. "
                "Points are what was counted, lines what the recovered landscape makes of it.",
            ),
            (fitted_curves(shown.names, seen, fine, fitted, "time"),),
        ),
        Section(
            "The landscape, recovered",
            (
                f"From the snapshots alone. It agrees with the landscape that made them (below) "
                f"with a correlation of {likeness:.3f}; {inside:.0%} of the {people.noun} lie "
                "within two standard errors.",
            ),
            (
                landscape_picture(
                    shown, model.potential_, stderr=model.potential_stderr_,
                    name="recovered", label="V, recovered",
                ),
                landscape_picture(shown, potential, name="truth", label="V, true"),
            ),
        ),
        Section(
            "Where the population goes",
            (
                "The recovered flow, five times as long as the data. Press play: the population "
                "leaves the hills and gathers in the valleys, spread a little by noise.",
            ),
            (moving_picture(shown, ahead.times, ahead.probabilities),),
        ),
        Section(
            "The free energy falls",
            ("The flow is the steepest descent of F = V + beta H in the transport metric W_K.",),
            (falling,),
        ),
        Section("What the data say", said, headline=True),
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
    return page(people.title, people.lead, sections)
