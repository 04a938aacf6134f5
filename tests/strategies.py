"""Hypothesis strategies: kernels, probabilities and mobilities to test laws on."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from thalweg.kernel import MarkovKernel
from thalweg.mobility import (
    ArithmeticMean,
    GeometricMean,
    HarmonicMean,
    LogMean,
    Mobility,
    PorousMediumMean,
    PowerProduct,
)

MEANS: tuple[Mobility, ...] = (
    LogMean(),
    GeometricMean(),
    ArithmeticMean(),
    HarmonicMean(),
    PorousMediumMean(1.5),
)
MOBILITIES: tuple[Mobility, ...] = (*MEANS, PowerProduct(0.3))

generators = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def random_kernel(n: int, rng: np.random.Generator, *, density: float = 0.5) -> MarkovKernel:
    """A connected kernel: a random tree, random further edges, weights over two decades."""
    w = np.zeros((n, n))
    order = rng.permutation(n)
    for i in range(1, n):
        w[order[i], order[rng.integers(i)]] = 1.0
    w += rng.random((n, n)) < density
    w = np.triu(w + w.T, 1) > 0
    w = w * 10.0 ** rng.uniform(-1, 1, (n, n))
    return MarkovKernel.from_weights(w + w.T + np.diag(rng.random(n) * rng.integers(2)))


@st.composite
def kernels(draw: st.DrawFn, min_states: int = 2, max_states: int = 8) -> MarkovKernel:
    rng = draw(generators)
    return random_kernel(draw(st.integers(min_states, max_states)), rng)


@st.composite
def kernels_with_probability(
    draw: st.DrawFn, max_states: int = 8
) -> tuple[MarkovKernel, NDArray[np.float64], np.random.Generator]:
    kernel = draw(kernels(max_states=max_states))
    rng = draw(generators)
    p = rng.dirichlet(np.full(kernel.n_states, 10.0 ** rng.uniform(-0.5, 1.0))) + 1e-9
    return kernel, p / p.sum(), rng


mobilities = st.sampled_from(MOBILITIES)
means = st.sampled_from(MEANS)
