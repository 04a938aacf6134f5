"""The path problem in logarithms of the shares, for landscapes so steep that states nearly empty.

With `dp = p (dw - <dw>)` and `<.>` the mean under `p` (at a free end, over the states whose mass is
raised and over the others by themselves), steps multiply shares: none reaches zero, and one that
has come near it leaves again in a few steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from thalweg._types import Array
from thalweg.dynamics.control.action import Moments
from thalweg.dynamics.control.newton import PathProblem

_LONGEST = 1.0
"""Largest change of a logarithm in one step."""


@dataclass(frozen=True, eq=False)
class SteepPathProblem(PathProblem):
    """Changes of the nodes are changes of the logarithms of their shares."""

    def _sums(self, x: Array) -> Array:
        """Sums over the states whose mass is kept together, one entry per state."""
        out = np.repeat(x.sum(axis=1, keepdims=True), x.shape[1], axis=1)
        if self.members is not None:
            for group in (self.members, ~self.members):
                out[-1, group] = x[-1, group].sum()
        return out

    def _means(self, p: Array, x: Array) -> Array:
        return np.asarray(self._sums(p * x) / self._sums(p))

    def gradient(self, nodes: Array, at: Moments) -> Array:
        p, force = nodes[self.free], self.force(nodes, at)
        return np.asarray(p * (force - self._means(p, force)))

    def product(self, nodes: Array, at: Moments, change: Array) -> Array:
        p, force = nodes[self.free], self.force(nodes, at)
        dp = p * (change - self._means(p, change))
        bent = self.bent(nodes, at, dp)
        lag = self._means(p, bent) + self._sums(dp * force) / self._sums(p)
        return np.asarray(dp * (force - self._means(p, force)) + p * (bent - lag))

    def preconditioner(self, nodes: Array, at: Moments) -> Callable[[Array], Array]:
        inner, p = self.averaged(at), nodes[self.free]
        root = np.sqrt(inner.p / p)

        def apply(right: Array) -> Array:
            # The averaged path's changes, scaled to the shares at each time.
            out = inner.modal((right - p * self._sums(right) / self._sums(p)) * root / inner.p)
            out = out * root / inner.p
            return np.asarray(out - self._means(p, out))

        return apply

    def longest(self, nodes: Array, change: Array) -> float:
        p = nodes[self.free]
        return _LONGEST / max(float(np.abs(change - self._means(p, change)).max()), 1e-300)

    def moved(self, nodes: Array, change: Array) -> Array:
        out, p = nodes.copy(), nodes[self.free]
        raised = p * np.exp(change)
        out[self.free] = raised * self._sums(p) / self._sums(raised)
        return out
