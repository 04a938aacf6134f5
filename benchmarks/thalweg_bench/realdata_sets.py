"""Reading the real data sets, where they are given: blood cells, alanine dipeptide, US states."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from thalweg._types import Array
from thalweg.kernel import MarkovKernel

__all__ = ["AlanineDipeptide", "UsStates", "blood_cells", "data_folder"]


_BINS = 10
"""Cells along each dihedral angle."""
_LEAST_FRAMES = 20
"""Frames in a cell that is a state of its own."""


def data_folder(name: str) -> Path | None:
    """The folder of a data set: in `$THALWEG_DATA`, else in `../shared/data`; `None` if absent."""
    root = Path(__file__).resolve().parents[2]
    given = os.environ.get("THALWEG_DATA")
    folder = (Path(given) if given else root.parent / "shared" / "data") / name
    return folder if folder.is_dir() else None


def blood_cells(folder: Path) -> tuple[Array, list[Array]]:
    """Days 2, 4, 6 and the cells of each day in two dimensions."""
    frame = pd.read_csv(folder / "cells.csv")
    clouds = [
        frame.loc[frame["samples"] == k, ["x1", "x2"]].to_numpy(dtype=np.float64) for k in range(3)
    ]
    return np.array([2.0, 4.0, 6.0]), clouds


@dataclass(frozen=True, eq=False)
class AlanineDipeptide:
    """Ten runs of dihedral angles on a 10 x 10 torus of which the visited cells are states."""

    runs: tuple[Array, ...]

    @classmethod
    def read(cls, folder: Path) -> AlanineDipeptide:
        with np.load(folder / "phi_psi.npz") as file:
            return cls(tuple(np.asarray(file[f"traj{k}"], dtype=np.float64) for k in range(10)))

    @cached_property
    def _raw(self) -> list[NDArray[np.int64]]:
        out = []
        for angles in self.runs:
            box = np.floor((angles + np.pi) / (2 * np.pi) * _BINS).astype(np.int64) % _BINS
            out.append(box[:, 0] * _BINS + box[:, 1])
        return out

    @cached_property
    def cells(self) -> NDArray[np.int64]:
        """Cells with 20 frames or more, as (phi, psi) positions on the torus."""
        counts = np.bincount(np.concatenate(self._raw), minlength=_BINS**2)
        return np.stack(np.divmod(np.flatnonzero(counts >= _LEAST_FRAMES), _BINS), axis=1)

    @property
    def centres(self) -> Array:
        """Middle of each state, in degrees."""
        return np.asarray((self.cells + 0.5) * 360 / _BINS - 180)

    @cached_property
    def states(self) -> list[NDArray[np.int64]]:
        """The state of each frame; a rarely visited cell counts for the nearest state."""
        everywhere = np.stack(np.divmod(np.arange(_BINS**2), _BINS), axis=1)
        nearest = _torus_steps(everywhere, self.cells).argmin(axis=1)
        return [nearest[raw] for raw in self._raw]

    @cached_property
    def alpha(self) -> list[NDArray[np.bool_]]:
        """Frames in the alpha_R basin."""
        low, high = np.deg2rad(-130), np.deg2rad(50)
        return [(a[:, 0] < 0) & (a[:, 1] >= low) & (a[:, 1] <= high) for a in self.runs]

    def snapshots(self, lags: NDArray[np.int64], which: range) -> Array:
        """Counts a lag after every frame in alpha_R: shape (runs, lags, states)."""
        n = self.cells.shape[0]
        out = np.zeros((len(which), lags.size, n))
        for row, k in enumerate(which):
            start = np.flatnonzero(self.alpha[k][: self.states[k].size - int(lags[-1])])
            for j, lag in enumerate(lags):
                out[row, j] = np.bincount(self.states[k][start + lag], minlength=n)
        return out

    def transition_kernel(self, lag: int, which: range) -> MarkovKernel:
        """The symmetrised transition matrix over `lag` picoseconds."""
        n = self.cells.shape[0]
        c = np.zeros((n, n))
        for k in which:
            np.add.at(c, (self.states[k][:-lag], self.states[k][lag:]), 1.0)
        return MarkovKernel.from_weights(c + c.T, coordinates=self.centres)

    def torus_kernel(self) -> MarkovKernel:
        """Equal weights between neighbouring cells of the torus: no dynamics known."""
        steps = _torus_steps(self.cells, self.cells)
        return MarkovKernel.from_weights((steps == 1).astype(float), coordinates=self.centres)

    def histogram(self) -> Array:
        counts = np.bincount(np.concatenate(self.states), minlength=self.cells.shape[0])
        return np.asarray(counts / counts.sum())


def _torus_steps(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    gap = np.abs(a[:, None] - b[None])
    return np.asarray(np.minimum(gap, _BINS - gap).sum(axis=-1))


@dataclass(frozen=True, eq=False)
class UsStates:
    """Population of the 48 contiguous states by year, and which states touch."""

    years: NDArray[np.int64]
    names: tuple[str, ...]
    population: Array
    kernel: MarkovKernel

    @classmethod
    def read(cls, folder: Path) -> UsStates:
        with np.load(folder / "us48_population.npz", allow_pickle=True) as file:
            names = tuple(str(name) for name in file["usps"])
            weights = np.zeros((len(names), len(names)))
            a, b = file["edges"].T
            weights[a, b] = weights[b, a] = 1.0
            years = file["years"].astype(np.int64)
            people = file["population"].astype(np.float64)
        return cls(years, names, people, MarkovKernel.from_weights(weights, names=names))

    def at(self, years: list[int]) -> Array:
        return self.population[np.searchsorted(self.years, years)]
