"""Two data sets, one landscape: the joint fit, and a test of it.

The joint model shares `(V, log beta)` and gives each data set its own start. At its optimum, the
score of a difference, half of it added to the first data set's `(V, log beta)` and half subtracted
from the second's, shows how much the likelihood would gain if they differed (in halves, since the
prior's pull then acts on both equally and nearly cancels): with `s` the score adjusted for the
joint parameters, and `H` its covariance plus the prior's precision,

    T = s^T H^-1 s,

which is twice the gain in log likelihood to second order (Rao's form of the likelihood ratio).
Under the hypothesis `s` is Gaussian, with the covariance that multinomial counts give it and the
mean that the prior's pull leaves, both after the joint fit has adapted to the noise: `T` is a
weighted sum of squares, whose tail is known. The covariance is that of the observed counts, which
does not rely on the fit, if there are enough individuals for the directions tested; otherwise that
of the expected counts.

No simulation is used. If counts are few, draws from the joint fit itself are a poor guide: the fit
is smoother than the truth and puts no individuals in states where none was seen, so its data sets
look more alike than real ones, and ranks among refitted draws reject too often. Drawn counts mapped
linearly have tails that are too long, since a fit would follow a surprising count. `thalweg bench
dynamics-level` prints how often pairs of one landscape are rejected. The joint fit depends on the
counts alone: the strength of its prior is chosen by their evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2, ncx2

from thalweg._types import Array, Index
from thalweg.errors import InputError
from thalweg.learn.likelihood.model import FlowModel, Mesh, first_mesh
from thalweg.learn.likelihood.objective import Evaluation, IndependentObjective
from thalweg.learn.likelihood.optimize import Minimum, minimise
from thalweg.learn.likelihood.priors import Prior, make_prior
from thalweg.learn.likelihood.sparse.flow import evaluated
from thalweg.learn.likelihood.start import weak_start
from thalweg.snapshots.density import smoothed
from thalweg.status import Status

_STRENGTH = 1.0
"""Strength of the prior at the start: potentials of the size that the weak form finds."""
_ROUNDS = 8
"""Largest number of fits with a finer mesh or another strength of the prior."""
_SETTLED = 0.1
"""Change of the logarithm of the prior's strength that ends the search for it."""
_TOLERANCE = 1e-4
"""Log likelihood that a search may leave to gain."""
_MESH_ERROR = 0.1
"""Allowed error of the log likelihood from the time steps, per parameter."""
_ENOUGH = 100.0
"""Individuals per direction above which the observed counts give the covariance of a score. With
120, 4 to 5 % of 800 pairs of one landscape are rejected at 5 %; with 36, 13 % of 150."""


@dataclass(frozen=True, eq=False)
class JointObjective:
    """The sum of two objectives; `theta = [shared energy | start of a | start of b]`."""

    a: IndependentObjective
    b: IndependentObjective
    meshes: tuple[Mesh, Mesh]

    @property
    def model(self) -> FlowModel:
        return self.a.model

    @property
    def n_shared(self) -> int:
        return self.model.n_energy

    def refined(self) -> JointObjective:
        """The same with finer time steps."""
        a, b = self.meshes
        return replace(self, meshes=(a.refined(), b.refined()))

    def parts(self) -> Iterator[tuple[IndependentObjective, Mesh, Index]]:
        """Each data set, its time steps, and the entries of `theta` on which it depends."""
        k, n = self.n_shared, self.model.n_states
        for one, mesh, start in zip((self.a, self.b), self.meshes, (k, k + n), strict=True):
            yield one, mesh, np.concatenate([np.arange(k), np.arange(start, start + n)])

    def evaluate(self, theta: Array, mesh: Mesh) -> Evaluation | None:
        """Value and derivatives; each data set has its own time steps."""
        size = theta.size
        value, error, gradient = 0.0, 0.0, np.zeros(size)
        curvature, information = np.zeros((size, size)), np.zeros((size, size))
        for part, steps, place in self.parts():
            found = evaluated(part, theta[place], steps)
            if found is None:
                return None
            one, block = found[0], np.ix_(place, place)
            value, error = value + one.value, error + one.mesh_error
            gradient[place] += one.gradient
            curvature[block] += one.curvature
            information[block] += one.information
        return Evaluation(value, gradient, curvature, information, error)


class ScoreTest(NamedTuple):
    """A statistic, and the probability that it is as large under the hypothesis."""

    statistic: float
    p_value: float
    degrees: float
    """Directions that the data determine among those tested."""


@dataclass(frozen=True, eq=False)
class JointFit:
    """One energy for both data sets, with what its tests need."""

    objective: JointObjective
    theta: Array
    prior: Array
    """Precision of the joint prior."""
    value: float
    """Minus the log likelihood, up to the saturated one."""
    status: Status
    probabilities: list[Array]
    slopes: list[Array]

    @property
    def potential(self) -> Array:
        """Centred."""
        return self.objective.model.energy(self._own).potential

    @property
    def beta(self) -> float:
        return self.objective.model.beta(self._own)

    @property
    def _own(self) -> Array:
        """The parameters of the first data set alone."""
        return self.theta[: self.objective.model.n_parameters]

    def test(self, tested: Index) -> ScoreTest:
        """The hypothesis that the shared parameters `tested` are the same.

        The other shared ones may differ between the data sets.
        """
        k, size = self.objective.n_shared, self.theta.size
        free = np.setdiff1d(np.arange(k), tested)
        # Unknowns: the joint parameters, then the differences between the data sets.
        total = size + k
        information, pull = np.zeros((total, total)), np.zeros(total)
        seen_covariance = np.zeros((total, total))
        parts = list(self.objective.parts())
        enough = sum(part.counts.sum() for part, _, _ in parts) >= _ENOUGH * tested.size
        for which, (part, _, place) in enumerate(parts):
            counts, slopes = part.counts, self.slopes[which]
            half = 0.5 if which == 0 else -0.5
            columns = np.concatenate([place, size + np.arange(k)])
            s = np.concatenate([slopes, half * slopes[:, :, :k]], axis=2)
            individuals = counts.sum(axis=1, keepdims=True)
            expected = individuals * self.probabilities[which]
            flat, block = s.reshape(-1, s.shape[2]), np.ix_(columns, columns)
            information[block] += flat.T @ (flat * expected.ravel()[:, None])
            pull[columns] += (counts - expected).ravel() @ flat
            if enough:
                mean = np.einsum("tx,txc->tc", counts, s) / individuals
                seen_covariance[block] += flat.T @ (flat * counts.ravel()[:, None])
                seen_covariance[block] -= (mean * individuals).T @ mean
        nuisance = np.concatenate([np.arange(size), size + free]).astype(np.int64)
        delta = size + tested
        penalty = np.zeros((total, total))
        penalty[:size, :size] = self.prior
        penalty[size:, size:] = self.prior[:k, :k]
        follow = _solved(
            (information + penalty)[np.ix_(nuisance, nuisance)],
            information[np.ix_(nuisance, delta)],
        )
        effective = information[np.ix_(delta, delta)]
        effective = effective - information[np.ix_(delta, nuisance)] @ follow
        weight = np.linalg.pinv(effective + penalty[np.ix_(delta, delta)], hermitian=True)
        # The score as a combination of all slopes, and the remainder after a fit to other counts
        # of the same energy, which follows their noise and shrinks once more.
        seen = np.zeros((total, tested.size))
        seen[delta] = np.eye(tested.size)
        seen[nuisance] -= follow
        inner = information[:size, :size] + self.prior
        after = _solved(inner, information[:size] @ seen)
        fitted = seen.copy()
        fitted[:size] -= after
        score = pull @ seen
        covariance = seen_covariance if enough else information
        null = fitted.T @ covariance @ fitted
        statistic = float(score @ weight @ score)
        p_value = quadratic_tail(statistic, np.asarray(weight, float), null, pull[:size] @ after)
        return ScoreTest(statistic, p_value, float(np.sum(weight * effective.T)))


def _solved(matrix: Array, right: Array) -> Array:
    return np.asarray(np.linalg.solve(matrix + 1e-12 * np.diag(np.diag(matrix)), right))


def quadratic_tail(statistic: float, weight: Array, covariance: Array, mean: Array) -> float:
    """The probability that `s^T W s` is at least `statistic`, for `s ~ N(mean, covariance)`.

    That of the non-central chi-square variable with the same mean, variance and skewness, and a
    kurtosis as near as such a variable comes (Liu, Tang and Zhang 2009): exact for a single weight,
    or equal ones.

    >>> two = np.eye(2)
    >>> round(quadratic_tail(5.9915, two, two, np.zeros(2)), 4)  # chi-square, two degrees
    0.05
    """
    values, vectors = np.linalg.eigh(weight)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    a, turned = np.linalg.eigh(root.T @ covariance @ root)
    shift = (turned.T @ (root.T @ mean)) ** 2
    free = a > 1e-10 * max(float(a[-1]), 1e-300)
    constant = float(shift[~free].sum())
    a, shift = a[free], shift[free]
    if not a.size:
        return float(statistic <= constant)
    # Cumulants: c_k = sum a^k (1 + k d^2), d^2 = shift / a.
    c1, c2, c3, c4 = (float(np.sum(a ** (k - 1) * (a + k * shift))) for k in (1, 2, 3, 4))
    skew, tails = c3 / c2**1.5, c4 / c2**2
    if skew**2 > tails:
        scale = 1.0 / (skew - np.sqrt(skew**2 - tails))
        off = max(skew * scale**3 - scale**2, 0.0)
        degrees = scale**2 - 2.0 * off
    else:
        scale, off, degrees = 1.0 / skew, 0.0, 1.0 / skew**2
    z = (statistic - constant - c1) / np.sqrt(2.0 * c2)
    x = max(float(z * np.sqrt(2.0) * scale + degrees + off), 0.0)
    return float(ncx2.sf(x, degrees, off) if off > 1e-12 else chi2.sf(x, degrees))


class SameTests(NamedTuple):
    """Tests that everything is the same, the potential (for any beta), or beta (for any potential).

    `None` if there is no such parameter.
    """

    same: ScoreTest
    landscape: ScoreTest | None
    beta: ScoreTest | None


def same_tests(joint: JointFit) -> SameTests:
    """Test whether two data sets have one landscape and one beta."""
    model = joint.objective.model
    same = joint.test(np.arange(joint.objective.n_shared))
    if model.learns_beta and model.n_potential > 0:
        potential, beta = np.arange(model.n_potential), np.array([model.beta_index])
        return SameTests(same, joint.test(potential), joint.test(beta))
    return SameTests(same, same if model.n_potential else None, same if model.learns_beta else None)


def fit_jointly(
    a: IndependentObjective, b: IndependentObjective, *, strength: float | None = None
) -> JointFit:
    """The landscape that makes both data sets most likely.

    It depends on the data alone, not on separate fits of either set. `strength` is that of
    the prior on the potential; by default the evidence of both data sets chooses it.
    """
    if a.model.n_energy != b.model.n_energy:
        raise InputError(
            "the two fits do not have the same unknowns; fit both with the same options."
        )
    objective, prior, starts = _beginning(a, b)
    if strength is not None:
        prior = prior.with_strength(strength)
    best = None
    for start in starts:
        found = _minimum(objective, prior, start)
        if found is not None and (best is None or found.value < best.value):
            best = found
        if best is not None and best.status:
            break
    if best is None:
        raise InputError(
            "no common landscape could be computed for the two data sets; check that their "
            "times are in the same unit."
        )
    for _ in range(_ROUNDS):
        again = best.evaluation.mesh_error > _MESH_ERROR * best.theta.size
        if again:
            objective = objective.refined()
        if strength is None:
            wanted = prior.updated(best.theta, best.evaluation.information)
            again = again or abs(np.log(wanted / prior.strength)) > _SETTLED
            prior = prior.with_strength(wanted) if again else prior
        if not again:
            break
        found = _minimum(objective, prior, best.theta)
        if found is None:
            break
        best = found
    slopes, probabilities = [], []
    for part, mesh, place in objective.parts():
        result = part.model.sensitivities(best.theta[place], mesh)
        assert result is not None  # the optimiser accepts no parameters without a flow
        probabilities.append(np.exp(result[0]))
        slopes.append(result[1])
    return JointFit(
        objective, best.theta, prior.precision, best.evaluation.value, best.status, probabilities,
        slopes,
    )  # fmt: skip


def _beginning(
    a: IndependentObjective, b: IndependentObjective
) -> tuple[JointObjective, Prior, list[Array]]:
    """The objective with coarse time steps, the prior, and two starts, from both weak forms."""
    found = [weak_start(data.model, data.counts) for data in (a, b)]
    scale = float(np.sqrt(found[0][2] * found[1][2]))
    beta = float(np.clip(np.sqrt(found[0][1] * found[1][1]), 0.02 * scale, 2 * scale))
    k, n = a.model.n_energy, a.model.n_states
    own = make_prior(a.model, beta, scale, _STRENGTH)
    base, mean = np.zeros((k + 2 * n, k + 2 * n)), np.zeros(k + 2 * n)
    base[: k + n, : k + n] = own.base
    base[k + n :, k + n :] = own.base[k:, k:]
    mean[: k + n] = own.mean
    potential = np.clip(0.5 * (found[0][0] + found[1][0]), -3 * scale, 3 * scale)
    flat = np.zeros(k + 2 * n)
    if a.model.learns_beta:
        flat[a.model.beta_index] = np.log(beta)
    for part, data in zip((flat[k : k + n], flat[k + n :]), (a, b), strict=True):
        logs = np.log(smoothed(data.counts[:1])[0] / data.model.kernel.stationary)
        part[:] = logs - logs.mean()
    start = flat.copy()
    start[: potential.size] = potential
    # Noise makes the weak form's landscape too steep: few time steps to begin with.
    coarse = [Mesh(np.minimum(first_mesh(d.model, scale).substeps, 8), 2) for d in (a, b)]
    objective = JointObjective(a, b, (coarse[0], coarse[1]))
    return objective, Prior(_STRENGTH, own.shape, base, mean, scale), [start, flat]


def _minimum(objective: JointObjective, prior: Prior, theta: Array) -> Minimum | None:
    return minimise(objective, prior, theta, objective.meshes[0], tolerance=_TOLERANCE)
