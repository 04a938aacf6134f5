"""Where an individual ends up: committors and fate probabilities of the walk at rest.

With `A` the Laplacian of the walk's conductances (see `walk`), the probability `q` of reaching `b`
before `a` solves `A q = 0` outside the two sets, with `q = 0` on `a` and `q = 1` on `b`: one
grounded Laplacian solve. Its derivative along a change of the landscape, `A dq = -dA q`, is another
with the same factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg._door import single_threaded
from thalweg._types import Array, Index
from thalweg.dynamics.landscape import Estimate, Landscape, as_states, estimate, is_one
from thalweg.dynamics.walk import RestingWalk, resting_walk
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.laplacian.solver import Factor
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd


TOLERANCE = 1e-12
"""Energy error of a solve; pointwise errors of committors were below 1e-9 at this value."""
ROUGH = 1e-6
"""Energy error of a solve for derivatives, which only enter error bars."""


@dataclass(frozen=True, eq=False)
class Absorbed:
    """The walk outside a set of absorbing states: the grounded Laplacian, factorised once."""

    walk: RestingWalk
    inside: Index
    """The states outside the absorbing set."""
    crossing: Array
    """Conductance from each inside state (columns: absorbing groups)."""
    edges: tuple[Index, Index, Array]
    """The edges inside: their ends, numbered like `inside`, and their conductances."""

    @cached_property
    def solver(self) -> LaplacianSolver:
        return LaplacianSolver(self.inside.size, *self.edges[:2], grounded=True)

    @cached_property
    def ground(self) -> Array:
        """Conductance from each inside state to all absorbing ones."""
        return np.asarray(self.crossing.sum(axis=1))

    @cached_property
    def factor(self) -> Factor:
        return self.solver.factor(self.edges[2], self.ground)

    @classmethod
    def of(cls, walk: RestingWalk, groups: Sequence[Index]) -> Absorbed:
        kernel = walk.kernel
        n = kernel.n_states
        group = np.full(n, -1, dtype=np.int64)
        for k, states in enumerate(groups):
            group[states] = k
        inside = np.flatnonzero(group < 0)
        place = np.full(n, -1, dtype=np.int64)
        place[inside] = np.arange(inside.size)
        source, target, _ = kernel.edges
        crossing = np.zeros((inside.size, len(groups)))
        for one, other in ((source, target), (target, source)):
            cut = (group[one] < 0) & (group[other] >= 0)
            np.add.at(crossing, (place[one[cut]], group[other[cut]]), walk.conductance[cut])
        within = (group[source] < 0) & (group[target] < 0)
        edges = place[source[within]], place[target[within]], walk.conductance[within]
        return cls(walk, inside, crossing, edges)

    def solve(self, right: Array, tolerance: float = TOLERANCE) -> tuple[Array, Status]:
        """`x` with `A x = right` inside; `right` has one row per inside state."""
        solved = self.factor.solve(right, tolerance=tolerance)
        status = solved.status
        if status is Status.STALLED and solved.energy_error < 1e3 * tolerance:
            # Rounding errors ended the refinement just above a tolerance of twelve digits.
            status = Status.CONVERGED
        return solved.x, status

    def change(self, values: Array) -> Array:
        """Derivatives of the solution inside for `dA values` on the right-hand side, negated."""
        return -self.walk.laplacian_change(values)[:, self.inside]

    def tangents(self, right: Array) -> Array:
        """Derivatives of a solution along the landscape's directions, one row each."""
        return self.embedded(self.solve(right.T, ROUGH)[0]).T

    def embedded(self, x: Array) -> Array:
        """Values inside, and zero on the absorbing states."""
        out = np.zeros((self.walk.p.size, *x.shape[1:]))
        out[self.inside] = x
        return out


@single_threaded
def committor(landscape: Landscape, a: Any, b: Any, *, level: float = 0.95) -> Estimate:
    """The probability of reaching `b` before `a`, from every state.

    Parameters
    ----------
    landscape : Landscape
        Kernel, energy and its uncertainty.
    a, b : state or states
        By number or by name; disjoint, and not all states of the graph.
    level : float
        Level of the intervals.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> path = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> committor(Landscape(path, FreeEnergy([0.0, 0.0, 0.0], beta=1.0)), 0, 2).value
    array([0. , 0.5, 1. ])
    """
    absorbed, _, q, status = first_reached(landscape, a, b)
    tangents = absorbed.tangents(absorbed.change(q)) if landscape.has_errors else None
    return estimate(q, tangents, scale="probability", level=level, status=status)


def first_reached(
    landscape: Landscape, a: Any, b: Any
) -> tuple[Absorbed, list[Index], Array, Status]:
    """The walk outside both sets, their states, and the committor."""
    groups = disjoint(landscape.kernel, {"a": a, "b": b})
    absorbed = Absorbed.of(resting_walk(landscape), groups)
    x, status = absorbed.solve(absorbed.crossing[:, 1])
    q = absorbed.embedded(np.clip(x, 0.0, 1.0))
    q[groups[1]] = 1.0
    return absorbed, groups, q, status


@dataclass(frozen=True, eq=False)
class Fates:
    """Fates of individuals: `probabilities.value[x, k]` for state `x` and target `names[k]`."""

    kernel: MarkovKernel
    names: tuple[str, ...]
    targets: tuple[Index, ...]
    probabilities: Estimate

    @property
    def status(self) -> Status:
        return self.probabilities.status

    def to_frame(self) -> pd.DataFrame:
        """One row per state and target: probability, stderr, lower, upper."""
        frame = self.probabilities.to_frame().rename(columns={"value": "probability"})
        frame.insert(0, "state", [x for x in self.kernel.labels for _ in self.names])
        frame.insert(1, "fate", list(self.names) * self.kernel.n_states)
        return frame


@single_threaded
def fate_probabilities(landscape: Landscape, targets: Any, *, level: float = 0.95) -> Fates:
    """The probability of reaching each target before the others, from every state.

    Parameters
    ----------
    landscape : Landscape
        Kernel, energy and its uncertainty.
    targets : mapping or sequence
        At least two disjoint sets of states: `{name: states}`, or a list of states or sets.
    level : float
        Level of the intervals.

    >>> from thalweg import FreeEnergy, MarkovKernel
    >>> star = MarkovKernel.from_weights([[0, 1, 1, 2], [1, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0]])
    >>> flat = Landscape(star, FreeEnergy([0.0, 0.0, 0.0, 0.0], beta=1.0))
    >>> fate_probabilities(flat, [1, 2, 3]).probabilities.value[0].round(12)
    array([0.25, 0.25, 0.5 ])
    """
    named = target_sets(landscape.kernel, targets)
    groups = disjoint(landscape.kernel, named)
    walk = resting_walk(landscape)
    absorbed = Absorbed.of(walk, groups)
    x, status = absorbed.solve(absorbed.crossing)
    x = np.clip(x, 0.0, 1.0)
    x = x / x.sum(axis=1, keepdims=True)
    q = absorbed.embedded(x)
    for k, states in enumerate(groups):
        q[states, k] = 1.0
    tangents = None
    if landscape.has_errors:
        tangents = np.stack([absorbed.tangents(absorbed.change(one)) for one in q.T], axis=2)
    found = estimate(q, tangents, scale="probability", level=level, status=status)
    return Fates(landscape.kernel, tuple(named), tuple(groups), found)


def target_sets(kernel: MarkovKernel, targets: Any) -> dict[str, Any]:
    """Named target sets from a mapping, or from a list of states or of sets."""
    if isinstance(targets, Mapping):
        named = {str(name): states for name, states in targets.items()}
    else:
        named = {}
        for k, states in enumerate([targets] if is_one(targets) else targets):
            name = f"target {k}"
            if is_one(states):
                name = str(kernel.labels[int(as_states(kernel, states, "targets")[0])])
            named[name] = states
    if len(named) < 2:
        raise InputError(
            f"targets has {len(named)} set{'s' if not named else ''}; fates need at least two: an "
            "individual that has one place to go gets there for certain."
        )
    return named


def disjoint(kernel: MarkovKernel, named: Mapping[str, Any]) -> list[Index]:
    """The sets as state numbers; rejected if two overlap or no state is left outside."""
    groups, owner, names = [], np.full(kernel.n_states, -1, dtype=np.int64), list(named)
    for k, (name, states) in enumerate(named.items()):
        found = as_states(kernel, states, name)
        taken = found[owner[found] >= 0]
        if taken.size:
            x = int(taken[0])
            raise InputError(
                f"state {kernel.labels[x]!r} is in both {names[int(owner[x])]} and {name}; an "
                "individual there has already arrived: keep the sets disjoint."
            )
        owner[found] = k
        groups.append(found)
    if np.all(owner >= 0):
        raise InputError(
            f"{', '.join(names)} cover all {kernel.n_states} states; leave states outside to ask "
            "about."
        )
    return groups
