"""The weak form's normal equations, assembled in one pass over snapshots and edges.

Integrated over the interval `k` the master equation reads

    p_{k-1} - p_k = integral of M(rho) f dt,    f = V + sum_i theta_i h_i(rho),

with `theta = (beta, interaction strengths)` and `h = (U'(rho), B_1 p, B_2 p, ...)`. A quadrature
replaces the integral by nodes `j`; the loss is that of the paper, eq. (18), at these nodes,

    sum_j w_j | f_j - v_j |^2_j,    w_j M_j v_j = b_j,

where `b_j` is the node's share of the increments `p_{k-1} - p_k`, so that `sum_j b_j = p_0 - p_T`.
Its normal equations in `(V, theta)` are

    [ sum w_j Q_j          sum w_j Q_j h_j     ] [ V     ]   [ sum w_j Q_j v_j     ]
    [ sum w_j h_j^T Q_j    sum w_j h_j^T Q_j h_j ] [ theta ] = [ sum w_j h_j^T Q_j v_j ]

for the quadratic form `|u|^2_j = u^T Q_j u`. With the metric's own `Q_j = M_j` the velocities drop
out, `w_j Q_j v_j = b_j`, and the first right-hand side telescopes to `p_0 - p_T`. For the
logarithmic mean and the entropy `M log rho = pi (I - K) rho` is linear in `rho`, so that column
needs only the time average of the densities. The paper's own weights, the expectation over sampled
states of the squared residual over all pairs or all edges, are Laplacians too: `Q_j` has the weight
`p_j(x) + p_j(y)` on the pair `(x, y)`; they need one solve per node for `v_j`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from thalweg._types import Array
from thalweg.edges import static
from thalweg.energy import Entropy, Interaction, InternalEnergy
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.learn.time_basis import TimeBasis
from thalweg.learn.weak.passes import Points, normal_equations
from thalweg.mobility import Mobility

Quadrature = Literal["trapezoid", "right", "midpoint"]
Weighting = Literal["metric", "paper", "paper-edges"]


class Nodes:
    """The points of the quadrature, the intervals that each serves, and functions of time there."""

    def __init__(
        self, times: Array, quadrature: Quadrature, time_basis: TimeBasis | None = None
    ) -> None:
        if quadrature not in ("trapezoid", "right", "midpoint"):
            raise InputError(
                f"quadrature is {quadrature!r}; choose 'trapezoid', 'right' or 'midpoint'."
            )
        m = times.size - 1
        steps = np.diff(times)
        k = np.arange(m + 1)
        if quadrature == "trapezoid":
            weight = 0.5 * (np.append(steps, 0.0) + np.insert(steps, 0, 0.0))
            before, after = np.maximum(k - 1, 0), np.minimum(k + 1, m)
            self.points = Points(k, k, weight, before, after, np.full(m + 1, 0.5))
        else:
            left = k[1:] if quadrature == "right" else k[:-1]
            self.points = Points(left, k[1:], steps, k[:-1], k[1:], np.ones(m))
        self.times, self.steps, self.time_basis = times, steps, time_basis
        self.shared = quadrature == "trapezoid"
        """Whether a node serves the intervals on both of its sides."""

    @property
    def count(self) -> int:
        return int(self.points.weight.size)

    def probability(self, p: Array, j: int) -> Array:
        return np.asarray(0.5 * (p[self.points.left[j]] + p[self.points.right[j]]))

    def parts(self, j: int) -> Iterator[tuple[int, float, Array]]:
        """Each interval that node `j` serves, its share of it, and the functions of time.

        A piecewise basis belongs to the interval, a smooth one to the node's own time.
        """
        share, basis = (0.5 if self.shared else 1.0), self.time_basis
        for k in (j - 1, j) if self.shared else (j,):
            if not 0 <= k < self.steps.size:
                continue
            ends = (k, k + 1)
            if basis is not None and basis.breaks is None:
                ends = (self.points.left[j], self.points.right[j])
            at = 0.5 * float(self.times[ends[0]] + self.times[ends[1]])
            yield k, share, np.ones(1) if basis is None else basis(at)

    def averages(self) -> tuple[Array, Array]:
        """The functions of time averaged over time, and their products."""
        basis = self.time_basis
        if basis is None:
            return np.ones(1), np.ones((1, 1))
        shares, values = [], []
        for j in range(self.count):
            for k, share, chi in self.parts(j):
                shares.append(share * self.steps[k])
                values.append(chi)
        chi, weights = np.array(values), np.array(shares) / self.steps.sum()
        products = chi.T @ (weights[:, None] * chi)
        size = np.linalg.eigvalsh(products)
        if size[0] <= 1e-10 * size[-1]:
            raise InputError(
                f"the {basis.size} functions of the time basis are dependent on the "
                f"{self.steps.size} intervals (a piece without a snapshot interval?); use fewer."
            )
        return weights @ chi, products


@dataclass(frozen=True)
class EdgeForm:
    """`Q` on the kernel's edges, with the metric's weights or the paper's `p(x) + p(y)`."""

    kernel: MarkovKernel
    mobility: Mobility | None

    def weights(self, p: Array) -> Array:
        source, target, conductance = self.kernel.edges
        if self.mobility is None:
            return np.asarray(p[source] + p[target])
        rho = p / self.kernel.stationary
        return np.asarray(static.edge_weights(source, target, conductance, rho, self.mobility.spec))

    def apply(self, weights: Array, u: Array) -> Array:
        source, target, _ = self.kernel.edges
        return np.asarray(static.apply_laplacian(source, target, weights, u))


class PairForm:
    """`Q` on all pairs, weights `p(x) + p(y)`: `diag(N p + t) - p 1^T - 1 p^T`, `t = sum p`."""

    def weights(self, p: Array) -> Array:
        return p

    def diagonal(self, weights: Array) -> Array:
        """`N p + t`."""
        return weights.size * weights + weights.sum()

    def apply(self, weights: Array, u: Array) -> Array:
        return np.asarray(self.diagonal(weights) * u - weights * u.sum() - weights @ u)


Form: TypeAlias = EdgeForm | PairForm
"""A family of Laplacians `Q(weights)`: those of the metric, of the edges, of all pairs."""


@dataclass(frozen=True, eq=False)
class WeakSystem:
    """The normal equations. Blocks belong to the time basis; there is one for a fixed potential."""

    form: Form
    weights: dict[tuple[int, int], Array]
    """Weights of block `(a, b)`, `a <= b`; absent blocks are zero."""
    columns: Array
    """`(blocks, N, terms)`."""
    gram: Array
    load: Array
    """`(blocks, N)`."""
    moments: Array
    noise: Array
    """`(blocks, N, probes)`: `load` has covariance `noise noise^T`; no probes: no noise."""


@dataclass(frozen=True, eq=False)
class Setting:
    """The terms of the free energy that are learned or known, and the weights of the loss."""

    mobility: Mobility
    weighting: Weighting = "metric"
    internal: InternalEnergy = field(default_factory=Entropy)
    with_beta: bool = True
    interactions: Sequence[Interaction] = ()


def is_simple(nodes: Nodes, setting: Setting) -> bool:
    """A fixed potential, the entropy, the metric's weights: the load is `p_0 - p_T` alone."""
    plain = isinstance(setting.internal, Entropy) and not setting.interactions
    return plain and nodes.time_basis is None and setting.weighting == "metric"


def assemble(
    kernel: MarkovKernel,
    nodes: Nodes,
    p: Array,
    setting: Setting,
    deviations: Sequence[Array] = (),
) -> WeakSystem:
    """The normal equations from snapshot probabilities `p` of shape `(snapshots, N)`.

    `deviations` are perturbations of `p` whose image in the load is needed (the noise).
    """
    if is_simple(nodes, setting):
        return _assemble_simple(kernel, nodes, p, setting, deviations)
    metric = EdgeForm(kernel, setting.mobility)
    form: Form = metric
    if setting.weighting != "metric":
        form = PairForm() if setting.weighting == "paper" else EdgeForm(kernel, None)
        solver = LaplacianSolver.for_kernel(kernel)
    size = 1 if nodes.time_basis is None else nodes.time_basis.size
    n, q = kernel.n_states, int(setting.with_beta) + len(setting.interactions)
    weights: dict[tuple[int, int], Array] = {}
    columns, gram = np.zeros((size, n, q)), np.zeros((q, q))
    load, moments = np.zeros((size, n)), np.zeros(q)
    noise = np.zeros((size, n, len(deviations)))
    for j in range(nodes.count):
        here = nodes.probability(p, j)
        own = form.weights(here)
        terms = _terms(kernel, here, setting)
        applied = [form.apply(own, h) for h in terms]
        if form is not metric:
            factor = solver.factor(metric.weights(here))
        w = nodes.points.weight[j]
        gram += w * np.array([[h @ a for a in applied] for h in terms]).reshape(q, q)
        for k, share, chi in nodes.parts(j):
            step = share * nodes.steps[k]
            increments = [share * (x[k] - x[k + 1]) for x in (p, *deviations)]
            if form is not metric:
                solved = factor.solve(np.stack(increments, axis=1)).x
                increments = [form.apply(own, v) for v in solved.T]
            moments += [h @ increments[0] for h in terms]
            for a in np.flatnonzero(chi):
                load[a] += chi[a] * increments[0]
                for i, image in enumerate(increments[1:]):
                    noise[a, :, i] += chi[a] * image
                for i, image in enumerate(applied):
                    columns[a, :, i] += step * chi[a] * image
                for b in np.flatnonzero(chi):
                    if a <= b:
                        block = weights.setdefault((int(a), int(b)), np.zeros_like(own))
                        block += step * chi[a] * chi[b] * own
    return WeakSystem(form, weights, columns, gram, load, moments, noise)


def _terms(kernel: MarkovKernel, p: Array, setting: Setting) -> list[Array]:
    terms = [np.asarray(b @ p) for b in setting.interactions]
    if setting.with_beta:
        terms.insert(0, setting.internal.derivative(np.log(p / kernel.stationary)))
    return terms


def _assemble_simple(
    kernel: MarkovKernel,
    nodes: Nodes,
    p: Array,
    setting: Setting,
    deviations: Sequence[Array],
) -> WeakSystem:
    """A fixed potential, the entropy, the metric's weights: one fused pass, no velocities."""
    load = p[0] - p[-1]
    graph = static.Graph.of(kernel, setting.mobility)
    weights, column, gram, moment = normal_equations(graph, nodes.points, p, setting.with_beta)
    noise = np.zeros((1, p.shape[1], len(deviations)))
    for i, deviation in enumerate(deviations):
        noise[0, :, i] = deviation[0] - deviation[-1]
    q = int(setting.with_beta)
    return WeakSystem(
        EdgeForm(kernel, setting.mobility),
        {(0, 0): weights},
        column.reshape(1, -1, 1)[:, :, :q],
        np.full((q, q), gram),
        load.reshape(1, -1),
        np.full(q, moment),
        noise,
    )
