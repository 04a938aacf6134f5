"""Solving with the curvature of the fields on a graph: conjugate gradients, preconditioned.

In a population that is spread like the mean over time, with `A = D^-1 M D^-1` from the mean
transport Laplacian `M` and `D^2` the mean probabilities, a mode of `A` with eigenvalue `mu` forgets
its start like `r = exp(-b mu t)` and follows the potential like `s = (1 - r) / b`. That makes the
information a two by two matrix for every `mu`, whose inverse with the prior's precisions is fitted
by products of `(1 + b mu) / (1 + a mu)`: one shifted Laplacian solve each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse
from scipy.optimize import least_squares
from scipy.sparse.linalg import splu

from thalweg._types import Array
from thalweg.edges.static import stacked_laplacians
from thalweg.laplacian.policy import is_flat
from thalweg.learn.fields.conjugate_gradients import Map
from thalweg.learn.fields.likelihood import Place
from thalweg.learn.fields.spectrum import SpectralPrior
from thalweg.mobility import LogMean

Kind = Literal["flow", "graph"]

_LEAST_SHARE = 0.1
"""Least share of the mean probability: emptier states are treated as if they had this much."""
_FACTORED_STATES = 1000
"""Number of states up to which graphs that are not flat are factored."""
_MANY_ITERATIONS = 15
"""Iterations of a step from which another kind of preconditioner is tried."""
_LONGEST_CHEBYSHEV = 30
"""Largest degree of the polynomial near the inverse."""


@dataclass(frozen=True, eq=False)
class Curvature:
    """Information plus prior precision of `z = (log rho0, V)` at a given log beta."""

    place: Place
    initial: SpectralPrior
    potential: SpectralPrior
    damping: float = 0.0
    coarse: bool = False
    """Whether products are those of the coarse chain: smaller where states empty, where Newton's
    method would take steps that are too long, but good enough for draws."""

    def prior(self, z: Array) -> Array:
        """The priors' precision times `z`."""
        n = self.place.u0.size
        return np.concatenate([self.initial.precision(z[:n]), self.potential.precision(z[n:])])

    def roughness(self, z: Array) -> float:
        """Minus the log density of the priors at one `z`, up to a constant."""
        n = self.place.u0.size
        halves = self.initial.half(z[:n]), self.potential.half(z[n:])
        return 0.5 * sum(float(half @ half) for half in halves)

    def __call__(self, z: Array) -> Array:
        out, _ = self.place.information(z, np.zeros(z.shape[1]), coarse=self.coarse)
        return out + (1.0 + self.damping) * self.prior(z)


@dataclass(frozen=True, eq=False)
class _Modes:
    """The information about modes with eigenvalues `mu`, and the precision of their priors."""

    mu: Array
    f_start: Array
    f_mixed: Array
    f_potential: Array
    q_start: Array
    q_potential: Array

    @property
    def schur(self) -> Array:
        """Information about the potential once the start is integrated out."""
        return np.maximum(self.f_potential - self.f_mixed**2 / (self.f_start + self.q_start), 1e-12)

    @property
    def other(self) -> Array:
        """Information about the start once the potential is integrated out."""
        return np.maximum(
            self.f_start - self.f_mixed**2 / (self.f_potential + self.q_potential), 1e-12
        )


class Preconditioning:
    """Preconditioners for one graph, whose rational functions start from the last ones.

    There are two kinds. `flow` takes the modes to be those of the mean transport Laplacian, which
    is right where the data decide; `graph` those of the kernel, which are the priors' own. With few
    individuals per state either can need far fewer iterations than the other: where the first takes
    many, the other is tried, and the better one is kept.

    Parameters
    ----------
    place : Place
        Any place on the graph.
    tried : tuple of str
        The kinds to be tried, in this order.
    """

    def __init__(self, place: Place, tried: tuple[Kind, ...] = ("flow",)) -> None:
        kernel = place.likelihood.kernel
        self.flat = is_flat(sparse.csr_array(kernel.flow_matrix))
        self.kinds, self.kind = tried, tried[0]
        self._starts: dict[str, Array] = {}
        self._counts: dict[Kind, int] = {}

    def took(self, iterations: int) -> None:
        """Note how many iterations a step took, and choose the kind for the next one."""
        self._counts[self.kind] = iterations
        untried = [kind for kind in self.kinds if kind not in self._counts]
        if not untried:
            self.kind = min(self.kinds, key=self._counts.__getitem__)
        elif iterations > _MANY_ITERATIONS:
            self.kind = untried[0]

    def __call__(self, curvature: Curvature) -> tuple[Map, Array, Array]:
        """The preconditioner, and the information about each field at the knots of the priors."""
        place, spectrum = curvature.place, curvature.potential.spectrum
        kernel = place.likelihood.kernel
        n = kernel.n_states
        source, target, conductance = kernel.edges
        log_density = place.log_p - np.log(kernel.stationary)
        density = np.exp(log_density)
        weights = LogMean()(density[:, source], density[:, target]) * conductance
        first_variation = place.V + place.beta * log_density
        slopes = np.abs(first_variation[:, source] - first_variation[:, target])
        decay = 2.0 * (place.beta + 0.5 * float(np.sum(weights * slopes) / weights.sum()))
        least = 1e-5 * spectrum.top
        modes = _modes(curvature, decay, np.geomspace(least, spectrum.top, 60))
        knots, mu = np.log(np.maximum(spectrum.centres, least)), np.log(modes.mu)
        about0, aboutV = (
            np.exp(np.interp(knots, mu, np.log(known))) for known in (modes.other, modes.schur)
        )
        if self.kind == "flow":
            p, t = np.exp(place.log_p), place.likelihood.flow.times
            share = np.maximum(n * p.mean(axis=0), _LEAST_SHARE)
            # The start is seen where the population was while it remembered the start.
            middle = float(spectrum.weights @ spectrum.nodes / spectrum.weights.sum())
            early = place.likelihood.totals * np.exp(-2.0 * decay * middle * (t - t[0]))
            first = np.maximum(n * (early / early.sum()) @ p, _LEAST_SHARE)
            mean = stacked_laplacians(source, target, n * weights.mean(axis=0)[None], n)
            apply = self._rationals(modes, mean, first, share, spectrum.gap)
        elif spectrum.basis is None:
            plain = stacked_laplacians(source, target, n * conductance[None], n)
            share = spectrum.root**2
            apply = self._rationals(modes, plain, share, share, spectrum.gap)
        else:
            values, vectors = spectrum.basis
            modes = _modes(curvature, decay, np.maximum(values, least))
            apply = _exactly(modes, vectors, spectrum.root[:, None])
        return apply, about0, aboutV

    def _rationals(
        self, modes: _Modes, mean: sparse.csr_array, first: Array, share: Array, gap: float
    ) -> Map:
        """The inverse of every mode's two by two matrix, by rational functions of a Laplacian.

        `first` and `share` are where the population was, for the start and for the potential.
        """
        n, mu, f0, fc, q0 = share.size, modes.mu, modes.f_start, modes.f_mixed, modes.q_start
        solver, early = self._solver(mean, share, gap), self._solver(mean, first, gap)
        root0 = self._rational("initial", mu, (f0 + q0) ** -0.5, early)
        rootV = self._rational("potential", mu, (modes.schur + modes.q_potential) ** -0.5, solver)
        couple = _coupling(mu, np.maximum(-fc / (f0 + q0), 1e-12), f0 / (f0 + q0), solver)
        scale, scale0 = np.sqrt(share)[:, None], np.sqrt(first)[:, None]

        def apply(right: Array) -> Array:
            r0, rV = right[:n], right[n:]
            xV = rootV(rootV(rV / scale + couple(r0 / scale)))
            x0 = root0(root0(r0 / scale0)) / scale0 + couple(xV) / scale
            return np.concatenate([x0, xV / scale])

        return apply

    def _solver(self, mean: sparse.csr_array, share: Array, gap: float) -> Callable[[float], Map]:
        """The map `(1 + a A)^-1` for every `a`."""
        scale = np.sqrt(share)[:, None]

        def make(a: float) -> Map:
            matrix = sparse.csc_array(a * mean + sparse.diags_array(share))
            if self.flat or share.size <= _FACTORED_STATES:
                solve: Map = splu(
                    matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0,
                    options={"SymmetricMode": True},
                ).solve  # fmt: skip
            else:
                lowest = min(1.0, (1.0 + a * gap) / (1.0 + 1.3 * a))
                solve = _chebyshev_solver(sparse.csr_array(matrix), lowest)
            return lambda y: np.asarray(scale * solve(scale * y))

        return make

    def _rational(self, name: str, mu: Array, values: Array, solver: Callable[[float], Map]) -> Map:
        """`y -> g(A) y` with `g ~ C prod (1 + b mu) / (1 + a mu)` near `values`, and positive."""
        logs = np.log(values)

        def gap(p: Array) -> Array:
            b, a = np.exp(p[1:3])[:, None] * mu, np.exp(p[3:5])[:, None] * mu
            return np.asarray(p[0] + np.log1p(b).sum(axis=0) - np.log1p(a).sum(axis=0) - logs)

        starts = [np.array([logs[0], 0.0, 0.0, 2.0, 2.0]), np.array([logs[0], -3, -3, 4, 1.0])]
        if name in self._starts:
            starts = [self._starts[name]]
        bounds = ([-60, -12, -12, -12, -12], [60, 9, 9, 9, 9])
        fits = [least_squares(gap, np.clip(p, *bounds), bounds=bounds, max_nfev=60) for p in starts]
        p = min(fits, key=lambda fit: float(fit.cost)).x
        self._starts[name] = p
        level, above, below = np.exp(p[0]), np.exp(p[1:3]), np.exp(p[3:5])
        parts = [(b / a, solver(float(a))) for b, a in zip(above, below, strict=True)]

        def apply(y: Array) -> Array:
            y = level * y
            for ratio, solve in parts:
                y = ratio * y + (1.0 - ratio) * solve(y)
            return np.asarray(y)

        return apply


def _modes(curvature: Curvature, decay: float, mu: Array) -> _Modes:
    """Modes with these eigenvalues in a population that forgets them at rates `decay mu`."""
    place = curvature.place
    t = place.likelihood.flow.times - place.likelihood.flow.times[0]
    counts = place.likelihood.totals[:, None] / place.u0.size
    r = np.exp(-decay * mu * t[:, None])
    s = (1.0 - r) / decay
    f0 = np.sum(counts * r**2, axis=0)
    fc = -np.sum(counts * r * s, axis=0)
    fV = np.sum(counts * s**2, axis=0)
    relax = 1.0 + curvature.damping
    q0, qV = relax * curvature.initial.at(mu), relax * curvature.potential.at(mu)
    return _Modes(mu, f0, fc, fV, q0, qV)


def _exactly(modes: _Modes, vectors: Array, scale: Array) -> Map:
    """The inverse of every mode's two by two matrix, with all eigenvectors known."""
    n = scale.size
    own0 = (modes.f_start + modes.q_start)[:, None]
    ownV = (modes.f_potential + modes.q_potential)[:, None]
    mixed = modes.f_mixed[:, None]
    determinant = own0 * ownV - mixed**2

    def apply(right: Array) -> Array:
        y0, yV = vectors.T @ (right[:n] / scale), vectors.T @ (right[n:] / scale)
        x0 = vectors @ ((ownV * y0 - mixed * yV) / determinant)
        xV = vectors @ ((own0 * yV - mixed * y0) / determinant)
        return np.concatenate([x0 / scale, xV / scale])

    return apply


def _coupling(mu: Array, values: Array, weights: Array, solver: Callable[[float], Map]) -> Map:
    """`y -> c(A) y` with `c ~ t mu / (1 + b mu)` near `values`."""
    b = np.geomspace(1e-2, 3e3, 40)
    gaps = np.log(values) - np.log(mu / (1.0 + b[:, None] * mu))
    levels = np.average(gaps, axis=1, weights=weights)
    spread = np.average((gaps - levels[:, None]) ** 2, axis=1, weights=weights)
    best = int(np.argmin(spread))
    factor, solve = np.exp(levels[best]) / b[best], solver(float(b[best]))
    return lambda y: np.asarray(factor * (y - solve(y)))


def _chebyshev_solver(matrix: sparse.csr_array, lowest: float) -> Map:
    """A fixed polynomial near the inverse, for eigenvalues after scaling in `[lowest, 2]`."""
    diagonal = matrix.diagonal()[:, None]
    centre, reach = 0.5 * (2.0 + lowest), 0.5 * (2.0 - lowest)
    count = int(np.clip(1.5 * np.sqrt(2.0 / lowest) + 2.0, 3, _LONGEST_CHEBYSHEV))

    def solve(right: Array) -> Array:
        sigma = centre / reach
        rate = 1.0 / sigma
        r = right / diagonal
        x, step = np.zeros_like(r), r / centre
        for _ in range(count):
            x += step
            r -= (matrix @ step) / diagonal
            new = 1.0 / (2.0 * sigma - rate)
            step = new * rate * step + (2.0 * new / reach) * r
            rate = new
        return np.asarray(x)

    return solve
