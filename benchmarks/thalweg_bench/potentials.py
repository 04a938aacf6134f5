"""Test functions of the optimisation literature as potentials, and particles that descend them.

Each takes points, one row each, and is a sum or a function of the first two coordinates, so that it
makes sense in any dimension from two on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from thalweg._types import Array

__all__ = ["POTENTIALS", "Particles", "gradient"]

Potential = Callable[[Array], Array]

_STEP = 1e-5
"""Half the distance of the two points of a difference."""


def styblinski_tang(x: Array) -> Array:
    return np.asarray(0.5 * (x**4 - 16 * x**2 + 5 * x).sum(axis=1))


def holder_table(x: Array) -> Array:
    r = np.linalg.norm(x, axis=1)
    wave = np.prod(np.concatenate([np.sin(x[:, :1]), np.cos(x[:, 1:])], axis=1), axis=1)
    return np.asarray(10 * np.abs(wave * np.exp(np.abs(1 - r / np.pi))))


def oakley_ohagan(x: Array) -> Array:
    return np.asarray(5 * (np.sin(x) + np.cos(x) + x**2 + x).sum(axis=1))


def double_exp(x: Array) -> Array:
    def hill(at: float) -> Array:
        return np.asarray(np.exp(-((x - at) ** 2).sum(axis=1) / 20))

    return 200 * (hill(2.0) + hill(-2.0))


def flowers(x: Array) -> Array:
    return np.asarray((x + 2 * np.sin(np.abs(x) ** 1.2)).sum(axis=1))


def ishigami(x: Array) -> Array:
    a, b = x[:, 0], x[:, 1]
    return np.asarray(np.sin(a) + 7 * np.sin(b) ** 2 + 0.1 * ((a + b) / 2) ** 4 * np.sin(a))


def friedman(x: Array) -> Array:
    a, b = x[:, 0] - 7, x[:, 1] - 7
    return np.asarray(0.05 * (10 * np.sin(np.pi * a * b / 20) + 20 * (a / 10 + 0.5) ** 2 + 5 * b))


def bohachevsky(x: Array) -> Array:
    a, b = x[:, 0], x[:, 1]
    wave = 0.3 * np.cos(3 * np.pi * a / 4) + 0.4 * np.cos(np.pi * b)
    return np.asarray(5 * (a**2 + 2 * b**2 - wave) + 5 * (x[:, 2:] ** 2).sum(axis=1))


def sphere(x: Array) -> Array:
    return np.asarray(-10 * (x**2).sum(axis=1))


def watershed(x: Array) -> Array:
    a, b = x[:, 0], x[:, 1]
    return np.asarray(a + a**2 * (b**2 + 4) / 10)


def wavy_plateau(x: Array) -> Array:
    return np.asarray((np.cos(np.pi * x) + 0.5 * x**4 - 3 * x**2 + 1).sum(axis=1))


def zigzag_ridge(x: Array) -> Array:
    a, b = x[:, 0], x[:, 1]
    return np.asarray(5 * np.abs(a - b) + 3 * np.cos(2 * a) + (a + b) ** 2 / 2)


POTENTIALS: dict[str, Potential] = {
    f.__name__: f
    for f in (
        styblinski_tang, holder_table, oakley_ohagan, double_exp, flowers, ishigami, friedman,
        bohachevsky, sphere, watershed, wavy_plateau, zigzag_ridge,
    )
}  # fmt: skip


def gradient(potential: Potential, x: Array) -> Array:
    """Central differences."""
    steps = _STEP * np.eye(x.shape[1])
    return np.stack([(potential(x + s) - potential(x - s)) / (2 * _STEP) for s in steps], axis=1)


@dataclass(frozen=True)
class Particles:
    """A uniform cloud in `[-4, 4]^d` that takes explicit steps of length `tau` down a potential."""

    potential: Potential
    dimension: int = 2
    beta: float = 0.0
    n: int = 2000
    tau: float = 0.01
    n_times: int = 6

    def step(self, x: Array, rng: np.random.Generator) -> Array:
        moved = x - self.tau * gradient(self.potential, x)
        return moved + np.sqrt(2 * self.beta * self.tau) * rng.standard_normal(x.shape)

    def snapshots(self, *, tracked: bool, rng: np.random.Generator) -> tuple[Array, list[Array]]:
        """Times and clouds: the same particles at every time, in random order, or fresh ones."""
        times = np.asarray(self.tau * np.arange(self.n_times), dtype=np.float64)
        clouds = []
        x = rng.uniform(-4, 4, (self.n, self.dimension))
        for k in range(self.n_times):
            if not tracked:
                x = rng.uniform(-4, 4, (self.n, self.dimension))
                for _ in range(k):
                    x = self.step(x, rng)
            elif k > 0:
                x = self.step(x, rng)
            clouds.append(rng.permutation(x))
        return times, clouds
