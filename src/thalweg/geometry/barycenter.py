"""The weighted mean of distributions under W_K: the minimiser of `sum_k w_k W_K(p, p_k)^2 / 2`.

The gradient at `p` is minus the weighted mean of the logarithms, so a Riemannian gradient step with
unit length, `p -> exp_p(sum_k w_k log_p p_k)`, converges fast where the curvature is moderate; it
is halved where the objective does not fall.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from thalweg._types import Array
from thalweg.geometry.exponential import shoot
from thalweg.status import Status

if TYPE_CHECKING:
    from thalweg.geometry.transport import TransportGeometry


class Barycenter(NamedTuple):
    """The mean, the distances from it, the length of the gradient there, and how it ended."""

    probability: Array
    distances: Array
    gradient_norm: float
    iterations: int
    status: Status


def find_barycenter(
    geometry: TransportGeometry,
    ps: Array,
    weights: Array,
    tolerance: float,
    max_iterations: int,
) -> Barycenter:
    """Riemannian gradient descent with unit steps, from the arithmetic mean."""
    used = np.flatnonzero(weights > 0)
    p = weights @ ps
    if used.size == 1:
        distances = np.array([geometry.distance(ps[used[0]], q, throw=False) for q in ps])
        return Barycenter(ps[used[0]], distances, 0.0, 0, Status.CONVERGED)
    if p.min() <= 0:
        p = (1 - 1e-6) * p + 1e-6 * geometry.kernel.stationary
    accuracy = max(0.1 * tolerance, 1e-10)
    step, best, size, iteration = 1.0, np.inf, np.inf, 0
    last, direction = p, np.zeros_like(p)
    while True:
        iteration += 1
        distances, mean = np.zeros(len(ps)), np.zeros_like(p)
        for k in range(len(ps)):
            geodesic = geometry.geodesic(
                p, ps[k], tolerance=accuracy, n_steps=1, potential_tolerance=accuracy
            )
            distances[k] = geodesic.distance
            mean += weights[k] * geodesic.initial_potential
        value = 0.5 * float(weights @ distances**2)
        norm = geometry.norm(p, mean)
        if norm <= tolerance * max(float(np.sqrt(2 * value)), 1e-300):
            return Barycenter(p, distances, norm, iteration, Status.CONVERGED)
        if value > best * (1 + 1e-12) and norm > 0.5 * size:
            step *= 0.5
        else:
            last, direction, best, size = p, mean, value, norm
            step = min(1.0, 1.5 * step)
        if step < 1e-3:
            return Barycenter(p, distances, norm, iteration, Status.STALLED)
        if iteration == max_iterations:
            return Barycenter(p, distances, norm, iteration, Status.MAX_ITERATIONS)
        p = _move(geometry, last, step * direction)


def _move(geometry: TransportGeometry, p: Array, psi: Array) -> Array:
    """The exponential, or as much of it as stays inside the simplex."""
    for _ in range(20):
        shot = shoot(
            geometry.kernel, geometry.mobility, p, psi, np.array([0.0, 1.0]), tolerance=1e-11
        )
        if shot.status:
            q = np.maximum(shot.probabilities[-1], 0.0)
            return np.asarray(q / q.sum())
        psi = 0.5 * psi
    return p
