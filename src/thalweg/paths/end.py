"""`FreeEnd`: a path whose end is chosen by an energy instead of being given.

The path minimises half its action plus `tau F(q)` at its end `q`: one step of the minimising
movement (JKO). The first-order condition at the end is `psi(1) = -tau f(q)`, up to a constant, with
the first variation `f` of `F`; where the end is empty it is the inequality `psi(1) >= -tau f(q)`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from thalweg._types import Array
from thalweg.energy import Entropy, FreeEnergy
from thalweg.kernel import MarkovKernel

_TINY = 1e-10
"""Entropy added if nothing else keeps densities positive, relative to the potential."""


@dataclass(frozen=True, eq=False)
class FreeEnd:
    """`tau F` as a function of the end, in probabilities or in densities."""

    kernel: MarkovKernel
    energy: FreeEnergy
    tau: float
    extra: float = 0.0
    """A little entropy for energies that let the end reach the boundary of the simplex."""

    def with_entropy(self, extra: float) -> FreeEnd:
        return replace(self, extra=extra)

    @cached_property
    def size(self) -> float:
        """The size of first variations."""
        energy = self.energy
        size = float(np.ptp(energy.potential)) + energy.beta
        size += float(abs(energy.interaction).max()) if energy.interaction is not None else 0.0
        return max(size, 1e-300)

    @cached_property
    def extras(self) -> tuple[float, ...]:
        """Entropies to add in turn; the last is 0, or tiny if `F` lets states run empty."""
        proper = self.energy.beta if isinstance(self.energy.internal, Entropy) else 0.0
        last = 0.0 if proper > 0 else _TINY * self.size
        falling = [self.size * 10.0**-k for k in range(4, 11)]
        return (*(x for x in falling if x > max(0.3 * proper, 3 * last)), last)

    def first_variation(self, end: Array, y: Array) -> Array:
        """`f` at the probabilities `end` with log densities `y`, the extra entropy included."""
        energy = self.energy
        f = energy.external(end) + energy.beta * energy.internal.derivative(y)
        return np.asarray(f + self.extra * y)

    def slope(self, y: Array) -> Array:
        """`tau df / dy` without the interaction."""
        own = self.energy.beta * self.energy.internal.log_slope(y) + self.extra
        return np.asarray(self.tau * np.maximum(own, 1e-300))

    def energy_at(self, end: Array) -> float:
        """`F(end)`, the extra entropy included."""
        pi, energy = self.kernel.stationary, self.energy
        rho = end / pi
        value = float(end @ energy.potential)
        if energy.interaction is not None:
            value += 0.5 * float(end @ (energy.interaction @ end))
        if energy.beta > 0:
            value += energy.beta * float(pi @ energy.internal.value(rho))
        if self.extra > 0:
            value += self.extra * float(end @ np.log(np.maximum(rho, 1e-300)))
        return value

    def value(self, rho: Array) -> float:
        """`tau F` at the density `rho`."""
        return self.tau * self.energy_at(self.kernel.stationary * rho)

    def slopes(self, rho: Array) -> tuple[Array, Array]:
        """The gradient of `value`, and the diagonal part of its curvature."""
        pi, y = self.kernel.stationary, np.log(rho)
        return self.tau * pi * self.first_variation(pi * rho, y), pi * self.slope(y) / rho

    def coupling(self, x: Array) -> Array:
        """The remaining part of the second derivative of `value`, times `x`."""
        if self.energy.interaction is None:
            return np.zeros_like(x)
        pi = self.kernel.stationary
        return np.asarray(self.tau * pi * (self.energy.interaction @ (pi * x)))

    def residual(self, y: Array, final: Array, defect: Array) -> float:
        """Residual of the first-order condition: `final / tau + f` minus its mean.

        It is the root mean square under the end. The mass `defect` that the fluxes bring and the
        end does not have counts as an error `beta log(1 + |defect| / end)` of the first variation.
        """
        end = self.kernel.stationary * np.exp(y)
        mismatch = final / self.tau + self.with_entropy(0.0).first_variation(end, y)
        mismatch = mismatch - end @ mismatch / end.sum()
        lacking = self.energy.beta * np.log1p(np.abs(defect) / np.maximum(end, 1e-300))
        return float(np.sqrt(end @ (mismatch**2 + lacking**2)))
