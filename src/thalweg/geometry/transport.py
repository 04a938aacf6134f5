"""`TransportGeometry`: the Riemannian geometry of W_K on the probabilities over a graph.

Potentials are tangent vectors: `psi` moves mass towards high `psi`, `p' = M(rho) psi`, and its
squared length is `psi^T M(rho) psi`. Numerical failure is data: results carry a `Status`. What a
distance does not need (tangent vectors, the exponential map, matrices, barycentres) is imported on
first use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import checked, single_threaded
from thalweg._types import Array
from thalweg.errors import ConvergenceError, InputError
from thalweg.geometry.geodesic import (
    DistanceGradient,
    Geodesic,
    distance_gradient,
)
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver, balanced
from thalweg.mobility import LogMean, Mobility, as_mobility
from thalweg.paths.choose import GeodesicMethod, solve_path
from thalweg.paths.mesh import TimeMesh
from thalweg.paths.problem import PathProblem

if TYPE_CHECKING:
    from thalweg.geometry.barycenter import Barycenter
    from thalweg.geometry.exponential import Shot
    from thalweg.geometry.many import Neighbors


Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class TransportGeometry:
    """Distances, geodesics, exponential and logarithm of W_K for one kernel and one mobility.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    mobility : Mobility, optional
        The mean of the densities at the ends of an edge; by default `LogMean()`.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> geometry = TransportGeometry(kernel)
    >>> round(geometry.distance([0.75, 0.25], [0.25, 0.75]), 10)
    0.7177944633
    """

    kernel: MarkovKernel
    mobility: Mobility = field(default_factory=LogMean)

    def __post_init__(self) -> None:
        as_mobility(self.mobility)

    @cached_property
    def _solver(self) -> LaplacianSolver:
        return LaplacianSolver.for_kernel(self.kernel)

    # ---------------------------------------------------------------- tangent vectors

    def inner(self, p: ArrayLike, phi: ArrayLike, psi: ArrayLike) -> float:
        """`<phi, psi>_rho = sum_e c m (phi_x - phi_y)(psi_x - psi_y)`, eq. (8) of the paper."""
        from thalweg.geometry import operators

        n = self.kernel.n_states
        return operators.inner(
            self.kernel,
            _checks.as_probability(p, n),
            _checks.as_vector(phi, n, "phi"),
            _checks.as_vector(psi, n, "psi"),
            self.mobility,
        )

    def norm(self, p: ArrayLike, psi: ArrayLike) -> float:
        """The speed of a path that leaves `p` with potential `psi`."""
        return float(np.sqrt(max(self.inner(p, psi, psi), 0.0)))

    @single_threaded
    @checked
    def tangent(self, p: ArrayLike, p_dot: ArrayLike, *, tolerance: float = 1e-12) -> Array:
        """The potential with `M(rho) psi = p_dot`, mean zero under `pi`: one Laplacian solve.

        This is Algorithm 1 of the paper, without its singular factorisation.

        >>> geometry = TransportGeometry(MarkovKernel.from_weights([[0, 1], [1, 0]]))
        >>> geometry.tangent([0.5, 0.5], [0.1, -0.1])
        array([ 0.1, -0.1])
        """
        p = _checks.as_probability(p, self.kernel.n_states)
        rate = _checks.as_vector(p_dot, self.kernel.n_states, "p_dot")
        if abs(rate.sum()) > 1e-8 * max(np.abs(rate).sum(), 1e-300):
            raise InputError(
                f"p_dot sums to {rate.sum():.6g}; mass is conserved, so a rate of change must sum "
                "to zero: subtract its mean."
            )
        solution = self._solver.factor(self._weights(p)).solve(balanced(rate), tolerance=tolerance)
        if not solution.status:
            raise ConvergenceError(solution.status.value)
        return self._centred(solution.x)

    def velocity(self, p: ArrayLike, psi: ArrayLike) -> Array:
        """`p_dot = M(rho) psi`."""
        p = _checks.as_probability(p, self.kernel.n_states)
        psi = _checks.as_vector(psi, self.kernel.n_states, "psi")
        from thalweg.edges import static

        source, target, _ = self.kernel.edges
        return static.apply_laplacian(source, target, self._weights(p), psi)

    def _weights(self, p: Array) -> Array:
        from thalweg.geometry import operators

        return operators.transport_weights(self.kernel, p, self.mobility)

    def _centred(self, psi: Array) -> Array:
        return np.asarray(psi - self.kernel.stationary @ psi)

    # ---------------------------------------------------------------- geodesics

    @single_threaded
    @checked
    def geodesic(
        self,
        p: ArrayLike,
        q: ArrayLike,
        *,
        n_steps: int = 16,
        tolerance: float | None = None,
        method: GeodesicMethod = "auto",
        max_stages: int | None = None,
        potential_tolerance: float | None = None,
    ) -> Geodesic:
        """The geodesic from `p` to `q`; any end points, zeros and point masses included.

        `Geodesic.at` gives probabilities, potentials, fluxes and the speed at any times. The work
        is limited in steps and stages, so every call ends.

        Parameters
        ----------
        p, q : array
            Probabilities of the end points.
        n_steps : int
            Intervals between the points that the result lists.
        tolerance : float, optional
            Bound on the estimated relative error of the distance: by default 1e-8, and 1e-3 from
            or to nearly empty states of a graph with more than 120 states (the result holds the
            one that was used). If it cannot be met, the status says so, and `upper_bound`,
            `lower_bound` and `error_estimate` say what is known.
        method : {"auto", "collocation", "interior-point"}
            The solver; by default chosen from the end points.
        max_stages : int, optional
            Bound on the number of times at which the curve is computed.
        potential_tolerance : float, optional
            Accuracy of the potentials, whose error is not squared; `0.1 sqrt(tolerance)` by
            default.
        """
        n = self.kernel.n_states
        p = _checks.as_probability(p, n, "p")
        q = _checks.as_probability(q, n, "q")
        n_steps = _checks.whole(n_steps, "n_steps", 1)
        mesh = TimeMesh.uniform(1, 3)
        chosen = solve_path(
            PathProblem(self.kernel, self.mobility.spec, p, q, mesh, self._solver),
            tolerance=tolerance,
            method=method,
            max_stages=max_stages,
            potential_tolerance=potential_tolerance,
        )
        return Geodesic.of(chosen, self.mobility, n_steps)

    @checked
    def distance(
        self,
        p: ArrayLike,
        q: ArrayLike,
        *,
        tolerance: float | None = None,
        throw: bool = True,
    ) -> float:
        """The distance `W_K(p, q)`.

        Parameters
        ----------
        p, q : array
            Probabilities.
        tolerance : float, optional
            Bound on the estimated relative error, as in `geodesic`.
        throw : bool
            Whether to raise `ConvergenceError` if `tolerance` is not met; with `False` the best
            value found is returned.
        """
        geodesic = self.geodesic(p, q, tolerance=tolerance, n_steps=1)
        if throw and not geodesic.status:
            raise ConvergenceError(
                f"the distance is {geodesic.distance:.10g} with an estimated error of "
                f"{geodesic.error_estimate:.2g}, and at most {geodesic.upper_bound:.10g}; the "
                f"tolerance {geodesic.tolerance:.1g} was not met: ask for a looser one, or pass "
                "throw=False."
            )
        return geodesic.distance

    # ---------------------------------------------------------------- logarithm, exponential

    @checked
    def log(self, p: ArrayLike, q: ArrayLike, *, tolerance: float = 1e-10) -> Array:
        """The potential with which the geodesic to `q` leaves `p`, mean zero under `pi`."""
        self._interior(p, "the exact logarithm")
        geodesic = self.geodesic(
            p, q, tolerance=tolerance, n_steps=1, potential_tolerance=tolerance
        )
        geodesic.status.check()
        return self._centred(geodesic.initial_potential)

    def log_linearised(self, p: ArrayLike, q: ArrayLike) -> Array:
        """The potential of the chord, `M(rho_p) psi = q - p`: one solve, first order."""
        n = self.kernel.n_states
        p, q = _checks.as_probability(p, n, "p"), _checks.as_probability(q, n, "q")
        return self.tangent(p, q - p)

    def log_midpoint(self, p: ArrayLike, q: ArrayLike) -> Array:
        """One solve at `(p + q) / 2` carried back to `p`: second order at the same cost.

        With `M(rho_mid) phi = q - p` it is `phi + (1/4) d/dp (phi^T M phi)`.
        """
        from thalweg.edges.kinetic import stage_forces
        from thalweg.edges.static import Graph

        n, pi = self.kernel.n_states, self.kernel.stationary
        p, q = _checks.as_probability(p, n, "p"), _checks.as_probability(q, n, "q")
        middle = 0.5 * (p + q)
        phi = self.tangent(middle, q - p)
        source, target, _ = self.kernel.edges
        fall = (phi[source] - phi[target])[None]
        force = stage_forces(Graph.of(self.kernel, self.mobility), (middle / pi)[None], fall)[0]
        return self._centred(phi + 0.5 * force / pi)

    @single_threaded
    @checked
    def exp(self, p: ArrayLike, psi: ArrayLike, *, tolerance: float = 1e-12) -> Array:
        """The point at time one of the geodesic that leaves `p` with potential `psi`."""
        shot = self.shoot(p, psi, [0.0, 1.0], tolerance=tolerance)
        shot.status.check()
        return shot.probabilities[-1]

    @single_threaded
    @checked
    def shoot(
        self, p: ArrayLike, psi: ArrayLike, times: ArrayLike, *, tolerance: float = 1e-12
    ) -> Shot:
        """The geodesic that leaves `p` with potential `psi`, at increasing times from zero.

        With `psi = log(p, q)`, times in [0, 1] interpolate and later times extrapolate.
        """
        from thalweg.geometry.exponential import shoot

        p = self._interior(p, "the exponential map")
        psi = _checks.as_vector(psi, self.kernel.n_states, "psi")
        t = _checks.as_times(times, "times")
        if t[0] < 0:
            raise InputError(f"times[0] is {t[0]:g}; a geodesic is followed from time zero.")
        return shoot(self.kernel, self.mobility, p, psi, t, tolerance=tolerance)

    def _interior(self, p: ArrayLike, what: str) -> Array:
        p = _checks.as_probability(p, self.kernel.n_states)
        if p.min() <= 0:
            raise InputError(
                f"p is zero at state {int(np.argmin(p))}, where {what} has no finite potential; "
                "smooth p, for instance with 0.999 * p + 0.001 * kernel.stationary."
            )
        return p

    # ---------------------------------------------------------------- many distributions

    @checked
    def distance_matrix(
        self,
        ps: ArrayLike,
        qs: ArrayLike | None = None,
        *,
        tolerance: float = 1e-6,
        jobs: int = -1,
        progress: Progress | None = None,
    ) -> Array:
        """`W_K` between all rows of `ps`, or from the rows of `ps` to those of `qs`.

        Each pair is computed once; a pair that misses the tolerance gives its best value.

        Parameters
        ----------
        ps : array
            Probabilities, one distribution per row.
        qs : array, optional
            A second set of distributions; by default `ps` itself.
        tolerance : float
            Bound on the estimated relative error of each distance.
        jobs : int
            Number of worker processes; -1 uses all cores.
        progress : callable, optional
            Called as `progress(done, total)` while pairs finish.
        """
        from thalweg.geometry.many import distance_matrix

        n = self.kernel.n_states
        rows = _checks.as_probabilities(ps, n, "ps")
        columns = None if qs is None else _checks.as_probabilities(qs, n, "qs")
        return distance_matrix(self, rows, columns, tolerance, jobs, progress)

    @checked
    def knn(
        self,
        ps: ArrayLike,
        k: int,
        *,
        tolerance: float = 1e-4,
        jobs: int = -1,
        progress: Progress | None = None,
    ) -> Neighbors:
        """The `k` nearest other rows of each row of `ps`: indices and distances, sorted.

        Parameters
        ----------
        ps : array
            Probabilities, one distribution per row.
        k : int
            Number of neighbours.
        tolerance, jobs, progress
            As in `distance_matrix`.
        """
        from thalweg.geometry.many import distance_matrix, nearest

        rows = _checks.as_probabilities(ps, self.kernel.n_states, "ps")
        if _checks.whole(k, "k", 1) >= len(rows):
            raise InputError(
                f"k is {k}, but there are {len(rows)} distributions; choose 1 to {len(rows) - 1}."
            )
        return nearest(distance_matrix(self, rows, None, tolerance, jobs, progress), k)

    @checked
    def barycenter(
        self,
        ps: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        tolerance: float = 1e-8,
        max_iterations: int = 100,
    ) -> Barycenter:
        """The minimiser of `sum_k w_k W_K(p, p_k)^2 / 2`.

        Parameters
        ----------
        ps : array
            Probabilities, one distribution per row.
        weights : array, optional
            `w_k`, non-negative with sum one; by default all equal.
        tolerance : float
            Bound on the norm of the gradient.
        max_iterations : int
            Bound on the number of gradient steps.
        """
        from thalweg.geometry.barycenter import find_barycenter

        rows = _checks.as_probabilities(ps, self.kernel.n_states, "ps")
        if len(rows) == 0:
            raise InputError("ps holds no distribution; a barycentre needs at least one.")
        if weights is None:
            weights = np.full(len(rows), 1.0 / len(rows))
        w = _checks.as_probability(weights, len(rows), "weights")
        max_iterations = _checks.whole(max_iterations, "max_iterations", 1)
        return find_barycenter(self, rows, w, tolerance, max_iterations)

    # ---------------------------------------------------------------- derivatives

    @checked
    def distance_gradient(
        self, p: ArrayLike, q: ArrayLike, *, tolerance: float = 1e-9
    ) -> DistanceGradient:
        """`W_K^2` and its derivatives in `p`, in `q` and in the conductances of the edges."""
        geodesic = self.geodesic(
            p, q, tolerance=tolerance, n_steps=1, potential_tolerance=tolerance
        )
        return distance_gradient(geodesic)
