"""Gaussian priors on a graph without coordinates: white noise smoothed by the kernel.

A field is `g(K) w` with white `w`; in terms of `L = D (I - K) D^-1`, symmetric with `D^2 = N pi`,
its precision is `A^T A` with `A = D^-1 q(L)^(1/2) D`. `log q` is a sum of smooth bumps,
one level each, spaced so that small eigenvalues and crowded ones are resolved: a field may be
rough or smooth, and the data decide. (With bumps in `log mu` alone a spectrum that falls where
most modes are was smeared, which made beta 20 to 70 % too high on smooth landscapes.)
Functions of `L` are applied as Chebyshev polynomials: nothing but products with the Laplacian, on
any graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.fft import dct
from scipy.linalg import eigh_tridiagonal

from thalweg._compile import njit
from thalweg._types import Array
from thalweg.edges.static import stacked_laplacians
from thalweg.kernel import MarkovKernel

_SPACING = 0.8
"""Spacing of the bumps in `log(mu + mu0)` plus `_RESOLVE` times the share of modes below `mu`."""
_RESOLVE = 4.0
"""Weight of the share of modes in the spacing of bumps."""
_BINS = 24
"""Number of bins of the eigenvalues, for that share."""
_WIDTH = 0.7
"""Width of a bump, in spacings."""
_BENDING, _RISING = 3.0, 2.0
"""Standard deviations of the second and first differences of the levels under their own prior."""
_PULL = 0.5
"""Slope of the levels' log prior: as if one more mode were known to vanish in every bump.

The slowest bumps hold a few modes that the data hardly determine. The most likely levels left them
free to follow the noise, which tilted a whole rough grid of 1000 states: correlation 0.884 of the
0.967 that the information allows, 0.968 with the pull."""
_EXACT_STATES = 1200
"""States up to which all eigenvalues of the Laplacian are computed (0.2 s)."""
_PROBES, _LANCZOS_STEPS = 8, 80
"""Probes, and Lanczos steps, that estimate their density above that number."""
_LARGEST_DEGREE = 120
"""Largest degree of the Chebyshev polynomials: eigenvalues below a thousandth of the largest, a
handful of modes, share one level. Half the time of a fit of 3000 states are these polynomials."""
_NEGLIGIBLE = 1e-3
"""Coefficients that are left out, in units of the polynomial's least value."""
_MOST_RAISED = 3.0
"""Most by which a level is taken to have been raised by the pull."""


class Spectrum:
    """The symmetric Laplacian of a kernel and its eigenvalues."""

    def __init__(self, kernel: MarkovKernel, rng: np.random.Generator) -> None:
        source, target, conductance = kernel.edges
        n = self.n = kernel.n_states
        self.root = np.sqrt(n * kernel.stationary)
        plain = stacked_laplacians(source, target, n * conductance[None], n)
        scale = sparse.diags_array(1.0 / self.root)
        self.matrix = sparse.csr_array(scale @ plain @ scale)
        self.matrix.sort_indices()
        if n <= _EXACT_STATES:
            values = np.maximum(np.linalg.eigvalsh(self.matrix.toarray()), 0.0)
            self.nodes, self.weights = values[1:], np.ones(n - 1)
        else:
            self.nodes, self.weights = _density_of_states(self.matrix, self.root, rng)
        self.top = 1.02 * float(self.nodes.max())
        order = np.argsort(self.nodes)
        first = int(np.searchsorted(np.cumsum(self.weights[order]), 1.0))
        self.gap = float(self.nodes[order][min(first, order.size - 1)])
        self.floor = max(self.gap, self.top * (4.0 / _LARGEST_DEGREE) ** 2)
        edges = np.linspace(0.0, self.top, _BINS + 1)
        below = np.cumsum(np.histogram(self.nodes, edges, weights=self.weights)[0])
        self._edges, self._below = edges, np.append(0.0, below) / below[-1]
        low, high = self._coordinate(np.array([0.0, self.top]))
        count = max(3, int(np.ceil((high - low) / _SPACING)) + 1)
        self.knots = np.linspace(low, high, count)
        fine = np.append(0.0, np.geomspace(1e-2 * self.floor, self.top, 400))
        self.centres = np.interp(self.knots, self._coordinate(fine), fine)
        """The eigenvalues at the knots."""
        self.degree = int(np.clip(4.0 * np.sqrt(self.top / self.floor), 16, _LARGEST_DEGREE))
        size = 2 * self.degree + 1
        angles = np.pi * (np.arange(size) + 0.5) / size
        self.grid_bumps = self.bumps(0.5 * self.top * (np.cos(angles) + 1.0))
        """The bumps at Chebyshev's points."""
        rise, bend = (np.diff(np.eye(count), order, axis=0) for order in (1, 2))
        self.stiffness = rise.T @ rise / _RISING**2 + bend.T @ bend / _BENDING**2
        self.modes = self.weights @ self.bumps(self.nodes)
        """Number of modes that belong to each bump."""

    @cached_property
    def basis(self) -> tuple[Array, Array] | None:
        """All eigenvalues and eigenvectors, where states are few enough for them."""
        if self.n > _EXACT_STATES:
            return None
        values, vectors = np.linalg.eigh(self.matrix.toarray())
        return np.maximum(values, 0.0), np.ascontiguousarray(vectors)

    def _coordinate(self, mu: Array) -> Array:
        """The coordinate in which bumps are evenly spaced: it resolves small and crowded values."""
        mu = np.maximum(mu, 0.0)
        return np.log(mu + self.floor) + _RESOLVE * np.interp(mu, self._edges, self._below)

    def bumps(self, mu: Array) -> Array:
        """Shares of the levels at eigenvalues `mu`, one row each; they add up to one."""
        width = _WIDTH * (self.knots[1] - self.knots[0])
        distance = self._coordinate(mu)[:, None] - self.knots
        share = np.exp(-0.5 * (distance / width) ** 2)
        return np.asarray(share / share.sum(axis=1, keepdims=True))

    def level_slope(self, levels: Array) -> Array:
        """Slope of the levels' own log prior."""
        return np.asarray(_PULL - self.stiffness @ levels)

    def unpulled(self, levels: Array, information: Array) -> Array:
        """The levels that would have been found without the pull towards vanishing modes."""
        raised = np.linalg.solve(information, np.full(levels.size, _PULL))
        return np.asarray(levels - np.clip(raised, 0.0, _MOST_RAISED))

    def level_information(self, shares: Array) -> Array:
        """Information about the levels of a prior, from the shares of modes that data determine.

        A mode with information `f` and precision `q` gives `(f / (f + q))^2 / 2` about `log q`.
        """
        bumps = self.bumps(self.nodes)
        weights = self.weights * np.maximum(bumps @ shares, 0.07) ** 2
        own = 0.5 * (bumps.T * weights) @ bumps + self.stiffness
        return np.asarray(own + 0.05 * np.eye(self.knots.size))

    def coefficients(self, values: Array) -> Array:
        """Chebyshev coefficients of a function given at Chebyshev's points."""
        out = dct(values, axis=0) / values.shape[0]
        out[0] *= 0.5
        return np.asarray(out)

    def mean(self, x: Array) -> Array:
        """The mean under `pi`, on which no Laplacian acts."""
        return np.asarray((self.root**2 / self.n) @ x)

    def shifted(self, x: Array) -> Array:
        """The Laplacian with its spectrum mapped onto `[-1, 1]`, times `x`."""
        return np.asarray((2.0 / self.top) * (self.matrix @ x) - x)

    def apply(self, coefficients: Array, x: Array) -> Array:
        """The polynomial with these Chebyshev coefficients, times `x`."""
        m = self.matrix
        columns = np.ascontiguousarray(x.reshape(self.n, -1))
        out = _polynomial(m.indptr, m.indices, m.data, 2.0 / self.top, coefficients, columns)
        return np.asarray(out.reshape(x.shape))

    def shares(self, u: Array, v: Array) -> Array:
        """`u^T bump_j(L) v` of each level, averaged over the columns."""
        coefficients = self.coefficients(self.grid_bumps)
        before, now = v, self.shifted(v)
        out = coefficients[0] * np.sum(u * v) + coefficients[1] * np.sum(u * now)
        for k in range(2, coefficients.shape[0]):
            before, now = now, 2.0 * self.shifted(now) - before
            out += coefficients[k] * np.sum(u * now)
        return np.asarray(out / u.shape[1])


@njit(cache=True)
def _polynomial(
    indptr: NDArray[np.int32],
    indices: NDArray[np.int32],
    data: Array,
    scale: float,
    coefficients: Array,
    x: Array,
) -> Array:
    """Chebyshev's recurrence in `scale L - 1` from the columns of `x`."""
    n, width = x.shape
    out = coefficients[0] * x
    before, now, after = np.zeros((n, width)), x.copy(), np.empty((n, width))
    for k in range(1, coefficients.size):
        factor, weight = (1.0 if k == 1 else 2.0), coefficients[k]
        if width <= 2:
            # Sums in registers: loops over one or two columns cost more than what they do.
            last = width - 1
            for i in range(n):
                a, b = 0.0, 0.0
                for e in range(indptr[i], indptr[i + 1]):
                    y, value = indices[e], data[e]
                    a += value * now[y, 0]
                    b += value * now[y, last]
                a = factor * (scale * a - now[i, 0]) - before[i, 0]
                after[i, 0] = a
                out[i, 0] += weight * a
                if last == 1:
                    b = factor * (scale * b - now[i, 1]) - before[i, 1]
                    after[i, 1] = b
                    out[i, 1] += weight * b
        else:
            for i in range(n):
                for j in range(width):
                    after[i, j] = -factor * now[i, j] - before[i, j]
                for e in range(indptr[i], indptr[i + 1]):
                    y, value = indices[e], factor * scale * data[e]
                    for j in range(width):
                        after[i, j] += value * now[y, j]
                for j in range(width):
                    out[i, j] += weight * after[i, j]
        before, now, after = now, after, before
    return out


def _density_of_states(
    matrix: sparse.csr_array, null: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Nodes and weights, which add up to `n - 1`, of the eigenvalues, by Lanczos from probes."""
    n = matrix.shape[0]
    nodes, weights = [], []
    for _ in range(_PROBES):
        v = rng.choice([-1.0, 1.0], n)
        v -= null * (null @ v) / (null @ null)
        basis = [v / np.linalg.norm(v)]
        diagonal: list[float] = []
        beside: list[float] = []
        for _ in range(min(_LANCZOS_STEPS, n - 2)):
            w = matrix @ basis[-1]
            diagonal.append(float(w @ basis[-1]))
            block = np.array(basis)
            w = w - block.T @ (block @ w)
            w -= block.T @ (block @ w)
            size = float(np.linalg.norm(w))
            if size < 1e-10:
                break
            beside.append(size)
            basis.append(w / size)
        values, vectors = eigh_tridiagonal(diagonal, beside[: len(diagonal) - 1])
        nodes.append(np.maximum(values, 0.0))
        weights.append(vectors[0] ** 2)
    return np.concatenate(nodes), np.concatenate(weights) * (n - 1) / _PROBES


@dataclass(frozen=True, eq=False)
class SpectralPrior:
    """A Gaussian field with precision `A^T A`, `A = D^-1 q(L)^(1/2) D`."""

    spectrum: Spectrum
    levels: Array
    """`q = exp(sum_j level_j bump_j)`."""

    @staticmethod
    def of_field(spectrum: Spectrum, field: Array) -> SpectralPrior:
        """The most likely prior of a field that is known."""
        x = field[:, None] - spectrum.mean(field)
        information = spectrum.level_information(np.ones(spectrum.knots.size))
        start = float(np.log(spectrum.n / max(float(np.sum(x**2)), 1e-6)))
        prior = SpectralPrior(spectrum, np.full(spectrum.knots.size, start))
        for _ in range(20):
            slope = 0.5 * (spectrum.modes - prior.powers(x)) + spectrum.level_slope(prior.levels)
            step = np.clip(np.linalg.solve(information, slope), -1.5, 1.5)
            prior = replace(prior, levels=prior.levels + step)
            if np.abs(step).max() < 0.05:
                break
        return prior

    @cached_property
    def _half(self) -> Array:
        values = np.exp(0.5 * self.spectrum.grid_bumps @ self.levels)
        out = self.spectrum.coefficients(values)[: self.spectrum.degree + 1]
        kept = np.flatnonzero(np.abs(out) > _NEGLIGIBLE * values.min())
        return out[: int(kept[-1]) + 1] if kept.size else out[:1]

    def at(self, mu: Array) -> Array:
        """`q` at eigenvalues `mu`."""
        x = 2.0 * np.minimum(mu, self.spectrum.top) / self.spectrum.top - 1.0
        return np.asarray(np.polynomial.chebyshev.chebval(x, self._half) ** 2)

    def half(self, x: Array) -> Array:
        """`A x`."""
        root = self.spectrum.root if x.ndim == 1 else self.spectrum.root[:, None]
        return self.spectrum.apply(self._half, root * x) / root

    def transposed(self, x: Array) -> Array:
        """`A^T x`."""
        root = self.spectrum.root if x.ndim == 1 else self.spectrum.root[:, None]
        return root * self.spectrum.apply(self._half, x / root)

    def precision(self, x: Array) -> Array:
        """`A^T A x`."""
        return self.transposed(self.half(x))

    def powers(self, x: Array, y: Array | None = None) -> Array:
        """The derivatives of `|A x|^2`, or of `A x . A y`, in the levels.

        Averaged over the columns of `x`.
        """
        if y is None:
            return self.white_powers(self.half(x))
        return 0.25 * (self.powers((x + y)[:, None]) - self.powers((x - y)[:, None]))

    def white_powers(self, w: Array) -> Array:
        """The derivatives of `powers` from `w = A x`."""
        root = self.spectrum.root[:, None]
        return self.spectrum.shares(w / root, w * root)
