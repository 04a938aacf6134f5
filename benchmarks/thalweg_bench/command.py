"""`thalweg bench`: run a benchmark, print its table, write its files."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from thalweg._files import atomic_write
from thalweg._version import __version__
from thalweg._words import did_you_mean
from thalweg.cli.options import Running
from thalweg.cli.progress import progress_bars
from thalweg.errors import InputError, MissingDependencyError
from thalweg_bench import BENCHMARKS, BenchResult, BenchSettings, load_benchmark
from thalweg_bench.figures import HOW_TO_GET_PICTURES, static_pictures
from thalweg_bench.reproduce import make_page

__all__ = ["list_benchmarks", "reproduce", "run"]


def list_benchmarks() -> None:
    """Print the benchmarks and what each shows."""
    table = Table("name", "what it shows", box=None, header_style="bold")
    for name, (_, _, what) in BENCHMARKS.items():
        table.add_row(name, what)
    table.add_row("reproduce", "the page 'Reproducing the paper', from results (--from DIR)")
    Console().print(table)


def run(name: str, running: Running) -> None:
    """Run one benchmark: print its table, and write table, figures and settings into a folder."""
    if name not in BENCHMARKS:
        hint = did_you_mean(name, BENCHMARKS)
        raise InputError(
            f"there is no benchmark {name!r}{hint} The names are {', '.join(BENCHMARKS)}."
        )
    started = time.perf_counter()
    with progress_bars() as progress, _workers(running.cluster):
        settings = BenchSettings(
            quick=running.quick,
            seed=running.seed,
            jobs=running.jobs if running.cluster is None else None,
            instances=running.instances,
            folder=running.out,
            progress=progress,
        )
        result = load_benchmark(name)(settings)
    seconds = time.perf_counter() - started
    # Scripts read the standard output; messages then go to the standard error.
    console = Console(stderr=running.json)
    if running.json:
        rows = json.loads(result.table.to_json(orient="records", double_precision=15))
        print(json.dumps({"benchmark": name, "table": rows, "notes": list(result.notes)}))
    else:
        _print(result.table)
        for note in result.notes:
            console.print(note, soft_wrap=True, highlight=False, markup=False)
    if running.out is not None:
        chosen = {key: getattr(running, key) for key in ("quick", "seed", "instances", "jobs")}
        for sentence in _write(running.out, name, result, chosen, seconds):
            console.print(sentence, soft_wrap=True, highlight=False, markup=False)
        console.print(f"written to {running.out}", highlight=False)


def reproduce(results: Path | None, out: Path | None) -> None:
    """Write `reproducing.md` into `out` from the results of earlier runs below `results`."""
    if results is None or not results.is_dir():
        raise InputError(
            "reproduce needs the folder of earlier results; run benchmarks with --out DIR first, "
            "then thalweg bench reproduce --from DIR."
        )
    target = results if out is None else out
    page, pictures = make_page(results, _read(target / "reproducing.md"))
    for name, content in pictures.items():
        with atomic_write(target / "images" / "reproducing" / name, "wb") as file:
            file.write(content)
    with atomic_write(target / "reproducing.md") as file:
        file.write(page)
    Console().print(f"written to {target / 'reproducing.md'}", highlight=False)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@contextmanager
def _workers(cluster: str | None) -> Iterator[None]:
    """Send the work to a running Dask scheduler, if one is named."""
    if cluster is None:
        yield
        return
    try:
        from distributed import Client
    except ImportError:
        raise MissingDependencyError(
            "a cluster needs dask.distributed: pip install 'thalweg[cluster]'."
        ) from None
    import joblib

    try:
        client = Client(cluster, timeout="10s")
    except (OSError, ValueError, TimeoutError):
        raise InputError(
            f"no Dask scheduler answers at {cluster}; start one with dask scheduler, or check the "
            "address."
        ) from None
    with client, joblib.parallel_config(backend="dask"):
        yield


def _print(frame: pd.DataFrame) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in frame.columns:
        numeric = pd.api.types.is_numeric_dtype(frame[column])
        table.add_column(str(column), justify="right" if numeric else "left")
    for row in frame.itertuples(index=False):
        table.add_row(*[_cell(value) for value in row])
    # A table that is piped to a file must not be folded to the width of a terminal.
    width = None if sys.stdout.isatty() else 400
    Console(width=width).print(table)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _write(
    out: Path, name: str, result: BenchResult, chosen: dict[str, Any], seconds: float
) -> list[str]:
    """Write table, figures and settings; returns sentences about what had to be left out."""
    said = []
    with atomic_write(out / f"{name}.csv") as file:
        result.table.to_csv(file, index=False)
    if find_spec("pyarrow") is not None:
        with atomic_write(out / f"{name}.parquet", "wb") as file:
            result.table.to_parquet(file, index=False)
    else:
        said.append("the Parquet table was left out: pip install 'thalweg[bench]'.")
    for title, figure in result.figures.items():
        with atomic_write(out / f"{name}-{title}.html") as file:
            file.write(figure.to_html(include_plotlyjs=True, full_html=True))
    pictures = static_pictures(result.figures)
    for title, picture in pictures.items():
        with atomic_write(out / f"{name}-{title}", "wb") as file:
            file.write(picture)
    if result.figures and not pictures:
        said.append(HOW_TO_GET_PICTURES)
    packages = {}
    for package in ("numpy", "scipy", "numba", "networkx", "pandas", "scikit-learn", "torch"):
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            continue
    settings = {
        "benchmark": name,
        **chosen,
        "seconds": round(seconds, 1),
        "thalweg": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": packages,
        "notes": list(result.notes),
    }
    with atomic_write(out / f"{name}.json") as file:
        json.dump(settings, file, indent=2)
    return said
