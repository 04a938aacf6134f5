"""The report of a fit: one page to show a colleague."""

from __future__ import annotations

import platform
from importlib.metadata import version

import numpy as np

from thalweg import plots
from thalweg._version import __version__
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.forecast import Forecast
from thalweg.plots.aggregate import MOST_MARKERS
from thalweg.report.findings import findings
from thalweg.report.page import Section, page
from thalweg.snapshots import Snapshots

__all__ = ["fit_page"]


def fit_page(
    model: FreeEnergyRegressor,
    *,
    snapshots: Snapshots | None = None,
    forecast: Forecast | None = None,
    title: str = "Energy landscape",
    messages: tuple[str, ...] = (),
    time_labels: tuple[str, ...] = (),
    time_unit: str = "",
) -> str:
    """The page of a fitted model; with the snapshots it also shows how well they are met.

    `time_labels` are the snapshots' times as the user wrote them (dates, for instance), `time_unit`
    what the numbers on the axes count.
    """
    kernel = model.kernel_
    stderr = model.potential_stderr_ if np.isfinite(model.potential_stderr_).all() else None
    sections = [
        Section("What the data say", findings(model, snapshots)),
        Section(
            "The landscape",
            (_about_picture(kernel.n_states),),
            (plots.landscape(kernel, model.potential_, stderr=stderr, title="potential V"),),
        ),
    ]
    times = model.times_ if forecast is None else forecast.times
    shown = np.unique(np.concatenate([np.linspace(times[0], times[-1], 25), model.times_]))
    path = model.predict(None, shown)
    sections.append(
        Section(
            "The population in time",
            ("Press play, or move the slider.",),
            (plots.flow(kernel, path.times, path.probabilities, title="density p / pi"),),
        )
    )
    if snapshots is not None:
        fine = np.linspace(times[0], snapshots.times[-1], 61 if kernel.n_states <= 5000 else 2)
        fine = np.union1d(fine, snapshots.times)
        fitted = model.predict(None, fine).probabilities
        observed = snapshots.frequencies
        observed = observed if isinstance(observed, np.ndarray) else observed.toarray()
        sections.append(
            Section(
                "Observed and fitted",
                ("The states that changed most. Bars are two standard errors of counting.",),
                (
                    plots.fit(
                        kernel,
                        snapshots.times,
                        observed,
                        fitted,
                        sizes=snapshots.sizes,
                        fitted_times=fine,
                    ),
                ),
            )
        )
    if forecast is not None:
        banded = bool(np.isfinite(forecast.lower).all())
        figure = plots.forecast(
            kernel,
            forecast.times,
            forecast.probabilities,
            lower=forecast.lower if banded else None,
            upper=forecast.upper if banded else None,
            start=float(model.times_[-1]),
        )
        sections.append(Section("Forecast", _about(forecast, model), (figure,)))
    sections.append(
        Section(
            "Potential by state",
            ("Bars are two standard errors.",) if stderr is not None else (),
            (plots.potential(kernel, model.potential_, stderr),),
        )
    )
    sections.append(Section("Settings", messages, facts=_facts(model)))
    return page(title, _lead(model, time_labels, time_unit), sections)


def _lead(model: FreeEnergyRegressor, labels: tuple[str, ...], unit: str) -> str:
    kernel, times = model.kernel_, model.times_
    first, last = (f"{times[0]:g}", f"{times[-1]:g}") if not labels else (labels[0], labels[-1])
    since = f" Times on the axes are {unit} since {first}." if unit and labels else ""
    return (
        f"{kernel.n_states} states, {kernel.n_edges} edges, {times.size} snapshots from {first} to "
        f"{last}.{since}"
    )


def _about_picture(n_states: int) -> str:
    if n_states <= MOST_MARKERS:
        return "Low is where the population goes. Point at a state for its name and value."
    return (
        "Low is where the population goes. There are too many states to draw one by one: each "
        "marker is a patch of neighbouring states, with their mean."
    )


def _about(forecast: Forecast, model: FreeEnergyRegressor) -> tuple[str, ...]:
    """What the bands hold, and what they leave out."""
    text = "The states that change most. "
    if not np.isfinite(forecast.lower).all():
        return (text + "There are no bands: this method of fitting gives no error bars.",)
    text += (
        f"Bands are meant to hold the true share {forecast.level:.0%} of the time, if one fixed "
        "landscape drives the population. They cover the error of the fit, not the chance in a new "
        "sample."
    )
    if model.fitted_.joint_covariance is None:
        text += " On a graph this large they leave out the error of the first snapshot."
    return (text,)


def _facts(model: FreeEnergyRegressor) -> dict[str, str]:
    diagnostics = model.diagnostics_
    facts = {
        "method": str(model.method),
        "beta": f"{model.beta_:.6g}",
        "status": model.status_.value,
    }
    for key, value in diagnostics.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            facts[key.replace("_", " ")] = f"{value:.6g}"
    facts["thalweg"] = __version__
    facts["python"] = platform.python_version()
    facts["numpy, scipy"] = f"{version('numpy')}, {version('scipy')}"
    return facts
