"""Populations that multiply or die: a birth rate per state beside transport.

    dp_x / dt = -(M(rho) f)_x + g_x p_x

with `p` of any mass. Given totals at each time, the rate is learned together with the flow: the
likelihood fit explains the shares, and what it leaves over in each state and interval, beside the
growth of the whole, is put down to births and deaths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg import _checks
from thalweg._threads import single_threaded
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import gradient_flow
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.priors import roughness

__all__ = ["GrowthFit", "fit_growth", "growth_flow"]

Array = NDArray[np.float64]

_STEPS = 16
_ROUNDS = 5
_EXPLAINED = 0.5
_NEGLIGIBLE = 0.1


@dataclass(frozen=True, eq=False)
class GrowthFit:
    """A rate per state, and whether transport alone would have done."""

    rates: Array
    stderr: Array
    masses: Array
    """Predicted masses per state at the times, each interval from the one before."""
    transport_error: float
    """Mean Hellinger distance a step of the shares, by transport alone."""
    error: float
    """The same with the source term."""
    persistence_error: float
    transports: bool
    """Whether there was an energy beside the source term."""
    total_growth: float
    """The rate at which the whole population grows."""

    @property
    def diagnosis(self) -> str:
        """One sentence: can mass-conserving transport explain the data?"""
        figures = (
            f"Hellinger distance of the shares a step: transport alone {self.transport_error:.3g}, "
            f"with births and deaths {self.error:.3g}, no change {self.persistence_error:.3g}"
        )
        whole = f"the whole grows by {self.total_growth:.3g} per unit of time, which no flow does; "
        figures = whole * (abs(self.total_growth) > 0) + figures
        if not self.transports:
            return f"births and deaths alone were fitted, no transport; {figures}."
        if self.transport_error >= self.persistence_error:
            return (
                "mass-conserving transport cannot explain the data: it predicts the next snapshot "
                f"no better than no change; use the source term; {figures}."
            )
        left = self.transport_error > _NEGLIGIBLE * self.persistence_error
        if left and self.error < _EXPLAINED * self.transport_error:
            return (
                "mass-conserving transport explains the data in part only: births and deaths "
                f"halve what it leaves over; {figures}."
            )
        return f"mass-conserving transport explains the shares; {figures}."


@single_threaded
def growth_flow(
    kernel: MarkovKernel,
    energy: FreeEnergy | None,
    masses: ArrayLike,
    times: ArrayLike,
    *,
    rates: ArrayLike,
    n_steps: int = _STEPS,
) -> Array:
    """Masses per state at `times`: transport by the energy's flow, births at `rates`.

    Strang splitting, second order: half a step of growth, a step of flow on the shares, half a
    step of growth. `energy=None` is growth alone.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> growth_flow(kernel, None, [1.0, 2.0], [0.0, 1.0], rates=[np.log(2), 0.0])[-1]
    array([2., 2.])
    """
    t = _checks.as_times(times)
    m = _checks.as_vector(masses, kernel.n_states, "masses")
    g = _checks.as_vector(rates, kernel.n_states, "rates")
    if m.min() < 0 or not m.sum() > 0:
        raise InputError("masses must not be negative, nor all zero; mend the counts.")
    out = [m]
    for length in np.diff(t):
        if energy is None:
            m = m * np.exp(length * g)
        else:
            h = length / n_steps
            for _ in range(n_steps):
                m = m * np.exp(0.5 * h * g)
                total = m.sum()
                path = gradient_flow(kernel, energy, m / total, [0.0, h], rtol=1e-7)
                m = total * path.probabilities[-1] * np.exp(0.5 * h * g)
        out.append(m)
    return np.array(out)


@single_threaded
def fit_growth(
    kernel: MarkovKernel,
    times: ArrayLike,
    masses: ArrayLike,
    *,
    energy: FreeEnergy | None = None,
    rates: ArrayLike | None = None,
    smoothness: float = 0.0,
) -> GrowthFit:
    """Birth rates per state from masses (counts with their true totals) at several times.

    Given `rates` are used as they are. Otherwise `g_x` is the rate under which, over all intervals
    weighted by length, `log` (mass seen) less `log` (mass predicted) is zero on average, smoothed
    along the graph by `smoothness`; its standard error is that of the mean over intervals.
    """
    t = _checks.as_times(times, minimum=2)
    seen = _checks.as_array(masses, "masses")
    n = kernel.n_states
    if seen.shape != (t.size, n):
        raise InputError(f"masses have shape {seen.shape}; give ({t.size}, {n}).")
    if seen.min() <= 0:
        k, x = np.unravel_index(int(np.argmin(seen)), seen.shape)
        raise InputError(
            f"masses[{k}, {x}] is {seen[k, x]:g}; growth is a ratio: smooth the counts first."
        )
    lengths = np.diff(t)
    moved = _grown(kernel, energy, seen, t, np.zeros(n))
    slopes = np.log(seen[1:] / moved) / lengths[:, None]
    share = lengths / lengths.sum()
    if rates is None:
        g = share @ slopes
        for _ in range(_ROUNDS):
            g = g + share @ (
                np.log(seen[1:] / _grown(kernel, energy, seen, t, g)) / lengths[:, None]
            )
        spread = np.sqrt(share @ (slopes - share @ slopes) ** 2 / max(t.size - 2, 1))
        stderr = spread if t.size > 2 else np.full(n, np.nan)
        if smoothness > 0:
            g = np.linalg.solve(np.eye(n) + smoothness * roughness(kernel), g)
    else:
        g, stderr = _checks.as_vector(rates, n, "rates"), np.zeros(n)
    grown = _grown(kernel, energy, seen, t, g)
    return GrowthFit(
        g,
        stderr,
        np.vstack([seen[:1], grown]),
        _mean_hellinger(moved, seen[1:]),
        _mean_hellinger(grown, seen[1:]),
        _mean_hellinger(seen[:-1], seen[1:]),
        energy is not None,
        float(np.log(seen[-1].sum() / seen[0].sum()) / (t[-1] - t[0])),
    )


def _grown(
    kernel: MarkovKernel, energy: FreeEnergy | None, seen: Array, t: Array, rates: Array
) -> Array:
    """Each snapshot carried to the time of the next."""
    steps = [
        growth_flow(kernel, energy, seen[k], t[k : k + 2], rates=rates)[-1]
        for k in range(t.size - 1)
    ]
    return np.array(steps)


def _mean_hellinger(a: Array, b: Array) -> float:
    p, q = a / a.sum(axis=1, keepdims=True), b / b.sum(axis=1, keepdims=True)
    gap = 0.5 * ((np.sqrt(p) - np.sqrt(q)) ** 2).sum(axis=1)
    return float(np.sqrt(gap).mean())
