"""`simulate`: finite populations that follow a free energy, observed at given times.

An individual at `x` jumps to `y` with rate `Q_xy = K_xy m_xy / rho_x [f_x - f_y]_+`, `f` the first
variation of the free energy: down `f`, so that the free energy falls (the paper prints the opposite
sign). `rho` is either the flow's own density, or that of the population itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.special import gammaln, pdtrc

from thalweg import _checks
from thalweg._door import checked, single_threaded
from thalweg._types import Array, Counts
from thalweg.edges.fluxes import Drive
from thalweg.edges.static import Graph
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import particle_loops as loops
from thalweg.flow.integrate import gradient_flow
from thalweg.flow.rates import net_fluxes
from thalweg.kernel import MarkovKernel
from thalweg.mobility import Mobility, as_mobility
from thalweg.snapshots.snapshots import DENSE_LIMIT, Snapshots

_DENSE_STATES = 200
"""Number of states up to which frozen steps use dense matrices."""
_FASTEST_DENSE = 1e8
"""Largest rate per step with dense matrices."""
_FASTEST_SPARSE = 1e3
"""Largest rate per step by uniformisation."""
_STEP = 0.01
"""Default time step."""
_MATRIX_STEPS = 48
"""Steps per interval of exact transition matrices."""
_CHUNK = 50
"""Number of steps along the flow computed at once."""


@single_threaded
@checked
def simulate(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p0: ArrayLike,
    times: ArrayLike,
    n_particles: int | ArrayLike,
    *,
    rng: np.random.Generator,
    method: Literal["exact", "tau-leap", "frozen"] = "exact",
    rates: Literal["mean-field", "empirical"] = "mean-field",
    mobility: Mobility | None = None,
    dt: float | None = None,
    tracked: bool = True,
    pseudo_count: float = 0.5,
) -> Snapshots:
    """Counts of a simulated population at `times`, drawn from `p0` at the first of them.

    While rates are held, no individual leaves an empty state: that is the limit of its rates for
    `beta > 0`. Rates above 1e3 per step (1e8 up to 200 states) are cut to that; such states are
    occupied for a thousandth of a step only.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    energy : FreeEnergy
        The energy that drives the population.
    p0 : array
        Probabilities of the states at the first time.
    times : array
        Increasing times of the snapshots.
    n_particles : int or list of int
        Number of individuals; with `tracked=False` it may be a list, one number per time.
    method : {"exact", "tau-leap", "frozen"}
        `"exact"` simulates every jump: in mean-field rates, held over steps of at most `dt` at the
        flow's value in their middle, second order in `dt`; in empirical rates by Gillespie's
        algorithm, without a time step. `"tau-leap"` takes steps of at most `dt`, in each of which
        an individual leaves at most once, first order in `dt`. `"frozen"`, the paper's, holds
        rates from one time to the next (or over steps of at most `dt`) at the initial
        distribution, and moves individuals by `exp(dt Q)`; over long intervals this differs from
        the flow.
    rates : {"mean-field", "empirical"}
        The density in `Q`: that of the infinite population (for `"frozen"` the recursion
        `p <- p exp(dt Q(p))`, else the gradient flow), so that individuals are independent; or
        that of the population itself.
    pseudo_count : float
        Added to every state for empirical rates, because under the logarithmic mean no potential
        can push an individual into an empty state.
    dt : float, optional
        Longest step in time; 0.01 by default, and the interval between times for `"frozen"`.
    tracked : bool
        Whether to follow the same individuals (the default), or to draw every snapshot anew from
        the distribution at its time.
    mobility : Mobility, optional
        By default the logarithmic mean.
    rng : numpy.random.Generator
        Source of random numbers.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> energy = FreeEnergy([0.0, 1.0, 0.0], beta=0.5)
    >>> seen = simulate(
    ...     kernel, energy, [0.8, 0.1, 0.1], [0, 1, 2], 1000, rng=np.random.default_rng(0)
    ... )
    >>> seen.sizes
    array([1000., 1000., 1000.])
    """
    population = _Population(
        kernel,
        energy,
        as_mobility(mobility),
        method,
        rates,
        _checks.positive(pseudo_count, "pseudo_count", zero=True),
        None if dt is None else _checks.positive(dt, "dt"),
        _checks.generator(rng),
    )
    p = _checks.as_probability(p0, kernel.n_states, "p0")
    t = _checks.as_times(times)
    sizes = _sizes(n_particles, t.size, tracked)
    if tracked:
        rows = population.followed(p, t, int(sizes[0]))
    else:
        rows = population.caught(p, t, sizes)
    if t.size * kernel.n_states <= DENSE_LIMIT:
        return Snapshots.from_counts(t, np.array(list(rows)), names=kernel.names)
    table = sparse.vstack([sparse.csr_array(row[None]) for row in rows], format="csr")
    return Snapshots.from_counts(t, table, names=kernel.names)


def transition_matrices(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p0: Array,
    times: Array,
    *,
    method: Literal["exact", "frozen"] = "exact",
    mobility: Mobility,
) -> Array:
    """How an individual moves from one time to the next in the rates of the infinite population.

    `"exact"` holds the flow's rates over 48 steps per interval, with an error of second order;
    `"frozen"` holds them over each interval. At rest nobody moves, so errors stay.

    >>> from thalweg.mobility import LogMean
    >>> kernel, energy = MarkovKernel.from_weights([[0, 1], [1, 0]]), FreeEnergy([0.0, 0.0], 1.0)
    >>> p = np.array([1.0, 0.0])
    >>> transition_matrices(kernel, energy, p, [0.0, 9.0], mobility=LogMean())[0].round(3)
    array([[0.5, 0.5],
           [0. , 1. ]])
    """
    rng = np.random.default_rng(0)  # nothing is drawn
    population = _Population(kernel, energy, mobility, method, "mean-field", 0.0, None, rng)
    p, out = p0, []
    for start, stop in zip(times[:-1], times[1:], strict=True):
        if method == "frozen":
            matrix = population._transition(p, stop - start)
            p = p @ matrix
        else:
            # Shorter at first, where the flow is fastest.
            grid = (stop - start) * np.linspace(0.0, 1.0, _MATRIX_STEPS + 1) ** 3
            middles = 0.5 * (grid[1:] + grid[:-1])
            ps = population._flow(p, np.concatenate([[0.0], middles, grid[-1:]]))
            matrix = np.eye(kernel.n_states)
            for middle, h in zip(ps[1:-1], np.diff(grid), strict=True):
                matrix = matrix @ population._transition(middle, float(h))
            p = ps[-1]
        out.append(matrix)
    return np.array(out)


def _sizes(n_particles: int | ArrayLike, n_times: int, tracked: bool) -> Counts:
    _checks.as_array(n_particles, "n_particles")
    numbers = np.atleast_1d(np.asarray(n_particles))
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1 or numbers.min() < 1:
        raise InputError(f"n_particles is {n_particles!r}; give a positive integer.")
    if numbers.size == 1:
        return np.full(n_times, numbers[0], dtype=np.int64)
    if tracked:
        raise InputError(
            f"{numbers.size} numbers of particles for one tracked population; give a single "
            "number, or tracked=False."
        )
    if numbers.size != n_times:
        raise InputError(
            f"{numbers.size} numbers of particles for {n_times} times; give one number per time."
        )
    return numbers.astype(np.int64)


@dataclass(frozen=True)
class _Population:
    """The kernel, the energy and the choices of one simulation."""

    kernel: MarkovKernel
    energy: FreeEnergy
    mobility: Mobility
    method: str
    rates: str
    pseudo: float
    dt: float | None
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.energy._check(self.kernel)
        for name, value, known in (
            ("method", self.method, ("frozen", "tau-leap", "exact")),
            ("rates", self.rates, ("mean-field", "empirical")),
        ):
            if value not in known:
                raise InputError(f"{name} is {value!r}; choose {' or '.join(map(repr, known))}.")
        gillespie = self.method == "exact" and self.rates == "empirical"
        if gillespie and self.energy.interaction is not None:
            raise InputError(
                "with an interaction, every jump changes the rates everywhere, which exact "
                "empirical jumps cannot afford; use method='tau-leap'."
            )

    # ---------------------------------------------------------------- the two kinds of snapshots

    def caught(self, p: Array, times: Array, sizes: Counts) -> Iterator[Counts]:
        """Independent snapshots: multinomial draws from the mean-field distribution."""
        if self.rates == "empirical":
            raise InputError(
                "snapshots of different individuals have no population to take empirical rates "
                "from; use rates='mean-field', or tracked=True."
            )
        if self.method == "frozen":
            ps, nobody = [p], np.zeros(p.size, dtype=np.int64)
            for interval in np.diff(times):
                p, _ = self._stepwise(p, nobody, float(interval))
                ps.append(p)
        else:
            ps = list(self._flow(p, times))
        for row, size in zip(ps, sizes, strict=True):
            yield self.rng.multinomial(size, row / row.sum())

    def followed(self, p: Array, times: Array, size: int) -> Iterator[Counts]:
        """One population, observed at every time."""
        counts = self.rng.multinomial(size, p).astype(np.int64)
        yield counts
        for interval in np.diff(times).tolist():
            if self.rates == "mean-field" and self.method != "frozen":
                p, counts = self._along_the_flow(p, counts, interval)
            elif self.rates == "empirical" and self.method == "exact":
                counts = self._every_jump(counts, interval)
            else:
                p, counts = self._stepwise(p, counts, interval)
            yield counts

    # ---------------------------------------------------------------- one interval

    def _steps(self, interval: float) -> tuple[int, float]:
        step = self.dt
        if step is None:
            step = interval if self.method == "frozen" else _STEP
        n_steps = max(1, math.ceil(interval / step * (1 - 1e-9)))
        return n_steps, interval / n_steps

    def _along_the_flow(self, p: Array, counts: Counts, interval: float) -> tuple[Array, Counts]:
        """Steps in the rates that the gradient flow has in the middle of each."""
        n_steps, h = self._steps(interval)
        for first in range(0, n_steps, _CHUNK):
            n = min(_CHUNK, n_steps - first)
            ps = self._flow(p, h * np.concatenate([[0.0], np.arange(n) + 0.5, [n]]))
            for middle in ps[1:-1]:
                counts = self._move(middle, counts, h)
            p = ps[-1]
        return p, counts

    def _every_jump(self, counts: Counts, interval: float) -> Counts:
        """Gillespie's algorithm in the rates of the population itself."""
        counts = counts.copy()
        loops.gillespie(
            self.kernel.adjacency,
            Graph.of(self.kernel, self.mobility),
            Drive.of(self.energy, self.mobility, counts.astype(np.float64)),
            counts,
            self.pseudo,
            interval,
            self.rng,
        )
        return counts

    def _stepwise(self, p: Array, counts: Counts, interval: float) -> tuple[Array, Counts]:
        """Steps in the rates at the start of each, which are those of the counts if empirical."""
        n_steps, h = self._steps(interval)
        for _ in range(n_steps):
            if self.rates == "empirical":
                p = (counts + self.pseudo) / (counts.sum() + self.pseudo * counts.size)
            if self.method == "frozen":
                p, counts = self._frozen_step(p, counts, h)
            else:
                counts = self._move(p, counts, h)
        return p, counts

    # ---------------------------------------------------------------- one step

    def _flow(self, p: Array, times: Array) -> Array:
        flow = gradient_flow(
            self.kernel, self.energy, p, times, mobility=self.mobility, rtol=1e-6, throw=True
        )
        return flow.probabilities

    def _jumps(self, p: Array, fastest: float) -> loops.Jumps:
        flux = net_fluxes(self.kernel, self.energy, p, self.mobility)
        source = self.kernel.edges.source
        return loops.slot_rates(self.kernel.adjacency, source, flux, p, fastest)

    def _move(self, p: Array, counts: Counts, h: float) -> Counts:
        """Move individuals for a time `h` in the rates at `p`, by leaps or by exact jumps."""
        jumps = self._jumps(p, _FASTEST_SPARSE / h)
        if self.method == "tau-leap":
            return np.asarray(loops.leap(jumps, counts, h, self.rng))
        clock = float(jumps.leaving.max())
        if clock == 0:
            return counts
        return np.asarray(loops.jump(jumps, counts, _ticks(clock * h)[1], clock, self.rng))

    def _frozen_step(self, p: Array, counts: Counts, h: float) -> tuple[Array, Counts]:
        """`p exp(h Q(p))`, and the counts moved by the same matrix."""
        if self.kernel.n_states <= _DENSE_STATES:
            transition = self._transition(p, h)
            held = np.flatnonzero(counts)
            moved = self.rng.multinomial(counts[held], transition[held]).sum(axis=0)
            after = p @ transition
            return after / after.sum(), moved.astype(np.int64)
        jumps = self._jumps(p, _FASTEST_SPARSE / h)
        clock = float(jumps.leaving.max())
        if clock == 0:
            return p, counts
        weights, stop = _ticks(clock * h)
        counts = loops.jump(jumps, counts, stop, clock, self.rng)
        onward = sparse.csr_array(_tick(jumps, clock).T)
        after = weights[0] * p
        for weight in weights[1:]:
            p = onward @ p
            after += weight * p
        return np.asarray(after / after.sum()), counts

    def _transition(self, p: Array, h: float) -> Array:
        """`exp(h Q)` without subtractions: a short positive series, squared; rows sum to one."""
        jumps = self._jumps(p, _FASTEST_DENSE / h)
        clock = max(float(jumps.leaving.max()), 1e-300)
        squarings = max(0, math.ceil(math.log2(max(clock * h, 1e-300))))
        tick = _tick(jumps, clock).toarray()
        out, power = np.zeros(tick.shape), np.eye(len(tick))
        for weight in _ticks(clock * h / 2.0**squarings)[0]:
            out += weight * power
            power = power @ tick
        for k in range(squarings + 1):
            out /= out.sum(axis=1, keepdims=True)
            if k < squarings:
                out = out @ out
        return out


def _tick(jumps: loops.Jumps, clock: float) -> sparse.csr_array:
    """Where an individual is after one tick of a clock faster than every state: by rows."""
    (indptr, neighbor, _), rate, leaving = jumps
    moves = sparse.csr_array((rate / clock, neighbor, indptr), shape=(leaving.size,) * 2)
    return sparse.csr_array(moves + sparse.diags_array(np.maximum(1 - leaving / clock, 0.0)))


def _ticks(mean: float) -> tuple[Array, Array]:
    """Probabilities of `j` ticks of a Poisson clock, and of stopping at `j` having reached it."""
    last = int(mean + 9 * math.sqrt(mean) + 20)
    j = np.arange(last + 1)
    weights = np.exp(j * math.log(mean) - mean - gammaln(j + 1))
    so_far = np.append(1.0, pdtrc(j[:-1], mean))
    stop = np.divide(weights, so_far, out=np.ones(last + 1), where=so_far > 0)
    stop[-1] = 1.0
    return np.asarray(weights / weights.sum()), np.minimum(stop, 1.0)
