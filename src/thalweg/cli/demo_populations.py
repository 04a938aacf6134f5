"""The populations of the demos: a graph, the landscape that moves them, where they start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from thalweg._types import Array
from thalweg._words import did_you_mean
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.graphs import lattice, make_graph
from thalweg.kernel import MarkovKernel


@dataclass(frozen=True, eq=False)
class Population:
    """A simulated population, and the words for it."""

    kernel: MarkovKernel
    truth: FreeEnergy
    start: Array
    times: Array
    individuals: int
    title: str
    lead: str
    noun: str


def population(name: str, n_states: int | None, rng: np.random.Generator) -> Population:
    """The population of a demo, with about `n_states` states."""
    makers: dict[str, Callable[[int | None, np.random.Generator], Population]] = {
        "valleys": _valleys,
        "cells": _cells,
        "molecule": _molecule,
    }
    if name not in makers:
        hint = did_you_mean(name, makers)
        raise InputError(f"there is no demo {name!r}{hint} The names are {', '.join(makers)}.")
    return makers[name](n_states, rng)


def _valleys(n_states: int | None, rng: np.random.Generator) -> Population:
    kernel = make_graph("delaunay", n_states or 500, rng=rng)
    assert kernel.coordinates is not None
    x, y = kernel.coordinates.T
    truth = FreeEnergy(1.5 * np.sin(3 * np.pi * x) * np.cos(2 * np.pi * y), 0.1)
    start = kernel.stationary * np.exp(-4 * ((x - 0.5) ** 2 + (y - 0.5) ** 2))
    return Population(
        kernel,
        truth,
        start / start.sum(),
        np.linspace(0, 10, 21),
        10_000,
        "A population finds its valleys",
        "A simulated population on a planar graph, and the energy landscape that drives it, "
        "recovered from snapshots.",
        "places",
    )


def _cells(n_states: int | None, rng: np.random.Generator) -> Population:
    """A stem that branches twice: fates A, B and C, lower the more mature they are."""
    stages = max(3, round((n_states or 42) / 7))
    # For each branch: the one it grows from, its direction, and how far it falls.
    tree = {
        "stem": ("", 0.0, 0.6),
        "progenitor": ("stem", 0.0, 0.5),
        "A": ("progenitor", 0.9, 1.4),
        "B": ("progenitor", 0.45, 1.0),
        "C": ("stem", -0.6, 1.2),
    }
    n, far = stages * len(tree), np.arange(1, stages + 1) / stages
    place, height, weights = np.zeros((n, 2)), np.zeros(n), np.zeros((n, n))
    last: dict[str, int] = {}
    for k, (branch, (root, angle, depth)) in enumerate(tree.items()):
        own = np.arange(k * stages, (k + 1) * stages)
        direction = np.array([np.cos(angle), np.sin(angle)])
        place[own], height[own] = far[:, None] * direction, -depth * far
        before = own[:-1]
        if root:
            place[own] += place[last[root]]
            height[own] += height[last[root]]
            before = np.append(last[root], before)
        after = own[-before.size :]
        weights[before, after] = weights[after, before] = 1.0
        last[branch] = int(own[-1])
    names = [f"{branch} {k + 1}" for branch in tree for k in range(stages)]
    kernel = MarkovKernel.from_weights(weights, names=names, coordinates=place)
    start = kernel.stationary * 1e-3
    start[:2] += 0.5
    return Population(
        kernel,
        FreeEnergy(height * stages / 2, 0.3),
        start / start.sum(),
        np.linspace(0, 40, 9),
        3000,
        "Cells choose their fates",
        "Simulated cells mature along a branching tree. Each is seen once, on one of nine days; "
        "the landscape that draws them is recovered from the counts.",
        "stages of maturation",
    )


def _molecule(n_states: int | None, rng: np.random.Generator) -> Population:
    side = max(4, round(np.sqrt(n_states or 100)))
    kernel = lattice((side, side), periodic=True)
    assert kernel.coordinates is not None
    phi, psi = 2 * np.pi * kernel.coordinates.T / side - np.pi

    def basin(a: float, b: float, deep: float, sharp: float) -> Array:
        return np.asarray(-deep * np.exp(sharp * (np.cos(phi - a) + np.cos(psi - b) - 2)))

    truth = basin(-1.2, 2.5, 3.0, 2.0) + basin(-1.1, -0.6, 2.6, 3.0) + basin(1.0, 0.7, 2.2, 4.0)
    start = kernel.stationary * np.exp(5 * (np.cos(phi + 1.1) + np.cos(psi + 0.6) - 2))
    angles = np.rad2deg(np.column_stack([phi, psi]))
    named = [f"phi {a:.0f}, psi {b:.0f}" for a, b in angles]
    return Population(
        kernel.with_labels(names=named, coordinates=angles),
        FreeEnergy(truth, 0.6),
        start / start.sum(),
        np.linspace(0, 30, 11),
        5000,
        "A molecule leaves its basin",
        "Simulated frames over two dihedral angles, started in the helical basin. The free-energy "
        "surface is recovered from how the frames spread.",
        "cells of the (phi, psi) torus",
    )
