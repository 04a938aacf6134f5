"""The benchmarks behind `thalweg bench NAME`: each is a module with one function, `run`.

`run(settings)` returns a `BenchResult`: a table, figures, and summary sentences. Nothing
here prints or writes; the command line does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from thalweg._types import Progress

__all__ = ["BENCHMARKS", "BenchResult", "BenchSettings", "load_benchmark"]


@dataclass(frozen=True)
class BenchSettings:
    """The settings of a run: `quick` takes about a minute, a seed, a number of workers."""

    quick: bool = False
    seed: int = 0
    jobs: int | None = 1
    """Number of workers; `None` leaves it to joblib's configuration, such as a cluster's."""
    instances: int | None = None
    """Number of graphs per family in a sweep; by default the benchmark's own."""
    folder: Path | None = None
    """Where sweeps keep their journal; without it an interrupted sweep starts again."""
    progress: Progress = field(default=lambda what, done, total: None)
    """Called as `progress(what, done, total)` during the work."""


@dataclass(frozen=True)
class BenchResult:
    """A table, plotly figures by name, and sentences that sum it up."""

    table: pd.DataFrame
    figures: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


BENCHMARKS: dict[str, tuple[str, str, str]] = {
    "limit": ("paper_sweeps", "run_limit", "the paper's population against its own limit"),
    "table1": ("paper_sweeps", "run_table1", "the paper's Table 1: Hellinger distance per beta"),
    "size": ("paper_sweeps", "run_size", "errors against the number of states"),
    "samples": ("paper_sweeps", "run_samples", "errors against the number of samples"),
    "timegrid": ("paper_sweeps", "run_timegrid", "errors against the time grid"),
    "energy": ("paper_sweeps", "run_energy", "errors and collapses against amplitude and beta"),
    "delaunay": ("delaunay", "run", "a landscape of 1000 states: truth, recovered, error bar"),
    "large": ("large", "run", "large graphs without coordinates: landscape, beta, status, cost"),
    "gallery": ("gallery", "run", "the graph families, drawn"),
    "pipeline": ("pipeline", "run", "from snapshots to forecast, each stage of one real fit"),
    "mobility": ("mobility", "run", "which mean the held-out likelihood chooses, and the truth"),
    "w2": ("w2", "run", "the two-state lemma: the W2 speed diverges, the W_K speed converges"),
    "accuracy": ("accuracy", "run", "fits against the Cramer-Rao limit, coverage, robustness"),
    "typical": ("typical", "run", "few individuals, 10 to 300 states: coverage, rivals, CPU time"),
    "scatter": ("scatter", "run", "coverage where counts are overdispersed or have replicates"),
    "births": ("births", "run", "coverage where states also multiply, against transport alone"),
    "laplacian": ("laplacian", "run", "Laplacian solves against scipy and CHOLMOD"),
    "flow": ("flow", "run", "gradient flows: evaluations, error, mass, positivity"),
    "geodesic": ("geodesic", "run", "W_K distances, geodesics, JKO steps: cost and error"),
    "boundary": ("boundary", "run", "distances from and to empty states: CPU time, true errors"),
    "diffusion": ("diffusion", "run", "exact reversal, learned denoisers, tilted noise"),
    "dynamics": ("dynamics", "run", "fates, passage times, comparison, steering: agreement, cover"),
    "dynamics-figures": ("dynamics", "run_figures", "of dynamics: agreement and steering alone"),
    "dynamics-coverage": ("dynamics", "run_coverage", "of dynamics: coverage of intervals alone"),
    "dynamics-level": ("dynamics", "run_level", "of dynamics: the level of compare alone"),
    "dynamics-power": ("dynamics", "run_power", "of dynamics: the power of compare alone"),
    "points": ("points", "run", "clouds of points under known potentials: forecasts, warnings"),
    "cells": ("points_scale", "run", "100 000 cells in 50 dimensions: CPU and memory of stages"),
    "tools": ("tools", "run", "moscot, CellRank and deeptime on the questions that they share"),
    "realdata": ("realdata", "run", "real data: held-out times, known answers, baselines"),
    "speed": ("speed", "run", "the whole fit against the paper's network; a million states"),
    "start": ("start", "run", "compilation for the first fit and distance on a new machine"),
    "scale": ("scale", "run", "time and peak memory from a thousand to a million states"),
}
"""By name: module, function, and what it shows."""


def load_benchmark(name: str) -> Callable[[BenchSettings], BenchResult]:
    """The function of a benchmark."""
    module, function, _ = BENCHMARKS[name]
    run: Callable[[BenchSettings], BenchResult] = getattr(
        import_module(f"thalweg_bench.{module}"), function
    )
    return run
