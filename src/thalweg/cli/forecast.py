"""`thalweg forecast` and `thalweg report`: from a saved model to tables and pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from thalweg._types import Array
from thalweg.adapters.tables import read_snapshots
from thalweg.cli.options import Output, ReportOutput
from thalweg.cli.output import give, give_page, long_table, parse_times, say, state_labels
from thalweg.cli.problem import announce_reading
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn import FreeEnergyRegressor, load
from thalweg.learn.between import smoothed_shares
from thalweg.learn.forecast import Forecast
from thalweg.report import caution, findings, fit_page

_MOST_BAND_STATES = 30_000
"""Number of states above which forecasts have no bands."""
_WITHOUT_BANDS = (
    "A model file does not hold the errors of growth: its forecasts have no bands; those in the "
    "folder of the fit have."
)


def band_draws(model: FreeEnergyRegressor) -> int:
    """Number of draws for the bands of a forecast; 0 if the fit has no error bars."""
    fit, n = model.fitted_, model.kernel_.n_states
    known = fit.joint_covariance is not None or fit.draws is not None
    if fit.growth is not None and fit.source is None:
        return 0  # read from a file, which does not hold the errors of growth
    plain = model.time_basis is None and model.discretization == "continuous"
    if not (known and plain and n <= _MOST_BAND_STATES):
        return 0
    # A flow of many states is expensive: a dozen draws give a standard error to a fifth.
    return 32 if n <= 3000 else 12


def forecast_grid(model: FreeEnergyRegressor, horizon: float | None = None) -> Array:
    """Times of a report: of and between the snapshots, then as long again, or for `horizon`."""
    times = model.times_
    ahead = float(times[-1] - times[0]) if horizon is None else horizon
    fine = np.linspace(times[0], times[-1], 21 if model.kernel_.n_states <= 1000 else 2)
    later = np.linspace(times[-1], times[-1] + ahead, 11)
    return np.unique(np.concatenate([times, fine, later]))


def band_of(
    model: FreeEnergyRegressor,
    times: Array,
    p0: Array | None = None,
    p0_size: float | None = None,
) -> Forecast:
    """The forecast, with bands if the fit has error bars; otherwise the bounds are NaN.

    `p0_size` is the number of individuals counted at the start.
    """
    draws = band_draws(model)
    if draws:
        return model.forecast(times, p0=p0, p0_size=p0_size, n_draws=draws)
    path = model.predict(p0, times)
    nothing = np.full_like(path.probabilities, np.nan)
    return Forecast(
        path.times, path.probabilities, path.status, lower=nothing, upper=nothing, level=0.95
    )


def announced(
    model_file: Path, output: Output, *, growing: str = ""
) -> tuple[FreeEnergyRegressor, tuple[str, ...]]:
    """Load a model, and print the warnings that go with everything computed from it.

    `growing` is a further warning for a model with births and deaths. Returns the warnings too.
    """
    model = load(model_file)
    lines = caution(model)
    if growing and model.fitted_.growth is not None:
        lines += (growing,)
    if not output.json:
        for line in lines:
            say(f"! {model_file.name}: {line}", stderr=True)
    return model, lines


def run_forecast(model_file: Path, times: str, start: Path | None, output: Output) -> None:
    """Write the flow of a saved model at the given times, from its own start or a snapshot file."""
    model, cautions = announced(model_file, output, growing=_WITHOUT_BANDS)
    when = parse_times(times, model.time_scale_)
    p0, size = None, None
    if start is not None:
        p0, size = last_snapshot(start, model.kernel_)
    elif when[0] < model.times_[0]:
        raise InputError(
            f"times begin with {when[0]:g}, before the model's first snapshot at "
            f"{model.times_[0]:g}; a flow runs forwards only."
        )
    band = band_of(model, when, p0, size)
    columns: list[tuple[str, Array]] = []
    if np.isfinite(band.lower).all():
        columns = [("lower", band.lower), ("upper", band.upper)]
    frame = long_table(
        model.kernel_, band.times, band.probabilities, *columns, scale=model.time_scale_
    )
    facts = {"level": band.level, "cautions": cautions}
    give(frame, output, "forecast", facts, band.status)


def run_report(model_file: Path, output: ReportOutput) -> None:
    """Write the report of a saved model, without the snapshots it was fitted to."""
    model = load(model_file)
    forecast = band_of(model, forecast_grid(model))
    text = fit_page(model, forecast=forecast, title=model_file.stem)
    give_page(text, output, {"findings": findings(model)}, None)


def last_snapshot(file: Path, kernel: MarkovKernel) -> tuple[Array, float]:
    """The shares in the last snapshot of a file, and its size; choices made are printed."""
    table = read_snapshots(file, states=state_labels(kernel))
    announce_reading(file, table.messages)
    seen = table.snapshots
    return smoothed_shares(kernel, seen, -1), float(seen.sizes[-1])
