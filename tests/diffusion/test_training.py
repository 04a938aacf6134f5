"""Losses and training: proper losses, resumable training, and a bound that holds."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from thalweg import InputError, MissingDependencyError
from thalweg.diffusion import (
    ConstantSchedule,
    ContextModel,
    ExactModel,
    HammingProcess,
    LogLinearSchedule,
    absorbing_tokens,
    sample,
    uniform_tokens,
)

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from thalweg.diffusion import MLPDenoiser, TransformerDenoiser, likelihood_bound, train  # noqa: E402
from thalweg.diffusion.losses import (  # noqa: E402
    context_log_ratios,
    cross_entropy,
    noisy_batch,
    score_entropy,
    score_entropy_terms,
)

PROCESS = HammingProcess(uniform_tokens(3), 2)
SCHEDULE = ConstantSchedule(6.0)
LOGLINEAR = LogLinearSchedule(6.0, unit=2.0)
P = np.random.default_rng(0).dirichlet(np.full(9, 0.5))


def draw(rng: np.random.Generator, n: int) -> np.ndarray:
    return PROCESS.decode(rng.choice(9, size=n, p=P))


def test_score_entropy_is_bregman() -> None:
    scores = torch.linspace(-3, 3, 41)
    for ratio in (0.05, 1.0, 8.0):
        terms = score_entropy_terms(scores, torch.full_like(scores, math.log(ratio)))
        s = torch.exp(scores)
        literal = s - ratio * scores + ratio * (math.log(ratio) - 1)
        torch.testing.assert_close(terms, literal, atol=1e-4, rtol=1e-4)
        assert (terms >= 0).all()
    assert float(score_entropy_terms(torch.tensor(0.7), torch.tensor(0.7))) == 0
    # Averaged over ratios, it is smallest at their mean.
    ratios = torch.tensor([0.2, 1.0, 4.0])
    grid = torch.linspace(-2, 2, 2001)
    mean = sum(score_entropy_terms(grid, torch.log(r).expand_as(grid)) for r in ratios) / 3
    assert float(torch.exp(grid[mean.argmin()])) == pytest.approx(float(ratios.mean()), rel=5e-3)


@pytest.mark.parametrize("loss", ["cross-entropy", "score-entropy"])
def test_the_truth_is_where_the_losses_are_least(loss: str) -> None:
    exact = ExactModel(PROCESS, P)
    rng = np.random.default_rng(1)
    clock = np.full(20_000, 1.0)
    batch = noisy_batch(PROCESS, draw(rng, clock.size), clock, rng=rng)
    logits = torch.log(torch.as_tensor(exact.context(batch.noisy.numpy(), clock)).float() + 1e-9)

    def value(outputs: torch.Tensor) -> float:
        if loss == "cross-entropy":
            return float(cross_entropy(outputs, batch).mean())
        return float(score_entropy(context_log_ratios(PROCESS, outputs, batch), batch).mean())

    truth = value(logits)
    for seed in range(3):
        torch.manual_seed(seed)
        # The same wrong answer for the same noisy sequence.
        table = 0.5 * torch.randn(9, 2, 3)
        codes = batch.noisy[:, 0] * 3 + batch.noisy[:, 1]
        assert value(logits + table[codes]) > truth + 1e-3


@pytest.mark.parametrize(
    ("loss", "head"),
    [("cross-entropy", "context"), ("score-entropy", "context"), ("score-entropy", "score")],
)
def test_training_learns_the_data(loss: str, head: str) -> None:
    torch.manual_seed(0)
    network = MLPDenoiser(3, 2, width=64, depth=1)
    result = train(
        PROCESS, LOGLINEAR, network, draw, loss=loss, head=head, n_steps=250, batch_size=256,
        learning_rate=5e-3,
    )  # fmt: skip
    assert result.status
    assert result.losses.shape == (250,)
    rng = np.random.default_rng(2)
    x = sample(
        result.model, LOGLINEAR, 20_000, rng=rng, n_steps=60,
        method="posterior" if head == "context" else "tau-leap",
    )  # fmt: skip
    frequency = np.bincount(x @ np.array([3, 1]), minlength=9) / x.shape[0]
    assert 0.5 * abs(frequency - P).sum() < 0.07


def test_an_interrupted_run_goes_on_to_the_same_numbers(tmp_path) -> None:
    def run(file, stop_after: int | None):
        torch.manual_seed(7)
        calls = iter(range(10**6))
        return train(
            PROCESS, SCHEDULE, MLPDenoiser(3, 2, width=16), draw, n_steps=30, batch_size=16,
            checkpoint=file, checkpoint_every=10,
            stop=None if stop_after is None else lambda: next(calls) >= stop_after,
        )  # fmt: skip

    whole = run(None, None)
    first = run(tmp_path / "a.pt", 17)
    assert not first.status
    assert first.losses.size == 17
    second = run(tmp_path / "a.pt", None)
    np.testing.assert_array_equal(second.losses, whole.losses)
    for key, value in whole.network.state_dict().items():
        torch.testing.assert_close(second.network.state_dict()[key], value, rtol=0, atol=0)
    with pytest.raises(InputError, match="was written with n_steps = 30, not 31"):
        train(PROCESS, SCHEDULE, MLPDenoiser(3, 2, width=16), draw, n_steps=31, batch_size=16,
              checkpoint=tmp_path / "a.pt")  # fmt: skip
    (tmp_path / "b.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match="not a checkpoint of this kind"):
        run(tmp_path / "b.pt", None)


class Table(torch.nn.Module):
    """The true context of an absorbing process, as a network would give it."""

    def __init__(self, model: ContextModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens, time):
        # What the visible tokens say about a masked one does not depend on the time.
        clock = np.ones(time.shape[0])
        return torch.log(torch.as_tensor(self.model.context(tokens.numpy(), clock)) + 1e-12).float()


def test_the_bound_is_tight_for_the_truth_and_above_the_entropy() -> None:
    from thalweg.diffusion.training import NetworkModel

    process = HammingProcess(absorbing_tokens(2, backward=1e-6), 2)
    p = np.array([0.45, 0.05, 0.1, 0.4])
    full = np.zeros((3, 3))
    full[:2, :2] = p.reshape(2, 2)
    schedule = LogLinearSchedule(20.0, unit=2.0)
    rng = np.random.default_rng(0)
    states = rng.choice(4, size=1500, p=p)
    data = np.column_stack([states // 2, states % 2])
    model = NetworkModel(process, Table(ExactModel(process, full.ravel())))
    bound = likelihood_bound(model, schedule, data, rng=rng, n_times=8)
    sampled = -np.log2(p[states]).mean() / 2
    assert bound.bits == pytest.approx(sampled, abs=0.03)
    wrong = NetworkModel(process, Table(ExactModel(process, np.eye(9)[0] * 0.01 + 0.99 / 9)))
    assert likelihood_bound(wrong, schedule, data, rng=rng, n_times=8).bits > bound.bits + 0.05


def test_a_transformer_learns_to_copy() -> None:
    # Every sequence repeats one token; masks are filled from any visible one.
    process = HammingProcess(absorbing_tokens(4), 8)
    torch.manual_seed(0)
    network = TransformerDenoiser(5, 8, mask=4, width=32, depth=1, heads=2)
    data = np.repeat(np.arange(4)[:, None], 8, axis=1)
    result = train(process, LogLinearSchedule(40.0, unit=8.0), network, data, n_steps=120,
                   batch_size=32, learning_rate=1e-2)  # fmt: skip
    noisy = np.array([[4, 4, 2, 4, 4, 4, 4, 4]])
    posterior = result.model.posterior(noisy, np.array([8.0]))
    assert posterior[0, :, 2].min() > 0.8
    assert posterior[0, :, 4].max() == 0


def test_errors_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="score-entropy"):
        train(PROCESS, SCHEDULE, MLPDenoiser(3, 2), draw, head="score")
    process = HammingProcess(absorbing_tokens(2), 2)
    with pytest.raises(InputError, match="contains the mask"):
        train(process, SCHEDULE, MLPDenoiser(3, 2), np.array([[0, 2]]))
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it now fails
    monkeypatch.delitem(sys.modules, "thalweg.diffusion.networks")
    import thalweg.diffusion

    with pytest.raises(MissingDependencyError, match=r"pip install 'thalweg\[neural\]'"):
        _ = thalweg.diffusion.MLPDenoiser
