"""A molecule whose answer is known

Alanine dipeptide is the fruit fly of molecular dynamics. Ten runs of 10 ns record its two dihedral
angles every picosecond; all frames in the alpha_R basin make up the first snapshot, and the frames
a lag later the others. The long runs themselves are the answer to compare with.
"""

import os
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

import thalweg as tw
from thalweg.dynamics import Landscape, mean_first_passage_time
from thalweg.points import design_effect, grouped_bootstrap, relaxation_times

show = globals().get("show", lambda figure: figure.show())
root = Path(__file__).resolve().parent.parent
shared = os.environ.get("THALWEG_DATA", root.parent / "shared" / "data")
file = Path(shared) / "alanine_dipeptide" / "phi_psi.npz"
runs = []
if file.is_file():
    with np.load(file) as stored:
        runs = [stored[f"traj{k}"] for k in range(10)]
    print(f"{len(runs)} runs of about {len(runs[0])} frames")
else:
    print(f"There is no {file.name} here; set THALWEG_DATA to the folder with the data sets.")

# %% States: the cells of a 10 x 10 torus with twenty frames or more. Rarely visited cells are
# merged into the nearest of these.
if runs:
    boxes = [np.floor((a + np.pi) / (2 * np.pi) * 10).astype(int) % 10 for a in runs]
    index = [b[:, 0] * 10 + b[:, 1] for b in boxes]
    busy = np.flatnonzero(np.bincount(np.concatenate(index), minlength=100) >= 20)
    place = np.stack(np.divmod(np.arange(100), 10), axis=1)
    gap = abs(place[:, None] - place[busy][None])
    steps = np.minimum(gap, 10 - gap).sum(axis=-1)
    states = [steps.argmin(axis=1)[i] for i in index]
    n = busy.size
    histogram = np.bincount(np.concatenate(states), minlength=n) / sum(map(len, states))
    kernel = tw.MarkovKernel.from_weights(
        (steps[busy] == 1).astype(float), coordinates=(place[busy] + 0.5) * 36 - 180
    )
    print(kernel, "with the same weight on every edge: it knows nothing of the dynamics")

# %% Snapshots: counts a lag after every frame in alpha_R. Frames are correlated, so a thousand of
# them are worth far fewer independent ones; the spread between runs gives the factor by which the
# counts are divided.
if runs:
    lags = np.array([0, 20, 50, 100, 200, 500, 1000])
    groups = np.zeros((10, lags.size, n))
    for k, angles in enumerate(runs):
        psi = np.rad2deg(angles[:, 1])
        basin = (angles[:, 0] < 0) & (psi >= -130) & (psi <= 50)
        start = np.flatnonzero(basin[: -lags[-1]])
        for j, lag in enumerate(lags):
            groups[k, j] = np.bincount(states[k][start + lag], minlength=n)
    effect = design_effect(groups)
    print(f"one independent individual in {effect:.1f} frames")
    seen = tw.Snapshots.from_counts(lags, groups.sum(axis=0) / effect)
    model = tw.FreeEnergyRegressor().fit(kernel, seen)
    show(tw.plots.landscape(kernel, model.potential_, title="Free energy over phi and psi"))

# %% Two checks against the long runs: the equilibrium that the landscape implies, and the slowest
# relaxation time, known to be 230 to 250 ps. Its interval comes from a bootstrap over runs.
if runs:
    rest = model.energy_.equilibrium(kernel)
    apart = float(tw.hellinger(rest, histogram))
    print(f"Hellinger distance of the equilibrium to the long run: {apart:.4f}")
    draws = grouped_bootstrap(
        model.fitted_.source, groups, n_draws=400, rng=np.random.default_rng(0)
    )
    slow = relaxation_times(kernel, model.energy_)[0]
    spread = [relaxation_times(kernel, energy)[0] for energy in draws.energies()]
    low, high = draws.interval(spread, slow)
    print(f"slowest relaxation: {slow:.0f} ps, 95 % interval {low:.0f} to {high:.0f} ps")
    figure = go.Figure(go.Scatter(x=histogram, y=rest, mode="markers", name="states"))
    ends = [histogram.min(), histogram.max()]
    figure.add_scatter(x=ends, y=ends, mode="lines", name="equal")
    figure.update_xaxes(type="log", title="long-run share of frames")
    figure.update_yaxes(type="log", title="share at the learned equilibrium")
    show(figure.update_layout(title="An equilibrium learned from the way to it"))

# %% The alpha_R population over time: the runs and the flow.
if runs:
    centre = (place[busy] + 0.5) * 36 - 180
    inside = (centre[:, 0] < 0) & (centre[:, 1] > -130) & (centre[:, 1] < 50)
    grid = np.linspace(0, 1000, 101)
    path = model.predict(None, grid).probabilities[:, inside].sum(axis=1)
    share = groups[:, :, inside].sum(axis=2) / groups.sum(axis=2)
    figure = go.Figure()
    for k in range(10):
        figure.add_scatter(x=lags, y=share[k], mode="markers", marker={"color": "#bbbbbb"},
                           name="one run", showlegend=k == 0)  # fmt: skip
    figure.add_scatter(x=grid, y=path, mode="lines", name="learned flow")
    figure.update_xaxes(title="lag (ps)").update_yaxes(title="share in alpha_R")
    show(figure.update_layout(title="Leaving the basin"))

# %% How long until a molecule gets from alpha_R to beta? Frames are followed to their first entry
# into the target, looking every 1 to 20 ps. If the target is the whole region beyond the edge of
# alpha_R, the answer depends on the sampling interval: molecules cross the edge for a picosecond
# and return, and sparser sampling misses more of these visits. There is no number to compare the
# landscape with. The core of beta (its three fullest cells) is not entered by accident; that time
# hardly depends on the sampling interval, and it is the fair comparison. The interval of the
# learned time comes from the bootstrap over runs, the error of the other from their spread.
if runs:
    beyond = (centre[:, 0] < 0) & ~inside
    core = np.isin(np.arange(n), np.argsort(-histogram * beyond)[:3])
    every = [1, 2, 5, 10, 20]

    def waits(target, stride):
        """Mean time to the target from the frames in alpha_R, for each run."""
        means = []
        for run in states:
            walk = run[::stride]
            hits = np.flatnonzero(target[walk])
            from_here = np.flatnonzero(inside[walk])
            from_here = from_here[from_here <= hits[-1]]
            means.append(np.mean(hits[np.searchsorted(hits, from_here)] - from_here) * stride)
        return np.mean(means), np.std(means, ddof=1) / np.sqrt(len(means))

    figure = go.Figure()
    weight = rest * inside / (rest * inside).sum()
    for name, target in (("all of beta", beyond), ("core of beta", core)):
        chosen = np.flatnonzero(target)
        learned = weight @ model.mean_first_passage_time(chosen).value
        drawn = [
            weight @ mean_first_passage_time(Landscape(kernel, energy), chosen).value
            for energy in draws.energies()
        ]
        low, high = draws.interval(drawn, learned)
        seen_in_runs = [waits(target, stride) for stride in every]
        print(f"to {name}: learned {learned:.0f} ps, 95 % interval {low:.0f} to {high:.0f}; runs")
        print(*[f"  every {k} ps: {m:.0f} +- {e:.0f}" for k, (m, e) in zip(every, seen_in_runs)])  # noqa: B905
        mean, spread = np.transpose(seen_in_runs)
        figure.add_scatter(x=every, y=mean, error_y={"array": spread}, name=f"runs, {name}")
        figure.add_scatter(x=[1, 20], y=[learned] * 2, mode="lines", line_dash="dot",
                           name=f"landscape, {name}")  # fmt: skip
    figure.update_xaxes(type="log", title="looking every (ps)")
    figure.update_yaxes(type="log", title="mean time from alpha_R (ps)")
    show(figure.update_layout(title="A passage time that exists, and one that does not"))
