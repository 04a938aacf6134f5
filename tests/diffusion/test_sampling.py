"""Samplers with the true scores: each reproduces the distribution of the data."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg import InputError
from thalweg.diffusion import (
    ConstantSchedule,
    ContextModel,
    ExactModel,
    HammingProcess,
    LogLinearSchedule,
    ScoreModel,
    absorbing_tokens,
    infill,
    ordinal_tokens,
    sample,
    uniform_tokens,
)
from thalweg.diffusion.sampling import rate_bound

N_SAMPLES = 30_000
SCHEDULE = LogLinearSchedule(18.0, unit=3.0)


def model(kind: str, seed: int = 0) -> tuple[ExactModel, np.ndarray]:
    """The true model of a random law on 3^3 sequences, and the law."""
    p = np.random.default_rng(seed).dirichlet(np.full(27, 0.6))
    if kind == "absorbing":
        full = np.zeros((4, 4, 4))
        full[:3, :3, :3] = p.reshape(3, 3, 3)
        return ExactModel(HammingProcess(absorbing_tokens(3), 3), full.ravel()), p
    tokens = uniform_tokens(3) if kind == "uniform" else ordinal_tokens(3)
    return ExactModel(HammingProcess(tokens, 3), p), p


def distance(x: np.ndarray, p: np.ndarray) -> float:
    counts = np.bincount(x @ np.array([9, 3, 1]), minlength=27)
    return float(0.5 * abs(counts / counts.sum() - p).sum())


@pytest.mark.parametrize("kind", ["uniform", "absorbing", "ordinal"])
@pytest.mark.parametrize("method", ["posterior", "tau-leap"])
def test_samples_follow_the_data(kind: str, method: str) -> None:
    exact, p = model(kind)
    x = sample(exact, SCHEDULE, N_SAMPLES, rng=np.random.default_rng(1), n_steps=60, method=method)
    # An independent sample of this size is 0.011 away; the steps cost the rest.
    assert distance(x, p) < (0.03 if method == "posterior" else 0.06)


class MixtureModel(ContextModel):
    """The true context of a mixture of product laws, in closed form at every clock."""

    def __init__(self, process: HammingProcess, factors: np.ndarray) -> None:
        super().__init__(process)
        self.factors = factors
        self.p = np.einsum("ka,kb,kc->abc", *factors.transpose(1, 0, 2)) / factors.shape[0]

    def context(self, sequences, clock):
        time = self.process.token_time(clock, sequences)
        out = 0.0
        for factor in self.factors:
            each = np.repeat(factor[None], sequences.shape[0], axis=0)
            noised = self.process.tokens.apply(each, time)
            seen = np.take_along_axis(noised, sequences[..., None], -1)[..., 0]
            others = np.prod(seen, axis=1, keepdims=True) / seen
            out = out + others[..., None] * factor
        return out / out.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("kind", ["uniform", "absorbing"])
def test_exact_jumps_have_no_step_error(kind: str) -> None:
    factors = np.random.default_rng(0).dirichlet(np.full(3, 0.4), size=(2, 3))
    process = HammingProcess(uniform_tokens(3), 3)
    if kind == "absorbing":
        process = HammingProcess(absorbing_tokens(3), 3)
        factors = np.concatenate([factors, np.zeros((2, 3, 1))], -1)
    mixture = MixtureModel(process, factors)
    p = mixture.p[:3, :3, :3].ravel()
    x = sample(
        mixture, SCHEDULE, 10_000, rng=np.random.default_rng(1), method="exact", last_time=0.01
    )
    fresh = np.random.default_rng(2).multinomial(10_000, p, size=200) / 10_000
    # At the last clock tokens are drawn one by one, which costs a little.
    assert distance(x, p) < (0.5 * abs(fresh - p).sum(axis=1)).max() + 0.004


def test_more_steps_cost_less_error() -> None:
    exact, p = model("uniform")
    errors = []
    for n_steps in (4, 64):
        rng = np.random.default_rng(3)
        errors.append(distance(sample(exact, SCHEDULE, N_SAMPLES, rng=rng, n_steps=n_steps), p))
    assert errors[1] < 0.35 * errors[0]


@pytest.mark.parametrize("kind", ["uniform", "ordinal", "absorbing"])
def test_the_bound_on_reverse_rates_holds(kind: str) -> None:
    exact, _ = model(kind)
    process = exact.process
    states = process.decode(np.arange(process.n_states))
    bounds = []
    for clock in (0.05, 0.3, 2.0):
        time = np.full(states.shape[0], clock)
        rates = process.tokens.inflow(states, time / 3) * exact.ratios(states, time) / 3
        reached = process.heat_flow(exact.p, clock) > 0
        bounds.append(rate_bound(process, clock))
        assert rates.sum(axis=(1, 2))[reached].max() <= bounds[-1] * (1 + 1e-9)
    assert bounds == sorted(bounds, reverse=True)


@pytest.mark.parametrize("kind", ["uniform", "ordinal"])
def test_langevin_moves_leave_the_law_alone(kind: str) -> None:
    from thalweg.diffusion.sampling import _Sampler

    exact, p = model(kind)
    rng = np.random.default_rng(4)
    clock = 0.6
    law = exact.process.heat_flow(p, clock)
    x = exact.process.decode(rng.choice(27, size=N_SAMPLES, p=law))
    moves = _Sampler(exact, np.full(3, -1), rng)
    for _ in range(20):
        x = moves.langevin(x, clock)
    assert distance(x, law) < 0.02
    # From another start it converges to the law.
    x = np.zeros_like(x)
    for _ in range(60):
        x = moves.langevin(x, clock)
    assert distance(x, law) < 0.02


@pytest.mark.parametrize("corrector", ["langevin", "birth-death"])
def test_a_corrector_reduces_the_error_of_coarse_steps(corrector: str) -> None:
    exact, p = model("uniform")
    rng = np.random.default_rng(5)
    plain = distance(sample(exact, SCHEDULE, N_SAMPLES, rng=rng, n_steps=6), p)
    corrected = sample(
        exact, SCHEDULE, N_SAMPLES, rng=rng, n_steps=6, corrector=corrector, corrector_steps=8,
        corrector_time=0.05,
    )  # fmt: skip
    assert distance(corrected, p) < 0.8 * plain


def test_temperature_sharpens() -> None:
    exact, p = model("absorbing")
    rng = np.random.default_rng(6)

    def likely(temperature: float) -> float:
        x = sample(exact, SCHEDULE, 5000, rng=rng, n_steps=40, temperature=temperature)
        return float(np.log(p[x @ np.array([9, 3, 1])]).mean())

    assert likely(0.3) > likely(1.0) + 0.3


@pytest.mark.parametrize(("kind", "allowed"), [("absorbing", 0.03), ("uniform", 0.12)])
def test_infilling_conditions_on_the_given_tokens(kind: str, allowed: float) -> None:
    exact, p = model(kind)
    rng = np.random.default_rng(7)
    x = infill(
        exact, SCHEDULE, np.array([-1, 2, -1]), N_SAMPLES, rng=rng, n_steps=60,
        corrector="birth-death" if kind == "absorbing" else "langevin", corrector_steps=2,
    )  # fmt: skip
    assert (x[:, 1] == 2).all()
    tensor = p.reshape(3, 3, 3).copy()
    tensor[:, [0, 1]] = 0.0
    assert distance(x, tensor.ravel() / tensor.sum()) < allowed


def test_errors_say_what_to_do() -> None:
    exact, _ = model("uniform")
    rng = np.random.default_rng(0)

    class OnlyScores(ScoreModel):
        def ratios(self, sequences, clock):
            return exact.ratios(sequences, clock)

    scores = OnlyScores(exact.process)
    with pytest.raises(InputError, match="tau-leap"):
        sample(scores, SCHEDULE, 2, rng=rng)
    assert sample(scores, ConstantSchedule(9.0), 2, rng=rng, method="tau-leap").shape == (2, 3)
    with pytest.raises(InputError, match="method is 'euler'"):
        sample(exact, SCHEDULE, 2, rng=rng, method="euler")
    with pytest.raises(InputError, match="template has shape"):
        infill(exact, SCHEDULE, np.array([1, 2]), 2, rng=rng)
