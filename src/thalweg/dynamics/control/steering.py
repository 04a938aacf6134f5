"""`steer`: the cheapest additional potential that brings a population to a target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._optional import data_frame
from thalweg._types import Array, Mask
from thalweg.dynamics.control.action import Action, Moments
from thalweg.dynamics.control.bound import dual_bound, least_end
from thalweg.dynamics.control.curve import DEGREE, Curve, Piecewise
from thalweg.dynamics.control.newton import (
    POINTS,
    Descent,
    PlanProblem,
    SteepPlanProblem,
    cheapest_path,
    least_curvature,
)
from thalweg.dynamics.control.wish import checked_wish, occupied, supported
from thalweg.dynamics.landscape import Estimate, Landscape, estimate
from thalweg.edges.fluxes import Drive, accumulate_velocity
from thalweg.edges.static import Graph
from thalweg.errors import ConvergenceError, InputError
from thalweg.flow import gradient_flow
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd


MOST_NODES = 200
"""Number of nodes at which the mesh is not refined further."""
MOST_PRODUCTS = 10_000
"""Products with the Hessian after which the mesh is not refined further: 2 CPU ms each at 2 states,
20 at 300. Ordinary plans take some hundred, plans along edges of 10 beta some thousand."""
STEEP_PIECES = 12
"""Pieces of the first mesh on a steep landscape: a plan may slide to the bottom, wait there and
climb late, which coarser meshes cannot represent."""
ARRIVED = 1e-6
"""Largest difference in any state's share between target and simulation of a plan that arrives."""
FINE = 2 * DEGREE
"""Points per piece at which the potential is kept and the cost is summed up."""


@dataclass(frozen=True, eq=False)
class Steering:
    """A plan: the potential to add at each time, where it leads, its cost, and a lower bound on it.

    `cost` is `1/2 integral |grad u|^2 dt` of this plan; no plan costs less than `lower_bound`.
    `missed` is the largest difference in any state's share between the simulated flow of `V + u`
    and the target.
    """

    landscape: Landscape
    times: Array
    probabilities: Array
    """Along the plan, one row per time."""
    potential: Array
    """`u`, added to the landscape; centred, one row per time."""
    effort: Array
    """`1/2 |grad u|^2` at each time."""
    cost: Estimate
    lower_bound: float
    missed: float
    status: Status
    convex: bool
    """Whether every local optimum is known to be global."""
    curvature: float
    """Smallest curvature of the cost about the plan, one being that about a population at rest.

    An estimate by Lanczos's method, from above: a positive one speaks for a local optimum and does
    not prove it. In a convex problem it is always positive.
    """
    first_order: float
    """Further fall of the cost, to second order."""
    control: Piecewise | None

    @property
    def gap(self) -> float:
        """The share of the cost that might be saved."""
        cost = float(self.cost.value)
        return 0.0 if cost == 0 else (cost - self.lower_bound) / cost

    @property
    def reached(self) -> Array:
        """The population at the horizon."""
        return np.asarray(self.probabilities[-1])

    def at(self, t: float) -> Array:
        """The potential to add at time `t`."""
        if self.control is None:
            return np.zeros(self.landscape.kernel.n_states)
        u = self.control(t)
        return np.asarray(u - self.landscape.kernel.stationary @ u)

    def to_frame(self) -> pd.DataFrame:
        """One row per time and state: time, state, potential, probability."""
        kernel = self.landscape.kernel
        names = list(kernel.labels)
        return data_frame(
            {
                "time": np.repeat(self.times, len(names)),
                "state": np.tile(np.asarray(names, dtype=object), self.times.size),
                "potential": self.potential.ravel(),
                "probability": self.probabilities.ravel(),
            }
        )

    def __str__(self) -> str:
        if self.gap <= 1e-4:
            proof = f"which is within {max(100 * self.gap, 1e-6):.1g} % of the cheapest plan"
        else:
            kind = (
                "judged by its curvature a local optimum"
                if self.curvature > 0
                else "a stationary plan"
            )
            why = "" if self.convex else (
                " (edges drop by more than 3.46 beta, so a proof may be out of reach)"
            )  # fmt: skip
            proof = (
                f"{kind}; a cheaper plan may exist, but none costs less than "
                f"{self.lower_bound:.4g}{why}"
            )
        return (
            f"The plan costs {float(self.cost.value):.6g}, {proof}. In a simulation it misses the "
            f"target by at most {self.missed:.1g} in any state."
        )


@single_threaded
def steer(
    landscape: Landscape,
    p0: ArrayLike,
    target: ArrayLike | None = None,
    horizon: float = 1.0,
    *,
    raise_mass: tuple[Any, float] | None = None,
    tolerance: float = 1e-5,
    level: float = 0.95,
) -> Steering:
    """The cheapest additional potential `u(x, t)` that leads from `p0` to a target.

    Minimises `1/2 integral |grad u|^2_rho dt` under `p_dot = -M(rho) (V + u + beta log rho)`.
    Without a landscape (`V = 0`, `beta = 0`) the answer is the geodesic, and its cost
    `W_K^2 / (2 horizon)`. If the flow arrives on its own, `u` is zero.

    What is certified: if no edge drops by more than `sqrt(12) beta` the problem is convex, and the
    lower bound closes on the cost. On steeper edges the bound still holds for every plan, but it is
    that of a convex relaxation, and the gap is due to the relaxation: on two states and a long
    horizon the least cost is known, plans reach it, and the bound is far below (`thalweg bench
    dynamics-figures`). The plan is then the cheaper of two searches from different paths,
    stationary, and a local optimum as far as a positive `curvature` shows.

    Parameters
    ----------
    landscape : Landscape
        Kernel, energy and its uncertainty, which gives the cost its error.
    p0 : array
        The population at time 0; every state must be occupied.
    target : array, optional
        The population to reach; every state must be occupied.
    horizon : float
        The time at which it must be reached.
    raise_mass : (states, share), optional
        Instead of a target: the least share of the population that these states must hold.
    tolerance : float
        Bound on the gap between the cost and its lower bound, relative to the cost.
    level : float
        Level of the interval of the cost.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> pair = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> land = Landscape(pair, FreeEnergy([0.0, 1.0], beta=0.5))
    >>> plan = steer(land, [0.5, 0.5], [0.3, 0.7], horizon=2.0)
    >>> plan.status.name, plan.missed < 1e-6, plan.potential[-1].round(1)
    ('CONVERGED', True, array([ 1.3, -1.3]))
    """
    kernel, energy = landscape.kernel, landscape.energy
    supported(landscape)
    span = _checks.positive(horizon, "horizon")
    start = occupied(p0, kernel, "p0")
    if (target is None) == (raise_mass is None):
        raise InputError("give either a target or raise_mass=(states, share), and not both.")
    end = None if target is None else occupied(target, kernel, "target")
    members, mass = None, 0.0
    if raise_mass is not None:
        _, members, mass = checked_wish(landscape, p0, raise_mass)
    flow = gradient_flow(
        kernel, energy, start, np.linspace(0.0, span, 33), mobility=landscape.mobility, rtol=1e-10
    )
    if _arrives(flow.final, end, members, mass):
        return _nothing_to_do(landscape, flow.times, flow.probabilities, flow.status, level)
    action = Action(kernel, energy, landscape.mobility)
    search = _Search(action, start, end, members, mass, span)
    path, bound = search.run(tolerance)
    return _answer(landscape, search, path, bound, tolerance, level)


def _arrives(final: Array, end: Array | None, members: Mask | None, mass: float) -> bool:
    if end is not None:
        return bool(np.abs(final - end).max() <= 1e-9)
    return bool(final[members].sum() >= mass - 1e-12)


def _nothing_to_do(
    landscape: Landscape, times: Array, path: Array, status: Status, level: float
) -> Steering:
    tangents = np.zeros(len(landscape.directions)) if landscape.has_errors else None
    return Steering(
        landscape, times, path, np.zeros_like(path), np.zeros(times.size),
        estimate(np.asarray(0.0), tangents, scale="positive", level=level, status=status),
        0.0, 0.0, status, True, 1.0, 0.0, None,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Path:
    """A cheapest path on its mesh."""

    problem: PlanProblem
    descent: Descent

    @cached_property
    def fine(self) -> tuple[Moments, Array]:
        """The path at `FINE` points per piece, and their weights."""
        times, weights = self.problem.curve.quadrature(FINE)
        value, rate = self.problem.curve.maps(times)
        nodes = self.descent.nodes
        return Moments(self.problem.action, value @ nodes, rate @ nodes), weights

    @cached_property
    def cost(self) -> float:
        """Infinite if the path leaves the simplex."""
        at, weights = self.fine
        return float(weights @ at.effort()) if at.p.min() > 0 else float("inf")

    def between(self, values: Array) -> Piecewise:
        """A function of time by its values at the points of `fine`."""
        curve = self.problem.curve
        return Piecewise(curve.breaks, values.reshape(curve.pieces, FINE, -1))

    def at(self, t: float) -> Array:
        value, _ = self.problem.curve.maps(np.array([t]))
        # Between the points where it is kept positive a polynomial may dip.
        return np.maximum((value @ self.descent.nodes)[0], 1e-12)


def _worth(path: _Path) -> tuple[bool, float]:
    """Order of paths: first those that can be computed, then the cheaper."""
    return not np.isfinite(path.cost), path.problem.value(path.descent.nodes)


class _Plan(NamedTuple):
    """A path's potential, and by how much its simulated flow misses the target."""

    at: Moments
    weights: Array
    control: Piecewise
    missed: float
    status: Status


@dataclass(frozen=True, eq=False)
class _Search:
    """A search on finer and finer meshes until the gap between cost and bound is closed."""

    action: Action
    start: Array
    end: Array | None
    members: Mask | None
    mass: float
    span: float

    @property
    def steepest(self) -> float:
        """The largest drop of the potential along an edge, in units of `beta`."""
        return float(np.abs(self.action.drop).max() / max(self.action.energy.beta, 1e-300))

    def run(self, tolerance: float) -> tuple[_Path, float]:
        pieces = 2 if self.action.is_convex else STEEP_PIECES
        curve = Curve(np.linspace(0.0, self.span, pieces + 1))
        nodes: Array | None = None
        last: tuple[float, float] | None = None
        spent = 0
        while True:
            kind = PlanProblem if self.action.is_convex else SteepPlanProblem
            problem = kind(self.action, curve, self.start, self.end, self.members)
            begin = [nodes] if nodes is not None else []
            if nodes is None or not np.isfinite(problem.value(nodes)):
                # Where the problem is not convex there may be two optima: both starts are tried.
                begin = self._guesses(problem)[: 1 if self.action.is_convex else 2]
            path = min((self._descended(problem, each) for each in begin), key=_worth)
            descent = path.descent
            # A coarse mesh may hold no optimum inside the simplex: a finer one continues from it.
            spent += descent.products
            full = curve.nodes.size >= MOST_NODES or descent.status is Status.STALLED
            full = full or spent > MOST_PRODUCTS
            if not np.isfinite(path.cost):
                # The path leaves the simplex between two points of its mesh: a finer one holds it.
                if full:
                    raise ConvergenceError(
                        "no plan was found that keeps every state occupied; the landscape is steep "
                        f"(an edge drops by {self.steepest:.3g} beta): allow another horizon, or a "
                        "target nearer to the flow."
                    )
                rough = np.ones(curve.pieces, dtype=np.bool_)
            else:
                # A steep landscape leaves a gap that no mesh closes, that of the envelope.
                bound = self.bound(path, tolerance) if self.action.is_convex else 0.0
                now = path.cost, bound
                same = last is not None and np.allclose(last, now, rtol=0.1 * tolerance)
                closed = abs(path.cost - bound) <= tolerance * path.cost
                if full or ((same or closed) and self.plan(path).missed <= 0.3 * ARRIVED):
                    steep = not self.action.is_convex
                    return path, self.bound(path, tolerance) if steep else bound
                last, rough = now, self._rough(path)
            finer = curve.bisected(rough)
            nodes = curve.maps(finer.nodes)[0] @ descent.nodes
            nodes[0], nodes[-1] = descent.nodes[0], descent.nodes[-1]
            curve = finer

    def _descended(self, problem: PlanProblem, nodes: Array) -> _Path:
        scale = float(problem.weights @ problem.moments(nodes).effort())
        descent = cheapest_path(problem, nodes, 1e-10 * max(scale, 1e-300))
        return _Path(problem, descent)

    def plan(self, path: _Path) -> _Plan:
        """The potential that the path requires, and where its flow leads."""
        at, weights = path.fine
        control = path.between(-(at.push - (at.push @ self.action.kernel.stationary)[:, None]))
        asked = path.descent.nodes[-1] if self.end is None else self.end
        final, status = _simulated(self.action, self.start, control)
        return _Plan(at, weights, control, float(np.abs(final - asked).max()), status)

    def _guesses(self, problem: PlanProblem) -> list[Array]:
        """The flow, bent more and more towards the end, and the straight line; none that dips."""
        tau = (problem.curve.nodes / self.span)[:, None]
        flow = gradient_flow(
            self.action.kernel, self.action.energy, self.start, problem.curve.nodes,
            mobility=self.action.mobility, rtol=1e-8,
        ).probabilities  # fmt: skip
        end = self.end
        if end is None:
            inside = np.asarray(self.members, dtype=np.bool_)
            share = np.where(inside, self.mass, 1 - self.mass)
            held = np.where(inside, flow[-1][inside].sum(), flow[-1][~inside].sum())
            end = flow[-1] * share / held
        both = [(1 - tau) * flow + tau * end, (1 - tau) * self.start + tau * end]
        for bent in both:
            bent[0], bent[-1] = self.start, end
        return [bent for bent in both if np.isfinite(problem.value(bent))] or both[1:]

    def bound(self, path: _Path, goal: float) -> float:
        """The lower bound from the path's own potential; never below zero.

        Computed with more and more jumps until it is within `goal` of the cost.
        """
        curve, psi = path.problem.curve, path.between(path.fine[0].psi)
        best, breaks = max(0.0, self._climb()), curve.breaks[[0, -1]]
        while True:
            first, last, lost = dual_bound(self.action, path.at, psi, breaks)
            if np.isfinite(lost):
                best = max(best, self._ends(first, last) - lost)
            if path.cost - best <= goal * path.cost or breaks.size > curve.breaks.size:
                return best
            breaks = np.sort(np.concatenate([breaks, 0.5 * (breaks[:-1] + breaks[1:])]))

    def _climb(self) -> float:
        """`2 (F(end) - F(start))`: no climb is cheaper, since `1/2 |psi + f|^2 >= 2 psi . f`."""
        if self.end is not None:
            top = self.action.free_energy(self.end)
        else:
            assert self.members is not None
            nothing = np.zeros(self.action.kernel.n_states)
            top = least_end(self.action, nothing, self.members, self.mass)
        return 2.0 * (top - self.action.free_energy(self.start))

    def _ends(self, first: Array, last: Array) -> float:
        """`[phi . p + F]_0^T` at the given start and the given or the best end."""
        out = -float(first @ self.start) - self.action.free_energy(self.start)
        if self.end is not None:
            return out + float(last @ self.end) + self.action.free_energy(self.end)
        assert self.members is not None
        return out + least_end(self.action, last, self.members, self.mass)

    def _rough(self, path: _Path) -> NDArray[np.bool_]:
        """The pieces that violate the equation of motion most, weighted by the population."""
        curve = path.problem.curve
        at = path.problem.moments(path.descent.nodes)
        n = at.p.shape[1]
        psi = Piecewise(curve.breaks, at.psi.reshape(curve.pieces, POINTS, n))
        defect = psi.rates().reshape(-1, n) - at.by_p()
        defect -= np.sum(at.p * defect, axis=1, keepdims=True)
        size = np.sum(at.p * np.abs(defect), axis=1) * path.problem.weights
        each = size.reshape(curve.pieces, POINTS).sum(axis=1)
        return np.asarray(each >= 0.2 * each.max())


def _answer(
    landscape: Landscape,
    search: _Search,
    path: _Path,
    bound: float,
    tolerance: float,
    level: float,
) -> Steering:
    curve, nodes, kernel = path.problem.curve, path.descent.nodes, landscape.kernel
    at, weights, control, missed, ended = search.plan(path)
    gap = (path.cost - bound) / path.cost
    status = path.descent.status and ended
    if status and (missed > ARRIVED or (abs(gap) > 10 * tolerance and search.action.is_convex)):
        status = Status.WORK_LIMIT
    tangents = None
    if landscape.has_errors:
        # The path is optimal, so only the explicit change of the landscape counts:
        # d cost = integral of <psi + f, df> dt.
        flux = at.weights * search.action.differences(at.push)
        drive = weights[:, None] * search.action.gathered(flux)
        rows = landscape.directions
        logs = np.log(at.p / kernel.stationary)
        tangents = rows[:, :-1] @ drive.sum(axis=0) + rows[:, -1] * float(np.sum(drive * logs))
    found = estimate(np.asarray(path.cost), tangents, scale="positive", level=level, status=status)
    grid = np.linspace(0.0, search.span, 33)
    grid_u = np.array([control(float(t)) for t in grid])
    grid_value, grid_rate = curve.maps(grid)
    # Between the points where it is kept positive a polynomial may dip.
    along = Moments(search.action, np.maximum(grid_value @ nodes, 1e-12), grid_rate @ nodes)
    return Steering(
        landscape, grid, along.p, grid_u - (grid_u @ kernel.stationary)[:, None], along.effort(),
        found, bound, missed, status, search.action.is_convex,
        least_curvature(path.problem, nodes), path.descent.decrement, control,
    )  # fmt: skip


def _simulated(action: Action, start: Array, control: Piecewise) -> tuple[Array, Status]:
    """The flow of `V + u(t)`, by an integrator independent of the path."""
    energy, mobility = action.energy, action.mobility
    graph, drive = Graph.of(action.kernel, mobility), Drive.of(energy, mobility, start)
    rho = np.empty_like(start)

    def velocity(t: float, p: Array) -> Array:
        out = np.empty_like(p)
        now = drive._replace(external=energy.potential + control(t))
        accumulate_velocity(*graph, *now, p, rho, out)
        return out

    p = start
    for left, right in zip(control.breaks[:-1], control.breaks[1:], strict=True):
        # The potential jumps between pieces: each is integrated on its own.
        inside = (left, np.nextafter(right, left))
        found = solve_ivp(velocity, inside, p, method="DOP853", rtol=1e-9, atol=1e-12)
        if not found.success:
            return p, Status.STEP_TOO_SMALL
        p = found.y[:, -1]
    return np.asarray(p), Status.CONVERGED
