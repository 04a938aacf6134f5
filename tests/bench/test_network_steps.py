"""The compiled training steps of the paper's network are those of torch."""

from __future__ import annotations

import numpy as np
import pytest

from literal_flow import gradient_flow, random_kernel
from thalweg.energy import centred
from thalweg.learn.network.paper import Training, fit_neural
from thalweg_bench.network_steps import grouped_steps

pytest.importorskip("torch")


def test_the_compiled_steps_are_those_of_torch() -> None:
    rng = np.random.default_rng(0)
    kernel = random_kernel(rng, 5)
    v = centred(rng.uniform(-1, 1, 5), kernel)
    times = np.linspace(0, 2, 11)
    p = gradient_flow(kernel, v, 0.2, np.full(5, 0.2), times)
    counts = np.array([rng.multinomial(2000, row) for row in p])
    literal, grouped = (
        fit_neural(
            kernel, times, counts, p, seed=3, training=Training(batch_size=100, engine=engine)
        )
        for engine in (None, grouped_steps)
    )
    assert grouped.n_steps == literal.n_steps
    # Rounding differs from the first step on, in single precision.
    assert np.allclose(grouped.losses, literal.losses, rtol=1e-4, atol=1e-6)
    assert np.abs(grouped.gradient - literal.gradient).max() < 2e-3
    assert abs(grouped.energy.beta - literal.energy.beta) < 2e-4
