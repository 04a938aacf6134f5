"""Blood cells on a day that was not observed

Mouse blood cells differentiate; days 2, 4 and 6 were sampled, each cell once. Day 4 is held out,
the flow is learned from days 2 and 6, and its day 4 is compared with the real one.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

import thalweg as tw
from thalweg.points import PointInterpolator, mean_error, wasserstein1
from thalweg.points.evaluation import BASELINES
from thalweg.snapshots import WeightedPoints

show = globals().get("show", lambda figure: figure.show())
root = Path(__file__).resolve().parent.parent
shared = os.environ.get("THALWEG_DATA", root.parent / "shared" / "data")
file = Path(shared) / "hematopoiesis" / "cells.csv"
cells = []
if file.is_file():
    table = pd.read_csv(file)
    cells = [table[table["samples"] == k][["x1", "x2"]].to_numpy() for k in range(3)]
    print("cells seen on days 2, 4, 6:", *[len(x) for x in cells])
else:
    print(f"There is no {file.name} here; set THALWEG_DATA to the folder with the data sets.")

# %% The three snapshots. Most of the motion happens in the first two days: the population slows
# down as it arrives, which a straight line between days 2 and 6 cannot follow.
if cells:
    figure = make_subplots(1, 3, subplot_titles=["day 2", "day 4 (hidden)", "day 6"])
    for k, cloud in enumerate(cells, start=1):
        dots = {"size": 2, "color": ["#4c72b0", "#999999", "#c44e52"][k - 1]}
        figure.add_trace(
            go.Scattergl(x=cloud[:, 0], y=cloud[:, 1], mode="markers", marker=dots), 1, k
        )
    figure.update_xaxes(matches="x").update_yaxes(matches="y")
    show(figure.update_layout(showlegend=False, title="Each cell is seen on one day only"))

# %% States are k-means centres of days 2 and 6, in three partitions, and the energy is fitted on
# each. Two snapshots leave the clock open: every `beta` above some value fits equally well. The fit
# takes the one whose walk departs least from free diffusion, in relative entropy of paths.
if cells:
    model = PointInterpolator(n_states=50).fit([2, 6], [cells[0], cells[2]])
    guess = model.interpolate(4)
    print(f"method: {guess.method}, because {guess.why}")
    fit = model.fits_[0]
    figure = go.Figure(go.Scatter(x=fit.betas, y=fit.entropies, mode="lines+markers"))
    figure.add_vline(x=fit.energy.beta, line_dash="dot", annotation_text="chosen")
    figure.update_xaxes(type="log", title="beta (per day)")
    show(figure.update_layout(title="The clock", yaxis_title="path entropy per cell"))
    kernel = model.partitions_[0].kernel
    show(tw.plots.landscape(kernel, fit.energy.potential, title="The learned landscape"))

# %% The real day 4. Distances are exact Wasserstein-1 between clouds thinned to 1500 cells; the
# last row is the distance between two draws of that size from day 4 itself.
if cells:
    rng = np.random.default_rng(0)
    truth = WeightedPoints(cells[1], np.full(len(cells[1]), 1 / len(cells[1])))
    rows = {"thalweg": guess.points}
    names = ["nearest snapshot", "mixture of neighbours", "displacement midpoint (McCann)"]
    names += ["free Markov chain", "log-linear"]
    rows |= {name: BASELINES[name](model.partitions_[0], 4.0, rng) for name in names}
    rows["day 4 against itself"] = truth
    score = {
        name: (wasserstein1(cloud, truth, most=1500, rng=rng), mean_error(cloud, truth))
        for name, cloud in rows.items()
    }
    print(pd.DataFrame(score, index=["W1", "mean off by"]).T.round(3).to_string())
    figure = make_subplots(1, 2, subplot_titles=["thalweg's day 4", "the real day 4"])
    drawn = guess.points.sample(3781, rng=rng)
    for k, cloud in enumerate([drawn, cells[1]], start=1):
        dots = {"size": 2, "color": ["#55a868", "#999999"][k - 1]}
        figure.add_trace(
            go.Scattergl(x=cloud[:, 0], y=cloud[:, 1], mode="markers", marker=dots), 1, k
        )
    figure.update_xaxes(matches="x").update_yaxes(matches="y")
    show(figure.update_layout(showlegend=False, title="New cells drawn from the flow"))

# %% What this does not show: cells also divide and die, and there are four times as many on day 6
# as on day 2. The number of cells sampled is not the number there were, so growth is left out here;
# see the page on US states for a population whose totals are known.
