"""`thalweg fit`: from files to a model, tables and a report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from sklearn.base import clone

from thalweg._files import atomic_folder
from thalweg.cli.check import QUICK_STATES, warnings
from thalweg.cli.forecast import band_of, forecast_grid
from thalweg.cli.interrupt import stopping_soon
from thalweg.cli.options import Fitting
from thalweg.cli.output import long_table, number, say, state_labels, write_table
from thalweg.cli.problem import Problem
from thalweg.cli.progress import progress_bars
from thalweg.errors import InputError, ThalwegError
from thalweg.learn import CrossValidation, FreeEnergyRegressor, cross_validate
from thalweg.learn.growth import Growth
from thalweg.report import findings, fit_page, flags, rejected
from thalweg.status import Status

_REMEDY_SECONDS = 60.0
"""Bound on the time that remedies take then."""

FILES = ("model.thalweg", "states.csv", "forecast.csv", "report.html")


def run_fit(problem: Problem, out: Path, fitting: Fitting, *, as_json: bool, title: str) -> None:
    """Fit, and write model, tables and report; the folder is written completely or not at all.

    An interruption leaves older results alone: the unfinished model is written beside them.
    """
    horizon = fitting.horizon
    if horizon is not None and not (np.isfinite(horizon) and horizon > 0):
        raise InputError(f"--horizon is {horizon:g}; it must be a positive number.")
    console = Console(stderr=True)
    model = FreeEnergyRegressor(
        method=_choice(fitting, "method", "likelihood", "weak", "neural"),
        observation=_choice(fitting, "observation", "independent", "overdispersed", "tracked"),
        growth=_growth(fitting, problem),
        beta=fitting.beta,
        max_seconds=fitting.max_seconds,
        seed=fitting.seed,
    )
    try:
        with stopping_soon():
            with progress_bars() as progress:
                model.set_params(progress=progress).fit(problem.kernel, problem.snapshots)
                if model.status_ is Status.INTERRUPTED:
                    raise KeyboardInterrupt
                forecast = band_of(model, forecast_grid(model, horizon))
                validation = _validated(model, problem)
            if _wanted(fitting.remedies, model):
                _try_remedies(model, console, asked=fitting.remedies is not None)
            with console.status("drawing the report"):
                text = fit_page(
                    model, snapshots=problem.snapshots, forecast=forecast, title=title,
                    messages=problem.messages, validation=validation,
                )  # fmt: skip
                said = findings(model, problem.snapshots, validation=validation)
            model.diagnostics_  # noqa: B018 (worked out here, where it can be interrupted)
    except KeyboardInterrupt:
        _hand_over(model, out)
        raise typer.Exit(130) from None
    with atomic_folder(out) as folder:
        model.save(folder / "model.thalweg")
        write_table(states_table(model), folder / "states.csv")
        bands = (("lower", forecast.lower), ("upper", forecast.upper))
        table = long_table(
            problem.kernel, forecast.times, forecast.probabilities, *bands, scale=model.time_scale_
        )
        write_table(table, folder / "forecast.csv")
        (folder / "report.html").write_text(text, encoding="utf-8")
    if as_json:
        summary: dict[str, Any] = {
            "beta": model.beta_,
            "beta_stderr": number(model.beta_stderr_),
            "beta_verdict": model.beta_verdict_.kind,
            "beta_lower": number(model.beta_verdict_.lower),
            "beta_upper": number(model.beta_verdict_.upper),
            "status": model.status_.name,
            "advice": model.diagnostics_.get("advice", model.status_.value),
            "findings": said,
            "files": [str(out / name) for name in FILES],
            "guesses": problem.guesses,
            "warnings": warnings(problem),
        }
        print(json.dumps(summary, indent=2))
    else:
        for sentence in said:
            say(f"- {sentence}")
        say(f"open {out / 'report.html'}")
    # What the data leave open is an answer, not a failure.
    if not model.status_ and model.status_ is not Status.UNDETERMINED:
        raise typer.Exit(3)


def _hand_over(model: FreeEnergyRegressor, out: Path) -> None:
    """Write the best iterate of an interrupted fit beside the older results, if there is one."""
    older = f"; {out} is as it was" if out.exists() else ""
    if not hasattr(model, "fitted_"):
        say(f"thalweg: interrupted before there was a model to keep{older}.", stderr=True)
        return
    beside = out.with_name(f"{out.name}.unfinished")
    model.fitted_ = replace(model.fitted_, status=Status.INTERRUPTED)
    with atomic_folder(beside) as folder:
        model.save(folder / "model.thalweg")
        write_table(states_table(model), folder / "states.csv")
    say(f"thalweg: interrupted; the unfinished model is in {beside}{older}.", stderr=True)


def states_table(model: FreeEnergyRegressor) -> pd.DataFrame:
    """The content of `states.csv`: one row per state."""
    frame = model.to_frame().assign(state=state_labels(model.kernel_), flag=flags(model))
    return frame[["state", "potential", "stderr", "equilibrium", "visits", "flag"]]


def _growth(fitting: Fitting, problem: Problem) -> Growth | None:
    chosen = _choice(fitting, "growth", "none", "shares", "totals")
    if chosen == "none":
        return None
    return Growth(totals=problem.snapshots.sizes if chosen == "totals" else None)


def _validated(model: FreeEnergyRegressor, problem: Problem) -> CrossValidation | None:
    """A forecast of the last snapshot beside rivals, where that takes no longer than the fit."""
    seen, few = problem.snapshots, problem.kernel.n_states <= QUICK_STATES
    plain = model.method != "neural" and model.observation == "independent"
    if seen.n_times < 3 or not few or not plain or not model.status_:
        return None
    kept = model
    if isinstance(model.growth, Growth) and model.growth.totals is not None:
        fewer = Growth(totals=seen.sizes[:-1])
        kept = clone(model).set_params(growth=fewer, progress=model.progress)
    return cross_validate(kept, problem.kernel, seen, scheme="forecast-last", jobs=1)


def _try_remedies(model: FreeEnergyRegressor, console: Console, *, asked: bool) -> None:
    """Try what would fit better; if it was not asked for, its failure does not end the fit."""
    with progress_bars() as progress:
        model.set_params(progress=progress)
        try:
            model.remedies(max_seconds=None if asked else _REMEDY_SECONDS)
        except ThalwegError as error:
            if asked:
                raise
            console.print(f"remedies were not compared: {error}", highlight=False)


def _wanted(asked: bool | None, model: FreeEnergyRegressor) -> bool:
    """Whether to try remedies: as asked; by default if quick and the landscape is rejected."""
    if asked is not None:
        return asked
    plain = model.method == "likelihood" and model.observation == "independent"
    few = model.kernel_.n_states <= QUICK_STATES
    return plain and few and rejected(model) and "design_effect" not in model.diagnostics_


def _choice(fitting: Fitting, option: str, *allowed: str) -> Any:
    value = getattr(fitting, option)
    if value not in allowed:
        raise InputError(f"--{option} is {value!r}; choose {', '.join(allowed)}.")
    return value
