"""The implicit Euler step in entropy variables, solved from any start."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from thalweg._types import Array
from thalweg.edges import implicit_euler
from thalweg.edges.fluxes import internal_spec
from thalweg.edges.implicit_euler import Equations, Step, Work
from thalweg.edges.static import Graph
from thalweg.edges.step import Internal
from thalweg.energy import FreeEnergy
from thalweg.flow.systems import Dense, Factored, Swept
from thalweg.kernel import Edges, MarkovKernel
from thalweg.mobility import Mobility

_DENSE_STATES = 120
"""Number of states up to which systems are always dense."""
_DENSE_FILL = 0.05
"""Share of all pairs that are edges above which systems of up to 3000 states are dense."""
_GOAL, _SHARE = 0.1, 1e-4
"""Accuracy of iterative solves: this part of the tolerance, or of the present residual mass."""
_FORGET = 1.02
"""Growth per solve of the step length above which an iterative method that failed is skipped."""
_ROUNDING = 1e-12
"""Total residual mass that is rounding."""
_SETTLED = 1e-5
"""Change of `u` below which a density has converged."""
_POLISH = 25
"""Largest number of Newton steps that polish small densities."""
_MAX_ITERATIONS = 60
"""Largest number of Newton steps."""
_BACKTRACKS = 4
"""Lengths of a Newton step that the line search tries."""
_MAX_RECOVERIES = 4
"""Failed line searches after which a step is given up."""
_SWEEPS = 2
"""Gauss-Seidel sweeps after a failed line search, each in both directions."""
_LITTLE = 1e-6
"""Noise, in units of the potential's range, too weak to hold a state at any density."""
_EMPTY = -40.0
"""Logarithm of the mass below which a state without noise counts as empty, being invisible."""
_STILL = -300.0
"""Logarithm of the largest mass in a state's equation below which nothing moves there."""


class EulerStep(NamedTuple):
    """The solution `u = log rho` of one step, and whether it converged."""

    u: Array
    converged: bool
    n_solves: int


class ImplicitEuler:
    """Steps of implicit Euler for one kernel, energy and mobility; holds the work space.

    Newton's method in `u` with a line search on the total residual mass. Where the line search
    fails, sweeps of nonlinear Gauss-Seidel, in which each state solves its own scalar equation by
    bracketing, bring the iterate to where Newton converges.
    """

    def __init__(
        self,
        kernel: MarkovKernel,
        energy: FreeEnergy,
        mobility: Mobility,
        *,
        support: NDArray[np.bool_] | None = None,
    ) -> None:
        n = kernel.n_states
        if energy.beta == 0 and support is not None and not support.all():
            kernel = _without(kernel, ~support, mobility)
        self.n_states, self.kernel, self.energy = n, kernel, energy
        self.log_pi = np.log(kernel.stationary)
        internal = Internal(internal_spec(energy, mobility)[0], energy.beta)
        self.equations = Equations(
            Graph.of(kernel, mobility), np.log(kernel.edges.conductance), self.log_pi, internal
        )
        self.work = Work.of(n, kernel.n_edges)
        # m(s, t) goes to zero like this power of t; 0 for the logarithmic and arithmetic means.
        form = mobility.form
        self.vanishing = form.k - abs(form.a) + abs(form.b) > 1e-9
        little = energy.beta <= _LITTLE * float(np.ptp(energy.potential))
        self.quiet = little and not self.vanishing
        # The first two read the scales of single rows, which deep steps keep; shallow steps know
        # the usual case only.
        usual = mobility.spec.ndim == 3 and internal.order == 1.0
        self.always_deep = self.quiet or energy.interaction is not None or not usual
        self.deep = self.always_deep
        few = n <= 3000 and kernel.n_edges > _DENSE_FILL * n * n
        self.dense = n <= _DENSE_STATES or few
        # The response of an interaction is added to dense matrices only.
        iterative = n > _DENSE_STATES and not (self.dense and energy.interaction is not None)
        self.swept = Swept(kernel) if iterative else None
        self.longest = {False: np.inf, True: np.inf}

    @cached_property
    def direct(self) -> Dense | Factored:
        """The direct method: analysed when it is first needed."""
        return Dense(self.kernel) if self.dense else Factored(self.kernel)

    def masses(self, u: Array) -> Array:
        """`p = pi e^u`."""
        return np.asarray(np.exp(self.log_pi + u))

    def probabilities(self, u: Array) -> Array:
        """`p = pi e^u`, with the smallest float where that underflows."""
        return np.maximum(self.masses(u), np.finfo(np.float64).tiny)

    def external(self, u: Array) -> Array:
        return self.energy.external(self.masses(u))

    def problem(self, u0: Array, h: float) -> Step:
        """The step of length `h` from `u0`."""
        log_mass = self.log_pi + u0
        return Step(self.external(u0), h, np.exp(log_mass), log_mass)

    def evaluate(self, step: Step, u: Array) -> float:
        """The total residual mass at `u`; keeps the edge terms for `direction`."""
        if self.energy.interaction is not None:
            step = step._replace(external=self.external(u))
        norm, self.deep = implicit_euler.evaluate(
            self.equations, step, u, self.work, self.always_deep
        )
        return float(norm)

    def direction(self, step: Step, u: Array, goal: float = 0.0) -> Array | None:
        """Newton's step from the `u` last evaluated; `None` if the matrix is singular.

        It is solved to a residual mass of about `goal`; to rounding by default.
        """
        solution = self._iterated(step, u, goal) if self.swept is not None and goal else None
        if solution is None:
            self._assemble(step, u, self.direct)
            if self.energy.interaction is not None and isinstance(self.direct, Dense):
                self._add_interaction(self.direct.matrix, u)
            solution = self.direct.solve(self.work.right)
        if solution is None or not np.isfinite(solution).all():
            return None
        if self.quiet:
            # Nothing moves at an empty state between empty ones. Its linear equation predicts a
            # rise that is larger the faster its neighbours empty, up to the whole mass.
            solution[(self.work.sigma < _STILL) & (solution > 0.0)] = 0.0
        return solution

    def _iterated(self, step: Step, u: Array, goal: float) -> Array | None:
        assert self.swept is not None
        assembled = False
        for krylov in (False, True) if self.swept.wide else (False,):
            if step.h < self.longest[krylov]:
                if not assembled:
                    self._assemble(step, u, self.swept)
                    assembled = True
                work = self.work
                solution = self.swept.solve(work.right, work.scale, goal, krylov=krylov)
                if solution is not None:
                    return solution
                self.longest[krylov] = step.h
            self.longest[krylov] *= _FORGET
        return None

    def _assemble(self, step: Step, u: Array, system: Dense | Factored | Swept) -> None:
        implicit_euler.assemble(
            self.equations, step, u, self.work, self.deep, system.slots, system.values
        )

    def _add_interaction(self, matrix: Array, u: Array) -> None:
        response = self.energy.interaction * self.masses(u)  # type: ignore[operator]
        if sparse.issparse(response):
            response = response.toarray()
        implicit_euler.add_interaction(
            self.equations.graph, self.work, np.ascontiguousarray(response), matrix
        )

    def step(
        self, u0: Array, h: float, *, tolerance: float, guess: Array | None = None
    ) -> EulerStep:
        """Solve `pi e^u + h M(u) f(u) = pi e^{u0}` to a total residual mass of `tolerance`."""
        start = u0
        if self.quiet:
            start = self._reopened(u0, h)
            guess = None if guess is None else np.where(start > u0, start, guess)
        if guess is None:
            return self._newton(u0, h, tolerance, start.copy())
        result = self._newton(u0, h, tolerance, guess)
        if result.converged:
            return result
        again = self._newton(u0, h, tolerance, start.copy())
        return again._replace(n_solves=again.n_solves + result.n_solves)

    def _reopened(self, u: Array, h: float) -> Array:
        """The start of Newton's method, with states that ran empty raised to where they refill.

        Without noise the flow is not unique there: `rho' = F / |log rho|` with `F > 0` may stay at
        zero or leave it, and so may a step. Noise, however weak, makes it leave.
        """
        empty = u + self.log_pi < _EMPTY
        if not empty.any():
            return u
        external, rho = self.external(u), np.exp(u)
        source, target, conductance = self.kernel.edges
        weight = conductance * (external[source] - external[target])
        drive = np.bincount(target, weight * rho[source], self.n_states)
        drive -= np.bincount(source, weight * rho[target], self.n_states)
        fills = empty & (h * drive > np.exp(_EMPTY))
        return np.where(fills, np.log(np.where(fills, h * drive, 1.0)) - self.log_pi, u)

    def _newton(self, u0: Array, h: float, tolerance: float, u: Array) -> EulerStep:
        step = self.problem(u0, h)
        trial = np.empty_like(u)
        norm = self.evaluate(step, u)
        solves = recoveries = 0
        while solves < _MAX_ITERATIONS and norm > tolerance:
            delta = self.direction(step, u, max(_GOAL * tolerance, _SHARE * norm))
            solves += 1
            fraction = 1.0
            for _ in range(_BACKTRACKS if delta is not None else 0):
                implicit_euler.newton_update(u, delta, fraction, self.log_pi, trial)
                new_norm = self.evaluate(step, trial)
                if new_norm < (1 - 0.1 * fraction) * norm:
                    u, trial, norm = trial, u, new_norm
                    break
                fraction *= 0.4
            else:
                if norm <= _ROUNDING:
                    # What is left is rounding.
                    return EulerStep(self._normalised(u), True, solves)
                recoveries += 1
                if recoveries > _MAX_RECOVERIES:
                    break
                self.relax(step, u)
                norm = self.evaluate(step, u)
        if norm <= tolerance and self.vanishing:
            return self._polish(step, u, tolerance, solves)
        return EulerStep(self._normalised(u), norm <= tolerance, solves)

    def _polish(self, step: Step, u: Array, tolerance: float, solves: int) -> EulerStep:
        """Take Newton steps until the smallest growing densities have converged, too.

        Under a mean that vanishes like a power, they carry no mass but decide when they will.
        """
        for count in range(_POLISH):
            delta = self.direction(step, u, _GOAL * tolerance)
            solves += 1
            if delta is None:
                break
            if count < 3 and np.any((delta < -_SETTLED) & (self.work.right > _SETTLED)):
                # Down, though mass is missing: on the wrong side of a fold of the residual.
                self.relax(step, u)
                self.evaluate(step, u)
                continue
            new = np.empty_like(u)
            implicit_euler.newton_update(u, delta, 1.0, self.log_pi, new)
            u, norm = new, self.evaluate(step, new)
            if delta.max() <= _SETTLED and norm <= tolerance:
                return EulerStep(self._normalised(u), True, solves)
        return EulerStep(u, False, solves)

    def relax(self, step: Step, u: Array) -> None:
        """A few sweeps of nonlinear Gauss-Seidel on `u`, in place."""
        step = step._replace(external=self.external(u))
        implicit_euler.relax(self.equations, self.kernel.adjacency, step, u, _SWEEPS)

    def _normalised(self, u: Array) -> Array:
        return np.asarray(u - np.log(self.masses(u).sum()))


def _without(kernel: MarkovKernel, empty: NDArray[np.bool_], mobility: Mobility) -> MarkovKernel:
    """The kernel without the edges on which the mean is zero and, for `beta = 0`, remains so."""
    source, target, conductance = kernel.edges
    dead = (empty[source] | empty[target]) & (float(mobility(1.0, 0.0)) == 0.0)
    return MarkovKernel(kernel.stationary, Edges(source[~dead], target[~dead], conductance[~dead]))
