"""Makes the pictures of the page 'Five questions, five pictures' and prints its figures.

Run it from the root of the project, with scanpy installed: `python docs/images/make_questions.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anndata
import matplotlib
import networkx as nx
import numpy as np
import scanpy
from matplotlib import pyplot as plt

import thalweg as tw

matplotlib.use("agg")
FOLDER = Path(__file__).parent / "questions"
EDGES = [
    ("stem", "progenitor"), ("progenitor", "fork"), ("fork", "red 1"), ("red 1", "red 2"),
    ("red 2", "red 3"), ("fork", "white 1"), ("white 1", "white 2"), ("white 2", "white 3"),
]  # fmt: skip
POTENTIAL = {
    "stem": 1.4, "progenitor": 0.9, "fork": 0.4, "red 1": 0.0, "red 2": -0.3, "red 3": -0.7,
    "white 1": 0.1, "white 2": -0.2, "white 3": -0.5,
}  # fmt: skip
DAYS = [0, 4, 8, 14, 20]
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#57606a"


def cells(rng: np.random.Generator, *, lifted: float = 0.0, n: int = 200) -> anndata.AnnData:
    """Made-up cells on a tree that forks: `n` fresh ones on each day, in ten dimensions."""
    kernel = tw.MarkovKernel.from_networkx(nx.Graph(EDGES))
    names = list(kernel.names or ())
    potential = [POTENTIAL[str(name)] + lifted * (name == "red 2") for name in names]
    start = np.where(np.array(names) == "stem", 0.92, 0.01)
    path = tw.gradient_flow(kernel, tw.FreeEnergy(potential, beta=0.12), start, DAYS)
    rows = np.concatenate([rng.choice(9, n, p=p / p.sum()) for p in path.probabilities])
    where = np.zeros((9, 10))
    for source, target in EDGES:  # each branch has a direction of its own
        step = np.eye(10)[{"r": 1, "w": 2}.get(target[0], 0) if target != "fork" else 0]
        where[names.index(target)] = where[names.index(source)] + step
    adata = anndata.AnnData(where[rows] + 0.27 * rng.normal(size=(rows.size, 10)))
    adata.obs["day"] = np.repeat(DAYS, n)
    adata.obs["cell_type"] = np.array(names)[rows]
    return adata


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    adata = cells(rng)
    scanpy.pp.neighbors(adata, n_neighbors=15, use_rep="X")
    scanpy.tl.umap(adata, random_state=0)

    model = tw.tl.free_energy(adata, time_key="day", state_key="cell_type")
    print(model.diagnostics_["goodness_of_fit"])
    print(f"beta = {model.beta_:.3f} +- {model.beta_stderr_:.3f}")
    tw.tl.velocity(adata, model, basis="umap")
    tw.pl.velocity(adata, save=FOLDER / "landscape.png")

    ahead = model.forecast([20, 30, 40])
    print(ahead.to_frame().query("state == 'red 3'").round(3).to_string(index=False))
    tw.pl.forecast(model, np.linspace(0, 40, 41), most=5, save=FOLDER / "forecast.png")

    fates = tw.tl.fates(adata, model, {"red": ["red 3"], "white": ["white 3"]})
    print(fates.to_frame().query("state == 'stem'").round(3).to_string(index=False))
    tw.pl.fates(adata, "red", save=FOLDER / "fates.png")

    compared(model, rng)
    steered(model)


def compared(model: tw.FreeEnergyRegressor, rng: np.random.Generator) -> None:
    """Treated cells, whose 'red 2' lies higher, beside untreated ones."""
    treated = cells(rng, lifted=0.6).obs
    names = list(model.kernel_.names or ())
    seen = tw.Snapshots.from_frame(
        treated, time="day", state="cell_type", states=[str(name) for name in names]
    )
    other = tw.FreeEnergyRegressor().fit(model.kernel_, seen)
    answer = other.compare(model)
    print(answer)
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    clear = np.isin(np.arange(len(names)), answer.states.significant())
    for kind, colour, label in ((clear, ORANGE, "differs"), (~clear, GREY, "may be the same")):
        x = np.flatnonzero(kind)
        axes.errorbar(
            x, answer.states.value[x], 2 * answer.states.stderr[x], fmt="o", color=colour,
            capsize=3, label=label,
        )  # fmt: skip
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_xticks(range(len(names)), [str(name) for name in names], rotation=30)
    axes.set(ylabel="V treated less V untreated", title="What the treatment changed")
    axes.legend(frameon=False)
    figure.savefig(FOLDER / "compare.png", dpi=150)


def steered(model: tw.FreeEnergyRegressor) -> None:
    """The cheapest push that leaves more cells in 'white 3', and what would happen without it."""
    share = 0.6
    plan = model.steer(horizon=10.0, raise_mass=("white 3", share))
    print(plan)
    names = [str(name) for name in model.kernel_.names or ()]
    goal = names.index("white 3")
    left = model.forecast(20 + plan.times)
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    panels[0].plot(20 + plan.times, plan.probabilities[:, goal], color=BLUE, label="with the plan")
    panels[0].plot(left.times, left.probabilities[:, goal], "--", color=GREY, label="left alone")
    panels[0].axhline(share, color=GREY, linewidth=0.8, linestyle=":")
    panels[0].set(xlabel="day", ylabel="share of white 3", title="Where it leads", ylim=(0, None))
    panels[0].legend(frameon=False)
    strongest: Any = np.argsort(-np.abs(plan.potential).max(axis=0))[:5]
    for x in strongest:
        panels[1].plot(20 + plan.times, plan.potential[:, x], label=names[x])
    panels[1].set(xlabel="day", ylabel="potential to add", title="What to do")
    panels[1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(FOLDER / "steer.png", dpi=150)


if __name__ == "__main__":
    main()
