"""The flow of a population that also multiplies and dies: a rate per state beside transport.

    dm_x / dt = -(M(rho) f)_x + g_x m_x

for masses `m` of any sum. The shares `p = m / sum m` follow `-M f + (g - <g>) p`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import checked, single_threaded
from thalweg._types import Array
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow.integrate import gradient_flow
from thalweg.kernel import MarkovKernel
from thalweg.mobility import Mobility

_LONGEST = 0.03
"""Step times the spread of the rates: the error of the splitting is about a tenth of its square."""
_OVERFLOW = 700.0
"""Logarithm of the largest mass."""
_MOST_STEPS = 2000
"""Largest number of splitting steps between two times."""


@single_threaded
@checked
def growth_flow(
    kernel: MarkovKernel,
    energy: FreeEnergy | None,
    masses: ArrayLike,
    times: ArrayLike,
    *,
    rates: ArrayLike,
    n_steps: int | None = None,
    mobility: Mobility | None = None,
) -> Array:
    """Masses per state at `times`: transport by the energy's flow, births at `rates`.

    Strang splitting, second order: half a step of growth, a step of flow on the shares, half a
    step of growth.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    energy : FreeEnergy or None
        The energy that falls along the flow; `None` for growth alone.
    masses : array
        Mass per state at `times[0]`.
    times : array
        Increasing times.
    rates : array
        Births less deaths per individual and unit of time, one number per state.
    n_steps : int, optional
        Splitting steps between two times; by default so many that no share grows by more than 3 %
        in one.
    mobility : Mobility, optional
        By default the logarithmic mean.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> growth_flow(kernel, None, [1.0, 2.0], [0.0, 1.0], rates=[np.log(2), 0.0])[-1]
    array([2., 2.])
    """
    t = _checks.as_times(times)
    m = _checks.as_vector(masses, kernel.n_states, "masses")
    g = _checks.as_vector(rates, kernel.n_states, "rates")
    if m.min() < 0 or not m.sum() > 0:
        raise InputError("masses must not be negative, nor all zero; correct the counts.")
    if n_steps is not None:
        n_steps = _checks.whole(n_steps, "n_steps", 1)
    if float(g.max()) * (t[-1] - t[0]) + np.log(m.sum()) > _OVERFLOW:
        raise InputError(
            f"at the rate {g.max():g}, masses overflow before time {t[-1]:g}; check the units of "
            "rates and times."
        )
    out = [m]
    fastest = float(np.ptp(g))
    for length in np.diff(t):
        if energy is None:
            m = m * np.exp(length * g)
        else:
            count = n_steps
            if count is None:
                count = int(np.clip(np.ceil(length * fastest / _LONGEST), 1, _MOST_STEPS))
            h = length / count
            for _ in range(count):
                m = m * np.exp(0.5 * h * g)
                total = m.sum()
                path = gradient_flow(
                    kernel, energy, m / total, [0.0, h], rtol=1e-7, mobility=mobility
                )
                m = total * path.probabilities[-1] * np.exp(0.5 * h * g)
        out.append(m)
    return np.array(out)
