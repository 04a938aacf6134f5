"""Pushing few states: a potential that is constant in time and acts on few states.

Greedy: at the current push, the adjoint of the flow gives the slope `g` of the wanted share in the
potential of every state, and `C = integral of M(rho) dt` the cost of small changes. The state that
raises `g^T C^-1 g` on the chosen states most joins them, and the push on all of them is computed
again: the cheapest that reaches the share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import simpson
from scipy.optimize import brentq, minimize

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._optional import data_frame
from thalweg._types import Array, Mask
from thalweg.dynamics.control.wish import checked_share, occupied, supported
from thalweg.dynamics.landscape import Landscape
from thalweg.edges.static import degrees
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import gradient_flow
from thalweg.geometry.operators import transport_weights
from thalweg.learn.fields.flow_map import FlowMap
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd


_STRONGEST = 20.0
"""Largest push, in units of the landscape's span plus `beta`; above, states are empty or full."""
_CLOSE = 1e-6
"""Shortfall allowed in the share reached."""


@dataclass(frozen=True, eq=False)
class Intervention:
    """A push on few states."""

    landscape: Landscape
    states: tuple[int, ...]
    """The pushed states, in the order in which they were chosen."""
    potential: Array
    """The potential to add to the landscape, zero at all other states."""
    cost: float
    reached: float
    """The share that is held at the horizon."""
    wanted: float
    """The share that was asked for."""
    costs: tuple[float, ...]
    """The cost with the first state alone, with two, and so on; infinite if it fell short."""
    status: Status

    def to_frame(self) -> pd.DataFrame:
        """One row per pushed state."""
        names = self.landscape.kernel.labels
        return data_frame(
            {
                "state": [names[x] for x in self.states],
                "push": self.potential[list(self.states)],
                "cost_so_far": self.costs,
            }
        )


@dataclass(frozen=True, eq=False)
class _Task:
    landscape: Landscape
    p0: Array
    members: Mask
    share: float
    horizon: float

    @property
    def times(self) -> Array:
        return np.linspace(0.0, self.horizon, 33)

    @property
    def limit(self) -> float:
        """The strongest push."""
        energy = self.landscape.energy
        return _STRONGEST * (float(np.ptp(energy.potential)) + energy.beta)

    def run(self, u: Array) -> tuple[float, float, Array]:
        """The share reached, the cost, and the time integral of the Laplacian's weights."""
        land, kernel = self.landscape, self.landscape.kernel
        energy = FreeEnergy(land.energy.potential + u, land.energy.beta)
        path = gradient_flow(kernel, energy, self.p0, self.times, rtol=1e-8)
        weights = [transport_weights(kernel, p, land.mobility) for p in path.probabilities]
        total = simpson(np.array(weights), x=self.times, axis=0)
        source, target, _ = kernel.edges
        cost = 0.5 * float(total @ (u[source] - u[target]) ** 2)
        return float(path.final[self.members].sum()), cost, total

    def slopes(self, u: Array) -> Array:
        """Derivatives of the share in the potential of every state, by the adjoint."""
        kernel = self.landscape.kernel
        flow = FlowMap(kernel, self.times, substeps=8)
        log_rho = np.log(self.p0 / kernel.stationary)
        ran = flow(log_rho, self.landscape.energy.potential + u, self.landscape.energy.beta)
        if ran is None:
            raise InputError("the flow of this push cannot be computed; ask for a smaller share.")
        weights = np.zeros((*ran.log_density.shape, 1))
        final = kernel.stationary * np.exp(ran.log_density[-1])
        weights[-1, self.members, 0] = final[self.members]
        return np.asarray(ran.adjoint(weights)[1][:, 0])

    def metric(self, total: Array, states: list[int]) -> Array:
        """The rows and columns of the integrated Laplacian that belong to `states`."""
        source, target, _ = self.landscape.kernel.edges
        ends = (source[:, None] == states).astype(np.float64) - (target[:, None] == states)
        return np.asarray(ends.T @ (total[:, None] * ends))

    def best_next(self, u: Array, chosen: list[int]) -> int:
        """The state that helps most beside the chosen ones, to first order."""
        g, (_, _, total) = self.slopes(u), self.run(u)
        source, target, _ = self.landscape.kernel.edges
        gain = g**2 / degrees(source, target, total, g.size)
        gain[chosen] = -np.inf
        if not chosen:
            return int(np.argmax(gain))
        # Exactly, for the most promising of them.
        candidates = np.argsort(-gain)[: min(g.size - len(chosen), 64)]
        scores = []
        for x in candidates:
            states = [*chosen, int(x)]
            scores.append(g[states] @ np.linalg.solve(self.metric(total, states), g[states]))
        return int(candidates[int(np.argmax(scores))])

    def spread(self, states: list[int], z: Array) -> Array:
        """The push `z` on `states`, and none on the others."""
        u = np.zeros(self.landscape.kernel.n_states)
        u[states] = z
        return u

    def cheapest(self, states: list[int], start: Array) -> tuple[Array, float, float]:
        """The cheapest push on `states`, its cost, infinite if it falls short, and the share."""
        seen: dict[bytes, tuple[float, float]] = {}

        def ran(z: Array) -> tuple[float, float]:
            key = np.asarray(z).tobytes()
            if key not in seen:
                seen[key] = self.run(self.spread(states, z))[:2]
            return seen[key]

        z = self._reach(states, start, ran)
        if z is None:
            return np.zeros_like(start), np.inf, np.nan
        if len(states) > 1:
            scale = max(ran(z)[1], 1e-300)
            found = minimize(
                lambda y: ran(y)[1] / scale, z, method="SLSQP",
                bounds=[(-self.limit, self.limit)] * len(states),
                constraints={"type": "ineq", "fun": lambda y: ran(y)[0] - self.share},
                options={"maxiter": 40, "ftol": 1e-7},
            )  # fmt: skip
            if ran(found.x)[0] >= self.share - _CLOSE and ran(found.x)[1] <= ran(z)[1]:
                z = found.x
        reached, cost = ran(z)
        return self.spread(states, z), cost, reached

    def _reach(
        self, states: list[int], start: Array, ran: Callable[[Array], tuple[float, float]]
    ) -> Array | None:
        """A push along that of `start`, or else the steepest, that just reaches the share."""
        nothing = np.zeros_like(start)
        metric = self.metric(self.run(nothing)[2], states)
        steepest: Array = np.linalg.solve(metric, self.slopes(nothing)[states]).astype(float)
        for direction in start[states], steepest:
            size = float(np.abs(direction).max())
            if size == 0:
                continue
            way = direction / size
            high = 0.05 * self.limit / _STRONGEST
            while high < self.limit and ran(high * way)[0] < self.share:
                high = min(2 * high, self.limit)
            if ran(high * way)[0] >= self.share:
                root = brentq(lambda a: ran(a * way)[0] - self.share, 0.0, high, xtol=1e-9 * high)
                return np.asarray(root * way)
        return None


@single_threaded
def push_few(
    landscape: Landscape, p0: ArrayLike, raise_mass: tuple[Any, float], horizon: float = 1.0, *,
    most: int = 3,
) -> Intervention:  # fmt: skip
    """Choose a few states to push, and how hard, so that a set of states holds a share in time.

    The push is a potential that is constant from 0 to the horizon and zero at all but `most`
    states. States are chosen one after another; with each, all pushes are computed again.

    Parameters
    ----------
    landscape : Landscape
        Kernel and energy.
    p0 : array
        The population at time 0; every state must be occupied.
    raise_mass : (states, share)
        The least share of the population that these states must hold at the horizon.
    horizon : float
        The time at which they must hold it.
    most : int
        Largest number of states to push.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> path = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> land = Landscape(path, FreeEnergy([0.0, 0.0, 0.0], beta=0.5))
    >>> plan = push_few(land, [0.25, 0.5, 0.25], (2, 0.4), 3.0, most=1)
    >>> plan.states, plan.potential[2] < 0
    ((2,), np.True_)
    """
    supported(landscape)
    start = occupied(p0, landscape.kernel, "p0")
    goal = checked_share(landscape, raise_mass)
    span = _checks.positive(horizon, "horizon")
    n = landscape.kernel.n_states
    if not 1 <= most < n:
        raise InputError(f"most is {most}; choose between 1 and {n - 1} states.")
    share, task = goal.mass, _Task(landscape, start, goal.members, goal.mass, span)
    u = np.zeros(n)
    chosen: list[int] = []
    costs: list[float] = []
    reached = task.run(u)[0]
    if reached >= share:
        return Intervention(landscape, (), u, 0.0, reached, share, (), Status.CONVERGED)
    cost = np.inf
    for _ in range(most):
        chosen.append(task.best_next(u, chosen))
        found, price, got = task.cheapest(chosen, u)
        costs.append(price)
        if np.isfinite(price):
            u, cost, reached = found, price, got
    if not np.isfinite(cost):
        label = landscape.kernel.labels
        raise InputError(
            f"no push on {', '.join(str(label[x]) for x in chosen)} brings {share:g} of the "
            f"population there by {span:g}; allow more states, a later time, or a smaller share."
        )
    status = Status.CONVERGED if reached >= share - _CLOSE else Status.STALLED
    return Intervention(landscape, tuple(chosen), u, cost, reached, share, tuple(costs), status)
