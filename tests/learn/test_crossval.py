"""Cross-validation: the right model wins, nothing of a held-out snapshot is seen, verdicts hold."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.flow import gradient_flow
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor, OnSnapshots, cross_validate, time_splits
from thalweg.learn.rivals import fokker_planck
from thalweg.snapshots import Snapshots

N = 6
KERNEL = MarkovKernel.from_weights(np.diag(np.ones(N - 1), 1) + np.diag(np.ones(N - 1), -1))
TIMES = np.linspace(0, 6, 6)
MODEL = FreeEnergyRegressor(method="weak")


def _seen(individuals: int, seed: int) -> Snapshots:
    start = np.array([0.7, 0.1, 0.08, 0.06, 0.04, 0.02])
    truth = FreeEnergy([1.0, 0.2, 0.8, -0.4, 0.3, -1.2], 0.25)
    path = gradient_flow(KERNEL, truth, start, TIMES).probabilities
    rng = np.random.default_rng(seed)
    return Snapshots.from_counts(TIMES, [rng.multinomial(individuals, p / p.sum()) for p in path])


@pytest.mark.parametrize("scheme", ["leave-one-out", "forecast-last", "k-fold"])
def test_a_landscape_beats_no_movement_and_the_table_says_so(scheme: str) -> None:
    result = cross_validate(
        MODEL, KERNEL, _seen(20_000, 1), scheme=scheme, rivals=["no movement"], n_folds=2
    )
    assert result.models == ["landscape", "no movement"]
    gap, error = result.gap("no movement")
    assert gap > 10 * error > 0
    assert "better than every rival" in result.verdict
    assert "no movement" in str(result)
    assert not result.failures


def test_held_out_counts_do_not_reach_the_fit() -> None:
    seen = _seen(1000, 2)
    altered = seen.counts.copy()
    altered[-1] = np.roll(altered[-1], 2)
    other = Snapshots.from_counts(TIMES, altered)
    rivals = ["linear interpolation"]
    a, b = (
        cross_validate(MODEL, KERNEL, s, scheme="forecast-last", rivals=rivals)
        for s in (seen, other)
    )
    # Where predictions are the same, scores are linear in the held-out counts.
    for one, two in zip(a.scores, b.scores, strict=True):
        assert one.log_score != two.log_score
    c = cross_validate(MODEL, KERNEL, seen, scheme="forecast-last", rivals=rivals)
    assert [s.log_score for s in a.scores] == [s.log_score for s in c.scores]


def test_a_fokker_planck_chain_recovers_its_own_population() -> None:
    g = np.array([0.6, 0.0, 0.4, -0.2, 0.1, -0.6])
    K = KERNEL.matrix.toarray()
    q = 0.5 * K * np.exp(g[:, None] - g[None, :])
    np.fill_diagonal(q, 0.0)
    np.fill_diagonal(q, -q.sum(axis=1))
    from scipy.linalg import expm

    start = np.array([0.6, 0.2, 0.1, 0.05, 0.03, 0.02])
    path = np.array([start @ expm(t * q) for t in TIMES])
    found = fokker_planck(KERNEL, TIMES, 1e6 * path, at=[7.0, 20.0])
    expected = np.array([start @ expm(t * q) for t in (7.0, 20.0)])
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_scikit_learn_searches_over_settings() -> None:
    from sklearn.model_selection import GridSearchCV

    seen = _seen(5000, 3)
    base = OnSnapshots(MODEL, KERNEL, seen)
    search = GridSearchCV(base, {"model__beta": [0.02, 0.25, 5.0]}, cv=time_splits(seen))
    search.fit(base.positions)
    assert search.best_params_ == {"model__beta": 0.25}


def test_bad_questions_are_answered_in_a_sentence() -> None:
    seen = _seen(100, 4)
    with pytest.raises(InputError, match="no rival 'magic'; choose from no movement"):
        cross_validate(MODEL, KERNEL, seen, rivals=["magic"])
    with pytest.raises(InputError, match="2 snapshots; leaving one out needs three"):
        cross_validate(MODEL, KERNEL, seen[:2])
    with pytest.raises(InputError, match="n_folds is 1"):
        cross_validate(MODEL, KERNEL, seen, scheme="k-fold", n_folds=1)
