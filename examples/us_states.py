"""Where the model loses: people of the US states

People move between states, but they are also born, die and come from abroad. The flow is trained on
the censuses of 1980 to 2010 and forecasts 2025, beside two baselines that need no model at all.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go

import thalweg as tw
from thalweg.learn.growth import Growth

show = globals().get("show", lambda figure: figure.show())
root = Path(__file__).resolve().parent.parent
shared = os.environ.get("THALWEG_DATA", root.parent / "shared" / "data")
file = Path(shared) / "us_states" / "us48_population.npz"
found = file.is_file()
if found:
    with np.load(file, allow_pickle=True) as stored:
        names = [str(name) for name in stored["usps"]]
        years, people, edges = stored["years"], stored["population"].astype(float), stored["edges"]
    weights = np.zeros((len(names), len(names)))
    weights[edges[:, 0], edges[:, 1]] = weights[edges[:, 1], edges[:, 0]] = 1
    kernel = tw.MarkovKernel.from_weights(weights, names=names)
    print(kernel, "states that touch")
else:
    print(f"There is no {file.name} here; set THALWEG_DATA to the folder with the data sets.")

# %% The fit: each ten thousand people count as one individual, since the census is nearly free of
# noise while the model is not.
if found:
    train = [1980, 1990, 2000, 2010]
    seen = people[np.searchsorted(years, train)]
    last = people[np.searchsorted(years, 2025)]
    share = seen / seen.sum(axis=1, keepdims=True)
    truth = last / last.sum()
    snapshots = tw.Snapshots.from_counts(train, seen / 1e4, names=names)
    model = tw.FreeEnergyRegressor().fit(kernel, snapshots)
    flow = model.predict(share[-1], [2010, 2025]).probabilities[-1]
    figure = go.Figure(go.Bar(x=names, y=model.potential_))
    show(figure.update_layout(title="The landscape: people drift to low states", yaxis_title="V"))

# %% The forecast of 2025, in Hellinger distance. The flow beats doing nothing, and loses to a line
# drawn through the logarithms of the last two censuses.
if found:
    line = share[-1] * (share[-1] / share[-2]) ** 1.5
    growing = tw.FreeEnergyRegressor(growth=Growth(totals=seen.sum(axis=1) / 1e4))
    growing.fit(kernel, snapshots)
    both = growing.predict(share[-1], [2010, 2025]).probabilities[-1]
    guesses = {
        "log-linear": line / line.sum(),
        "flow": flow,
        "flow, births and deaths": both,
        "persistence": share[-1],
    }
    score = {name: float(tw.hellinger(p, truth)) for name, p in guesses.items()}
    print(pd.Series(score, name="Hellinger").round(4).to_string())
    figure = go.Figure(go.Bar(x=list(score), y=list(score.values())))
    show(figure.update_layout(title="2010 to 2025", yaxis_title="Hellinger distance"))

# %% Why? The total grows, which no flow allows, and births and immigration differ between states.
# The graph joins states that touch, but people who move from one coast to the other do not stop in
# between. And a flow slows down as it nears its equilibrium, while a line does not: over fifteen
# years the trend of the last decade continued.
if found:
    print(growing.growth_)
    off = pd.Series(np.sqrt(flow) - np.sqrt(truth), index=names).sort_values()
    figure = go.Figure(go.Bar(x=off.index, y=off.to_numpy()))
    title = "Where the flow is off in 2025: below zero, more people came than it says"
    show(figure.update_layout(title=title, yaxis_title="difference of square roots"))
