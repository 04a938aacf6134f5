"""A landscape from snapshots

A population is simulated on a small graph; only eleven snapshots are kept, and the landscape is
recovered from them with error bars.
"""

import numpy as np

import thalweg as tw
from thalweg import plots

rng = np.random.default_rng(0)
kernel = tw.make_graph("delaunay", 60, rng=rng)
x, y = kernel.coordinates.T
truth = tw.FreeEnergy(np.sin(5 * x) * np.cos(4 * y), beta=0.15)
start = kernel.stationary * np.exp(-4 * ((x - 0.5) ** 2 + (y - 0.5) ** 2))
start /= start.sum()

# %% The population, drawn anew at eleven times: five thousand individuals each. No individual is
# followed from one time to the next.
times = np.linspace(0, 10, 11)
seen = tw.simulate(kernel, truth, start, times, 5000, tracked=False, rng=rng)
print(seen)

# %% One call recovers the potential and the noise.
model = tw.FreeEnergyRegressor().fit(kernel, seen)
error = model.potential_ - tw.centred(truth.potential, kernel)
print(f"beta: {model.beta_:.3f} +- {model.beta_stderr_:.3f} (truth 0.15)")
print(f"within two standard errors: {np.mean(abs(error) < 2 * model.potential_stderr_):.0%}")
show(plots.landscape(kernel, tw.centred(truth.potential, kernel), title="truth"))  # noqa: F821
show(plots.landscape(kernel, model.potential_, stderr=model.potential_stderr_, title="fit"))  # noqa: F821

# %% Observed shares are points, the fitted flow is lines.
fitted = model.predict(None, times).probabilities
show(plots.fit(kernel, times, seen.frequencies, fitted, sizes=seen.sizes))  # noqa: F821

# %% And the flow itself: press play.
path = model.predict(None, np.linspace(0, 20, 21))
show(plots.flow(kernel, path.times, path.probabilities))  # noqa: F821
