"""The benchmarks behind `thalweg bench NAME`: each is a module with one function, `run`.

`run(settings)` returns a `BenchResult`: a table, figures, and sentences that sum it up. Nothing
here prints or writes; the command line does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pandas as pd

__all__ = ["BENCHMARKS", "BenchResult", "BenchSettings", "load_benchmark"]


@dataclass(frozen=True)
class BenchSettings:
    """What the user may choose: `quick` for about a minute, a seed, a number of workers."""

    quick: bool = False
    seed: int = 0
    jobs: int = 1
    progress: Callable[[str, int, int], None] = field(default=lambda what, done, total: None)
    """Called as `progress(what, done, total)` while the work goes on."""


@dataclass(frozen=True)
class BenchResult:
    """A table, plotly figures by name, and sentences that sum it up."""

    table: pd.DataFrame
    figures: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


BENCHMARKS: dict[str, str] = {
    "gallery": "the graph families, drawn",
    "laplacian": "Laplacian solves: time against scipy and CHOLMOD, iterations, energy error",
    "flow": "gradient flows: evaluations, error, mass, positivity",
    "accuracy": "fits against the Cramer-Rao limit: Hellinger, coverage, tests, robustness",
    "geodesic": "W_K distances, geodesics and JKO steps: cost in Laplacian solves, error",
}


def load_benchmark(name: str) -> Callable[[BenchSettings], BenchResult]:
    """The `run` function of a benchmark."""
    run: Callable[[BenchSettings], BenchResult] = import_module(f"thalweg.experiments.{name}").run
    return run
