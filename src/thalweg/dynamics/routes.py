"""Net fluxes along edges, and the strongest routes from one set of states to another.

At time `t` of the flow the net flux along an edge is `c m (f_x - f_y)`. At rest it vanishes, but
individuals on their way from `a` to `b` still have one: with the committor `q` the reactive flux is
`p_x Q_xy (q_y - q_x)`, from low `q` to high. It has no cycles, so it splits into routes: the path
whose narrowest edge is widest is removed again and again (transition-path theory; Metzner, Schuette
and Vanden-Eijnden).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg import _checks
from thalweg._compile import njit
from thalweg._door import single_threaded
from thalweg._optional import data_frame
from thalweg._types import Array, Index
from thalweg.dynamics.fates import first_reached
from thalweg.dynamics.landscape import Estimate, Landscape, differences, estimate
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import gradient_flow
from thalweg.flow.rates import net_fluxes
from thalweg.kernel import MarkovKernel
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Route:
    """One route from `a` to `b`: the states in order, its flux, and its narrowest edge."""

    states: tuple[int, ...]
    flux: float
    share: float
    """Share of the whole reactive flux."""
    bottleneck: tuple[int, int]


@dataclass(frozen=True, eq=False)
class ReactiveFlux:
    """Traffic from `a` to `b` at rest.

    `edges` is the net flux from source to target of each edge (negative: the other way), `total`
    the number of passages per unit of time and individual, `rate` the same per individual that
    came from `a` last.
    """

    kernel: MarkovKernel
    committor: Array
    edges: Array
    total: Estimate
    rate: float
    routes: tuple[Route, ...]
    status: Status

    def to_frame(self) -> pd.DataFrame:
        """One row per route."""
        names = self.kernel.labels
        return data_frame(
            {
                "route": [" > ".join(str(names[x]) for x in r.states) for r in self.routes],
                "flux": [r.flux for r in self.routes],
                "share": [r.share for r in self.routes],
                "bottleneck": [
                    f"{names[r.bottleneck[0]]} > {names[r.bottleneck[1]]}" for r in self.routes
                ],
            }
        )


@single_threaded
def fluxes(
    landscape: Landscape, p0: ArrayLike, times: tuple[float, float], *, level: float = 0.95
) -> Estimate:
    """The net flux from source to target of each edge at `times[1]`, for the flow from `p0`.

    Parameters
    ----------
    landscape : Landscape
        Kernel, energy and its uncertainty.
    p0 : array
        The population at `times[0]`, taken as known.
    times : (float, float)
        The start of the flow, and the time of the fluxes (the same time is allowed).
    level : float
        Level of the intervals.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> pair = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> flat = Landscape(pair, FreeEnergy([0.0, 0.0], beta=1.0))
    >>> fluxes(flat, [0.75, 0.25], (0.0, 0.0)).value
    array([0.5])
    """
    kernel = landscape.kernel
    p = _checks.as_probability(p0, kernel.n_states, "p0")
    first, last = (float(t) for t in times)
    if last < first:
        raise InputError(f"times are {first:g} and {last:g}; the flow runs forwards only.")

    def at(energy: FreeEnergy) -> tuple[Array, Status]:
        now, status = p, Status.CONVERGED
        if last > first:
            path = gradient_flow(
                kernel, energy, p, [first, last], mobility=landscape.mobility, rtol=1e-9
            )
            now, status = path.final, path.status
        return net_fluxes(kernel, energy, now, landscape.mobility), status

    value, status = at(landscape.energy)
    tangents = None
    if landscape.has_errors:
        tangents = differences(landscape, lambda energy: at(energy)[0])
    return estimate(value, tangents, scale="plain", level=level, status=status)


def coarse_fluxes(kernel: MarkovKernel, edges: ArrayLike, labels: ArrayLike) -> Array:
    """Net fluxes between groups of states: `out[a, b]` from `a` to `b`, antisymmetric.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    edges : array
        The net flux of each edge.
    labels : array
        The group of each state, counted from 0.

    >>> path = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> coarse_fluxes(path, [0.2, 0.3], [0, 0, 1])
    array([[ 0. ,  0.3],
           [-0.3,  0. ]])
    """
    group = np.asarray(labels, dtype=np.int64)
    flux = np.asarray(edges, dtype=np.float64)
    size = int(group.max()) + 1
    out = np.zeros((size, size))
    one, other = group[kernel.edges.source], group[kernel.edges.target]
    np.add.at(out, (one, other), flux)
    np.add.at(out, (other, one), -flux)
    np.fill_diagonal(out, 0.0)
    return out


@single_threaded
def reactive_flux(
    landscape: Landscape, a: Any, b: Any, *, n_routes: int = 5, level: float = 0.95
) -> ReactiveFlux:
    """The traffic from `a` to `b` at rest, and its strongest routes.

    Parameters
    ----------
    landscape : Landscape
        Kernel, energy and its uncertainty.
    a, b : state or states
        By number or by name; disjoint, and not all states of the graph.
    n_routes : int
        Largest number of routes.
    level : float
        Level of the interval of the total.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> w = [[0, 2, 1, 0], [2, 0, 0, 2], [1, 0, 0, 1], [0, 2, 1, 0]]
    >>> flat = Landscape(MarkovKernel.from_weights(w), FreeEnergy([0.0] * 4, beta=1.0))
    >>> [(r.states, round(r.share, 3)) for r in reactive_flux(flat, 0, 3).routes]
    [((0, 1, 3), 0.667), ((0, 2, 3), 0.333)]
    """
    if n_routes < 0:
        raise InputError(f"n_routes is {n_routes}; it cannot be negative.")
    kernel = landscape.kernel
    absorbed, groups, q, status = first_reached(landscape, a, b)
    walk = absorbed.walk
    source, target, _ = kernel.edges
    rise = q[target] - q[source]
    edges = walk.conductance * rise
    total = float(np.sum(edges * rise))
    tangents = None
    if landscape.has_errors:
        # The Dirichlet energy is stationary in q, so only the conductances' change counts.
        tangents = walk.conductance_tangents @ rise**2
    found = estimate(np.asarray(total), tangents, scale="positive", level=level, status=status)
    rate = total / float(walk.p @ (1.0 - q))
    routes = _routes(kernel, edges, q, groups, total, n_routes)
    return ReactiveFlux(kernel, q, edges, found, rate, routes, status)


def _routes(
    kernel: MarkovKernel, edges: Array, q: Array, groups: list[Index], total: float, most: int
) -> tuple[Route, ...]:
    source, target, _ = kernel.edges
    forth = edges > 0
    tail = np.where(forth, source, target).astype(np.int64)
    head = np.where(forth, target, source).astype(np.int64)
    left = np.abs(edges)
    order = np.lexsort((q[head], q[tail]))
    starts = np.zeros(kernel.n_states, dtype=np.bool_)
    starts[groups[0]] = True
    routes = []
    for _ in range(most):
        width, through = _widest(tail, head, left, order, starts)
        end = int(groups[1][np.argmax(width[groups[1]])])
        flux = float(width[end])
        if flux <= 1e-9 * total:
            break
        path, crossed = [end], []
        while not starts[path[-1]]:
            e = int(through[path[-1]])
            crossed.append(e)
            path.append(int(tail[e]))
        narrow = min(crossed, key=lambda e: left[e])
        left[crossed] -= flux
        left[narrow] = 0.0
        routes.append(
            Route(tuple(reversed(path)), flux, flux / total, (int(tail[narrow]), int(head[narrow])))
        )
    return tuple(routes)


@njit(cache=True)
def _widest(
    tail: Index, head: Index, left: Array, order: Index, starts: NDArray[np.bool_]
) -> tuple[Array, Index]:
    """The widest path to each state along a flux without cycles, edges in the order of `q`."""
    width = np.where(starts, np.inf, 0.0)
    through = np.full(starts.size, -1, np.int64)
    for k in range(order.size):
        e = order[k]
        if starts[head[e]]:
            continue
        w = min(width[tail[e]], left[e])
        if w > width[head[e]]:
            width[head[e]] = w
            through[head[e]] = e
    return width, through
