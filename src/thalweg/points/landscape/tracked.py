"""The same individuals at every time: regression of the gradient on optimal couplings.

Where the moments of successive snapshots agree far better than independent samples could, the
individuals were followed. Then `(x - T(x)) / tau = grad V(x) + noise`, with `T` the coupling, holds
point by point, which is worth far more than moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from thalweg.points.coupling import coupling
from thalweg.points.goodness import GoodnessOfFit
from thalweg.points.landscape.features import (
    Basis,
    Gaussians,
    Polynomials,
    spaced_centers,
)
from thalweg.points.landscape.least_squares import Whitening
from thalweg.points.landscape.model import Field, PushModel, bounding_box, time_basis
from thalweg.points.landscape.problem import Answer, Problem
from thalweg.status import Status

__all__ = ["TRACKED", "Regression", "coupled_gradient", "solve_tracks", "stiffness"]

Array = NDArray[np.float64]

TRACKED = 0.8
"""Mean square of whitened moments below which couplings are tried; independent ones give 1."""

_SAME_ROWS = 0.5
_AGREEING = 0.3  # mean square of the moments that a regression on couplings must reach
_CHUNK = 1000
_RIDGES = 10.0 ** np.arange(-6.0, 6.1, 0.5)
_TIME_GAIN = 0.02
_LEAST_NOISE = 1e-10
_FINEST = 300
_CORRECTIONS = 4
_CORRECTION_STEPS = 4
_BETA_ROUNDS = 5


@dataclass(frozen=True, eq=False)
class Tracks:
    """Individuals and where each is at the next time."""

    times: Array
    clouds: tuple[Array, ...]
    sent: list[Array]
    by_rows: bool

    @classmethod
    def of(cls, times: Array, clouds: tuple[Array, ...]) -> Tracks:
        """By exact optimal transport; by rows where most of it joins row `i` with row `i`."""
        found, agree = [], []
        for x, y in zip(clouds[:-1], clouds[1:], strict=True):
            i, j, mass = coupling(x, y)
            agree.append(float(mass[i == j].sum()) if len(x) == len(y) else 0.0)
            sent = np.zeros_like(x)
            np.add.at(sent, i, mass[:, None] * y[j])
            found.append(sent * len(x))
        by_rows = min(agree) > _SAME_ROWS
        return cls(times, clouds, list(clouds[1:]) if by_rows else found, by_rows)

    @property
    def velocities(self) -> list[Array]:
        """Minus the velocity of each individual, which is the gradient of the potential."""
        lengths = np.diff(self.times)
        return [
            (x - y) / tau for x, y, tau in zip(self.clouds[:-1], self.sent, lengths, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Regression:
    """Weights of the functions with their covariance, the noise of a velocity, and evidence."""

    weights: Array
    covariance: Array
    noise: float
    evidence: float


class _Normal:
    """Normal equations of velocities on gradients: assembled once, solved for any velocities."""

    def __init__(self, tracks: Tracks, basis: Basis, scale: Array, order: int) -> None:
        self._tracks, self._basis, self._scale, self._order = tracks, basis, scale, order
        size = basis.size * (order + 1)
        matrix = np.zeros((size, size))
        for _, g in self._chunks():
            matrix += g.T @ g
        values, self._vectors = eigh(matrix)
        self._values = np.maximum(values, 0.0)

    def _chunks(self) -> Iterator[tuple[tuple[int, slice], Array]]:
        t = self._tracks.times
        for k, tau in enumerate(np.diff(t)):
            when = time_basis(t, t[k] + 0.5 * tau, self._order)
            for a in range(0, len(self._tracks.clouds[k]), _CHUNK):
                here = slice(a, a + _CHUNK)
                x = self._tracks.clouds[k][here]
                g = (self._basis.gradient(x) / self._scale).reshape(x.size, -1)
                yield (k, here), np.concatenate([b * g for b in when], axis=1)

    def solve(self, velocities: list[Array]) -> Regression:
        """Ridge and noise by evidence."""
        side = np.zeros(self._values.size)
        for (k, here), g in self._chunks():
            side += g.T @ velocities[k][here].ravel()
        square = sum(float((v**2).sum()) for v in velocities)
        count = sum(v.size for v in velocities)
        rotated = self._vectors.T @ side
        best = (-np.inf, 1.0, 1.0)
        for ridge in _RIDGES:
            left = square - float((rotated**2 / (self._values + ridge)).sum())
            left = max(left, _LEAST_NOISE * square, 1e-300)
            # Weights have variance noise / ridge: the noise integrates out in closed form.
            bits = np.log1p(self._values / ridge).sum()
            evidence = -0.5 * (count * np.log(left) + float(bits))
            best = max(best, (evidence, float(ridge), left / count))
        evidence, ridge, noise = best
        weights = self._vectors @ (rotated / (self._values + ridge))
        spread = (self._vectors / (self._values + ridge)) @ self._vectors.T * noise
        tiled = np.tile(self._scale, self._order + 1)
        return Regression(weights / tiled, spread / tiled[:, None] / tiled[None], noise, evidence)


def solve_tracks(
    problem: Problem, models: dict[str, PushModel], evidence: dict[str, float]
) -> Answer | None:
    """The regression with the largest evidence; `None` where the moments contradict it."""
    tracks = Tracks.of(problem.times, problem.clouds)
    bases = {name: (model.basis, model.scale) for name, model in models.items()}
    any_model = next(iter(models.values()))
    if problem.n_centers is None:
        bases[f"{_FINEST} Gaussians"] = _finest(problem, any_model)
    velocities = tracks.velocities
    found = {}
    for name, (basis, scale) in bases.items():
        normal = _Normal(tracks, basis, scale, problem.order)
        found[name] = (normal.solve(velocities), normal)
    best = max(found, key=lambda name: found[name][0].evidence)
    (fit, normal), (basis, scale) = found[best], bases[best]
    fit, steps, said = _continuous(problem, tracks, basis, fit, normal)
    field = _field(problem, basis, fit)
    model = PushModel(
        problem.times, problem.clouds, basis, any_model.moments, problem.order, problem.beta, 1,
        problem.seed,
    )  # fmt: skip
    model.__dict__.update(observed=any_model.observed, scale=scale)
    beta, stderr, chi = _beta(problem, model, fit, steps)
    if chi > _AGREEING:
        return None
    marked = {f"tracked, {name}": fit.evidence for name, (fit, _) in found.items()}
    how = "rows" if tracks.by_rows else "optimal transport"
    return Answer(
        field, beta, fit.covariance, stderr, _goodness(tracks, basis, scale, fit), True, steps,
        Status.CONVERGED, {**evidence, **marked},
        f"individuals were followed (matched by {how}); {best} had the largest evidence; {said}",
    )  # fmt: skip


def coupled_gradient(times: Array, clouds: tuple[Array, ...]) -> Callable[[Array], Array]:
    """Gradient by regression on optimal couplings, polynomials to degree 4 and 100 Gaussians.

    The first-order condition that JKOnet* solves in its linear form; right for tracked individuals
    only. It is the rival in benchmarks.
    """
    pool = np.concatenate(clouds)
    centers, near = spaced_centers(pool, 100, np.random.default_rng(0))
    bumps = Gaussians(centers, np.full(len(centers), 1.5 * near))
    degree = 4 if pool.shape[1] <= 3 else 2
    basis = Basis((Polynomials(pool.mean(axis=0), pool.std(axis=0), degree), bumps))
    tracks = Tracks.of(times, clouds)
    fit = _Normal(tracks, basis, np.ones(basis.size), 0).solve(tracks.velocities)
    field = Field(basis, fit.weights[None], times)
    return lambda x: field.gradient(x, float(times[0]))


def stiffness(field: Field, clouds: tuple[Array, ...], times: Array) -> float:
    """The longest interval times the curvature of the potential at 95 % of the points."""
    longest = float(np.diff(times).max())
    x = np.concatenate(clouds)
    x = x[:: max(1, len(x) // 1000)]
    theta = field.at(float(times.mean()))
    curvature = np.linalg.eigvalsh(field.basis.hessian(x, theta))
    return longest * float(np.quantile(np.abs(curvature).max(axis=1), 0.95))


def _finest(problem: Problem, model: PushModel) -> tuple[Basis, Array]:
    pool = np.concatenate(problem.clouds)
    rng = np.random.default_rng([problem.seed, 8])
    centers, near = spaced_centers(pool, min(_FINEST, max(len(pool) // 10, 2)), rng)
    bumps = Gaussians(centers, np.full(len(centers), 1.5 * near))
    first = tuple(block for block in model.basis.blocks if not block.local)
    basis = Basis((*first, bumps))
    one = PushModel(problem.times, problem.clouds, basis, model.moments, problem.order)
    return basis, one.scale


def _field(problem: Problem, basis: Basis, fit: Regression) -> Field:
    weights = fit.weights.reshape(problem.order + 1, -1)
    return Field(basis, weights, problem.times, bounding_box(problem.clouds))


def _continuous(
    problem: Problem, tracks: Tracks, basis: Basis, fit: Regression, normal: _Normal
) -> tuple[Regression, int, str]:
    """Euler's step, or the flow in continuous time if that explains the tracks better.

    The flow is fitted by deferred correction: what its step differs from Euler's by is added to the
    velocities, and the same regression repeated.
    """
    one = "one explicit step per interval"
    if problem.steps == 1:
        return fit, 1, f"{one}, as asked"
    if stiffness(_field(problem, basis, fit), tracks.clouds, tracks.times) < 0.05:
        return fit, 1, f"{one} is the flow, so short are they"
    now = fit
    for _ in range(_CORRECTIONS):
        field = _field(problem, basis, now)
        shifted = []
        for k, v in enumerate(tracks.velocities):
            a, b = float(tracks.times[k]), float(tracks.times[k + 1])
            x = tracks.clouds[k]
            euler = field.flow(x, (a, b), 1, euler=True)
            flow = field.flow(x, (a, b), _CORRECTION_STEPS)
            shifted.append(v + (flow - euler) / (b - a))
        after = normal.solve(shifted)
        if not np.isfinite(after.weights).all() or after.noise > 10 * fit.noise:
            return fit, 1, one
        now = after
    gain = now.evidence - fit.evidence
    if gain > 0:
        return now, _CORRECTION_STEPS, f"the flow in continuous time, log evidence {gain:+.1f}"
    return fit, 1, f"{one}, log evidence {-gain:+.1f} over the flow"


def _beta(
    problem: Problem, model: PushModel, fit: Regression, steps: int
) -> tuple[float, float, float]:
    """Beta by the moments with the potential held, its standard error, and the moments' chi."""
    model = model.with_steps(steps)
    z = fit.weights.reshape(problem.order + 1, -1) * model.scale
    z = np.append(z.ravel(), [0.0] if problem.beta is None else [])
    white = Whitening.at(model, z)
    slope = np.ones(1)
    for _ in range(_BETA_ROUNDS if problem.beta is None else 0):
        slope = white(model.jacobian(z)[:, -1])
        r = white(model.residual(model.pushed(z)))
        z[-1] = max(0.0, z[-1] - float(slope @ r) / float(slope @ slope))
    r = white(model.residual(model.pushed(z)))
    chi = float(np.mean(r**2))
    if problem.beta is not None:
        return float(problem.beta), 0.0, chi
    # The individuals are the same, so the moments carry only their noise: chi scales the error.
    stderr = model.beta_scale * float(np.sqrt(max(chi, 1e-12) / (slope @ slope)))
    return float(z[-1]) * model.beta_scale, stderr, chi


def _goodness(tracks: Tracks, basis: Basis, scale: Array, fit: Regression) -> GoodnessOfFit:
    """Whether a field that changes in time would explain the velocities much better."""
    claim = "one potential moves all points"
    if fit.weights.size > basis.size:
        return GoodnessOfFit(0.0, basis.size, "a potential that changes in time moves all points")
    if tracks.times.size < 3:
        return GoodnessOfFit(0.0, 0, claim)
    velocities = tracks.velocities
    still = _Normal(tracks, basis, scale, 0).solve(velocities)
    moving = _Normal(tracks, basis, scale, 1).solve(velocities)
    count = sum(v.size for v in velocities)
    total = sum(float((v**2).sum()) for v in velocities) / count
    gain = max(still.noise - moving.noise, 0.0)
    ratio = count * gain / max(moving.noise, 1e-300)
    if gain < _TIME_GAIN * total:
        # Too small to matter: without noise everything is significant.
        ratio = min(ratio, float(basis.size))
    return GoodnessOfFit(float(ratio), basis.size, claim)
