"""Where do the blood cells end up?

What the landscape of mouse blood cells on days 2, 4 and 6 can answer: which fates there are and how
likely each is, with error bars; which way the cells go; and whether treated cells move over another
landscape than untreated ones.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
from plotly.subplots import make_subplots
from sklearn.cluster import KMeans

import thalweg as tw
from thalweg.dynamics import compare

show = globals().get("show", lambda figure: figure.show())
root = Path(__file__).resolve().parent.parent
shared = os.environ.get("THALWEG_DATA", root.parent / "shared" / "data")
file = Path(shared) / "hematopoiesis" / "cells.csv"
table = pd.read_csv(file) if file.is_file() else None
if table is None:
    print(f"There is no {file.name} here; set THALWEG_DATA to the folder with the data sets.")

# %% States are 25 groups of neighbouring cells; a snapshot counts the cells of a day in each. The
# test of fit comes first, and here it rejects: cells also divide and die, and with so many counts
# this shows. The error bars below cover what the counts leave open if one landscape moved the
# cells; they do not cover what the model leaves out. Read the fates as a first look.
if table is not None:
    days = 2.0 + 2.0 * table["samples"].to_numpy()
    where = table[["x1", "x2"]].to_numpy()
    groups = KMeans(25, n_init=3, random_state=0).fit(where)
    kernel = tw.MarkovKernel.from_points(groups.cluster_centers_, n_neighbors=5)

    def counted(rows):
        """Snapshots of some of the cells."""
        counts = [
            np.bincount(groups.labels_[rows & (days == t)], minlength=25) for t in (2.0, 4.0, 6.0)
        ]
        return tw.Snapshots.from_counts([2.0, 4.0, 6.0], counts)

    seen = counted(np.ones(days.size, dtype=bool))
    model = tw.FreeEnergyRegressor().fit(kernel, seen)
    fit = model.diagnostics_["goodness_of_fit"]
    print(f"{model.status_.name}, beta {model.beta_:.2g} +- {model.beta_stderr_:.1g} per day")
    print("goodness of fit:", fit)

# %% Fates: the macrostates are found from the walk itself, and the probability of ending up in the
# first rather than in another is computed for every group of cells.
if table is not None:
    macro = model.macrostates()
    fates = model.fate_probabilities()
    chance, place = fates.probabilities, kernel.coordinates
    order = np.argsort(chance.value[:, 0])
    figure = make_subplots(1, 2, column_widths=[0.55, 0.45], horizontal_spacing=0.14)
    figure.add_scatter(
        x=where[::10, 0], y=where[::10, 1], mode="markers", marker={"color": "#ddd", "size": 3},
        row=1, col=1,
    )  # fmt: skip
    figure.add_scatter(
        x=place[:, 0], y=place[:, 1], mode="markers", row=1, col=1,
        marker={"color": chance.value[:, 0], "size": 13, "colorscale": "Cividis"},
    )  # fmt: skip
    figure.add_scatter(
        x=np.arange(order.size), y=chance.value[order, 0], mode="markers", row=1, col=2,
        marker={"color": chance.value[order, 0], "size": 9, "colorscale": "Cividis"},
        error_y={
            "color": "#888",
            "array": (chance.upper - chance.value)[order, 0],
            "arrayminus": (chance.value - chance.lower)[order, 0],
        },
    )  # fmt: skip
    figure.update_yaxes(scaleanchor="x", row=1, col=1)
    figure.update_xaxes(title="groups of cells, in order", showticklabels=False, row=1, col=2)
    figure.update_yaxes(title=f"probability of {fates.names[0]}", row=1, col=2)
    print(f"{macro.n_macrostates} macrostates; fates: {', '.join(fates.names)}")
    title = f"Probability of {fates.names[0]}, with 95 % intervals"
    show(figure.update_layout(title=title, showlegend=False, template="plotly_white"))

# %% Which way: the velocity of the landscape at each group, as arrows on the embedding.
if table is not None:
    figure = tw.plots.arrows(place, model.velocity(place), n_cells=11)
    figure.add_scatter(
        x=place[:, 0], y=place[:, 1], mode="markers", name="groups of cells",
        marker={"color": model.potential_, "size": 12, "colorscale": "Cividis", "showscale": True,
                "colorbar": {"title": "V"}},
    )  # fmt: skip
    figure.add_scatter(
        x=where[::10, 0], y=where[::10, 1], mode="markers", marker={"color": "#ddd", "size": 3}
    )
    figure.data = figure.data[::-1]
    figure.update_yaxes(scaleanchor="x").update_layout(showlegend=False, template="plotly_white")
    show(figure.update_layout(title="Downhill: potential and velocity", height=600))

# %% Treated against control. The cells are divided at random into two halves, which must not
# differ. Then a treatment is simulated: the fullest group of day 6 is raised by two beta, treated
# cells are drawn from the flow over that landscape, and the halves are compared again.
if table is not None:
    rng = np.random.default_rng(0)
    half = rng.random(days.size) < 0.5
    control, other = counted(half), counted(~half)
    print("two halves of the same cells:", compare(control, other, kernel))
    lifted = int(np.argmax(seen.counts[-1]))
    treated = model.perturb(potential={lifted: 2 * model.beta_})
    flow = treated.predict(None, [2.0, 4.0, 6.0]).probabilities
    sizes = np.asarray(other.counts.sum(axis=1)).astype(int).ravel()
    drawn = [rng.multinomial(m, p / p.sum()) for m, p in zip(sizes, flow, strict=True)]
    answer = compare(control, tw.Snapshots.from_counts([2.0, 4.0, 6.0], drawn), kernel)
    print("treated:", answer)
    print(f"group {lifted} was lifted; different: {answer.states.significant().tolist()}")
    figure = tw.plots.landscape(kernel, -answer.states.value, title="Treated less control")
    figure.data[-1].marker.update(colorscale="RdBu_r", cmid=0.0, colorbar={"title": "difference"})
    show(figure)
