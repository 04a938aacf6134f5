"""Makes the figure of the page 'How a geodesic is computed': two geodesics and their meshes.

Run it from the root of the project: `python docs/images/make_geodesic.py`.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot as plt

from thalweg import MarkovKernel, TransportGeometry

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "thalweg"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def main() -> None:
    path = np.diag(np.ones(4), 1)
    geometry = TransportGeometry(MarkovKernel.from_weights(path + path.T))
    inside = ([0.4, 0.3, 0.15, 0.1, 0.05], [0.05, 0.1, 0.15, 0.3, 0.4])
    corners = (np.eye(5)[0], np.eye(5)[4])
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for axes, (p, q), name in zip(
        panels,
        (inside, corners),
        ("Inside: Gauss points", "Point masses: finer at the ends"),
        strict=True,
    ):
        geodesic = geometry.geodesic(p, q, tolerance=1e-8)
        at = geodesic.at(np.linspace(0, 1, 201))
        mesh = geodesic._problem.mesh
        for state, colour in enumerate(COLOURS):
            axes.plot(at.times, at.probabilities[:, state], color=colour, label=f"state {state}")
        axes.plot(mesh.times, np.full(mesh.size, -0.05), "|", color="#444444", markersize=8)
        axes.set(title=f"{name}, $W_K$ = {geodesic.distance:.4f}", xlabel="time")
        print(f"{name}: {geodesic!r}, {mesh.pieces} pieces, {mesh.size} stages")
    panels[0].set_ylabel("probability")
    panels[0].legend(frameon=False, fontsize=8, loc="upper center")
    target = Path(__file__).with_name("geodesic.svg")
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
