"""The implicit Euler step in entropy variables, solved from any start."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack
from scipy.sparse.linalg import splu

from thalweg._types import Array
from thalweg.edges import implicit_euler
from thalweg.edges.fluxes import internal_spec
from thalweg.energy import FreeEnergy
from thalweg.kernel import Edges, MarkovKernel
from thalweg.mobility import Mobility

_DENSE_STATES = 120
"""Number of states up to which systems are always dense."""
_DENSE_FILL = 0.05
"""Share of all pairs that are edges above which systems of up to 3000 states are dense."""
_PIVOT = 0.01
"""Threshold of SuperLU's diagonal pivots."""
_ROUNDING = 1e-12
"""Total residual mass that is rounding."""
_SETTLED = 1e-5
"""Change of `u` below which a density has converged."""
_POLISH = 25
"""Largest number of Newton steps that polish small densities."""
_MAX_ITERATIONS = 60
"""Largest number of Newton steps."""
_BACKTRACKS = 4
_MAX_RECOVERIES = 4
_SWEEPS = 2
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
        source, target, conductance = kernel.edges
        self.n_states = n
        self.energy = energy
        self.source, self.target = source, target
        self.adjacency = kernel.adjacency
        self.log_conductance = np.log(conductance)
        self.log_pi = np.log(kernel.stationary)
        self.spec, self.q = mobility.spec, float(internal_spec(energy, mobility)[0])
        self.dense = n <= _DENSE_STATES or (n <= 3000 and source.size > _DENSE_FILL * n * n)
        # m(s, t) goes to zero like this power of t; 0 for the logarithmic and arithmetic means.
        form = mobility.form
        self.vanishing = form.k - abs(form.a) + abs(form.b) > 1e-9
        little = energy.beta <= _LITTLE * float(np.ptp(energy.potential))
        self.quiet = little and not self.vanishing
        states = np.arange(n, dtype=np.int64)
        if self.dense:
            # Fortran order, as LAPACK wants it: entry (x, y) at x + n y.
            self.diagonal = states * (n + 1)
            self.upper = source + n * target.astype(np.int64)
            self.lower = target + n * source.astype(np.int64)
            self.values = np.zeros(n * n)
        else:
            # One fill-reducing order for all solves; SuperLU then takes the states as they come.
            self.place = _elimination_order(n, source, target)
            here, there = self.place[source], self.place[target]
            rows = np.concatenate([self.place, here, there])
            columns = np.concatenate([self.place, there, here])
            order = np.lexsort((rows, columns))
            slot = np.empty(order.size, dtype=np.int64)
            slot[order] = np.arange(order.size)
            self.diagonal, self.upper, self.lower = np.split(slot, [n, n + source.size])
            indptr = np.zeros(n + 1, dtype=np.int32)
            np.cumsum(np.bincount(columns, minlength=n), out=indptr[1:])
            self.matrix = sparse.csc_matrix(
                (np.zeros(order.size), rows[order].astype(np.int32), indptr), shape=(n, n)
            )
            self.values = self.matrix.data
        self.terms = np.empty((source.size, 5))
        self.right, self.sigma, self.work = np.empty(n), np.empty(n), np.empty(n)

    def masses(self, u: Array) -> Array:
        """`p = pi e^u`."""
        return np.asarray(np.exp(self.log_pi + u))

    def probabilities(self, u: Array) -> Array:
        """`p = pi e^u`, with the smallest float where that underflows."""
        return np.maximum(self.masses(u), np.finfo(np.float64).tiny)

    def external(self, u: Array) -> Array:
        if self.energy.interaction is None:
            return self.energy.potential
        return self.energy.external(self.masses(u))

    def evaluate(self, u: Array, h: float, mass: Array) -> float:
        """The total residual mass at `u`; keeps the edge terms for `direction`."""
        return float(
            implicit_euler.evaluate(
                self.source,
                self.target,
                self.log_conductance,
                self.log_pi,
                u,
                self.external(u),
                self.energy.beta,
                self.spec,
                self.q,
                h,
                mass,
                self.terms,
                self.work,
            )
        )

    def direction(self, u: Array, log_mass: Array) -> Array | None:
        """Newton's step from the `u` last evaluated; `None` if the matrix is singular."""
        if self.dense:
            self.values[:] = 0.0
        implicit_euler.assemble(
            self.source,
            self.target,
            self.log_pi,
            u,
            self.energy.beta,
            self.q,
            log_mass,
            self.terms,
            self.diagonal,
            self.upper,
            self.lower,
            self.values,
            self.right,
            self.sigma,
        )
        n = self.n_states
        if self.dense:
            matrix = self.values.reshape(n, n, order="F")
            if self.energy.interaction is not None:
                self._add_interaction(matrix, u)
            _, _, solution, info = lapack.dgesv(matrix, self.right, overwrite_a=True)
            if info != 0:
                return None
        else:
            right = np.empty(n)
            right[self.place] = self.right
            try:
                factor = splu(
                    self.matrix,
                    permc_spec="NATURAL",
                    diag_pivot_thresh=_PIVOT,
                    options={"SymmetricMode": True},
                )
            except RuntimeError:
                return None
            solution = factor.solve(right)[self.place]
        if not np.isfinite(solution).all():
            return None
        if self.quiet:
            # Nothing moves at an empty state between empty ones. Its linear equation predicts a
            # rise that is larger the faster its neighbours empty, up to the whole mass.
            solution[(self.sigma < _STILL) & (solution > 0.0)] = 0.0
        return np.asarray(solution)

    def _add_interaction(self, matrix: Array, u: Array) -> None:
        response = self.energy.interaction * self.masses(u)  # type: ignore[operator]
        if sparse.issparse(response):
            response = response.toarray()
        implicit_euler.add_interaction(
            self.source,
            self.target,
            self.terms,
            self.sigma,
            np.ascontiguousarray(response),
            matrix,
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
        weight = np.exp(self.log_conductance) * (external[self.source] - external[self.target])
        drive = np.bincount(self.target, weight * rho[self.source], self.n_states)
        drive -= np.bincount(self.source, weight * rho[self.target], self.n_states)
        fills = empty & (h * drive > np.exp(_EMPTY))
        return np.where(fills, np.log(np.where(fills, h * drive, 1.0)) - self.log_pi, u)

    def _newton(self, u0: Array, h: float, tolerance: float, u: Array) -> EulerStep:
        log_mass = self.log_pi + u0
        mass = np.exp(log_mass)
        trial = np.empty_like(u)
        norm = self.evaluate(u, h, mass)
        solves = recoveries = 0
        while solves < _MAX_ITERATIONS and norm > tolerance:
            delta = self.direction(u, log_mass)
            solves += 1
            fraction = 1.0
            for _ in range(_BACKTRACKS if delta is not None else 0):
                implicit_euler.newton_update(u, delta, fraction, self.log_pi, trial)
                new_norm = self.evaluate(trial, h, mass)
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
                self.relax(u, h, log_mass)
                norm = self.evaluate(u, h, mass)
        if norm <= tolerance and self.vanishing:
            return self._polish(u, h, log_mass, mass, tolerance, solves)
        return EulerStep(self._normalised(u), norm <= tolerance, solves)

    def _polish(
        self, u: Array, h: float, log_mass: Array, mass: Array, tolerance: float, solves: int
    ) -> EulerStep:
        """Take Newton steps until the smallest growing densities have converged, too.

        Under a mean that vanishes like a power, they carry no mass but decide when they will.
        """
        for count in range(_POLISH):
            delta = self.direction(u, log_mass)
            solves += 1
            if delta is None:
                break
            if count < 3 and np.any((delta < -_SETTLED) & (self.right > _SETTLED)):
                # Down, though mass is missing: on the wrong side of a fold of the residual.
                self.relax(u, h, log_mass)
                self.evaluate(u, h, mass)
                continue
            new = np.empty_like(u)
            implicit_euler.newton_update(u, delta, 1.0, self.log_pi, new)
            u, norm = new, self.evaluate(new, h, mass)
            if delta.max() <= _SETTLED and norm <= tolerance:
                return EulerStep(self._normalised(u), True, solves)
        return EulerStep(u, False, solves)

    def relax(self, u: Array, h: float, log_mass: Array) -> None:
        """A few sweeps of nonlinear Gauss-Seidel on `u`, in place."""
        given = implicit_euler.Relaxation(
            *self.adjacency, self.log_conductance, self.log_pi, self.spec, self.q,
            self.energy.beta, self.external(u),
        )  # fmt: skip
        implicit_euler.relax(given, u, h, log_mass, _SWEEPS)

    def _normalised(self, u: Array) -> Array:
        return np.asarray(u - np.log(self.masses(u).sum()))


def _elimination_order(
    n: int, source: NDArray[np.int32], target: NDArray[np.int32]
) -> NDArray[np.int64]:
    """The place of each state in an order of little fill (minimum degree, by SuperLU)."""
    ones = np.ones(source.size)
    half = sparse.coo_array((ones, (source, target)), shape=(n, n))
    pattern = sparse.csc_matrix(half + half.T + sparse.diags_array(np.full(n, 2.0 * n)))
    factor = splu(
        pattern,
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    return np.asarray(factor.perm_c, dtype=np.int64)


def _without(kernel: MarkovKernel, empty: NDArray[np.bool_], mobility: Mobility) -> MarkovKernel:
    """The kernel without the edges on which the mean is zero and, for `beta = 0`, remains so."""
    source, target, conductance = kernel.edges
    dead = (empty[source] | empty[target]) & (float(mobility(1.0, 0.0)) == 0.0)
    return MarkovKernel(kernel.stationary, Edges(source[~dead], target[~dead], conductance[~dead]))
