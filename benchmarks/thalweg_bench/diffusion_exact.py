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
from thalweg_bench.diffusion_learned import LENGTH, N_TOKENS, potts, total_variation

__all__ = ["memory_rows", "recovery_rows", "reversal_rows", "steering"]

Row = dict[str, object]


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
            rows.append(
                {
                    "case": f"exact reversal, 4^6: {name} noise",
                    "setting": type(schedule).__name__,
                    "figure": "total variation to p_0",
                    "value": error,
                    "target": 1e-6,
                    "met": str(bool(back.status) and error <= 1e-6),
                    "cpu seconds": time.process_time() - started,
                }
            )
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
        rows.append(
            _row(f"tilted noise, exact, 4^4: {name}", "from p_T, clock 4", exact, 1e-6, seconds)
        )
        plain = curves["no potential"][1][2]
        rows.append(
            _row(
                f"tilted noise, exact, 4^4: {name}",
                "from the base, clock 4",
                errors[2],
                plain if k else float("nan"),
                seconds,
            )
        )
        settings.progress("steering", k + 1, len(names))
    return rows, curves


def _row(case: str, setting: str, value: float, target: float, seconds: float) -> Row:
    return {
        "case": case,
        "setting": setting,
        "figure": "total variation to p_0",
        "value": value,
        "target": target,
        "met": "" if np.isnan(target) else str(value <= target),
        "cpu seconds": seconds,
    }


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
        rows.append(
            {
                "case": f"matrix-free noise, n = 50257, d = 1024: {name}",
                "setting": "one sample of x_t given x_0",
                "figure": "peak bytes / (d + n)",
                "value": peak / (n + d),
                "target": 100.0,
                "met": str(peak <= 100 * (n + d)),
                "cpu seconds": time.process_time() - started,
            }
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
    return [
        {
            "case": "snapshots of a noising process, Hamming 3^3",
            "setting": setting,
            "figure": f"|beta - {beta}| in standard errors ({fit.beta_:.4f})",
            "value": float(z),
            "target": 3.0,
            "met": str(z <= 3),
            "cpu seconds": seconds,
        },
        {
            "case": "snapshots of a noising process, Hamming 3^3",
            "setting": setting,
            "figure": "root mean square of V (truth: 0)",
            "value": contrast,
            "target": 3 * expected,
            "met": str(contrast <= 3 * expected),
            "cpu seconds": seconds,
        },
    ]
