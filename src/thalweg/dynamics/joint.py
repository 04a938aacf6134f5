"""Two data sets, one landscape: the joint fit, and a test of it whose null is simulated.

The joint model shares `(V, log beta)` and gives each data set its own start. At its optimum, the
score of a separate `(V, log beta)` for the first data set says how much the likelihood would gain
by letting them differ: with `s` the score after the joint parameters have been allowed to follow,
and `H` its covariance plus the prior's precision,

    T = s^T H^-1 s,

which is twice the gain in log likelihood to second order (Rao's form of the likelihood ratio).
Counts drawn from the joint fit go through the same map and a linearised refit, which gives the
null distribution of `T`. Where counts are few its tail is somewhat long, since a fit would follow a
surprising count: the test is then careful. The joint fit depends on the counts alone: its prior is
as strong as their evidence wants it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.errors import InputError
from thalweg.learn.likelihood.model import FlowModel, Mesh, first_mesh
from thalweg.learn.likelihood.objective import Evaluation, IndependentObjective
from thalweg.learn.likelihood.optimize import Minimum, minimise
from thalweg.learn.likelihood.priors import Prior, make_prior
from thalweg.learn.likelihood.sparse.flow import SPARSE_STATES, Point, SparseFlow, is_plain
from thalweg.learn.likelihood.sparse.search import descend
from thalweg.learn.likelihood.start import weak_start
from thalweg.snapshots.density import smoothed
from thalweg.status import Status

__all__ = ["Data", "JointFit", "SameTests", "ScoreTest", "fit_jointly", "same_tests"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


_STRENGTH = 1.0
"""Of the prior at the start: potentials of the size that the weak form finds."""
_ROUNDS = 8
_SETTLED = 0.1
"""Change of the logarithm of the prior's strength that ends the search for it."""
_TOLERANCE, _MOST_STEPS = 1e-4, 100
"""Log likelihood that may be left to gain, and bound on the steps of a search."""
_MESH_ERROR = 0.1
"""Allowed error of the log likelihood from the time steps, per parameter."""


class Data(NamedTuple):
    """One data set: the form of its flow, and its counts."""

    model: FlowModel
    counts: Array


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

    def refined(self) -> JointObjective:
        """The same with finer time steps."""
        a, b = (part._replace(mesh=part.mesh.refined()) for part in (self.a, self.b))
        return JointObjective(a, b)

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


@dataclass(frozen=True, eq=False)
class _JointFlow:
    """Both flows by sparse elimination, in the form that `descend` searches."""

    objective: JointObjective
    flows: tuple[SparseFlow, SparseFlow]

    def at(self, theta: Array, near: _JointPoint | None = None) -> _JointPoint | None:
        places = self.objective.places()
        before = (None, None) if near is None else near.points
        points = [
            flow.at(theta[place], old)
            for flow, place, old in zip(self.flows, places, before, strict=True)
        ]
        if points[0] is None or points[1] is None:
            return None
        return _JointPoint(theta, places, (points[0], points[1]))


@dataclass(frozen=True, eq=False)
class _JointPoint:
    theta: Array
    places: tuple[Index, Index]
    points: tuple[Point, Point]

    @property
    def value(self) -> float:
        return self.points[0].value + self.points[1].value

    @cached_property
    def gradient(self) -> Array:
        total = np.zeros(self.theta.size)
        for place, point in zip(self.places, self.points, strict=True):
            total[place] += point.gradient
        return total

    def _summed(self, matrices: Sequence[Array]) -> Array:
        total = np.zeros((self.theta.size, self.theta.size))
        for place, matrix in zip(self.places, matrices, strict=True):
            total[np.ix_(place, place)] += matrix
        return total

    def steering(self, *, levels: int | None = None) -> Array:
        return self._summed([point.steering(levels=levels) for point in self.points])

    @cached_property
    def information(self) -> Array:
        return self._summed([point.information for point in self.points])

    @property
    def evaluation(self) -> Evaluation:
        error = self.points[0].mesh_error + self.points[1].mesh_error
        return Evaluation(self.value, self.gradient, self.information, self.information, error)


class ScoreTest(NamedTuple):
    """A statistic and what its simulated null distribution says of it."""

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
    strength: float | None
    """Of the potential's prior, where it was given."""
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

    @property
    def parts(self) -> tuple[Part, Part]:
        return self.objective.a, self.objective.b

    def draw(self, n_draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Counts drawn from the joint fit, `(n_draws, times, states)` for each data set."""
        out = []
        for part, p in zip(self.parts, self.probabilities, strict=True):
            sizes = np.rint(part.counts.sum(axis=1)).astype(np.int64)
            rows = [rng.multinomial(m, q / q.sum(), n_draws) for m, q in zip(sizes, p, strict=True)]
            out.append(np.stack(rows, axis=1).astype(np.float64))
        return out[0], out[1]

    def score(self, tested: Index) -> Score:
        """The statistic of the hypothesis that the shared parameters `tested` are the same.

        The other shared ones may differ between the data sets.
        """
        k, size = self.objective.n_shared, self.theta.size
        free = np.setdiff1d(np.arange(k), tested)
        # Unknowns: the joint parameters, then the first data set's own differences.
        total = size + k
        information = np.zeros((total, total))
        maps = []
        for which, place in enumerate(self.objective.places()):
            part, slopes, p = self.parts[which], self.slopes[which], self.probabilities[which]
            expected = part.counts.sum(axis=1, keepdims=True) * p
            columns = np.concatenate([place, size + np.arange(k)]) if which == 0 else place
            s = np.concatenate([slopes, slopes[:, :, :k]], axis=2) if which == 0 else slopes
            flat = s.reshape(-1, s.shape[2])
            information[np.ix_(columns, columns)] += flat.T @ (flat * expected.ravel()[:, None])
            maps.append((columns, flat, p))
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
        # A fit to drawn counts follows their noise, and shrinks towards the prior once more.
        joint = np.arange(size)
        lags = information[np.ix_(delta, joint)] - follow @ information[np.ix_(nuisance, joint)]
        inner = information[:size, :size] + self.prior
        after = np.linalg.solve(inner + 1e-12 * np.diag(np.diag(inner)), lags.T).T
        linear, refitted, pull = [], [], np.zeros(size)
        for part, (columns, flat, p) in zip(self.parts, maps, strict=True):
            full = np.zeros((flat.shape[0], total))
            full[:, columns] = flat
            straight = full[:, delta] - full[:, nuisance] @ follow.T
            linear.append((straight, p))
            refitted.append((straight - full[:, :size] @ after.T, p))
            pull += _residuals(part.counts, p).ravel() @ full[:, :size]
        degrees = float(np.sum(weight * effective.T))
        return Score(linear, refitted, after @ pull, np.asarray(weight), degrees)


def _residuals(counts: Array, p: Array) -> Array:
    return np.asarray(counts - counts.sum(axis=-1, keepdims=True) * p)


class Score(NamedTuple):
    """`T` as a function of counts, linearised at a joint fit."""

    linear: Sequence[tuple[Array, Array]]
    """For each data set: what a residual adds to the score, and the expected shares."""
    refitted: Sequence[tuple[Array, Array]]
    """The same for counts drawn from the joint fit, to which it would be fitted again."""
    shift: Array
    """What the prior adds to the score in such a fit."""
    weight: Array
    degrees: float
    """Directions that the data determine among those tested."""

    def observed(self, counts: tuple[Array, Array]) -> float:
        """`T` of the counts to which the joint fit was made."""
        return float(self._squared(counts, self.linear, 0.0 * self.shift))

    def drawn(self, counts: tuple[Array, Array]) -> Array:
        """`T` of counts drawn from the joint fit, `(draws, times, states)` for each data set."""
        return self._squared(counts, self.refitted, self.shift)

    def _squared(
        self, counts: tuple[Array, Array], maps: Sequence[tuple[Array, Array]], score: Array
    ) -> Array:
        for seen, (slopes, p) in zip(counts, maps, strict=True):
            score = score + _residuals(seen, p).reshape(*seen.shape[:-2], -1) @ slopes
        return np.asarray(np.einsum("...i,ij,...j->...", score, self.weight, score))


class SameTests(NamedTuple):
    """Is everything the same, is the potential (whatever beta), is beta (whatever the potential)?

    None where there is nothing of the kind to learn.
    """

    same: ScoreTest
    landscape: ScoreTest | None
    beta: ScoreTest | None


def same_tests(
    joint: JointFit,
    *,
    n_draws: int = 999,
    n_refits: int = 0,
    rng: np.random.Generator,
) -> SameTests:
    """Test whether two data sets have one landscape and one beta.

    The null distribution is that of counts drawn from the joint fit: `n_draws` of them through its
    linear map, or `n_refits` of them each fitted jointly anew.
    """
    model = joint.objective.model
    tested = [np.arange(joint.objective.n_shared)]
    both = model.learns_beta and model.n_potential > 0
    if both:
        tested += [np.arange(model.n_potential), np.array([model.beta_index])]
    seen = joint.objective.a.counts, joint.objective.b.counts
    scores = [joint.score(which) for which in tested]
    observed = np.array([score.observed(seen) for score in scores])
    drawn = joint.draw(n_refits or n_draws, rng)
    nulls = np.array([score.drawn(drawn) for score in scores])
    p_values = _exceeding(nulls, observed)
    if n_refits:
        p_values = _exceeding(_refitted(joint, tested, drawn), observed)
    found = [
        ScoreTest(float(t), float(p), score.degrees)
        for t, p, score in zip(observed, p_values, scores, strict=True)
    ]
    if both:
        return SameTests(*found)
    same = found[0]
    return SameTests(same, same if model.n_potential else None, same if model.learns_beta else None)


def _exceeding(nulls: Array, observed: Array) -> Array:
    """P-values: the share of each row that reaches the observed one, which counts as a draw."""
    reached = np.sum(nulls >= observed[:, None], axis=1)
    return np.asarray((1.0 + reached) / (nulls.shape[1] + 1.0))


def _refitted(joint: JointFit, tested: Sequence[Index], drawn: tuple[Array, Array]) -> Array:
    """Statistics of joint fits to drawn counts, one row per hypothesis."""
    out = np.empty((len(tested), len(drawn[0])))
    for i, counts in enumerate(zip(*drawn, strict=True)):
        a, b = (Data(part.model, c) for part, c in zip(joint.parts, counts, strict=True))
        again = fit_jointly(a, b, strength=joint.strength)
        out[:, i] = [again.score(which).observed(counts) for which in tested]
    return out


def fit_jointly(a: Data, b: Data, *, strength: float | None = None) -> JointFit:
    """The landscape that makes both data sets most likely.

    It depends on the data alone, not on how either set was fitted by itself. `strength` is that of
    the prior on the potential; by default the evidence of both data sets chooses it.
    """
    if a.model.n_energy != b.model.n_energy:
        raise InputError(
            "the two fits do not have the same unknowns; fit both with the same options."
        )
    search = _Search.of(a, b)
    best, prior, objective = search.run(strength)
    slopes, probabilities = [], []
    for part, place in zip((objective.a, objective.b), objective.places(), strict=True):
        result = part.model.sensitivities(best.theta[place], part.mesh)
        assert result is not None  # the optimiser accepts no parameters without a flow
        probabilities.append(np.exp(result[0]))
        slopes.append(result[1])
    return JointFit(
        objective, best.theta, prior.precision, strength, best.evaluation.value, best.status,
        (probabilities[0], probabilities[1]), (slopes[0], slopes[1]),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Search:
    """Starts, prior and time steps of a joint fit."""

    objective: JointObjective
    prior: Prior
    starts: tuple[Array, ...]

    @staticmethod
    def of(a: Data, b: Data) -> _Search:
        found = [weak_start(data.model, data.counts) for data in (a, b)]
        scale = float(np.sqrt(found[0][2] * found[1][2]))
        beta = float(np.clip(np.sqrt(found[0][1] * found[1][1]), 0.02 * scale, 2 * scale))
        k, n = a.model.n_energy, a.model.n_states
        own = make_prior(a.model, beta, scale, _STRENGTH)
        base, mean = np.zeros((k + 2 * n, k + 2 * n)), np.zeros(k + 2 * n)
        base[: k + n, : k + n] = own.base
        base[k + n :, k + n :] = own.base[k:, k:]
        mean[: k + n] = own.mean
        shared = np.zeros(k)
        potential = np.clip(0.5 * (found[0][0] + found[1][0]), -3 * scale, 3 * scale)
        shared[: potential.size] = potential
        if a.model.learns_beta:
            shared[a.model.beta_index] = np.log(beta)
        begin = [np.log(smoothed(d.counts[:1])[0] / d.model.kernel.stationary) for d in (a, b)]
        tail = np.concatenate([x - x.mean() for x in begin])
        flat = shared.copy()
        flat[: potential.size] = 0.0
        parts = [Part(d.model, d.counts, _coarse(first_mesh(d.model, scale))) for d in (a, b)]
        return _Search(
            JointObjective(*parts),
            Prior(_STRENGTH, own.shape, base, mean, scale),
            (np.concatenate([shared, tail]), np.concatenate([flat, tail])),
        )

    def run(self, strength: float | None) -> tuple[Minimum, Prior, JointObjective]:
        prior = self.prior if strength is None else self.prior.with_strength(strength)
        best, objective = None, self.objective
        for begin in self.starts:
            found = _minimum(objective, prior, begin)
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
            found = _minimum(objective, prior, best.theta, best.evaluation.information)
            if found is None:
                break
            best = found
        return best, prior, objective


def _coarse(mesh: Mesh) -> Mesh:
    """Time steps to begin with: noise makes the weak form's landscape too steep."""
    return Mesh(np.minimum(mesh.substeps, 8), 2)


def _minimum(
    objective: JointObjective, prior: Prior, theta: Array, known: Array | None = None
) -> Minimum | None:
    """By sparse elimination where the model is plain and its graph not tiny."""
    model = objective.model
    if model.n_states >= SPARSE_STATES and is_plain(model):
        a, b = (SparseFlow(*part) for part in (objective.a, objective.b))
        flow = _JointFlow(objective, (a, b))
        first = flow.at(theta)
        if first is not None:
            return descend(flow, prior, first, _TOLERANCE, _MOST_STEPS, known)
    return minimise(objective, prior, theta, objective.a.mesh, tolerance=_TOLERANCE)
