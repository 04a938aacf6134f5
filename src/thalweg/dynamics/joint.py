"""Two data sets, one landscape: the joint fit, and a test of it whose null is simulated.

The joint model shares `(V, log beta)` and gives each data set its own start. At its optimum, the
score of a separate `(V, log beta)` for the first data set says how much the likelihood would gain
by letting them differ: with `s` the score after the joint parameters have been allowed to follow,
and `H` its covariance plus the prior's precision,

    T = s^T H^-1 s,

which is twice the gain in log likelihood to second order (Rao's form of the likelihood ratio).
Counts drawn from the joint fit go through the same linear map, so the null distribution of `T`
needs neither refits nor large counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.errors import InputError
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import Evaluation, IndependentObjective
from thalweg.learn.likelihood.optimize import Minimum, minimise
from thalweg.learn.likelihood.priors import Prior
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.status import Status

__all__ = ["JointFit", "ScoreTest", "fit_jointly"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


class Part(NamedTuple):
    """One data set's model, counts and time steps."""

    model: FlowModel
    counts: Array
    mesh: Mesh


@dataclass(frozen=True, eq=False)
class JointObjective:
    """The sum of two objectives; `theta = [shared energy | start of a | start of b]`."""

    a: Part
    b: Part

    @property
    def model(self) -> FlowModel:
        return self.a.model

    @property
    def n_shared(self) -> int:
        return self.a.model.n_energy

    def places(self) -> tuple[Index, Index]:
        """Which entries of the joint `theta` each data set sees."""
        k, n = self.n_shared, self.a.model.n_states
        shared = np.arange(k)
        return (
            np.concatenate([shared, np.arange(k, k + n)]),
            np.concatenate([shared, np.arange(k + n, k + 2 * n)]),
        )

    def evaluate(self, theta: Array, mesh: Mesh) -> Evaluation | None:
        """Value and derivatives; each data set has time steps of its own."""
        size = theta.size
        value, error, gradient = 0.0, 0.0, np.zeros(size)
        curvature, information = np.zeros((size, size)), np.zeros((size, size))
        for part, place in zip((self.a, self.b), self.places(), strict=True):
            one = IndependentObjective(part.model, part.counts).evaluate(theta[place], part.mesh)
            if one is None:
                return None
            value, error = value + one.value, error + one.mesh_error
            gradient[place] += one.gradient
            curvature[np.ix_(place, place)] += one.curvature
            information[np.ix_(place, place)] += one.information
        return Evaluation(value, gradient, curvature, information, error)


class ScoreTest(NamedTuple):
    """A statistic and its simulated null distribution."""

    statistic: float
    p_value: float
    degrees: float
    """Directions that the data determine among those tested."""


@dataclass(frozen=True, eq=False)
class JointFit:
    """One energy for both data sets, with everything that tests of it need."""

    objective: JointObjective
    theta: Array
    prior: Array
    """Precision of the joint prior."""
    value: float
    """Minus the log likelihood, up to the saturated one."""
    status: Status
    probabilities: tuple[Array, Array]
    slopes: tuple[Array, Array]

    @property
    def potential(self) -> Array:
        """Centred."""
        return self.objective.model.energy(self.theta[: self._size]).potential

    @property
    def beta(self) -> float:
        return self.objective.model.beta(self.theta[: self._size])

    @property
    def _size(self) -> int:
        return self.objective.model.n_parameters

    def draw(self, n_draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Residuals of counts drawn from the joint fit, `(n_draws, times * states)` each."""
        out = []
        for part, p in zip((self.objective.a, self.objective.b), self.probabilities, strict=True):
            sizes = np.rint(part.counts.sum(axis=1)).astype(np.int64)
            rows = [
                rng.multinomial(m, q / q.sum(), size=n_draws) - q * (m / q.sum())
                for m, q in zip(sizes, p, strict=True)
            ]
            out.append(np.stack(rows, axis=1).reshape(n_draws, -1))
        return out[0], out[1]

    def test(self, tested: Index, drawn: tuple[Array, Array]) -> ScoreTest:
        """Test that the shared parameters `tested` are the same; the other shared ones may differ.

        `p_value` is the share of statistics of the `drawn` residuals that reach the observed one.
        """
        k = self.objective.n_shared
        free = np.setdiff1d(np.arange(k), tested)
        size = self.theta.size
        # Unknowns: the joint parameters, then the first data set's own differences.
        total = size + k
        information = np.zeros((total, total))
        maps = []
        for which, (part, place) in enumerate(
            zip((self.objective.a, self.objective.b), self.objective.places(), strict=True)
        ):
            slopes, p = self.slopes[which], self.probabilities[which]
            expected = part.counts.sum(axis=1, keepdims=True) * p
            columns = np.concatenate([place, size + np.arange(k)]) if which == 0 else place
            s = np.concatenate([slopes, slopes[:, :, :k]], axis=2) if which == 0 else slopes
            flat = s.reshape(-1, s.shape[2])
            block = flat.T @ (flat * expected.ravel()[:, None])
            information[np.ix_(columns, columns)] += block
            maps.append((columns, flat, expected))
        nuisance = np.concatenate([np.arange(size), size + free]).astype(np.int64)
        delta = size + tested
        penalty = np.zeros((total, total))
        penalty[:size, :size] = self.prior
        penalty[size:, size:] = self.prior[:k, :k]
        inside = information[np.ix_(nuisance, nuisance)] + penalty[np.ix_(nuisance, nuisance)]
        cross = information[np.ix_(delta, nuisance)]
        follow = np.linalg.solve(inside + 1e-12 * np.diag(np.diag(inside)), cross.T).T
        effective = information[np.ix_(delta, delta)] - follow @ cross.T
        weight = np.linalg.pinv(effective + penalty[np.ix_(delta, delta)], hermitian=True)
        degrees = float(np.sum(weight * effective.T))

        def statistic(residuals: Sequence[Array]) -> Array:
            """`T` for each row of residuals of the two data sets."""
            score = np.zeros((residuals[0].shape[0], total))
            for (columns, flat, _), r in zip(maps, residuals, strict=True):
                score[:, columns] += r @ flat
            s = score[:, delta] - score[:, nuisance] @ follow.T
            return np.asarray(np.einsum("di,ij,dj->d", s, weight, s))

        parts = (self.objective.a, self.objective.b)
        seen = [
            (part.counts - expected).ravel()[None]
            for part, (_, _, expected) in zip(parts, maps, strict=True)
        ]
        observed = float(statistic(seen)[0])
        null = statistic(drawn)
        p_value = (1.0 + float(np.sum(null >= observed))) / (null.size + 1.0)
        return ScoreTest(observed, p_value, degrees)


def fit_jointly(a: LikelihoodFit, b: LikelihoodFit) -> JointFit:
    """The landscape that makes both data sets most likely, started from the two separate fits."""
    for fit in (a, b):
        plain = fit.settings.observation == "independent"
        if not plain or fit.settings.discretization != "continuous" or fit.model.n_basis > 1:
            raise InputError(
                "compare takes independent snapshots of a fixed potential; fit both data sets "
                "with observation='independent' and without a time basis."
            )
        if not fit.model.n_initial:
            raise InputError("compare fits the starts of both data sets; leave initial out.")
    if a.model.n_energy != b.model.n_energy:
        raise InputError(
            "the two fits do not have the same unknowns; fit both with the same options."
        )
    objective = JointObjective(Part(a.model, a.counts, a.mesh), Part(b.model, b.counts, b.mesh))
    k, n = objective.n_shared, a.model.n_states
    strength = float(np.sqrt(a.prior.strength * b.prior.strength))
    scale = float(np.sqrt(a.prior.scale * b.prior.scale))
    base, mean = np.zeros((k + 2 * n, k + 2 * n)), np.zeros(k + 2 * n)
    base[: k + n, : k + n] = a.prior.base
    base[k + n :, k + n :] = b.prior.base[k:, k:]
    mean[:k] = 0.5 * (a.prior.mean[:k] + b.prior.mean[:k])
    prior = Prior(strength, a.prior.shape, base, mean, scale)
    # The precision-weighted mean of the two fits, and each of them where that does not do.
    wa, wb = _shared_precision(a, k), _shared_precision(b, k)
    middle = np.linalg.solve(
        wa + wb + 1e-12 * np.trace(wa + wb) * np.eye(k), wa @ a.theta[:k] + wb @ b.theta[:k]
    )
    starts = (a.theta[k:], b.theta[k:])
    best: Minimum | None = None
    for shared in (middle, a.theta[:k], b.theta[:k]):
        found = minimise(objective, prior, np.concatenate([shared, *starts]), a.mesh)
        if found is not None and (best is None or found.value < best.value):
            best = found
        if best is not None and best.status:
            break
    if best is None:
        raise InputError(
            "no common landscape could be computed for the two data sets; check that their times "
            "are in the same unit."
        )
    slopes, probabilities = [], []
    for part, place in zip((objective.a, objective.b), objective.places(), strict=True):
        result = part.model.sensitivities(best.theta[place], part.mesh)
        assert result is not None  # the optimiser accepts no parameters without a flow
        probabilities.append(np.exp(result[0]))
        slopes.append(result[1])
    return JointFit(
        objective, best.theta, prior.precision, best.evaluation.value, best.status,
        (probabilities[0], probabilities[1]), (slopes[0], slopes[1]),
    )  # fmt: skip


def _shared_precision(fit: LikelihoodFit, k: int) -> Array:
    """Precision of the energy's parameters once the start has been averaged out."""
    covariance = fit.covariance[:k, :k]
    ridge = 1e-9 * np.trace(covariance) / k * np.eye(k)
    return np.asarray(np.linalg.inv(covariance + ridge), dtype=np.float64)
