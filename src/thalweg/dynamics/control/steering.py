"""`steer`: the cheapest additional potential that brings a population to a target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import solve_ivp
from scipy.interpolate import BPoly

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._optional import data_frame
from thalweg._types import Array, Mask
from thalweg.dynamics.control.action import Action, Moments
from thalweg.dynamics.control.bound import dual_bound
from thalweg.dynamics.control.curve import DEGREE, Curve, interpolated
from thalweg.dynamics.control.newton import (
    POINTS,
    Descent,
    PlanProblem,
    cheapest_path,
    least_curvature,
)
from thalweg.dynamics.control.wish import Goal, Target, checked_share, occupied, supported
from thalweg.dynamics.landscape import Estimate, Landscape, estimate
from thalweg.edges.fluxes import Drive, accumulate_velocity
from thalweg.edges.static import Graph
from thalweg.errors import ConvergenceError, InputError
from thalweg.flow import Trajectory, gradient_flow
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
    control: BPoly

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
    kernel = landscape.kernel
    supported(landscape)
    span = _checks.positive(horizon, "horizon")
    start = occupied(p0, kernel, "p0")
    goal: Goal
    if target is not None and raise_mass is None:
        goal = Target(occupied(target, kernel, "target"))
    elif raise_mass is not None and target is None:
        goal = checked_share(landscape, raise_mass)
    else:
        raise InputError("give either a target or raise_mass=(states, share), and not both.")
    search = _Search(landscape, start, goal, span)
    flow = search.flow(np.linspace(0.0, span, 33), rtol=1e-10)
    if goal.is_met(flow.final):
        return _nothing_to_do(landscape, flow, level)
    path, bound = search.run(tolerance)
    return search.answer(path, bound, tolerance, level)


def _nothing_to_do(landscape: Landscape, flow: Trajectory, level: float) -> Steering:
    times, path, status = flow.times, flow.probabilities, flow.status
    tangents = np.zeros(len(landscape.directions)) if landscape.has_errors else None
    return Steering(
        landscape, times, path, np.zeros_like(path), np.zeros(times.size),
        estimate(np.asarray(0.0), tangents, scale="positive", level=level, status=status),
        0.0, 0.0, status, True, 1.0, 0.0,
        interpolated(times[[0, -1]], np.zeros((1, landscape.kernel.n_states))),
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

    def along(self, times: Array) -> Moments:
        value, rate = self.problem.curve.maps(times)
        nodes = self.descent.nodes
        # Between the points where it is kept positive a polynomial may dip.
        return Moments(self.problem.action, np.maximum(value @ nodes, 1e-12), rate @ nodes)


def _worth(path: _Path) -> tuple[bool, float]:
    """Order of paths: first those that can be computed, then the cheaper."""
    return not np.isfinite(path.cost), path.problem.value(path.descent.nodes)


@dataclass(frozen=True, eq=False)
class _Search:
    """A search on finer and finer meshes until the gap between cost and bound is closed."""

    landscape: Landscape
    start: Array
    goal: Goal
    span: float

    @cached_property
    def action(self) -> Action:
        land = self.landscape
        return Action(land.kernel, land.energy, land.mobility)

    def flow(self, times: Array, rtol: float) -> Trajectory:
        """What the population does on its own."""
        land = self.landscape
        return gradient_flow(
            land.kernel, land.energy, self.start, times, mobility=land.mobility, rtol=rtol
        )

    def run(self, tolerance: float) -> tuple[_Path, float]:
        convex = self.action.is_convex
        curve = Curve(np.linspace(0.0, self.span, (2 if convex else STEEP_PIECES) + 1))
        nodes: Array | None = None
        last: tuple[float, float] | None = None
        spent = 0
        while True:
            problem = PlanProblem(self.action, curve, self.start, self.goal)
            if nodes is None or not np.isfinite(problem.value(nodes)):
                begin = self._guesses(problem)
            else:
                begin = [nodes]
            path = min((self._descended(problem, each) for each in begin), key=_worth)
            descent = path.descent
            # A coarse mesh may hold no optimum inside the simplex: a finer one continues from it.
            spent += descent.products
            full = curve.nodes.size >= MOST_NODES or descent.status is Status.STALLED
            full = full or spent > MOST_PRODUCTS
            if not np.isfinite(path.cost):
                # The path leaves the simplex between two points of its mesh: a finer one holds it.
                if full:
                    drop = float(np.abs(self.action.drop).max())
                    raise ConvergenceError(
                        "no plan was found that keeps every state occupied; the landscape is steep "
                        f"(an edge drops by {drop / max(self.action.energy.beta, 1e-300):.3g} "
                        "beta): allow another horizon, or a target nearer to the flow."
                    )
                rough = np.ones(curve.pieces, dtype=np.bool_)
            else:
                # A steep landscape leaves a gap that no mesh closes, that of the envelope.
                bound = self.bound(path, tolerance) if convex else 0.0
                now = path.cost, bound
                same = last is not None and np.allclose(last, now, rtol=0.1 * tolerance)
                closed = abs(path.cost - bound) <= tolerance * path.cost
                if full or ((same or closed) and self.simulated(path)[1] <= 0.3 * ARRIVED):
                    return path, bound if convex else self.bound(path, tolerance)
                last, rough = now, self._rough(path)
            finer = curve.bisected(rough)
            nodes = curve.maps(finer.nodes)[0] @ descent.nodes
            nodes[0], nodes[-1] = descent.nodes[0], descent.nodes[-1]
            curve = finer

    def _descended(self, problem: PlanProblem, nodes: Array) -> _Path:
        scale = float(problem.weights @ problem.moments(nodes).effort())
        descent = cheapest_path(problem, nodes, 1e-10 * max(scale, 1e-300))
        return _Path(problem, descent)

    def _guesses(self, problem: PlanProblem) -> list[Array]:
        """The flow, bent more and more towards the end, and the straight line; none that dips.

        A convex problem has one optimum, and the first guess will do; otherwise there may be two.
        """
        tau = (problem.curve.nodes / self.span)[:, None]
        flow = self.flow(problem.curve.nodes, rtol=1e-8).probabilities
        end = self.goal.nearest(flow[-1])
        both = [(1 - tau) * flow + tau * end, (1 - tau) * self.start + tau * end]
        for bent in both:
            bent[0], bent[-1] = self.start, end
        inside = [bent for bent in both if np.isfinite(problem.value(bent))] or both[1:]
        return inside[:1] if self.action.is_convex else inside

    def bound(self, path: _Path, goal: float) -> float:
        """The lower bound from the path's own potential; never below zero.

        Computed with more and more jumps until it is within `goal` of the cost.
        """
        begin, nothing = self.action.free_energy(self.start), np.zeros_like(self.start)
        # A climb of the free energy costs at least twice its height: 1/2 |psi + f|^2 >= 2 psi . f.
        best = max(0.0, 2.0 * (self.goal.least(self.action, nothing) - begin))
        curve = path.problem.curve
        psi, breaks = interpolated(curve.breaks, path.fine[0].psi), curve.breaks[[0, -1]]
        while True:
            first, last, lost = dual_bound(
                self.action, lambda t: path.along(np.array([t])).p[0], psi, breaks
            )
            if np.isfinite(lost):
                # [phi . p + F] between the start and the best end.
                gain = self.goal.least(self.action, last) - begin - float(first @ self.start)
                best = max(best, gain - lost)
            if path.cost - best <= goal * path.cost or breaks.size > curve.breaks.size:
                return best
            breaks = np.sort(np.concatenate([breaks, 0.5 * (breaks[:-1] + breaks[1:])]))

    def _rough(self, path: _Path) -> Mask:
        """The pieces that violate the equation of motion most, weighted by the population."""
        problem = path.problem
        curve, at = problem.curve, problem.moments(path.descent.nodes)
        psi = interpolated(curve.breaks, at.psi)
        defect = psi.derivative()(curve.quadrature(POINTS)[0]) - at.by_p()
        defect -= np.sum(at.p * defect, axis=1, keepdims=True)
        size = np.sum(at.p * np.abs(defect), axis=1) * problem.weights
        each = size.reshape(curve.pieces, POINTS).sum(axis=1)
        return np.asarray(each >= 0.2 * each.max())

    def simulated(self, path: _Path) -> tuple[BPoly, float, Status]:
        """The potential that the path requires, and by how much its flow misses the end.

        The flow of `V + u(t)` is computed by an integrator independent of the path.
        """
        land, at = self.landscape, path.fine[0]
        u = -(at.push - (at.push @ land.kernel.stationary)[:, None])
        control = interpolated(path.problem.curve.breaks, u)
        graph = Graph.of(land.kernel, land.mobility)
        drive, rho = Drive.of(land.energy, land.mobility, self.start), np.empty_like(self.start)

        def velocity(t: float, p: Array) -> Array:
            out = np.empty_like(p)
            now = drive._replace(external=land.energy.potential + control(t))
            accumulate_velocity(*graph, *now, p, rho, out)
            return out

        p, status = self.start, Status.CONVERGED
        for left, right in pairwise(control.x):
            # The potential jumps between pieces: each is integrated on its own.
            inside = (left, np.nextafter(right, left))
            found = solve_ivp(velocity, inside, p, method="DOP853", rtol=1e-9, atol=1e-12)
            if not found.success:
                status = Status.STEP_TOO_SMALL
                break
            p = found.y[:, -1]
        asked = self.goal.p if isinstance(self.goal, Target) else path.descent.nodes[-1]
        return control, float(np.abs(p - asked).max()), status

    def answer(self, path: _Path, bound: float, tolerance: float, level: float) -> Steering:
        """The plan along a path, with its status and the error of its cost."""
        land, action, (at, weights) = self.landscape, self.action, path.fine
        control, missed, ended = self.simulated(path)
        gap = (path.cost - bound) / path.cost
        status = path.descent.status and ended
        if status and (missed > ARRIVED or (abs(gap) > 10 * tolerance and action.is_convex)):
            status = Status.WORK_LIMIT
        tangents = None
        if land.has_errors:
            # The path is optimal, so only the explicit change of the landscape counts:
            # d cost = integral of <psi + f, df> dt.
            flux = at.weights * action.differences(at.push)
            drive = weights[:, None] * action.gathered(flux, -flux)
            rows, logs = land.directions, np.log(at.p / land.kernel.stationary)
            tangents = rows[:, :-1] @ drive.sum(axis=0) + rows[:, -1] * float(np.sum(drive * logs))
        cost = estimate(
            np.asarray(path.cost), tangents, scale="positive", level=level, status=status
        )
        times = np.linspace(0.0, self.span, 33)
        along, u = path.along(times), control(times)
        return Steering(
            land, times, along.p, u - (u @ land.kernel.stationary)[:, None], along.effort(),
            cost, bound, missed, status, action.is_convex,
            least_curvature(path.problem, path.descent.nodes), path.descent.decrement, control,
        )  # fmt: skip
