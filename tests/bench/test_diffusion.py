"""The parts of `thalweg bench diffusion` that take seconds."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg_bench import BenchSettings
from thalweg_bench.diffusion import loss_figure, steering_figure
from thalweg_bench.diffusion_exact import memory_rows, recovery_rows, reversal_rows

SETTINGS = BenchSettings(quick=True)


@pytest.mark.parametrize("rows", [memory_rows, recovery_rows, reversal_rows])
def test_the_figures_meet_their_targets(rows) -> None:
    for row in rows(SETTINGS):
        assert row["met"] == "True", row


def test_a_noising_process_is_recovered_with_other_seeds() -> None:
    # Snapshots of pure noise: beta within its error, and no potential beyond its error.
    for seed in (1, 2):
        for row in recovery_rows(BenchSettings(seed=seed)):
            assert row["value"] <= row["target"], row


def test_the_corpus_splits_and_spells() -> None:
    pytest.importorskip("torch")
    from thalweg_bench.diffusion_text import bigram_bits, corpus

    text = corpus(np.random.default_rng(0))
    assert text.decode(text.encode("gradient flow")) == "gradient flow"
    assert text.train.max() < len(text.alphabet)
    assert 0.05 < text.test.size / (text.test.size + text.train.size) < 0.15
    assert 2.5 < bigram_bits(text) < 5.0


def test_figures_are_drawn() -> None:
    losses = {"a": np.linspace(2, 1, 80), "b": np.ones(3)}
    assert len(loss_figure(losses).data) == 2
    assert len(steering_figure({"a": (np.arange(3.0), np.ones(3))}).data) == 1
