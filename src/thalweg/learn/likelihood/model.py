"""The unknowns of the flow as one vector `theta`, and the flow as a function of it.

`theta = [potential coefficients | interaction strengths | growth coefficients | log beta | log
initial density]`; each part may be absent because it is known. The potential is `V(t) = V_known +
sum_j b_j(t) Phi a_j` with given features `Phi` (the identity by default) and a basis `b_j` in time
(one constant by default); the interaction is `W = W_known + sum_j w_j W_j`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._types import Array
from thalweg.edges.static import Graph
from thalweg.energy import Entropy, FreeEnergy, InternalEnergy, PowerEnergy
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood import dynamics
from thalweg.learn.likelihood.births import Births
from thalweg.learn.time_basis import TimeBasis
from thalweg.mobility import LogMean, Mobility

_CHUNK_ENTRIES = 4_000_000  # largest number of sensitivities in memory


@dataclass(frozen=True)
class Mesh:
    """How finely each interval is integrated: steps of the coarsest chain, number of chains."""

    substeps: NDArray[np.int64]
    n_levels: int = 3

    def refined(self) -> Mesh:
        """One more chain, or half the step size."""
        if self.n_levels < 3:
            return Mesh(self.substeps, self.n_levels + 1)
        return Mesh(2 * self.substeps, self.n_levels)


class Chunk(NamedTuple):
    """Consecutive outputs: log probabilities, the lower order's, and their derivatives."""

    start: int
    log_p: Array
    log_p_coarse: Array
    sensitivities: Array
    mass: Array = np.zeros((0, 0))
    """Logarithm of the whole population and its derivatives, where there is growth."""


@dataclass(frozen=True, eq=False)
class FlowModel:
    """The flow as a function of `theta`; everything that is fixed during a fit."""

    kernel: MarkovKernel
    times: Array
    features: Array | None = None
    """`None`: one coefficient per state."""
    time_basis: TimeBasis | None = None
    fixed_potential: Array | None = None
    interactions: Array = field(default_factory=lambda: np.zeros((0, 0, 0)))
    fixed_interaction: Array = field(default_factory=lambda: np.zeros((0, 0)))
    fixed_beta: float | None = None
    fixed_initial: Array | None = None
    mobility: Mobility = field(default_factory=LogMean)
    internal: InternalEnergy = field(default_factory=Entropy)
    growth: Array | None = None
    """Known rates of growth, one per state."""
    growth_features: Array | None = None
    """Learned rates are linear in these, shape (N, n)."""

    # ------------------------------------------------------------------ shape of theta

    @property
    def n_states(self) -> int:
        return self.kernel.n_states

    @property
    def n_features(self) -> int:
        return self.n_states if self.features is None else int(self.features.shape[1])

    @property
    def n_basis(self) -> int:
        return 1 if self.time_basis is None else self.time_basis.size

    @property
    def n_potential(self) -> int:
        return self.n_features * self.n_basis

    @property
    def n_interactions(self) -> int:
        return int(self.interactions.shape[0])

    @property
    def n_growth(self) -> int:
        return 0 if self.growth_features is None else int(self.growth_features.shape[1])

    @property
    def grows(self) -> bool:
        """Whether individuals are born or die."""
        return self.growth is not None or self.n_growth > 0

    @property
    def learns_beta(self) -> bool:
        return self.fixed_beta is None

    @property
    def n_energy(self) -> int:
        return self.n_potential + self.n_interactions + self.n_growth + int(self.learns_beta)

    @property
    def n_initial(self) -> int:
        return self.n_states if self.fixed_initial is None else 0

    @property
    def n_parameters(self) -> int:
        return self.n_energy + self.n_initial

    @property
    def potential_slice(self) -> slice:
        return slice(0, self.n_potential)

    @property
    def interaction_slice(self) -> slice:
        return slice(self.n_potential, self.n_potential + self.n_interactions)

    @property
    def growth_slice(self) -> slice:
        start = self.n_potential + self.n_interactions
        return slice(start, start + self.n_growth)

    @property
    def beta_index(self) -> int:
        return self.n_energy - 1

    @property
    def initial_slice(self) -> slice:
        return slice(self.n_energy, self.n_parameters)

    @property
    def span(self) -> float:
        """Time between the first and the last snapshot."""
        return float(self.times[-1] - self.times[0])

    @property
    def order(self) -> float:
        return self.internal.q if isinstance(self.internal, PowerEnergy) else 1.0

    # ------------------------------------------------------------------ reading theta

    def beta(self, theta: Array) -> float:
        if self.fixed_beta is not None:
            return self.fixed_beta
        return float(np.exp(theta[self.beta_index]))

    def rates(self, theta: Array) -> Array:
        """Rate of growth of each state; zero where there is none."""
        g = np.zeros(self.n_states) if self.growth is None else self.growth
        if self.growth_features is None:
            return g
        return np.asarray(g + self.growth_features @ theta[self.growth_slice])

    def _births(self, theta: Array, n_levels: int, n_columns: int) -> Births | None:
        if not self.grows:
            return None
        columns = np.zeros((self.n_states, 0))
        if self.growth_features is not None:
            columns = self.growth_features
        return Births(
            self.rates(theta),
            np.ascontiguousarray(columns),
            self.growth_slice.start,
            np.zeros(n_levels),
            np.zeros((n_levels, n_columns)),
            np.zeros((self.times.size - 1, 1 + n_columns)),
        )

    def potentials(self, theta: Array) -> Array:
        """The potential of each basis function in time, one row each, the known part left out."""
        a = theta[self.potential_slice].reshape(self.n_basis, self.n_features)
        return a if self.features is None else np.asarray(a @ self.features.T)

    @property
    def _average_basis(self) -> Array:
        """The functions of time, averaged over the horizon."""
        if self.time_basis is None:
            return np.ones(1)
        span = np.linspace(self.times[0], self.times[-1], 257)
        return np.asarray(self.time_basis.averages(span).mean(axis=0))

    def potential(self, theta: Array) -> Array:
        """The potential, averaged over the horizon where it varies in time."""
        v = self._average_basis @ self.potentials(theta)
        return v if self.fixed_potential is None else np.asarray(v + self.fixed_potential)

    def potential_map(self) -> Array:
        """The matrix that takes the potential's coefficients to `potential`, shape (N, n)."""
        features = np.eye(self.n_states) if self.features is None else self.features
        return np.asarray(np.kron(self._average_basis[None, :], features), dtype=np.float64)

    def energy(self, theta: Array) -> FreeEnergy:
        """The free energy, its potential centred."""
        v = self.potential(theta)
        w = self.interaction(theta)
        v = v - self.kernel.stationary @ v
        return FreeEnergy(v, self.beta(theta), w if w.size else None, self.internal)

    def interaction(self, theta: Array) -> Array:
        """The sum of the interactions, shape (N, N); empty if there are none."""
        w = self.fixed_interaction
        if self.n_interactions:
            learned = np.tensordot(theta[self.interaction_slice], self.interactions, 1)
            w = w + learned if w.size else learned
        return w

    def log_density(self, theta: Array) -> Array:
        """Log density at the first time, mass one."""
        pi = self.kernel.stationary
        if self.fixed_initial is not None:
            return np.log(np.maximum(self.fixed_initial, 1e-300) / pi)
        level = theta[self.initial_slice]
        top = level.max()
        return np.asarray(level - top - np.log(pi @ np.exp(level - top)))

    # ------------------------------------------------------------------ the flow

    def trajectory(
        self,
        theta: Array,
        mesh: Mesh,
        *,
        sensitivities: bool = True,
        forces: Array | None = None,
        starts: Array | None = None,
    ) -> Iterator[Chunk | None]:
        """The flow at `times`, a few outputs at a time; `None` where a step had no solution.

        Probabilities sum to one: the extrapolated ones are normalised, and so are derivatives.
        `forces` (edges, n): further columns, the responses to forces along the edges.
        `starts` (intervals, N): known probabilities from which each interval starts by itself.
        """
        kernel, n = self.kernel, self.n_states
        pi = kernel.stationary
        n_columns = self.n_parameters if sensitivities else 0
        if sensitivities and forces is not None:
            n_columns += forces.shape[1]
        known = np.zeros((0, n)) if starts is None else np.log(starts / pi)
        u0 = self.log_density(theta)
        p0 = pi * np.exp(u0)
        chains = np.tile(u0, (mesh.n_levels, 1))
        carried = np.zeros((mesh.n_levels, n, n_columns))
        if sensitivities and self.n_initial:
            carried[:, :, self.initial_slice] = np.eye(n) - p0
        yield Chunk(0, (u0 + np.log(pi))[None], (u0 + np.log(pi))[None], carried[:1].copy())

        births = self._births(theta, mesh.n_levels, n_columns)
        mass = np.zeros((0, 0)) if births is None else births.out
        graph = Graph.of(kernel, self.mobility)
        landscape = dynamics.Landscape(
            self.order,
            self.beta(theta),
            self.learns_beta and sensitivities,
            np.zeros(n) if self.fixed_potential is None else self.fixed_potential,
            np.ascontiguousarray(self.potentials(theta)),
        )
        interaction = np.ascontiguousarray(self.interaction(theta))
        interactions = None
        if interaction.size:
            interactions = dynamics.Interactions(interaction, self.interactions)
        lengths = np.diff(self.times)
        basis: Array | None = None
        finest = 2 ** (mesh.n_levels - 1)
        if self.time_basis is not None:
            counts = mesh.substeps * finest
            edges = np.concatenate(
                [
                    np.linspace(t, t + d, c, endpoint=False)
                    for t, d, c in zip(self.times, lengths, counts, strict=False)
                ]
                + [self.times[-1:]]
            )
            basis = np.ascontiguousarray(self.time_basis.averages(edges))
        size = max(1, _CHUNK_ENTRIES // max(1, n * (n_columns + 1)))
        fine = 0
        for start in range(0, lengths.size, size):
            part = slice(start, min(start + size, lengths.size))
            count = part.stop - part.start
            out = np.empty((mesh.n_levels, count, n))
            slopes = np.empty((mesh.n_levels, count, n, n_columns))
            try:
                solved = dynamics.integrate(
                    graph,
                    landscape,
                    self.features,
                    basis,
                    interactions,
                    None if births is None else births._replace(out=mass[part]),
                    forces if sensitivities else None,
                    dynamics.pivots(n),
                    dynamics.Steps(lengths[part], mesh.substeps[part], fine, mesh.n_levels),
                    dynamics.Chains(chains, carried, known[part], out, slopes),
                )
            except np.linalg.LinAlgError:
                # A singular Newton matrix: no flow at these parameters; the optimiser turns back.
                solved = False
            if not solved:
                yield None
                return
            fine += int(mesh.substeps[part].sum()) * finest
            yield Chunk(start + 1, *_normalised(*dynamics.extrapolate(out, slopes), pi), mass[part])

    def probabilities(self, theta: Array, mesh: Mesh) -> Array | None:
        """The flow at `times`, without derivatives."""
        rows = []
        for chunk in self.trajectory(theta, mesh, sensitivities=False):
            if chunk is None:
                return None
            rows.append(np.exp(chunk.log_p))
        return np.concatenate(rows)

    def sensitivities(
        self,
        theta: Array,
        mesh: Mesh,
        *,
        forces: Array | None = None,
        starts: Array | None = None,
        done: Callable[[int], None] = lambda times: None,
    ) -> tuple[Array, Array] | None:
        """`log p` (times, N) and its derivatives (times, N, parameters), all at once.

        `done`: called with the number of times that have been reached.
        """
        values, slopes, reached = [], [], 0
        for chunk in self.trajectory(theta, mesh, forces=forces, starts=starts):
            if chunk is None:
                return None
            values.append(chunk.log_p)
            slopes.append(chunk.sensitivities)
            reached += len(chunk.log_p)
            done(reached)
        return np.concatenate(values), np.concatenate(slopes)


def _normalised(u: Array, u_coarse: Array, slopes: Array, pi: Array) -> tuple[Array, Array, Array]:
    log_p = log_normalised(u + np.log(pi))
    slopes -= np.matmul(np.exp(log_p)[:, None, :], slopes)
    return log_p, log_normalised(u_coarse + np.log(pi)), slopes


def log_normalised(log_p: Array) -> Array:
    """Rows of logarithms, shifted so that each row's exponentials sum to one."""
    top = log_p.max(axis=-1, keepdims=True)
    return np.asarray(log_p - top - np.log(np.exp(log_p - top).sum(axis=-1, keepdims=True)))


def first_mesh(model: FlowModel, scale: float, *, most: int = 2000, levels: int = 3) -> Mesh:
    """Steps of the coarsest chain no longer than what ordinary slopes allow; at most `most`."""
    lengths = np.diff(model.times)
    # A lazy walk moves that much more slowly: rates are `K(x, y) (V_x - V_y)`.
    leaving = 2.0 * float(model.kernel.edges.conductance.sum())
    substeps = np.clip(np.ceil(lengths * scale * leaving / 0.4), 1, most).astype(np.int64)
    return Mesh(substeps, levels if lengths.size <= 400 else 2)
