"""From counts to probabilities: smoothers, and the mass they add."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from thalweg import _checks
from thalweg._door import checked, single_threaded
from thalweg._sparse import dense
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.snapshots.heat import heat_flow, select_bandwidth
from thalweg.snapshots.snapshots import Snapshots


@dataclass(frozen=True, eq=False)
class DensityEstimate:
    """Probabilities at each time, and what the smoother did to get them."""

    times: Array
    probabilities: Array
    """One row per time."""
    added_mass: Array
    """Per time, the probability on states where no individual was seen."""
    moved_mass: Array
    """Per time, the total-variation distance to the raw frequencies."""
    bandwidth: float | None = None
    """Bandwidth of the heat kernel; `None` for a smoother without one."""

    def __repr__(self) -> str:
        width = "" if self.bandwidth is None else f", bandwidth={self.bandwidth:.4g}"
        return (
            f"DensityEstimate(n_times={self.times.size}, n_states={self.probabilities.shape[1]}, "
            f"added_mass up to {self.added_mass.max():.3g}{width})"
        )


def smoothed(counts: Array, pseudo: float = 0.5) -> Array:
    """Counts plus `pseudo` in every state, as probabilities along the last axis.

    >>> smoothed(np.array([3.0, 0.0]))
    array([0.875, 0.125])
    """
    c = counts + pseudo
    return np.asarray(c / c.sum(axis=-1, keepdims=True))


class Smoother(ABC):
    """A way to turn counts into positive probabilities."""

    @abstractmethod
    def smooth(self, kernel: MarkovKernel, snapshots: Snapshots) -> tuple[Array, float | None]:
        """Probabilities, one row per time, and the bandwidth if there is one."""


@dataclass(frozen=True)
class Dirichlet(Smoother):
    """Smoothing by `alpha` pseudo-counts per state: `p = (c + alpha N b) / (n + alpha N)`.

    Parameters
    ----------
    alpha : float
        Pseudo-counts per state; 1/2 is Jeffreys' choice. With fewer individuals than states this
        adds more mass than was seen: use a smaller value, or `HeatKernel`.
    base : {"uniform", "stationary"}
        `b = 1 / N`, so that every state gets `alpha`; or `b = pi`, the same total distributed like
        the kernel's stationary distribution.
    """

    alpha: float = 0.5
    base: Literal["uniform", "stationary"] = "uniform"

    def __post_init__(self) -> None:
        _checks.positive(self.alpha, "alpha", zero=True)
        if self.base not in ("uniform", "stationary"):
            raise InputError(f"base is {self.base!r}; choose 'uniform' or 'stationary'.")

    def smooth(self, kernel: MarkovKernel, snapshots: Snapshots) -> tuple[Array, float | None]:
        n = kernel.n_states
        base = np.full(n, 1 / n) if self.base == "uniform" else kernel.stationary
        pseudo = self.alpha * n
        p = (dense(snapshots.counts) + pseudo * base) / (snapshots.sizes[:, None] + pseudo)
        return np.asarray(p), None


@dataclass(frozen=True)
class HeatKernel(Smoother):
    """Smoothing by diffusion for a time `s` along the graph: `p = f^T exp(-s (I - K))`.

    `f` are the raw frequencies.

    Parameters
    ----------
    bandwidth : float or "auto"
        `s`, the expected number of jumps of an individual; `"auto"` takes the one, for all times
        together, under which individuals are best predicted by the others (leave-one-out
        likelihood; see `select_bandwidth`).
    background : float
        Pseudo-individuals, distributed like the stationary distribution, which keep states positive
        that the heat has not reached.
    """

    bandwidth: float | Literal["auto"] = "auto"
    background: float = 0.5

    def __post_init__(self) -> None:
        if self.bandwidth != "auto":
            _checks.positive(self.bandwidth, "bandwidth", zero=True)
        _checks.positive(self.background, "background", zero=True)

    def smooth(self, kernel: MarkovKernel, snapshots: Snapshots) -> tuple[Array, float | None]:
        counts = dense(snapshots.counts)
        if self.bandwidth == "auto":
            s = select_bandwidth(kernel, counts, self.background)
        else:
            s = float(self.bandwidth)
        mass = heat_flow(kernel, counts, s) + self.background * kernel.stationary
        return np.asarray(mass / mass.sum(axis=1, keepdims=True)), s


@single_threaded
@checked
def estimate_probabilities(
    kernel: MarkovKernel, snapshots: Snapshots, *, smoother: Smoother | None = None
) -> DensityEstimate:
    """The probabilities behind the counts, one row per time.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    snapshots : Snapshots
        Counts at times.
    smoother : Smoother, optional
        How counts become positive probabilities; by default `Dirichlet(0.5)`.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> seen = Snapshots.from_counts([0, 1], [[6, 2, 0], [3, 3, 2]])
    >>> estimate = estimate_probabilities(kernel, seen, smoother=Dirichlet(0.5))
    >>> estimate.probabilities.round(3)
    array([[0.684, 0.263, 0.053],
           [0.368, 0.368, 0.263]])
    >>> estimate.added_mass.round(3)
    array([0.053, 0.   ])
    """
    if snapshots.n_states != kernel.n_states:
        raise InputError(
            f"the snapshots have {snapshots.n_states} states, but the kernel has "
            f"{kernel.n_states}; count on the kernel's states."
        )
    smoother = Dirichlet() if smoother is None else smoother
    p, bandwidth = smoother.smooth(kernel, snapshots)
    raw = dense(snapshots.frequencies)
    added = np.where(raw > 0, 0.0, p).sum(axis=1)
    moved = 0.5 * abs(p - raw).sum(axis=1)
    return DensityEstimate(snapshots.times, p, added, moved, bandwidth)
