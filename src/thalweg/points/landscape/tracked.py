"""The same individuals at every time, matched by row or not.

If the moments of successive snapshots agree far better than independent samples could, the
individuals were tracked. Regression of `(x - T(x)) / tau` on `grad V(x)`, with `T` the coupling,
chooses the functions; if rows match individuals it is the answer, otherwise the start of
`fit_moments`. What the functions cannot resolve, which no covariance of weights includes, is
measured by the residuals of the pairs near a point, less what noise explains (`evenness`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh

from thalweg._types import Array
from thalweg.points.goodness import GoodnessOfFit, joined
from thalweg.points.landscape.evenness import Steps, evenness, partners
from thalweg.points.landscape.features import Basis, Gaussians
from thalweg.points.landscape.field import CHUNK, Field, time_basis
from thalweg.points.landscape.least_squares import Whitening
from thalweg.points.landscape.martingale import Followed, fit_moments
from thalweg.points.landscape.model import PushModel
from thalweg.points.landscape.problem import Answer, Problem
from thalweg.status import Status

_SAME_ROWS = 0.5
"""Share of pairs with equal rows above which rows match individuals."""
_AGREEING = 0.3
"""Mean square of the moments that a fit of tracked individuals must reach."""
_RIDGES = 10.0 ** np.arange(-6.0, 6.1, 0.5)
"""Prior precisions tried."""
_TIME_GAIN = 0.02
"""Share of the squared velocities that a field changing in time must explain to matter."""
_LEAST_NOISE = 1e-10
"""Least sum of squared residuals, relative to that of the velocities."""
_FINEST = 300
"""Largest number of Gaussians."""
_SHORT = 0.3
"""Interval times curvature below which one step is taken if nothing decides."""
_BENT = 1.0
"""The same above which two midpoint steps are not enough."""
_CORRECTIONS = 3
"""Times that the difference between one step and the flow is computed again,"""
_CORRECTION_STEPS = 4
"""and steps per interval of that flow on a strongly bent potential."""
_UNLIKE = 1.5
"""Ratio of interval lengths above which one step and the flow can be distinguished,"""
_DECIDED = 3.0
"""by this difference of log evidence."""
_TIE = 0.1
"""Difference that is not significant."""
_MISFIT = 3.0
"""Ratio of noises above which the other choice does not explain the steps."""
_TENFOLD = 10.0
"""Ratio of residuals that decides if all intervals are alike."""


@dataclass(frozen=True, eq=False)
class Tracks:
    """Individuals, and the position of each at the next time."""

    times: Array
    clouds: tuple[Array, ...]
    sent: list[Array]
    by_rows: bool

    @classmethod
    def of(cls, times: Array, clouds: tuple[Array, ...]) -> Tracks:
        """Tracks by exact optimal transport, or by rows if most of it joins equal rows."""
        pairs = [partners(x, y) for x, y in zip(clouds[:-1], clouds[1:], strict=True)]
        by_rows = all(
            rows is not None and (rows == np.arange(rows.size)).mean() > _SAME_ROWS
            for _, rows in pairs
        )
        return cls(times, clouds, list(clouds[1:]) if by_rows else [y for y, _ in pairs], by_rows)

    @property
    def velocities(self) -> list[Array]:
        """Minus the velocity of each individual, which is the gradient of the potential."""
        steps = zip(self.clouds[:-1], self.sent, np.diff(self.times), strict=True)
        return [(x - y) / tau for x, y, tau in steps]


@dataclass(frozen=True, eq=False)
class Regression:
    """Weights of the functions with their covariance, the noise of a velocity, and evidence."""

    weights: Array
    covariance: Array
    noise: float
    evidence: float


class Normal:
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
            for a in range(0, len(self._tracks.clouds[k]), CHUNK):
                here = slice(a, a + CHUNK)
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


def solve_tracks(problem: Problem, models: dict[str, PushModel]) -> Answer | None:
    """The fit with the largest evidence; `None` if the moments contradict it."""
    tracks, models = Tracks.of(problem.times, problem.clouds), dict(models)
    if problem.n_centers is None:
        models[f"{_FINEST} Gaussians"] = _finest(next(iter(models.values())))
    velocities, found = tracks.velocities, {}
    for name, model in models.items():
        normal = Normal(tracks, model.basis, model.scale, problem.order)
        found[name] = (normal.solve(velocities), normal)
    best = max(found, key=lambda name: found[name][0].evidence)
    (fit, normal), model = found[best], models[best]
    steps = _choose_steps(problem, tracks, model, fit, normal)
    model = model.changed(steps=steps.count)
    tau = float(np.diff(problem.times).mean())
    noise = 0.5 * tau * steps.fit.noise
    if tracks.by_rows:
        count = sum(v.size for v in velocities) - model.basis.size
        stderr = noise * float(np.sqrt(2 / max(count, 1)))
        known = Followed(steps.fit.weights, steps.fit.covariance, noise, stderr, Status.CONVERGED)
    else:
        known = fit_moments(model, (steps.fit.weights, noise))
        if steps.share < 1 and problem.beta is None:
            # Where steps contract, the same spread is more noise of a flow than of one step.
            other = fit_moments(model.changed(steps=steps.other_count), (steps.other, noise))
            if other.status is not Status.STALLED and other.noise < _MISFIT * known.noise:
                off = np.sqrt(1 - steps.share) * (other.noise - known.noise)
                known = replace(known, noise_stderr=float(np.hypot(known.noise_stderr, off)))
    field = model.field(known.weights)
    noise = known.noise if problem.beta is None else float(problem.beta)
    with np.errstate(over="ignore", invalid="ignore"):
        if not _chi(model, known.weights, noise) < _AGREEING:
            return None
    even = evenness(
        Steps(tracks.times, tracks.clouds, tracks.by_rows, field, steps.count), known.noise,
        np.random.default_rng([problem.seed, 10]), free=problem.beta is None,
    )  # fmt: skip
    beta, stderr = noise, 0.0
    if problem.beta is None:
        beta = even.noise
        # The quieter places may be rough as well; the others show by how much.
        between = 0.5 * max(known.noise - beta, beta) if even.rough else 0.0
        stderr = float(np.hypot(known.noise_stderr, between))
    how = "rows" if tracks.by_rows else "moments"
    rough = f"the noise looks like {even.said}" if even.rough else ""
    followed = f"individuals were followed (matched by {how})"
    change = steps.fit.weights - steps.other
    return Answer(
        field,
        beta,
        known.covariance + (1 - steps.share) * np.outer(change, change),
        stderr,
        _goodness(tracks, model, fit),
        True,
        steps.count,
        Status.UNRESOLVED if even.rough else known.status,
        {f"tracked, {name}": fit.evidence for name, (fit, _) in found.items()},
        joined(followed, f"{best} had the largest evidence", steps.why, rough),
        even.unresolved,
    )


def stiffness(field: Field, clouds: tuple[Array, ...], times: Array) -> float:
    """The longest interval times the curvature of the potential at 95 % of the points."""
    longest = float(np.diff(times).max())
    x = np.concatenate(clouds)
    x = x[:: max(1, len(x) // 1000)]
    theta = field.at(float(times.mean()))
    curvature = np.linalg.eigvalsh(field.basis.hessian(x, theta))
    return longest * float(np.quantile(np.abs(curvature).max(axis=1), 0.95))


def _finest(model: PushModel) -> PushModel:
    """The model with many Gaussians in addition to its own functions."""
    pool = np.concatenate(model.clouds)
    rng = np.random.default_rng([model.seed, 8])
    bumps = Gaussians.over(pool, min(_FINEST, max(len(pool) // 10, 2)), 1.5, rng)
    return model.changed(basis=Basis((*model.basis.blocks, bumps)))


@dataclass(frozen=True, eq=False)
class _Steps:
    """The number of steps per interval, its fit, and the other choice."""

    count: int
    fit: Regression
    other_count: int
    other: Array
    """Weights of the other choice."""
    share: float
    """Probability of this choice."""
    why: str


def _choose_steps(
    problem: Problem, tracks: Tracks, model: PushModel, fit: Regression, normal: Normal
) -> _Steps:
    """Euler's step or the flow in continuous time, whichever explains the tracks better.

    The flow is fitted by deferred correction: the difference of its step from Euler's is added to
    the velocities, and the same regression repeated. Intervals of one length cannot decide, as each
    map is the other's for another potential: the difference then belongs to the error bars.
    """
    one = "one explicit step per interval"
    if problem.steps == 1:
        return _Steps(1, fit, 1, fit.weights, 1.0, f"{one}, as requested")
    stiff = stiffness(model.field(fit.weights), tracks.clouds, tracks.times)
    inner = 1 if stiff < _SHORT else 2 if stiff < _BENT else _CORRECTION_STEPS
    now = fit
    for _ in range(_CORRECTIONS):
        field, shifted = model.field(now.weights), []
        for k, v in enumerate(tracks.velocities):
            x, span = tracks.clouds[k], (tracks.times[k], tracks.times[k + 1])
            euler = field.flow(x, span, 1, euler=True)
            flow = field.flow(x, span, inner)
            shifted.append(v + (flow - euler) / (span[1] - span[0]))
        after = normal.solve(shifted)
        if not np.isfinite(after.weights).all() or after.noise > 10 * fit.noise + 1e-300:
            return _Steps(1, fit, 1, fit.weights, 1.0, one)
        now = after
    lengths = np.diff(tracks.times)
    if lengths.max() > _UNLIKE * lengths.min():
        gain, least = now.evidence - fit.evidence, _DECIDED
    else:
        gain, least = float(np.log((fit.noise + 1e-300) / (now.noise + 1e-300))), np.log(_TENFOLD)
    smooth = bool(gain > 0) if abs(gain) > _TIE else stiff > _SHORT
    share = 1.0 if abs(gain) > least else 0.5
    said = f"{'the flow in continuous time' if smooth else one} fits the tracks better"
    if share < 1:
        said += ", but the snapshots cannot decide: the error bars include the difference"
    many = max(inner, 2)
    if smooth:
        return _Steps(many, now, 1, fit.weights, share, said)
    return _Steps(1, fit, many, now.weights, share, said)


def _chi(model: PushModel, weights: Array, beta: float) -> float:
    """Mean square of the moments that compare independent snapshots; about 1 for those."""
    model = model.changed(beta=beta)
    z = weights * np.tile(model.scale, model.order + 1)
    return float(np.mean(Whitening.at(model, z)(model.residual(z)) ** 2))


def _goodness(tracks: Tracks, model: PushModel, fit: Regression) -> GoodnessOfFit:
    """Whether a field that changes in time would explain the velocities much better."""
    basis, scale, claim = model.basis, model.scale, "one potential moves all points"
    if model.order > 0:
        return GoodnessOfFit(0.0, basis.size, "a potential that changes in time moves all points")
    if tracks.times.size < 3:
        return GoodnessOfFit(0.0, 0, claim)
    velocities = tracks.velocities
    moving = Normal(tracks, basis, scale, 1).solve(velocities)
    count = sum(v.size for v in velocities)
    total = sum(float((v**2).sum()) for v in velocities) / count
    gain = max(fit.noise - moving.noise, 0.0)
    ratio = count * gain / max(moving.noise, 1e-300)
    if gain < _TIME_GAIN * total:
        # Too small to matter: without noise everything is significant.
        ratio = min(ratio, float(basis.size))
    return GoodnessOfFit(float(ratio), basis.size, claim)
