"""The shortest path from one population to another

Two populations on a grid, their distance in the transport metric, and the path between them. The
straight mixture fades one population out and the other in; the geodesic moves the mass.
"""

import numpy as np

import thalweg as tw
from thalweg import plots

kernel = tw.make_graph("grid", 144, rng=np.random.default_rng(0), weights=None)
x, y = kernel.coordinates.T
x, y = (x - x.min()) / np.ptp(x), (y - y.min()) / np.ptp(y)


def bump(cx, cy):
    p = kernel.stationary * (np.exp(-40 * ((x - cx) ** 2 + (y - cy) ** 2)) + 1e-4)
    return p / p.sum()


# %% The distance, with an estimate of its error, and a status that is a sentence.
geometry = tw.TransportGeometry(kernel)
path = geometry.geodesic(bump(0.2, 0.2), bump(0.8, 0.8))
print(f"W_K = {path.distance:.6f}, error about {path.error_estimate:.1e}")
print(path.status.value)

# %% Press play: mass travels along the diagonal.
points = path.at(np.linspace(0, 1, 21))
show(plots.flow(kernel, points.times, points.probabilities, title="geodesic"))  # noqa: F821
