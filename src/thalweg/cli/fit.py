"""`thalweg fit`, `forecast`, `report`: from files to a model, from a model to files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console

from thalweg._files import atomic_write, make_folder
from thalweg.adapters.tables import read_snapshots
from thalweg.cli.problem import Problem
from thalweg.cli.progress import progress_bars
from thalweg.errors import InputError
from thalweg.learn import FreeEnergyRegressor, load
from thalweg.learn.forecast import Forecast
from thalweg.report import findings, fit_page, flags

__all__ = ["parse_times", "run_fit", "run_forecast", "run_report"]

_MOST_FORECAST_CELLS = 20_000_000


def run_fit(
    problem: Problem,
    out: Path,
    *,
    method: str,
    observation: str,
    beta: float | None,
    horizon: float | None,
    seed: int,
    as_json: bool,
    title: str,
) -> None:
    """Fit, and write the model, the tables and the report; each appears complete or not at all."""
    console = Console(stderr=True)
    if not as_json:
        for message in problem.messages:
            console.print(f"guessed: {message}", highlight=False, markup=False)
    with progress_bars() as progress, console.status("fitting"):
        model = FreeEnergyRegressor(
            method=_choice(method, ("likelihood", "weak", "neural"), "--method"),
            observation=_choice(observation, ("independent", "tracked"), "--observation"),
            beta=beta,
            seed=seed,
            progress=progress,
        ).fit(problem.kernel, problem.snapshots)
    times = model.times_
    ahead = float(times[-1] - times[0]) if horizon is None else horizon
    grid = np.concatenate([times, np.linspace(times[-1], times[-1] + ahead, 11)[1:]])
    with console.status("forecasting"):
        forecast = _forecast(model, np.unique(grid))
    with console.status("drawing the report"):
        text = fit_page(
            model,
            snapshots=problem.snapshots,
            forecast=forecast,
            title=title,
            messages=problem.messages,
        )
    make_folder(out)
    model.save(out / "model.thalweg")
    _write_frame(_states(model), out / "states.csv")
    _write_frame(_long(model, forecast), out / "forecast.csv")
    with atomic_write(out / "report.html") as file:
        file.write(text)
    summary = {
        "beta": model.beta_,
        "beta_stderr": _number(model.beta_stderr_),
        "status": model.status_.name,
        "findings": findings(model, problem.snapshots),
        "files": [str(out / name) for name in _FILES],
        "guesses": list(problem.messages),
    }
    _tell(summary, as_json, f"open {out / 'report.html'}")
    if not model.status_:
        raise typer.Exit(3)


_FILES = ("model.thalweg", "states.csv", "forecast.csv", "report.html")


def run_forecast(
    model_file: Path, times: str, start: Path | None, out: Path | None, as_json: bool
) -> None:
    """The flow of a saved model at the given times, from its own start or from a snapshot file."""
    model = load(model_file)
    when = parse_times(times)
    p0 = None
    if start is not None:
        p0 = _last_snapshot(start, model)
    if p0 is None and when[0] < model.times_[0]:
        raise InputError(
            f"times begin with {when[0]:g}, before the model's first snapshot at "
            f"{model.times_[0]:g}; a flow runs forwards only."
        )
    path = model.predict(p0, when)
    names = _names(model)
    frame = pd.DataFrame(
        {
            "time": np.repeat(path.times, len(names)),
            "state": np.tile(names, path.times.size),
            "probability": path.probabilities.ravel(),
        }
    )
    if as_json:
        print(json.dumps({"status": path.status.name, "forecast": frame.to_dict("records")}))
    elif out is None:
        print(frame.to_csv(index=False), end="")
    else:
        _write_frame(frame, out)
        Console().print(f"written to {out}", highlight=False, soft_wrap=True)


def run_report(model_file: Path, out: Path) -> None:
    """The report of a saved model, without the snapshots it was fitted to."""
    model = load(model_file)
    with atomic_write(out) as file:
        file.write(fit_page(model, title=model_file.stem))
    Console().print(f"open {out}", highlight=False, soft_wrap=True)


def parse_times(text: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Times from `1,2,5` or `0:10:21` (from, to, how many).

    >>> parse_times("0:1:3"), parse_times("2, 5")
    (array([0. , 0.5, 1. ]), array([2., 5.]))
    """
    try:
        if ":" in text:
            first, last, count = text.split(":")
            return np.linspace(float(first), float(last), int(count))
        return np.array([float(part) for part in text.split(",")])
    except ValueError:
        raise InputError(
            f"times are {text[:40]!r}; give them as 1,2,5 or as from:to:how-many, like 0:10:21."
        ) from None


def _forecast(model: FreeEnergyRegressor, grid: np.ndarray[Any, np.dtype[np.float64]]) -> Forecast:
    """With bands where the fit has a covariance and the draws are cheap."""
    small = model.kernel_.n_states <= 200 and np.isfinite(model.beta_stderr_)
    if small:
        return model.forecast(grid, n_draws=100)
    path = model.predict(None, grid)
    p = path.probabilities
    return Forecast(path.times, p, p, p, 0.95, path.status)


def _last_snapshot(path: Path, model: FreeEnergyRegressor) -> Any:
    table = read_snapshots(path, states=_names(model))
    p = np.asarray(table.snapshots.frequencies)[-1]
    # An empty state has no logarithm: half an individual is spread over all of them.
    size = float(table.snapshots.sizes[-1])
    mixed = p * size + 0.5 * model.kernel_.stationary
    return mixed / mixed.sum()


def _names(model: FreeEnergyRegressor) -> list[str]:
    kernel = model.kernel_
    return [str(x) for x in (kernel.names or range(kernel.n_states))]


def _states(model: FreeEnergyRegressor) -> pd.DataFrame:
    frame = model.to_frame()
    return pd.DataFrame(
        {
            "state": _names(model),
            "potential": frame["potential"],
            "stderr": frame["stderr"],
            "equilibrium": frame["equilibrium"],
            "visits": frame["visits"],
            "flag": flags(model),
        }
    )


def _long(model: FreeEnergyRegressor, forecast: Forecast) -> pd.DataFrame:
    names = _names(model)
    if forecast.times.size * len(names) > _MOST_FORECAST_CELLS:
        raise InputError("the forecast is too large to write as a table; ask for fewer times.")
    frame = forecast.to_frame()
    frame["state"] = np.tile(names, forecast.times.size)
    return frame


def _write_frame(frame: pd.DataFrame, path: Path) -> None:
    buffer = io.StringIO()
    frame.to_csv(buffer, index=False)
    with atomic_write(path) as file:
        file.write(buffer.getvalue())


def _choice(value: str, allowed: tuple[str, ...], option: str) -> Any:
    if value not in allowed:
        raise InputError(f"{option} is {value!r}; choose {', '.join(allowed)}.")
    return value


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _tell(summary: dict[str, Any], as_json: bool, last: str) -> None:
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    console = Console()
    for sentence in summary["findings"]:
        console.print(f"- {sentence}", highlight=False, markup=False)
    console.print(last, highlight=False, soft_wrap=True)
