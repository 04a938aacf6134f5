"""Gaussian priors of a field on states with coordinates: sums of components with one scale each.

    field = sum_c  s_c B_c w_c,      w ~ N(0, 1)

The components are bands of smooth functions, from long waves to short ones, and white noise
diffused over `q` steps of the kernel (`q = 0`: white noise itself). The data choose the scales: a
smooth field keeps the long waves only, a rough one the noise, and no order of smoothness is set
beforehand. The smooth functions are cosines in a box around the states' coordinates, independent of
the graph's boundary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from thalweg._types import Array
from thalweg.kernel import MarkovKernel

_PAD = 0.1
"""Margin of the cosines' box around the points at every end, as a share of its side."""
_NEW, _MOST_OLD = 1e-6, 0.25
"""Share of a function, not explained by those before it, above which it counts as new; share of
functions that are not new above which the states lie on a curve."""
_FIRST_BAND = 8


@dataclass(frozen=True, eq=False)
class FieldPrior:
    """The map from white coefficients `w` to a field, and its transpose.

    Coefficients are ordered: those of `basis`, then `n_states` for each entry of `spreads`.
    """

    kernel: MarkovKernel
    basis: Array
    """Smooth functions in columns, shape (states, functions)."""
    group: NDArray[np.int64]
    """The band of each column of `basis`."""
    spreads: tuple[int, ...]
    gains: tuple[float, ...]
    """Factors that bring each diffused noise to unit variance."""
    scales: Array
    """One per band, then one per spread."""

    @property
    def size(self) -> int:
        return self.basis.shape[1] + len(self.spreads) * self.kernel.n_states

    @property
    def n_smooth(self) -> int:
        return int(self.basis.shape[1])

    @property
    def groups(self) -> NDArray[np.int64]:
        """The scale that each coefficient belongs to."""
        n_bands = self.scales.size - len(self.spreads)
        rough = np.repeat(np.arange(len(self.spreads)) + n_bands, self.kernel.n_states)
        return np.concatenate([self.group, rough])

    @property
    def rough_scales(self) -> Array:
        return self.scales[self.scales.size - len(self.spreads) :]

    @cached_property
    def _transposed(self) -> sparse.csr_array:
        return self.kernel.matrix.T.tocsr()

    def with_scales(self, scales: Array) -> FieldPrior:
        return replace(self, scales=scales)

    def field(self, w: Array) -> Array:
        """`B w`, one field per column."""
        m, n = self.n_smooth, self.kernel.n_states
        out = self.basis @ (self.scales[self.group][:, None] * w[:m])
        for i, q in enumerate(self.spreads):
            part = w[m + i * n : m + (i + 1) * n]
            scale = self.rough_scales[i] * self.gains[i]
            out += scale * _diffuse(self.kernel.matrix, part, q)
        return np.asarray(out)

    def noise(self, g: Array, i: int) -> Array:
        """The transpose of the `i`-th diffused noise at unit scale, times the columns of `g`."""
        return self.gains[i] * _diffuse(self._transposed, g, self.spreads[i])

    def transpose(self, g: Array) -> Array:
        """`B^T g`, one field per column."""
        parts = [self.scales[self.group][:, None] * (self.basis.T @ g)]
        parts += [self.rough_scales[i] * self.noise(g, i) for i in range(len(self.spreads))]
        return np.concatenate(parts)

    def coefficients(self, field: Array, noise: float) -> Array:
        """The smooth coefficients whose field is near `field`: a ridge with this noise."""
        smooth = self.basis * self.scales[self.group]
        gram = smooth.T @ smooth + noise**2 * np.eye(self.n_smooth)
        w = np.zeros(self.size)
        w[: self.n_smooth] = linalg.solve(gram, smooth.T @ field, assume_a="pos")
        return w


def field_prior(
    kernel: MarkovKernel,
    n_functions: int,
    *,
    coordinates: Array,
    spreads: tuple[int, ...],
    rng: np.random.Generator,
) -> FieldPrior:
    """The prior with this many smooth functions and these diffused noises, all scales one."""
    basis = cosines(coordinates, n_functions)
    group = _bands(basis.shape[1])
    # Within a band the variances of the functions add up to one, on average over the states.
    power = (basis**2).mean(axis=0)
    basis = basis / np.sqrt(power * np.bincount(group)[group])
    probes = rng.choice([-1.0, 1.0], size=(kernel.n_states, 8))
    gains = [1.0 / np.sqrt((_diffuse(kernel.matrix, probes, q) ** 2).mean()) for q in spreads]
    count = int(group[-1]) + 1 + len(spreads)
    return FieldPrior(kernel, basis, group, spreads, tuple(gains), np.ones(count))


def _bands(n: int) -> NDArray[np.int64]:
    """Bands of 8, 8, 16, 32, ... functions."""
    edges = [0, _FIRST_BAND]
    while edges[-1] < n:
        edges.append(2 * edges[-1])
    # A last band that is cut short joins the one before it.
    if len(edges) > 2 and n - edges[-2] < (edges[-1] - edges[-2]) // 4:
        edges.pop()
    return np.searchsorted(edges[1:-1], np.arange(n), side="right").astype(np.int64)


def cosines(coordinates: Array, n_functions: int) -> Array:
    """Products of cosines in a box around the points, longest waves first, without the constant."""
    spread = np.ptp(coordinates, axis=0)
    wide = spread > 1e-9 * spread.max()
    x, spread = coordinates[:, wide], spread[wide]
    side = spread + 2 * _PAD * spread.max()
    reach = np.ceil(side / side.max() * (4 * n_functions + 8) ** (1 / x.shape[1]) * 2).astype(int)
    waves = np.stack(np.meshgrid(*[np.arange(r + 1) for r in reach], indexing="ij"), axis=-1)
    waves = waves.reshape(-1, x.shape[1])
    order = np.argsort(((waves / side) ** 2).sum(axis=1), kind="stable")
    waves = waves[order][1 : n_functions + 1]
    phase = (x - x.min(axis=0) + _PAD * spread.max()) / side
    out = np.ones((x.shape[0], waves.shape[0]))
    for axis in range(x.shape[1]):
        out *= np.cos(np.pi * np.outer(phase[:, axis], waves[:, axis]))
    return out


def is_thin(coordinates: Array, n_functions: int) -> bool:
    """Whether the states lie on a curve, where many functions of the space around it are the same.

    >>> angle = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    >>> is_thin(np.column_stack([np.cos(angle), np.sin(angle)]), 80), is_thin(angle[:, None], 80)
    (True, False)
    """
    functions = cosines(coordinates, n_functions)
    left = np.abs(np.diag(np.linalg.qr(functions, mode="r")))
    return bool(np.mean(left < _NEW * np.linalg.norm(functions, axis=0)) > _MOST_OLD)


def _diffuse(matrix: sparse.csr_array, block: Array, q: int) -> Array:
    """`((I + K) / 2)^q` times the block."""
    out = block
    for _ in range(q):
        out = 0.5 * (out + matrix @ out)
    return out
