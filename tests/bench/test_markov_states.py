"""The reversible Markov-state model is the likeliest one."""

from __future__ import annotations

import numpy as np

from thalweg_bench.markov_states import reversible_msm


def test_the_markov_state_model_is_reversible_and_the_likeliest() -> None:
    rng = np.random.default_rng(0)
    w = rng.uniform(0.1, 1.0, (4, 4))
    true = (w + w.T) / (w + w.T).sum(axis=1, keepdims=True)
    counts = np.array([rng.multinomial(500, row) for row in true]).astype(float)
    p = reversible_msm(counts, pseudo_count=0)
    flow = np.linalg.matrix_power(p, 2000)[0][:, None] * p
    assert np.allclose(flow, flow.T, atol=1e-8)

    def likelihood(matrix: np.ndarray) -> float:
        return float((counts * np.log(matrix)).sum())

    x = flow
    for _ in range(50):
        bump = 1 + 0.01 * rng.normal(size=(4, 4))
        near = x * (bump + bump.T)
        assert likelihood(near / near.sum(axis=1, keepdims=True)) < likelihood(p)


def test_states_never_left_stay_in_the_markov_state_model() -> None:
    p = reversible_msm([[5, 5, 0], [5, 5, 0], [0, 0, 0]])
    assert np.allclose(p.sum(axis=1), 1)
    assert p[2, 2] == 1
