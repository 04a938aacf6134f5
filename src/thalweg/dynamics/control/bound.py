"""A lower bound on the cost of every path: weak duality.

For any function `phi(x, t)` the cost of any path from `p0` is at least

    [phi . p + F]_0^T - integral of sup_p H(p) dt,
    H(p) = phi_dot . p + 1/2 sum_e c (m dphi^2) - 1/2 I(p).

`H` is one-homogeneous, and where it is concave `H(p) <= H'(q) . p` for any `q`. Along a path `q(t)`
the equation `H'(q) = 0` is an ordinary differential equation for `phi`; its solution makes the
integral vanish. On edges that drop by so much that their part of `H` is not concave, its concave
envelope takes its place. So the bound holds whatever path it was made from; it is sharp for the
cheapest one of a convex problem. A jump `j` of `phi` at some time costs `max_x j_x`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicSpline
from scipy.special import expit

from thalweg._types import Array
from thalweg.dynamics.control.action import CONVEX_DROP, Action, Moments
from thalweg.mobility import LogMean

_STEEPEST = 1e5
"""End of the table of humps, in `-alpha / beta^2`."""
_MOST_CALLS = 20_000
"""Evaluations after which an integration is abandoned; ordinary ones take a few hundred."""
_STRAY = 3.0
"""Largest distance of `phi` from the path's own potential, in units of that potential's span."""


def hamilton_jacobi(action: Action, p: Array, phi: Array) -> Array:
    """The rate of `phi` at which `H'(p)` vanishes, `H` replaced by its concave envelope."""
    at = Moments(action, p[None], p[None])
    out = at.by_p(phi[None])[0]
    steep = action.differences(phi)
    beta = action.energy.beta
    alpha = steep**2 - action.drop**2
    bent = np.flatnonzero(alpha < -((CONVEX_DROP * beta) ** 2) * (1 - 1e-12))
    if not bent.size:
        return np.asarray(out)
    source, target, c = action.kernel.edges
    rho = p / action.kernel.stationary
    s, t = rho[source[bent]], rho[target[bent]]
    ratio, height = humps(alpha[bent], beta)
    log = np.log(s / t)
    flat = np.abs(log) < ratio
    by_s, by_t = action.mobility.partials(s, t)
    own = alpha[bent] * by_s - beta**2 * (log + 1 - t / s)
    other = alpha[bent] * by_t + beta**2 * (log - 1 + s / t)
    more = np.zeros((2, c.size))
    more[0, bent] = np.where(flat, 0.5 * c[bent] * (height - own), 0.0)
    more[1, bent] = np.where(flat, 0.5 * c[bent] * (height - other), 0.0)
    return np.asarray(out - action.by_p(more[:1], more[1:])[0])


@cache
def _hump_table() -> tuple[CubicSpline, CubicSpline]:
    """Ratio and height of the humps for `beta = 1`, by the logarithm of `-alpha`."""
    steep = np.geomspace(12.0, _STEEPEST, 4000)
    mean = LogMean()

    def height(z: Array) -> Array:
        s, t = expit(z), expit(-z)
        return np.asarray(-steep * mean(s, t) - (s - t) * z)

    # Golden section on z = log(s / t): one hump on the positive side.
    low, high = np.zeros_like(steep), np.full_like(steep, 500.0)
    golden = 0.5 * (np.sqrt(5.0) - 1.0)
    for _ in range(60):
        a, b = high - golden * (high - low), low + golden * (high - low)
        rises = height(a) < height(b)
        low, high = np.where(rises, a, low), np.where(rises, high, b)
    z = 0.5 * (low + high)
    return CubicSpline(np.log(steep), z), CubicSpline(np.log(steep), height(z))


def humps(alpha: Array, beta: float) -> tuple[Array, Array]:
    """Place and value of the maximum of `alpha m(s, t) - beta^2 (s - t) log(s / t)`, `s + t = 1`.

    For `alpha < -12 beta^2` and the logarithmic mean this is symmetric with two humps; its concave
    envelope is flat between them. Returns the logarithm of the ratio at the hump, and the height.

    >>> ratio, height = humps(np.array([-12.0, -100.0]), 1.0)
    >>> ratio.round(2), height.round(2)
    (array([0.  , 9.99]), array([ -6., -20.]))
    """
    if beta == 0:
        return np.full_like(alpha, np.inf), np.zeros_like(alpha)
    where, height = _hump_table()
    steep = -alpha / beta**2
    inside = np.log(np.minimum(steep, _STEEPEST))
    # Beyond the table one end is empty but for exp(-z): -steep / z - z is largest at its root.
    far, root = steep > _STEEPEST, np.sqrt(steep)
    ratio = np.where(far, root, where(inside))
    return ratio, np.asarray(beta**2 * np.where(far, -2.0 * root, height(inside)))


def dual_bound(
    action: Action, path: Callable[[float], Array], psi: Callable[[float], Array], breaks: Array
) -> tuple[Array, Array, float]:
    """`phi` at the first and the last time, and the cost of its jumps at the other `breaks`.

    Between two breaks `phi` starts from `psi` in the middle. If it diverges, which the equation
    allows over long times, the cost is infinite: the caller tries again with more breaks.
    """
    pieces = []
    for left, right in zip(breaks[:-1], breaks[1:], strict=True):
        middle = 0.5 * (left + right)
        back = _integrated(action, path, psi, middle, left)
        forth = _integrated(action, path, psi, middle, right)
        if back is None or forth is None:
            return np.zeros(0), np.zeros(0), np.inf
        pieces.append((back, forth))
    jumps = (np.max(later[0] - earlier[1]) for earlier, later in pairwise(pieces))
    return pieces[0][0], pieces[-1][1], float(sum(jumps))


def _integrated(
    action: Action,
    path: Callable[[float], Array],
    psi: Callable[[float], Array],
    start: float,
    end: float,
) -> Array | None:
    phi = psi(start)
    span = max(float(np.ptp(phi)), 1e-6)

    def strays(t: float, y: Array) -> float:
        gap = y - psi(t)
        return _STRAY * span - float(np.ptp(gap))

    strays.terminal = True  # type: ignore[attr-defined]
    calls = 0

    def rate(t: float, y: Array) -> Array:
        nonlocal calls
        calls += 1
        # Where a state of the path nearly empties the equation is stiff: no bound from there.
        return (
            np.full_like(y, np.nan) if calls > _MOST_CALLS else hamilton_jacobi(action, path(t), y)
        )

    with np.errstate(over="ignore", invalid="ignore"):  # where it runs away
        found = solve_ivp(
            rate, (start, end), phi, method="DOP853", rtol=1e-9, atol=1e-10 * span, events=strays,
        )  # fmt: skip
    if found.status != 0 or not np.isfinite(found.y[:, -1]).all():
        return None
    return np.asarray(found.y[:, -1])
