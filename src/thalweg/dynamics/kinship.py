"""Where the individuals of a state will be, and where they came from: the chain along the flow.

The rates of one individual depend on the population (see `walk`), whose flow `p(t)` is known. The
law of an individual then follows a linear equation, `r_dot = r Q(p(t))`. Over a short step it is
the exponential of the rates at the step's middle (second order, positive, mass kept); the step is
halved until the answer no longer moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import expm
from scipy.sparse.linalg import LinearOperator, expm_multiply

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.dynamics.landscape import Estimate, Landscape, as_states, differences, estimate
from thalweg.dynamics.walk import DENSE_STATES, Rates, transition_rates
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import gradient_flow
from thalweg.kernel import MarkovKernel
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd

_FIRST_STEPS = 8
"""Number of steps of the first answer, which is then refined."""
_MOST_STEPS = 512
"""Largest number of steps along the flow."""
_MOST_WORK = 2e5
"""Norm of rates times time above which the sparse exponential is rejected."""


@dataclass(frozen=True, eq=False)
class Chain:
    """The rates of one individual over consecutive steps of a known flow."""

    steps: Array
    rates: tuple[sparse.csr_array, ...]

    def forward(self, rows: Array) -> Array:
        """Laws after the last step, one row each."""
        for h, q in zip(self.steps, self.rates, strict=True):
            rows = _exponential_row(rows, q, float(h))
        return rows

    def backward(self, columns: Array) -> Array:
        """Expectations before the first step of functions after the last, one column each."""
        for h, q in zip(self.steps[::-1], self.rates[::-1], strict=True):
            columns = _exponential_row(columns.T, sparse.csr_array(q.T), float(h)).T
        return columns


def _exponential_row(rows: Array, q: sparse.csr_array, h: float) -> Array:
    n = q.shape[0]
    if n <= DENSE_STATES:
        return np.asarray(rows @ expm(h * q.toarray()))
    norm = h * float(np.abs(q.diagonal()).max())
    if norm > _MOST_WORK:
        raise InputError(
            f"an individual would jump about {norm:.3g} times within one step; ask for a shorter "
            "time."
        )
    out = expm_multiply(h * sparse.csc_array(q.T), rows.T, traceA=h * float(q.diagonal().sum())).T
    return np.asarray(np.maximum(out, 0.0))


@dataclass(frozen=True, eq=False)
class Kinship:
    """The law of individuals at another time, with errors from the uncertainty of the landscape."""

    kernel: MarkovKernel
    start: float
    end: float
    probabilities: Estimate

    @property
    def status(self) -> Status:
        return self.probabilities.status

    def to_frame(self) -> pd.DataFrame:
        """One row per state."""
        return self.probabilities.to_frame(self.kernel.labels).rename(columns={"name": "state"})


@dataclass(frozen=True, eq=False)
class _Question:
    """A span of time of one individual, in a population that flows from `p`, or rests."""

    landscape: Landscape
    p: Array | None
    times: Array
    rates: Rates

    @classmethod
    def of(
        cls, landscape: Landscape, p0: ArrayLike | None, times: ArrayLike, rates: Rates
    ) -> _Question:
        span = _checks.as_times(times, "times", minimum=2)
        if span.size != 2:
            raise InputError(f"times has {span.size} entries; give the start and the end.")
        n = landscape.kernel.n_states
        p = None if p0 is None else _checks.as_probability(p0, n, "p0")
        return cls(landscape, p, span, rates)

    def chain(self, n_steps: int, energy: FreeEnergy | None = None) -> tuple[Chain, Status]:
        """The chain over equal steps of the flow; at rest one step is exact."""
        energy = self.landscape.energy if energy is None else energy
        kernel, mobility = self.landscape.kernel, self.landscape.mobility
        if self.p is None:
            q = transition_rates(kernel, energy, mobility=mobility, rates=self.rates)
            return Chain(np.diff(self.times), (q,)), Status.CONVERGED
        start, end = self.times
        grid = np.linspace(start, end, 2 * n_steps + 1)
        flow = gradient_flow(kernel, energy, self.p, grid, mobility=mobility, rtol=1e-9)
        between = tuple(
            transition_rates(kernel, energy, p, mobility=mobility, rates=self.rates)
            for p in flow.probabilities[1::2]
        )
        return Chain(np.diff(grid[::2]), between), flow.status

    def refined(self, law: Callable[[Chain], Array], tolerance: float) -> tuple[Array, int, Status]:
        """The law for more and more steps, extrapolated, until it changes by less than `tolerance`.

        Also returns the number of steps, and the status.
        """
        n_steps = _FIRST_STEPS
        chain, status = self.chain(n_steps)
        coarse = law(chain)
        if self.p is None:
            return coarse, 1, status
        while True:
            n_steps *= 2
            chain, status = self.chain(n_steps)
            fine = law(chain)
            change = (fine - coarse) / 3  # the error of the midpoint rates is of second order
            if np.abs(change).max() < tolerance:
                return fine + change, n_steps, status
            if n_steps >= _MOST_STEPS:
                return fine + change, n_steps, Status.MAX_STEPS
            coarse = fine

    def answer(self, law: Callable[[Chain], Array], tolerance: float, level: float) -> Kinship:
        """The law with its error."""
        value, n_steps, status = self.refined(law, tolerance)
        value = np.maximum(value, 0.0)
        value /= value.sum()
        tangents = None
        if self.landscape.has_errors:
            rough = max(_FIRST_STEPS, n_steps // 4)
            tangents = differences(
                self.landscape, lambda energy: law(self.chain(rough, energy)[0]), most=32
            )
        found = estimate(value, tangents, scale="probability", level=level, status=status)
        first, last = self.times
        return Kinship(self.landscape.kernel, float(first), float(last), found)


@single_threaded
def descendants(
    landscape: Landscape,
    states: Any,
    p0: ArrayLike,
    times: tuple[float, float],
    *,
    rates: Rates = "reversible",
    tolerance: float = 1e-6,
    level: float = 0.95,
) -> Kinship:
    """The law at `times[1]` of the individuals in `states` at `times[0]`.

    Parameters
    ----------
    landscape : Landscape
        Kernel, energy and its uncertainty.
    states : state or states
        The states of the individuals, in proportion to the population there.
    p0 : array
        The whole population at `times[0]`, taken as known.
    times : (float, float)
        Start and end.
    rates : {"reversible", "downhill"}
        Which jumps carry the flow; see `thalweg.dynamics.walk`.
    tolerance : float
        Error of the probabilities in the integration over time.
    level : float
        Level of the intervals.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> pair = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> flat = Landscape(pair, FreeEnergy([0.0, 0.0], beta=1.0))
    >>> descendants(flat, 0, [0.3, 0.7], (0.0, 50.0)).probabilities.value.round(6)
    array([0.5, 0.5])
    """
    here = as_states(landscape.kernel, states, "states")
    p = _checks.as_probability(p0, landscape.kernel.n_states, "p0")
    if p[here].sum() <= 0:
        raise InputError(
            "no individual is in these states at the first time, so they have no descendants; "
            "choose states that are occupied."
        )
    r = np.zeros_like(p)
    r[here] = p[here] / p[here].sum()
    question = _Question.of(landscape, p, times, rates)
    return question.answer(lambda chain: chain.forward(r[None])[0], tolerance, level)


@single_threaded
def ancestors(
    landscape: Landscape,
    states: Any,
    p0: ArrayLike,
    times: tuple[float, float],
    *,
    rates: Rates = "reversible",
    tolerance: float = 1e-6,
    level: float = 0.95,
) -> Kinship:
    """The law at `times[0]` of the individuals in `states` at `times[1]`.

    By Bayes' rule, `p0_x P(x, states)`, with the backward equation of the chain along the flow.
    The parameters are those of `descendants`.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> pair = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> flat = Landscape(pair, FreeEnergy([0.0, 0.0], beta=1.0))
    >>> ancestors(flat, 0, [0.3, 0.7], (0.0, 50.0)).probabilities.value.round(6)
    array([0.3, 0.7])
    """
    there = as_states(landscape.kernel, states, "states")
    p = _checks.as_probability(p0, landscape.kernel.n_states, "p0")
    indicator = np.zeros_like(p)
    indicator[there] = 1.0

    def law(chain: Chain) -> Array:
        weight = p * chain.backward(indicator[:, None])[:, 0]
        return np.asarray(weight / weight.sum())

    return _Question.of(landscape, p, times, rates).answer(law, tolerance, level)


@single_threaded
def transition_matrix(
    landscape: Landscape,
    p0: ArrayLike | None,
    times: tuple[float, float],
    *,
    rates: Rates = "reversible",
    tolerance: float = 1e-6,
) -> Array:
    """`P[x, y]`: the probability that an individual in `x` at `times[0]` is in `y` at `times[1]`.

    Parameters
    ----------
    landscape : Landscape
        Kernel and energy; at most `DENSE_STATES` states (above, use `transition_operator`).
    p0 : array or None
        The population at `times[0]`; `None` for the population at rest.
    times : (float, float)
        Start and end.
    rates : {"reversible", "downhill"}
        Which jumps carry the flow.
    tolerance : float
        Error of the probabilities in the integration along the flow.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> pair = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> flat = Landscape(pair, FreeEnergy([0.0, 0.0], beta=1.0))
    >>> transition_matrix(flat, None, (0.0, 1.0)).round(4)
    array([[0.5677, 0.4323],
           [0.4323, 0.5677]])
    """
    n = landscape.kernel.n_states
    if n > DENSE_STATES:
        raise InputError(
            f"a transition matrix of {n} states is dense with {n * n:.3g} entries; use "
            "transition_operator, descendants or ancestors, which never form it."
        )
    question = _Question.of(landscape, p0, times, rates)
    value, _, status = question.refined(lambda chain: chain.forward(np.eye(n)), tolerance)
    status.check()
    out = np.maximum(value, 0.0)
    return np.asarray(out / out.sum(axis=1, keepdims=True))


@single_threaded
def transition_operator(
    landscape: Landscape,
    p0: ArrayLike | None,
    times: tuple[float, float],
    *,
    rates: Rates = "reversible",
    n_steps: int = 64,
) -> LinearOperator:
    """The transition matrix of `transition_matrix` as an operator, for any number of states.

    `operator @ g` is the expectation of `g` at the end from each state at the start;
    `operator.T @ r` carries the law `r` from the start to the end. At rest one step is exact; along
    the flow the error falls with the square of `n_steps`. The other parameters are those of
    `transition_matrix`.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> pair = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> flat = Landscape(pair, FreeEnergy([0.0, 0.0], beta=1.0))
    >>> (transition_operator(flat, None, (0.0, 1.0)).T @ [1.0, 0.0]).round(4)
    array([0.5677, 0.4323])
    """
    chain, status = _Question.of(landscape, p0, times, rates).chain(n_steps)
    status.check()
    n = landscape.kernel.n_states
    return LinearOperator(
        (n, n),
        matvec=lambda g: chain.backward(np.reshape(g, (n, 1)))[:, 0],
        rmatvec=lambda r: chain.forward(np.reshape(r, (1, n)))[0],
        dtype=np.float64,
    )


@dataclass(frozen=True, eq=False)
class Streams:
    """Shares of groups at each time, and the streams between them."""

    times: Array
    shares: Array
    """`(times, groups)`."""
    moved: Array
    """`moved[k, a, b]`: the share that is in `a` at time `k` and in `b` at the next."""


@single_threaded
def streams(
    landscape: Landscape,
    p0: ArrayLike,
    times: ArrayLike,
    labels: ArrayLike,
    *,
    rates: Rates = "reversible",
) -> Streams:
    """Streams between groups of states along the flow from `p0` at `times[0]`.

    Parameters
    ----------
    landscape : Landscape
        Kernel and energy.
    p0 : array
        The population at the first time.
    times : array
        At least two.
    labels : array
        The group of each state, counted from 0; those of macrostates, for instance.
    rates : {"reversible", "downhill"}
        Which jumps carry the flow.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> path = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> flat = Landscape(path, FreeEnergy([0.0, 0.0, 0.0], beta=1.0))
    >>> found = streams(flat, [0.8, 0.1, 0.1], [0.0, 9.0], [0, 0, 1])
    >>> found.shares.round(3).tolist(), found.moved[0].round(3).tolist()
    ([[0.9, 0.1], [0.75, 0.25]], [[0.675, 0.225], [0.075, 0.025]])
    """
    kernel, when = landscape.kernel, _checks.as_times(times, minimum=2)
    group = np.asarray(labels, dtype=np.int64)
    if group.shape != (kernel.n_states,) or group.min() < 0:
        raise InputError(
            f"labels have shape {group.shape}; give the number of a group for each of the "
            f"{kernel.n_states} states."
        )
    p = _checks.as_probability(p0, kernel.n_states, "p0")
    flow = gradient_flow(kernel, landscape.energy, p, when, mobility=landscape.mobility, rtol=1e-8)
    size = int(group.max()) + 1
    member = (group == np.arange(size)[:, None]).astype(np.float64)
    moved = np.zeros((when.size - 1, size, size))
    for k in range(when.size - 1):
        here = flow.probabilities[k] / flow.probabilities[k].sum()
        # Sixteen steps are enough for streams that are only drawn.
        chain, status = _Question.of(landscape, here, when[k : k + 2], rates).chain(16)
        status.check()
        moved[k] = (member * here) @ chain.backward(member.T)
    return Streams(when, flow.probabilities @ member.T, moved)
