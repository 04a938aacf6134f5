"""The flow with jump rates frozen over each interval, as in the paper's simulations.

With `Q(p_k)` the jump rates at the start of an interval, `p_{k+1} = p_k exp(dt Q(p_k))`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from thalweg._types import Array
from thalweg.edges.static import Graph
from thalweg.learn.likelihood.chain import steps
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import Evaluation, saturated


class Chain(NamedTuple):
    """The infinite population at the times, and given shares moved by its rates."""

    probabilities: Array
    log_slopes: Array
    """Derivatives of their logarithms, (times, N, parameters)."""
    moved: Array
    """The shares at the end of each interval."""
    moved_slopes: Array
    matrices: Array
    """Transition matrices, (intervals, N, N), rows summing to one."""


def _parts(model: FlowModel, theta: Array, spans: Array) -> steps.Parts:
    """The arrays that the compiled chain takes; `spans` (intervals, 2)."""
    features = np.eye(model.n_states) if model.features is None else model.features
    columns = np.broadcast_to(features, (len(spans), *features.shape))
    if model.time_basis is not None:
        shares = [model.time_basis.averages(span) for span in spans]
        columns = np.array([np.kron(share, features) for share in shares])
    potentials = columns @ theta[model.potential_slice]
    if model.fixed_potential is not None:
        potentials = potentials + model.fixed_potential
    energy = steps.Energy(
        float(model.order),
        model.beta(theta),
        model.beta_index if model.learns_beta else -1,
        np.ascontiguousarray(model.interaction(theta)),
        np.ascontiguousarray(model.interactions),
        model.n_potential,
    )
    graph = Graph.of(model.kernel, model.mobility)
    return steps.Parts(graph, energy, potentials, np.ascontiguousarray(columns))


def frozen_intervals(
    model: FlowModel,
    theta: Array,
    u: Array,
    u_slopes: Array,
    mass: tuple[Array, Array],
) -> tuple[Array, Array, Array]:
    """Each interval by itself under the rates at its log density `u` (intervals, N).

    Parameters
    ----------
    model : FlowModel
        The flow as a function of the parameters.
    theta : array
        The parameters.
    u : array
        Log densities that set the rates.
    u_slopes : array
        Their derivatives, shape (intervals, N, P); none are computed if `P = 0`.
    mass : tuple of arrays
        The moving mass, of either sign, shape (intervals, N), and its derivatives.

    Returns
    -------
    The masses at the ends, their derivatives, and the matrices that move them.
    """
    spans = np.column_stack([model.times[:-1], model.times[1:]])
    out: tuple[Array, Array, Array] = steps.move_each(
        _parts(model, theta, spans), u, u_slopes, *mass, np.diff(model.times)
    )
    return out


def frozen_chain(
    model: FlowModel,
    theta: Array,
    *,
    shares: Array | None = None,
    pieces: int = 1,
    slopes: bool = True,
    counts: Array | None = None,
    gain: float = 0.0,
) -> Chain | None:
    """The chain of frozen rates at the model's times; `None` where it overflows.

    Parameters
    ----------
    model : FlowModel
        The flow as a function of the parameters.
    theta : array
        The parameters.
    shares : array, optional
        Shares of the population seen at the start of each interval, moved by its rates.
    pieces : int
        Updates of the rates per interval; the limit of many is the continuous flow.
    slopes : bool
        Whether derivatives are computed.
    counts : array, optional
        Individuals seen at the times, towards which the population is pulled.
    gain : float
        Strength of the pull, from 0 (none) to 1 (to the counts).
    """
    n = model.n_states
    edges = model.times
    if pieces > 1:
        fine = np.linspace(0, 1, pieces, endpoint=False)
        inner = (edges[:-1, None] + np.diff(edges)[:, None] * fine).ravel()
        edges = np.append(inner, edges[-1])
    u = model.log_density(theta)
    u_slopes = np.zeros((n, model.n_parameters if slopes else 0))
    if slopes and model.n_initial:
        u_slopes[:, model.initial_slice] = np.eye(n) - model.kernel.stationary * np.exp(u)
    spans = np.column_stack([edges[:-1], edges[1:]])
    found = Chain(
        *steps.follow(
            _parts(model, theta, spans),
            u,
            u_slopes,
            np.zeros((0, n)) if shares is None else shares,
            np.diff(edges),
            np.zeros((0, n)) if counts is None else counts,
            gain,
        )
    )
    if not (np.isfinite(found.probabilities).all() and np.isfinite(found.log_slopes).all()):
        return None
    if pieces == 1:
        return found
    return found._replace(
        probabilities=found.probabilities[::pieces], log_slopes=found.log_slopes[::pieces]
    )


def chain_probabilities(model: FlowModel, theta: Array, mesh: Mesh | None = None) -> Array | None:
    """The chain's distribution at every time; `None` if it has none. It needs no mesh."""
    chain = frozen_chain(model, theta, slopes=False)
    return None if chain is None else chain.probabilities


def density_doubts(
    model: FlowModel, theta: Array, p: Array, shares: Array, counts: Array, gain: float
) -> Array:
    """Covariances of the shares moved by a chain pulled towards counts; see `steps.doubts`."""
    spans = np.column_stack([model.times[:-1], model.times[1:]])
    parts = _parts(model, theta, spans)
    none = np.zeros((0, model.n_states, model.n_states))
    known = parts._replace(
        energy=parts.energy._replace(beta_column=-1, basis=none),
        columns=np.zeros((len(spans), model.n_states, 0)),
    )
    out: Array = steps.doubts(known, p, shares, np.diff(model.times), counts, gain)
    return out


@dataclass(frozen=True, eq=False)
class FrozenObjective:
    """Independent snapshots of the chain of frozen rates."""

    model: FlowModel
    counts: Array
    pieces: int = 1
    """Updates of the rates per interval; the limit of many is the continuous flow."""
    kinked: ClassVar[bool] = True

    def evaluate(self, theta: Array, mesh: Mesh) -> Evaluation | None:
        """Half the deviance with its derivatives; the chain is exact and needs no `mesh`."""
        with np.errstate(all="ignore"):
            chain = frozen_chain(self.model, theta, pieces=self.pieces)
            if chain is None:
                return None
            p = chain.probabilities
            expected = self.counts.sum(axis=1, keepdims=True) * p
            flat = chain.log_slopes.reshape(-1, self.model.n_parameters)
            gradient = -flat.T @ (self.counts - expected).ravel()
            information = flat.T @ (flat * expected.ravel()[:, None])
            excess = np.maximum(self.counts - expected, 0.0).ravel()
            curvature = information + flat.T @ (flat * excess[:, None])
            value = saturated(self.counts) - float(np.sum(self.counts * np.log(p)))
        if not (np.isfinite(value) and np.isfinite(curvature).all()):
            return None
        return Evaluation(value, gradient, curvature, information, 0.0)

    def value(self, theta: Array, mesh: Mesh) -> float:
        """The value of `evaluate` alone; infinite where there is none."""
        with np.errstate(all="ignore"):
            chain = frozen_chain(self.model, theta, pieces=self.pieces, slopes=False)
            if chain is None:
                return np.inf
            value = saturated(self.counts)
            value -= float(np.sum(self.counts * np.log(chain.probabilities)))
        return value if np.isfinite(value) else np.inf
