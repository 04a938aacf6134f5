"""The walk of one individual: the one place that defines its jump rates.

The population's flow fixes the *net* flux along an edge, `J = c m (f_x - f_y)` with the first
variation `f = V + beta log rho`; it does not fix how many individuals go each way. There are two
conventions, and nothing in `thalweg` uses a third:

`"reversible"` (the default here). The ratio of the fluxes forth and back is `exp(h)`, with
`h = (f_x - f_y) / beta` (local detailed balance). With `J` given, that leaves one rate,

    Q_xy = K_xy (m_xy / rho_x) beta h / (1 - exp(-h)).

At rest `h = 0`, and `Q_xy = beta K_xy m_xy / rho_x`: the reversible chain whose generator is the
linearised flow at equilibrium, `-beta diag(1/p) M(rho)`, a weighted Laplacian. Without a potential
it is the kernel's own walk, `beta (K - I)`, whatever the population.

`"downhill"`. `Q_xy = K_xy (m_xy / rho_x) [f_x - f_y]_+` (`thalweg.jump_rates`), the fewest jumps
that carry the flux; the limit of the first as `beta` goes to zero. At rest no individual moves.

Under both, `p^T Q = p_dot`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import eigh
from scipy.sparse.linalg import LinearOperator, eigsh

from thalweg import _checks
from thalweg._types import Array
from thalweg.dynamics.landscape import Estimate, Landscape, estimate
from thalweg.edges.kinetic import flux_gain
from thalweg.edges.static import symmetrised
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import jump_rates
from thalweg.flow.rates import edge_generator, net_fluxes
from thalweg.kernel import MarkovKernel
from thalweg.laplacian import LaplacianSolver
from thalweg.mobility import Mobility, as_mobility
from thalweg.status import Status

Rates = Literal["reversible", "downhill"]

DENSE_STATES = 600
"""States up to which modes and exponentials are dense: 600^3 flops take a tenth of a second."""


def transition_rates(
    kernel: MarkovKernel,
    energy: FreeEnergy,
    p: ArrayLike | None = None,
    *,
    mobility: Mobility | None = None,
    rates: Rates = "reversible",
) -> sparse.csr_array:
    """The jump rates `Q` of one individual in the population `p` (at rest by default).

    Rows sum to zero; see the module for the two conventions of `rates`.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    energy : FreeEnergy
        The landscape; its internal energy is the entropy.
    p : array, optional
        The population around the individual; the population at rest by default.
    mobility : Mobility, optional
        The mean of the densities at the ends of an edge; logarithmic by default.
    rates : {"reversible", "downhill"}
        Which jumps carry the net flux.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> transition_rates(kernel, FreeEnergy([0.0, 0.0], beta=2.0)).toarray()
    array([[-2.,  2.],
           [ 2., -2.]])
    """
    energy._check(kernel)
    mobility = as_mobility(mobility)
    _checks.word(rates, "rates", Rates)
    landscape = Landscape(kernel, energy, mobility)
    if p is None:
        if rates == "downhill":
            raise InputError(
                "at rest no individual goes downhill, so all these rates are zero; choose "
                "rates='reversible', or give the population p."
            )
        return resting_walk(landscape).rates
    here = _checks.as_probability(p, kernel.n_states)
    if rates == "downhill" or energy.beta == 0:
        return jump_rates(kernel, energy, here, mobility=mobility)
    forth, back = one_way_fluxes(kernel, energy, here, mobility)
    source, target, _ = kernel.edges
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.where(here[source] > 0, forth / here[source], 0.0)
        home = np.where(here[target] > 0, back / here[target], 0.0)
    return edge_generator(kernel, np.minimum(out, 1e300), np.minimum(home, 1e300))


def one_way_fluxes(
    kernel: MarkovKernel, energy: FreeEnergy, p: Array, mobility: Mobility
) -> tuple[Array, Array]:
    """The flux from source to target of every edge and the flux back, `"reversible"`."""
    source, target, conductance = kernel.edges
    rho = p / kernel.stationary
    net = net_fluxes(kernel, energy, p, mobility)
    external = energy.external(p)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_rho = np.log(np.maximum(rho, 1e-300))
        h = (external[source] - external[target]) / energy.beta
        h = h + log_rho[source] - log_rho[target]
        mean = conductance * energy.beta * mobility(rho[source], rho[target])
        # h / (1 - exp(-h)), from the flux itself where it is not small.
        forth = np.where(np.abs(h) < 1e-3, mean * (1 + h / 2 + h * h / 12), -net / np.expm1(-h))
        back = np.where(np.abs(h) < 1e-3, mean * (1 - h / 2 + h * h / 12), net / np.expm1(h))
    return np.nan_to_num(np.maximum(forth, 0.0)), np.nan_to_num(np.maximum(back, 0.0))


@dataclass(frozen=True, eq=False)
class RestingWalk:
    """The reversible chain of one individual while the population rests.

    `conductance` per edge is `p_x Q_xy = p_y Q_yx`; the generator is `-diag(1 / p) A` with `A` the
    Laplacian of these weights.
    """

    landscape: Landscape
    p: Array
    conductance: Array

    @property
    def kernel(self) -> MarkovKernel:
        return self.landscape.kernel

    @property
    def rates(self) -> sparse.csr_array:
        """`Q`, rows summing to zero."""
        source, target, _ = self.kernel.edges
        return edge_generator(
            self.kernel, self.conductance / self.p[source], self.conductance / self.p[target]
        )

    @cached_property
    def log_p_tangents(self) -> Array:
        return self.landscape.log_density_tangents()

    @cached_property
    def conductance_tangents(self) -> Array:
        """Derivatives of the conductances along the landscape's directions, `(n, edges)`."""
        land, n = self.landscape, self.kernel.n_states
        slopes = self.log_p_tangents
        source, target, _ = self.kernel.edges
        log_rho = np.log(self.p / self.kernel.stationary)
        mean, first, second = land.mobility.from_logs(log_rho[source], log_rho[target])
        d_beta = land.directions[:, n] / land.energy.beta
        out = slopes[:, source] * (first / mean) + slopes[:, target] * (second / mean)
        return np.asarray(self.conductance * (out + d_beta[:, None]))

    def laplacian_change(self, values: Array) -> Array:
        """`dA values` along the landscape's directions, one row each."""
        source, target, _ = self.kernel.edges
        flux = self.conductance_tangents * (values[source] - values[target])
        return flux_gain(source, target, flux, self.kernel.n_states)


def resting_walk(landscape: Landscape) -> RestingWalk:
    """The chain of one individual at rest.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> walk = resting_walk(Landscape(kernel, FreeEnergy([0.0, 1.0, 0.0], beta=0.5)))
    >>> abs(walk.p @ walk.rates).max() < 1e-15
    np.True_
    """
    p, kernel = landscape.equilibrium, landscape.kernel
    rho = p / kernel.stationary
    source, target, c = kernel.edges
    weights = landscape.energy.beta * c * landscape.mobility(rho[source], rho[target])
    if weights.min() <= 0:
        e = int(np.argmin(weights))
        raise InputError(
            f"no jumps cross the edge between {int(source[e])} and {int(target[e])} at rest; the "
            "mean vanishes there: use the logarithmic mean."
        )
    return RestingWalk(landscape, p, weights)


class Modes(NamedTuple):
    """The slowest modes of the walk at rest.

    `times[k]` are relaxation times, longest first; `right[:, k]` the modes as functions of the
    state, of mean zero and unit variance under the population at rest.
    """

    times: Estimate
    right: Array


def relaxation_modes(
    landscape: Landscape, n_modes: int = 10, *, level: float = 0.95, tolerance: float = 1e-9
) -> Modes:
    """Implied relaxation times and modes, slowest first.

    Dense on small graphs; on larger ones, Lanczos iterations on the inverse of the symmetrised
    generator, one Laplacian solve each.

    Parameters
    ----------
    landscape : Landscape
        Kernel, energy and its uncertainty.
    n_modes : int
        Number of modes, without the constant one.
    level : float
        Level of the intervals of the times.
    tolerance : float
        Relative accuracy of the times from Lanczos.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> modes = relaxation_modes(Landscape(kernel, FreeEnergy([0.0, 0.0], beta=1.0)), 1)
    >>> modes.times.value.round(12)
    array([0.5])
    """
    walk = resting_walk(landscape)
    n = walk.p.size
    if not 1 <= n_modes < n:
        raise InputError(f"n_modes is {n_modes}; {n} states have 1 to {n - 1} modes.")
    root = np.sqrt(walk.p)
    source, target, _ = walk.kernel.edges
    status = Status.CONVERGED
    if n <= DENSE_STATES or n_modes > n // 4:
        symmetric = symmetrised(source, target, walk.conductance, walk.p)
        rates, vectors = eigh(symmetric, subset_by_index=(1, n_modes))
        times = 1.0 / rates
    else:
        factor = LaplacianSolver(n, source, target).factor(walk.conductance)

        def apply(x: Array) -> Array:
            nonlocal status
            b = root * x.ravel()
            b = b - walk.p * b.sum()
            solved = factor.solve(b, tolerance=0.1 * tolerance)
            status = status and solved.status
            y = solved.x - walk.p @ solved.x
            return np.asarray(root * y)

        operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(n)
        times, vectors = eigsh(operator, k=n_modes, which="LA", tol=tolerance, v0=start)
        order = np.argsort(-times)
        times, vectors = times[order], vectors[:, order]
    right = vectors / root[:, None]
    right *= np.where(right[np.argmax(np.abs(right), axis=0), np.arange(right.shape[1])] > 0, 1, -1)
    tangents = None
    if landscape.has_errors:
        # d lambda = v^T dA v - lambda v^T dD v, with v^T D v = 1.
        d_a, d_p = walk.conductance_tangents, walk.log_p_tangents
        drop = (right[source] - right[target]) ** 2
        slopes = d_a @ drop - (d_p * walk.p) @ right**2 / times
        tangents = -slopes * times**2
    return Modes(
        estimate(times, tangents, scale="positive", level=level, status=status),
        np.asarray(right),
    )
