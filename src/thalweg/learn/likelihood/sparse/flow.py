"""Minus the log likelihood of the plain model with adjoint gradients and curvature on demand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk

from thalweg._types import Array
from thalweg.energy import Entropy
from thalweg.learn.likelihood.dynamics import EXTRAPOLATION, limited
from thalweg.learn.likelihood.model import FlowModel, Mesh, log_normalised
from thalweg.learn.likelihood.objective import Evaluation, IndependentObjective
from thalweg.learn.likelihood.sparse import chains
from thalweg.learn.likelihood.sparse.elimination import Plan, make_plan
from thalweg.learn.observation import CountModel, Multinomial
from thalweg.learn.observation.model import Terms
from thalweg.mobility import LogMean

__all__ = [
    "SPARSE_STATES",
    "Point",
    "SparseFlow",
    "evaluated",
    "is_plain",
    "probabilities",
]


SPARSE_STATES = 20
"""From this many states on elimination is sparse: one evaluation with its matrix takes 3 ms at 20
states, as the dense one does; 15 against 85 ms at 100."""
_LARGEST_GUESS = 1.5
"""Change of a log density beyond which a linear prediction is not believed."""


def is_plain(model: FlowModel) -> bool:
    """Whether the model is the one computed here: a free potential, entropy, logarithmic mean."""
    return (
        model.features is None
        and model.time_basis is None
        and model.fixed_potential is None
        and model.n_interactions == 0
        and not model.grows
        and not model.fixed_interaction.size
        and model.fixed_initial is None
        and (model.fixed_beta is None or model.fixed_beta > 0)
        and isinstance(model.mobility, LogMean)
        and isinstance(model.internal, Entropy)
    )


@dataclass(frozen=True, eq=False)
class SparseFlow:
    """The likelihood as a function of `theta`, in the order of `FlowModel`'s parameters."""

    model: FlowModel
    counts: Array
    mesh: Mesh
    noise: CountModel = field(default_factory=Multinomial)

    @cached_property
    def plan(self) -> Plan:
        return make_plan(self.model.kernel)

    @cached_property
    def inner(self) -> NDArray[np.int64]:
        """Places in (potential, log beta, start), eliminated order, of the model's parameters."""
        n, order = self.model.n_states, self.plan.order
        place = np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        middle = [n] if self.model.learns_beta else []
        return np.concatenate([place, middle, n + 1 + place]).astype(np.int64)

    @cached_property
    def _saturated(self) -> float:
        return self.noise.saturated(self.counts)

    @cached_property
    def _grids(self) -> list[tuple[Array, NDArray[np.int64]]]:
        """Step lengths and output steps of each chain."""
        out = []
        for level in range(self.mesh.n_levels):
            repeats = self.mesh.substeps * 2**level
            steps = np.repeat(np.diff(self.model.times) / repeats, repeats)
            out.append((steps, np.cumsum(repeats) - 1))
        return out

    def full(self, theta: Array) -> Array:
        """`theta` as (potential, log beta, start) in eliminated order."""
        z = np.empty(2 * self.model.n_states + 1)
        z[self.model.n_states] = 0.0
        z[self.inner] = theta
        if self.model.fixed_beta is not None:
            z[self.model.n_states] = np.log(self.model.fixed_beta)
        return z

    def direction(self, step: Array) -> Array:
        z = np.zeros(2 * self.model.n_states + 1)
        z[self.inner] = step
        return z

    def _unpacked(self, theta: Array) -> tuple[Array, Array, float, Array] | None:
        """`full`, potential, beta and log density at the start; None where that is too deep."""
        n, z = self.model.n_states, self.full(theta)
        level = z[n + 1 :]
        top = level.max()
        start = level - top - np.log(self.plan.pi @ np.exp(level - top))
        if not start.min() >= -240.0:
            return None
        return z, z[:n], float(np.exp(z[n])), start

    def value_near(self, theta: Array, near: Point) -> float:
        """The value at `theta` with the factors of a point nearby; infinite without a flow.

        No derivatives: it saves their factors and sensitivities.
        """
        found = self._unpacked(theta)
        if found is None:
            return np.inf
        z, V, beta, start = found
        made = []
        for i, old in enumerate(near.chains):
            logs = near.predicted(i, z - near.full)
            spare = chains.empty_chain(self.plan, old.steps[:1], old.outputs[:0])
            if not chains.follow(self.plan, V, beta, start, old, logs, spare):
                return np.inf
            made.append(old._replace(logs=logs))
        value = Point(self, theta, z, beta, start, tuple(made)).value
        return value if np.isfinite(value) else np.inf

    def at(self, theta: Array, near: Point | None = None) -> Point | None:
        """The flow at `theta`; with `near`, predicted from there. None where there is no flow."""
        n, plan = self.model.n_states, self.plan
        found = self._unpacked(theta)
        if found is None:
            return None
        z, V, beta, start = found
        if near is not None and near.flow.mesh is not self.mesh:
            near = None
        made = []
        for i, (steps, outputs) in enumerate(self._grids):
            chain = chains.empty_chain(plan, steps, outputs)
            old, guess = chain, np.zeros((0, n))
            if near is not None:
                old = near.chains[i]
                guess = near.predicted(i, z - near.full)
            if not chains.advance(plan, V, beta, start, chain, old, guess):
                return None
            made.append(chain)
        point = Point(self, theta, z, beta, start, tuple(made))
        return point if np.isfinite(point.value) else None


@dataclass(frozen=True, eq=False)
class Point:
    """The flow at one `theta`: value now, derivatives when asked for."""

    flow: SparseFlow
    theta: Array
    full: Array
    """(potential, log beta, start) in eliminated order."""
    beta: float
    start: Array
    chains: tuple[chains.Chain, ...]

    @cached_property
    def _ends(self) -> list[Array]:
        """Log densities of each chain at the snapshots after the first."""
        return [chain.logs[chain.outputs] for chain in self.chains]

    def _extrapolated(self, levels: int) -> tuple[Array, Array]:
        """`log p` of the order that so many chains allow, and the finest one's limited share."""
        fine = self._ends[-1]
        best = sum(w * u for w, u in zip(EXTRAPOLATION[levels - 1], self._ends, strict=False))
        correction, share = limited(best - fine)
        log_rho = np.vstack([self.start, fine + correction])
        return log_normalised(log_rho + np.log(self.flow.plan.pi)), share

    @cached_property
    def _combined(self) -> tuple[Array, Array]:
        """`log p`, and the share of each chain in its slopes."""
        levels = len(self.chains)
        log_p, share = self._extrapolated(levels)
        parts = EXTRAPOLATION[levels - 1, :levels, None, None] * share
        parts[-1] += 1.0 - share
        return log_p, parts

    @property
    def log_p(self) -> Array:
        """Log probabilities, with the states in eliminated order."""
        return self._combined[0]

    @cached_property
    def _terms(self) -> Terms:
        """Terms of the counts, states in eliminated order."""
        flow, order = self.flow, self.flow.plan.order
        log_p = np.empty_like(self.log_p)
        log_p[:, order] = self.log_p
        value, pull, information, curvature = flow.noise.terms(flow.counts, log_p)
        return Terms(value, pull[:, order], information[:, order], curvature[:, order])

    @property
    def expected(self) -> Array:
        """Weights of the information: expected counts, where they are multinomial."""
        return self._terms.information

    @cached_property
    def value(self) -> float:
        return self.flow._saturated + self._terms.value

    @cached_property
    def mesh_error(self) -> float:
        rough, _ = self._extrapolated(max(len(self.chains) - 1, 1))
        gap = np.clip(self.log_p - rough, -50.0, 50.0)
        return float(np.vdot(self.expected, gap * gap))

    @cached_property
    def probabilities(self) -> Array:
        """Probabilities, in the order of the states."""
        p = np.empty_like(self.log_p)
        p[:, self.flow.plan.order] = np.exp(self.log_p)
        return p

    def _pull_back(self, cotangents: Array) -> Array:
        """From derivatives in `log p` before normalisation to those in the parameters."""
        n, plan = self.start.size, self.flow.plan
        by_V, by_start, by_log_beta = np.zeros(n), cotangents[0].copy(), 0.0
        for chain, part in zip(self.chains, self._combined[1], strict=True):
            weighted = np.ascontiguousarray(part * cotangents[1:])
            by_log_beta += chains.adjoint(
                plan, self.beta, self.start, chain, weighted, by_V, by_start
            )
        by_start -= np.exp(self.log_p[0]) * by_start.sum()
        return np.concatenate([by_V, [by_log_beta], by_start])[self.flow.inner]

    @cached_property
    def gradient(self) -> Array:
        pull = self._terms.pull
        return self._pull_back(np.exp(self.log_p) * pull.sum(axis=1, keepdims=True) - pull)

    @property
    def weights(self) -> Array:
        """Weights of the steering curvature, larger where more was seen than expected."""
        return self._terms.curvature

    def moved(self, step: Array) -> Array:
        """Change of `log p` along a step of the parameters, to first order."""
        return self._moved(self.flow.direction(step))

    def _moved(self, d: Array) -> Array:
        """The same for a change of (potential, log beta, start), in eliminated order."""
        n, p = self.start.size, np.exp(self.log_p)
        moved = np.zeros_like(p)
        d[n + 1 :] -= p[0] @ d[n + 1 :]
        moved[0] = d[n + 1 :]
        for chain, part in zip(self.chains, self._combined[1], strict=True):
            out = np.empty((chain.outputs.size, n))
            chains.tangent(self.flow.plan, self.beta, self.start, chain, d, chain.outputs, out)
            moved[1:] += part * out
        moved -= (p * moved).sum(axis=1, keepdims=True)
        return moved

    def product(self, step: Array, weights: Array) -> Array:
        """`S^T diag(weights) S step` with `S = d log p / d theta`, exactly."""
        return self._pull_back(self._centred(weights * self.moved(step)))

    def _centred(self, force: Array) -> Array:
        return force - np.exp(self.log_p) * force.sum(axis=1, keepdims=True)

    @cached_property
    def about_beta(self) -> tuple[float, Array]:
        """The data's information of `log beta` with itself and with the parameters.

        Also where beta is known: how a minimum follows a change of it.
        """
        d = np.zeros(2 * self.start.size + 1)
        d[self.start.size] = 1.0
        moved = self._moved(d)
        force = self.expected * moved
        return float(np.vdot(force, moved)), self._pull_back(self._centred(force))

    def coarsest(self) -> Point:
        """The flow of the coarsest chain alone."""
        flow = replace(self.flow, mesh=Mesh(self.flow.mesh.substeps, 1))
        return Point(flow, self.theta, self.full, self.beta, self.start, self.chains[:1])

    def predicted(self, i: int, d: Array) -> Array:
        """Logarithms after all steps of chain `i`, to first order in the change `d`."""
        n, chain, d = self.start.size, self.chains[i], d.copy()
        d[n + 1 :] -= np.exp(self.log_p[0]) @ d[n + 1 :]
        out = np.empty_like(chain.logs)
        every = np.arange(chain.steps.size)
        chains.tangent(self.flow.plan, self.beta, self.start, chain, d, every, out)
        return np.asarray(chain.logs + np.clip(out, -_LARGEST_GUESS, _LARGEST_GUESS))

    def curvature(self, weights: Array, *, levels: int | None = None) -> Array:
        """`S^T diag(weights) S` as a matrix; `levels=1`: of the coarsest chain alone."""
        n, plan = self.start.size, self.flow.plan
        p = np.exp(self.log_p)
        coarse = levels == 1
        total = np.zeros((p.shape[0] - 1, n, 2 * n + 1))
        parts = np.ones((1, *total.shape[:2])) if coarse else self._combined[1]
        for chain, part in zip(self.chains, parts, strict=not coarse):
            chains.sensitivities(plan, self.beta, self.start, chain, p[0], part, total)
        chains.weigh(total, p[1:], weights[1:])
        rows = total.reshape(-1, 2 * n + 1)
        lower = dsyrk(1.0, rows.T, lower=1)
        w, q = weights[0], p[0]
        lower[n + 1 :, n + 1 :] += (
            np.diag(w) - np.outer(q, w) - np.outer(w, q) + w.sum() * np.outer(q, q)
        )
        return np.asarray(chains.reordered(lower, self.flow.inner))

    def steering(self, *, levels: int | None = None) -> Array:
        """The curvature that a search steers by; `levels=1`: of the coarsest chain alone."""
        return self.curvature(self.weights, levels=levels)

    @cached_property
    def information(self) -> Array:
        return self.curvature(self.expected)

    @property
    def evaluation(self) -> Evaluation:
        """Value and derivatives, in the form of the dense likelihood."""
        return Evaluation(
            self.value, self.gradient, self.information, self.information, self.mesh_error
        )


def probabilities(model: FlowModel, theta: Array, mesh: Mesh) -> Array | None:
    """The flow at the model's times, by sparse elimination where that applies."""
    if is_plain(model) and model.n_states >= SPARSE_STATES:
        point = SparseFlow(model, np.ones((model.times.size, model.n_states)), mesh).at(theta)
        if point is not None:
            return point.probabilities
    return model.probabilities(theta, mesh)


def evaluated(
    objective: IndependentObjective, theta: Array, mesh: Mesh
) -> tuple[Evaluation, Array] | None:
    """The likelihood with its derivatives, and the flow, in the same way."""
    model = objective.model
    if is_plain(model) and model.n_states >= SPARSE_STATES and objective.totals is None:
        point = SparseFlow(model, objective.counts, mesh, objective.noise).at(theta)
        if point is not None:
            return point.evaluation, point.probabilities
    evaluation, p = objective.evaluate(theta, mesh), model.probabilities(theta, mesh)
    return None if evaluation is None or p is None else (evaluation, p)
