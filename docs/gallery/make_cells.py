"""Makes the movie of the page on cells between two days, and prints its numbers.

Run it from the root of the project, with the blood cells at hand (`THALWEG_DATA`):
`python docs/gallery/make_cells.py`.
"""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from thalweg.points import PointInterpolator, wasserstein1
from thalweg.points.baselines import even
from thalweg_bench.realdata_sets import blood_cells, data_folder

Array = NDArray[np.float64]
MOVIE = Path(__file__).parent / "figures" / "cells_between_days.gif"
FRAMES, DRAWN, COLOURS, MILLISECONDS = 25, 1500, 32, 160
STRAIGHT = "displacement midpoint (McCann)"


def main() -> None:
    folder = data_folder("hematopoiesis")
    if folder is None:
        raise SystemExit("the blood cells are not here; set THALWEG_DATA to the folder of data.")
    _, (first, hidden, last) = blood_cells(folder)
    model = PointInterpolator().fit([2, 6], [first, last])
    frames = []
    for time in np.linspace(2, 6, FRAMES):
        guess = model.interpolate(float(time))
        straight = guess.baselines[STRAIGHT]
        drawn = [x.resample(DRAWN, rng=np.random.default_rng(1)) for x in (guess.points, straight)]
        if time == 4:
            for name, cloud in (("thalweg", guess.points), (STRAIGHT, straight)):
                print(f"day 4, {name}: W1 {wasserstein1(cloud, even(hidden)):.3f}")
            print(f"method: {guess.method}")
        frames.append(_frame(float(time), drawn, hidden, np.concatenate([first, hidden, last])))
    frames += [frames[-1]] * 5
    frames[0].save(
        MOVIE, save_all=True, append_images=frames[1:], duration=MILLISECONDS, loop=0, optimize=True
    )
    print(f"{MOVIE.name}: {MOVIE.stat().st_size / 1024:.0f} kB")


def _frame(time: float, drawn: list[Array], hidden: Array, every: Array) -> Image.Image:
    figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.4), sharex=True, sharey=True, dpi=100)
    titles = ("along the learned flow", "on straight lines")
    for axis, title, cloud, colour in zip(axes, titles, drawn, ("#2f9e44", "#3b5bdb"), strict=True):
        axis.plot(*hidden[::3].T, ".", ms=1.5, color="#d0d4d8")
        axis.plot(*cloud.T, ".", ms=1.5, color=colour)
        axis.set_title(title, fontsize=10)
        axis.set_xlim(*np.quantile(every[:, 0], [0.001, 0.999]) + [-0.1, 0.1])
        axis.set_ylim(*np.quantile(every[:, 1], [0.001, 0.999]) + [-0.1, 0.1])
        axis.set_xticks([])
        axis.set_yticks([])
    figure.suptitle(f"day {time:.1f}   (grey: the real day 4, never shown to the fit)", fontsize=10)
    figure.tight_layout()
    return _quantised(figure)


def _quantised(figure: Figure) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    plt.close(figure)
    return Image.open(buffer).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main()
