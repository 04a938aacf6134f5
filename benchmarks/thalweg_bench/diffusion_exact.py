"""What is exact about noising processes: reversal, tilted noise, memory, recovery."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np

from thalweg._types import Array
from thalweg.diffusion import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    HammingProcess,
    LinearSchedule,
    Schedule,
    TokenProcess,
    absorbing_tokens,
    hamming_path,
    heat_path,
    ordinal_tokens,
    tilted_kernel,
    tilted_path,
    time_reversal,
    uniform_tokens,
)
from thalweg.energy import FreeEnergy
from thalweg.graphs import hamming_kernel
from thalweg.learn.regressor import FreeEnergyRegressor
from thalweg.snapshots import Snapshots
from thalweg_bench import BenchSettings
from thalweg_bench.diffusion_learned import (
    LENGTH,
    N_TOKENS,
    Row,
    figure_row,
    potts,
    total_variation,
)

__all__ = ["memory_rows", "recovery_rows", "reversal_rows", "steering"]

_AWAY = "total variation to p_0"
"""The quantity in the rows of reversals."""


def reversal_rows(settings: BenchSettings) -> list[Row]:
    """The reversed chain with the true scores, from `p_T` back to `p_0`."""
    p = potts(N_TOKENS, LENGTH, np.random.default_rng(settings.seed))
    total = 4.0 * LENGTH
    schedules: list[Schedule] = [
        ConstantSchedule(total),
        LinearSchedule(total),
        ExponentialSchedule(total),
        CosineSchedule(total, unit=float(LENGTH)),
    ]
    kinds: list[tuple[str, TokenProcess]] = [
        ("uniform", uniform_tokens(N_TOKENS)),
        ("absorbing", absorbing_tokens(N_TOKENS - 1, backward=1e-3)),
        ("ordinal", ordinal_tokens(N_TOKENS)),
    ]
    rows: list[Row] = []
    for name, tokens in kinds:
        process = HammingProcess(tokens, LENGTH)
        law = p
        if tokens.mask is not None:
            # Data has no masks: p_0 is zero on most states, and reverse rates grow like 1 / t.
            masked = (process.decode(np.arange(process.n_states)) == tokens.mask).any(axis=1)
            law = np.where(masked, 0.0, p)
            law = law / law.sum()
        path = hamming_path(process, law, total)
        for schedule in schedules[:1] if settings.quick or name == "ordinal" else schedules:
            started = time.process_time()
            back = time_reversal(path, schedule)
            error = total_variation(back.final, law)
            seconds, setting = time.process_time() - started, type(schedule).__name__
            row = figure_row(
                f"exact reversal, 4^6: {name} noise", setting, _AWAY, error, 1e-6, seconds
            )
            rows.append({**row, "met": str(bool(back.status) and error <= 1e-6)})
            settings.progress("reversal", len(rows), 9)
    return rows


def steering(settings: BenchSettings) -> tuple[list[Row], dict[str, tuple[Array, Array]]]:
    """What a short clock costs: the reversed chain started from the base, for several potentials.

    On 4^4 sequences with true scores: no potential; the additive potential of the marginals; the
    log-density itself, blurred. The second is run in `W_K` and as the heat-bath chain.
    """
    length = 4
    p = potts(N_TOKENS, length, np.random.default_rng(settings.seed))
    kernel = hamming_kernel(N_TOKENS, length)
    tensor = p.reshape((N_TOKENS,) * length)
    additive = np.zeros_like(tensor)
    for i in range(length):
        others = tuple(j for j in range(length) if j != i)
        shape = [N_TOKENS if j == i else 1 for j in range(length)]
        additive = additive - np.log(tensor.sum(axis=others)).reshape(shape)
    blurred = heat_path(kernel, p, 1.0).probability(0.5)
    flat = np.zeros(p.size)
    potentials = {
        "no potential": flat,
        "V = -log of the marginals, W_K flow": additive.ravel(),
        "V = -log of p_data, blurred, W_K flow": -np.log(blurred * p.size),
    }
    clocks = np.array([1.0, 2.0, 4.0, 8.0, 12.0])
    rows: list[Row] = []
    curves: dict[str, tuple[Array, Array]] = {}
    names = [*potentials, "V = -log of the marginals, heat-bath chain"]
    for k, name in enumerate(names):
        started = time.process_time()
        errors = []
        exact = 0.0
        for clock in clocks:
            if name in potentials:
                energy = FreeEnergy(potentials[name], beta=1.0)
                path = tilted_path(kernel, energy, p, float(clock))
                base = energy.equilibrium(kernel)
            else:
                tilted = tilted_kernel(kernel, additive.ravel())
                path = heat_path(tilted, p, 2 * float(clock))
                base = tilted.stationary
            errors.append(total_variation(time_reversal(path, start=base, rtol=1e-8).final, p))
            if clock == 4.0:
                exact = total_variation(time_reversal(path).final, p)
        curves[name] = (clocks, np.array(errors))
        seconds = time.process_time() - started
        case, plain = f"tilted noise, exact, 4^4: {name}", curves["no potential"][1][2]
        rows.append(figure_row(case, "from p_T, clock 4", _AWAY, exact, 1e-6, seconds))
        target = plain if k else np.nan
        rows.append(figure_row(case, "from the base, clock 4", _AWAY, errors[2], target, seconds))
        settings.progress("steering", k + 1, len(names))
    return rows, curves


def memory_rows(settings: BenchSettings) -> list[Row]:
    """One noisy sequence of 1024 tokens of an alphabet of 50257: bytes for each token."""
    n, d = 50257, 1024
    rows: list[Row] = []
    for name, tokens in (("uniform", uniform_tokens(n)), ("absorbing", absorbing_tokens(n))):
        process = HammingProcess(tokens, d)
        rng = np.random.default_rng(settings.seed)
        clean = rng.integers(n, size=(1, d))
        process.noise(clean, float(d), rng=rng)
        started = time.process_time()
        tracemalloc.start()
        process.noise(clean, float(d), rng=rng)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        case = f"matrix-free noise, n = 50257, d = 1024: {name}"
        figure, seconds = "peak bytes / (d + n)", time.process_time() - started
        rows.append(
            figure_row(case, "one sample of x_t given x_0", figure, peak / (n + d), 100.0, seconds)
        )
    return rows


def recovery_rows(settings: BenchSettings) -> list[Row]:
    """Snapshots of an unknown noising process on a small Hamming graph: which free energy is it?"""
    rng = np.random.default_rng(settings.seed)
    kernel = hamming_kernel(3, 3)
    beta = 0.8
    p0 = rng.dirichlet(np.full(27, 0.5))
    times = np.linspace(0.0, 3.0, 13)
    n = 20_000
    path = heat_path(kernel, p0, beta * 3.0)
    counts = [rng.multinomial(n, path.probability(beta * t)) for t in times]
    started = time.process_time()
    fit = FreeEnergyRegressor().fit(kernel, Snapshots.from_counts(times, np.array(counts)))
    seconds = time.process_time() - started
    z = abs(fit.beta_ - beta) / fit.beta_stderr_
    contrast = float(np.sqrt(np.mean(fit.potential_**2)))
    expected = float(np.sqrt(np.mean(np.asarray(fit.potential_stderr_) ** 2)))
    setting = f"{n} individuals at {times.size} times"
    case = "snapshots of a noising process, Hamming 3^3"
    figure = f"|beta - {beta}| in standard errors ({fit.beta_:.4f})"
    flat = "root mean square of V (truth: 0)"
    return [
        figure_row(case, setting, figure, float(z), 3.0, seconds),
        figure_row(case, setting, flat, contrast, 3 * expected, seconds),
    ]
