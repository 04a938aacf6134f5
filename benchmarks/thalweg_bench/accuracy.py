"""`thalweg bench accuracy`: fits of synthetic snapshots against the statistical limit.

One row per figure: what was measured, the target, whether it is met. Seeds are fixed; `quick` runs
a few of each kind. Every finished fit is kept in the folder's journal, so that an interrupted run
resumes where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from thalweg._types import Array
from thalweg_bench import BenchResult, BenchSettings
from thalweg_bench import accuracy_cases as cases
from thalweg_bench.sweep import Cell, swept

__all__ = ["run"]

Grid = tuple[str, float, int]

BETAS = (0.01, 0.1, 0.2)
GRIDS = ((2.0, 20), (5.0, 50))
"""Horizon and number of intervals of the independent fits."""
SAMPLES = 10_000
"""Individuals per snapshot."""
_LANDSCAPES = ("coordinates", "graph", "large")
"""What the fits of the Delaunay benchmark are given; see `delaunay.measure`."""


def run(settings: BenchSettings) -> BenchResult:
    """All figures of the accuracy benchmark."""
    bench = _Bench(settings)
    parts: list[Callable[[], Iterator[dict[str, Any]]]] = [
        bench.independent,
        bench.tracked,
        bench.sizes,
        bench.samples,
        bench.grids,
        bench.coverage,
        bench.goodness,
        bench.landscapes,
        bench.speed,
        bench.robustness,
    ]
    rows = [row for part in parts for row in part()]
    table = pd.DataFrame(rows, columns=["case", "figure", "measured", "target", "met"])
    for line in bench.failures:
        table["met"] &= ~table["case"].map(line.startswith)
    met = int(table["met"].sum())
    return BenchResult(
        table, notes=(f"{met} of {len(table)} figures met.", *bench.notes, *bench.failures)
    )


def time_grid(kind: str, horizon: float, steps: int, *, seed: int = 0) -> Array:
    """Times from 0 to `horizon`: `steps` intervals, even, random, or growing."""
    if kind == "uniform":
        return np.linspace(0.0, horizon, steps + 1)
    if kind == "random":
        inner = np.sort(np.random.default_rng([seed, steps]).uniform(0, horizon, steps - 1))
        return np.concatenate([[0.0], inner, [horizon]])
    return np.concatenate([[0.0], np.geomspace(1e-2, horizon, steps)])


def _row(case: str, figure: str, measured: str, target: str, met: bool) -> dict[str, Any]:
    return {"case": case, "figure": figure, "measured": measured, "target": target, "met": met}


def one_run(cell: Cell, _: np.random.Generator) -> dict[str, Any]:
    """One fit: the generator is that of its index, whatever else the sweep holds."""
    values = {k: v for k, v in cell.items() if k not in ("run", "grid")}
    if cell["grid"] is not None:
        values["times"] = time_grid(*cell["grid"], seed=cell["seed"])
    found = getattr(cases, cell["run"])(**values)
    return {"result": list(found) if isinstance(found, tuple) else [found]}


class _Bench:
    def __init__(self, settings: BenchSettings) -> None:
        self.settings = settings
        self.notes: list[str] = []
        self.failures: list[str] = []

    def runs(self, quick: int, full: int) -> int:
        return quick if self.settings.quick else full

    def map(
        self, case: str, run: str, count: int, grid: Grid | None = None, **values: Any
    ) -> list[Any]:
        """The results of `accuracy_cases.run(index, seed, times, **values)` for each index."""
        shared = {"run": run, "seed": self.settings.seed, "grid": grid, **values}
        sweep = swept(
            self.settings,
            "accuracy",
            one_run,
            [{**shared, "index": index} for index in range(count)],
            progress=lambda _, done, total: self.settings.progress(case, done, total),
        )
        for status in sweep.failed["status"]:
            self.failures.append(f"{case}: {status}")
        return [result for result in sweep.table.get("result", []) if isinstance(result, list)]

    # ------------------------------------------------------------------ figures

    def independent(self) -> Iterator[dict[str, Any]]:
        count = self.runs(12, 120)
        worst, failed = 0.0, 0
        for horizon, steps in GRIDS:
            for beta in BETAS:
                case = f"independent, N = 6, T = {horizon:g}, M = {steps}, beta = {beta:g}"
                results = np.array(
                    self.map(
                        case, "independent_run", count, ("uniform", horizon, steps),
                        n_states=6, beta=beta, n=SAMPLES,
                    )
                )  # fmt: skip
                ratio = float(np.sqrt(results[:, 0].mean() / results[:, 1].mean()))
                worst = max(worst, float(np.sqrt((results[:, 0] / results[:, 1]).max())))
                failed += int(np.sum(results[:, 2] == 0))
                yield _row(case, "rms Hellinger / limit", f"{ratio:.3f}", "<= 1.1", ratio <= 1.1)
        yield _row(
            f"independent, all {6 * count} runs",
            "largest Hellinger / limit",
            f"{worst:.2f}",
            "<= 4",
            worst <= 4,
        )
        self.notes.append(f"{failed} of {6 * count} independent fits did not converge.")

    def tracked(self) -> Iterator[dict[str, Any]]:
        count = self.runs(4, 60)
        for frozen in (True, False):
            for horizon, steps in GRIDS[:1] if self.settings.quick else GRIDS:
                for beta in BETAS:
                    kind = "frozen rates" if frozen else "continuous"
                    case = f"tracked, {kind}, T = {horizon:g}, M = {steps}, beta = {beta:g}"
                    results = np.array(
                        self.map(
                            case, "tracked_run", count, ("uniform", horizon, steps),
                            beta=beta, n=SAMPLES, frozen=frozen,
                        )
                    )  # fmt: skip
                    ours, truth, best, ours_seen, truth_seen = results.mean(axis=0)
                    for what, ratio, remark in (
                        ("flow", ours / truth, f" (an efficient estimator: {best / truth:.3f})"),
                        ("population seen", ours_seen / truth_seen, ""),
                    ):
                        yield _row(
                            case,
                            f"sampled forecast to the {what}, / true energy's",
                            f"{ratio:.3f}{remark}",
                            "<= 1.15",
                            ratio <= 1.15,
                        )

    def sizes(self) -> Iterator[dict[str, Any]]:
        count = self.runs(6, 60)
        for n_states in (10, 30) if self.settings.quick else (10, 20, 30, 40, 50):
            case = f"independent, N = {n_states}, T = 2, M = 20"
            results = []
            for beta in BETAS:
                results += self.map(
                    f"{case}, beta = {beta:g}", "independent_run", count // 3,
                    ("uniform", 2.0, 20), n_states=n_states, beta=beta, n=SAMPLES,
                )  # fmt: skip
            ratio = _ratio(results)
            yield _row(case, "rms Hellinger / limit", f"{ratio:.3f}", "<= 1.15", ratio <= 1.15)

    def samples(self) -> Iterator[dict[str, Any]]:
        count = self.runs(6, 36)
        numbers = np.array([500, 1000, 2000, 5000, 10_000])
        error = []
        for n in numbers:
            results = self.map(
                f"independent, N = 10, n = {n}", "independent_run", count,
                ("uniform", 2.0, 20), n_states=10, beta=0.1, n=int(n),
            )  # fmt: skip
            error.append(np.sqrt(np.mean([r[0] for r in results])))
        slope = float(np.polyfit(np.log(numbers), np.log(error), 1)[0])
        yield _row(
            "independent, N = 10, n = 500 .. 10^4",
            "slope of log rms Hellinger in log n",
            f"{slope:.3f}",
            "-0.5 +- 0.05",
            abs(slope + 0.5) <= 0.05,
        )

    def grids(self) -> Iterator[dict[str, Any]]:
        count = self.runs(3, 36)
        for steps in (20, 1000) if self.settings.quick else (20, 100, 1000, 10_000):
            few = max(2, count // 6) if steps > 1000 else count
            for kind in ("uniform", "random", "logarithmic"):
                case = f"{kind} grid, {steps} steps, N = 6, T = 5"
                results = []
                for beta in BETAS:
                    results += self.map(
                        case, "independent_run", few // 3 or 1, (kind, 5.0, steps),
                        n_states=6, beta=beta, n=SAMPLES,
                    )  # fmt: skip
                ratio = _ratio(results)
                yield _row(case, "rms Hellinger / limit", f"{ratio:.3f}", "<= 1.2", ratio <= 1.2)

    def coverage(self) -> Iterator[dict[str, Any]]:
        count = self.runs(12, 1000)
        for beta in BETAS:
            case = f"95 % intervals, N = 6, T = 5, M = 50, beta = {beta:g}"
            results = np.array(
                self.map(case, "coverage_run", count, ("uniform", 5.0, 50), beta=beta, n=SAMPLES),
                dtype=float,
            )
            contrasts = float(np.nanmean(results[:, 0]))
            known = results[:, 2] > 0
            scale = float(results[known, 1].mean()) if known.any() else float("nan")
            for name, share in (("V contrasts", contrasts), ("beta", scale)):
                yield _row(
                    case, f"coverage, {name}", f"{share:.3f}", "0.93 .. 0.97", 0.93 <= share <= 0.97
                )

    def goodness(self) -> Iterator[dict[str, Any]]:
        count = self.runs(12, 500)
        for beta in BETAS:
            case = f"goodness of fit at 5 %, N = 6, T = 2, M = 20, beta = {beta:g}"
            grid = ("uniform", 2.0, 20)
            true = np.array(
                self.map(case, "gof_run", count, grid, beta=beta, n=SAMPLES, strength=0.0)
            )
            level = float(np.mean(true < 0.05))
            yield _row(case, "rejects true flows", f"{level:.3f}", "0.03 .. 0.07",
                       0.03 <= level <= 0.07)  # fmt: skip
            drift = np.array(
                self.map(
                    f"{case}, drift", "gof_run", count // 2, grid, beta=beta, n=SAMPLES,
                    strength=1.0,
                ),
                dtype=float,
            )  # fmt: skip
            drift = drift[np.isfinite(drift)]
            power = float(np.mean(drift < 0.05))
            yield _row(case, "rejects a cyclic drift of the strength of V", f"{power:.3f}",
                       ">= 0.9", power >= 0.9)  # fmt: skip

    def landscapes(self) -> Iterator[dict[str, Any]]:
        for kind in ("coordinates", "graph") if self.settings.quick else _LANDSCAPES:
            case = f"Delaunay landscape, {kind}"
            count = 1 if kind == "large" else self.runs(1, 3)
            found = [row for rows in self.map(case, "landscape_run", count, kind=kind)
                     for row in rows]  # fmt: skip
            for prior in dict.fromkeys(row["prior"] for row in found):
                part = [row for row in found if row["prior"] == prior]
                values = {k: [row[k] for row in part] for k in ("correlation", "slope", "beta")}
                text = ", ".join(f"{k} {min(v):.3f} .. {max(v):.3f}" for k, v in values.items())
                seconds = max(row["CPU seconds"] for row in part)
                met = sum(bool(row["met"]) for row in part)
                yield _row(
                    f"{part[0]['case']}, {prior}",
                    f"correlation, slope, beta = 0.1 ({met} of {len(part)} met)",
                    f"{text}; {seconds:.1f} CPU s",
                    f"correlation >= {part[0]['target']}",
                    met == len(part),
                )

    def speed(self) -> Iterator[dict[str, Any]]:
        found = self.map("speed", "speed_run", self.runs(1, 3))
        for method, target in (("weak", 5000), ("likelihood", 200)):
            if not all("neural" in row for (row,) in found):
                self.notes.append("torch is missing: the paper's network was not timed.")
                return
            faster = [row["neural"]["seconds"] / row[method]["seconds"] for (row,) in found]
            better = all(row[method]["hellinger"] < row["neural"]["hellinger"] for (row,) in found)
            yield _row(
                f"speed, N = 6, T = 5, M = 50: {method}",
                "times faster than the paper's network",
                f"{min(faster):.0f} .. {max(faster):.0f}, error "
                + ("lower" if better else "not always lower"),
                f">= {target}, lower error",
                min(faster) >= target and better,
            )

    def robustness(self) -> Iterator[dict[str, Any]]:
        count = self.runs(36, 10_000)
        found = self.map("random problems", "robustness_run", count)
        names, numbers = np.unique([status for (status,) in found], return_counts=True)
        tally = {str(name): int(number) for name, number in zip(names, numbers, strict=True)}
        bad = count - tally.get("CONVERGED", 0)
        yield _row(
            f"{count} random problems, N = 3 .. 30, beta = 0.001 .. 10",
            "not converged",
            f"{bad} of {count}",
            "< 0.1 %",
            bad < 1e-3 * count,
        )
        self.notes.append("Random problems: " + ", ".join(f"{k} {v}" for k, v in tally.items()))


def _ratio(results: list[tuple[float, float, bool]]) -> float:
    table = np.array(results)
    return float(np.sqrt(table[:, 0].mean() / table[:, 1].mean()))
