"""The report of a fit: one page to show a colleague."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version

import numpy as np

from thalweg._types import Array
from thalweg._version import __version__
from thalweg._words import p_text
from thalweg.flow import Trajectory
from thalweg.learn import CrossValidation, FreeEnergyRegressor
from thalweg.learn.forecast import Forecast
from thalweg.plots.aggregate import View
from thalweg.plots.fluxes import mean_fluxes
from thalweg.report.curves import fitted_curves, forecast_curves, ranked
from thalweg.report.dynamics import fates_section
from thalweg.report.findings import caution, findings, flags, silences
from thalweg.report.graph import drawn, landscape_picture, moving_picture
from thalweg.report.page import Section, Table, page
from thalweg.snapshots import Snapshots

_MOST_ROWS = 1000
"""Largest number of rows of the table of states: more make the page slow to open."""


def fit_page(
    model: FreeEnergyRegressor,
    *,
    snapshots: Snapshots | None = None,
    forecast: Forecast | None = None,
    title: str = "Energy landscape",
    messages: tuple[str, ...] = (),
    validation: CrossValidation | None = None,
) -> str:
    """The page of a fitted model; with the snapshots it also shows how well the model fits them."""
    snapshots = None if snapshots is None else snapshots.on(model.time_scale_)
    pictures = _Pictures(model, snapshots, forecast)
    fitted = None if snapshots is None else _rows(pictures.path, snapshots.times)
    said = findings(model, snapshots, fitted, validation)
    sections = [
        Section("What the data say", said, headline=True),
        pictures.landscape(),
        pictures.film(),
        pictures.observed(),
        pictures.ahead(),
        fates_section(model, pictures.names),
        pictures.potential(),
        None if validation is None else _validated(validation),
        Section("What the data do not say", silences(model)),
        Section("Methods, ready to paste", quote=methods_text(model, snapshots)),
        Section("Settings", messages, facts=_facts(model)),
    ]
    return page(title, _lead(model), [section for section in sections if section is not None])


@dataclass(frozen=True, eq=False)
class _Pictures:
    """The sections with pictures, which share names, positions and the flow of the model."""

    model: FreeEnergyRegressor
    snapshots: Snapshots | None
    forecast: Forecast | None

    @property
    def names(self) -> list[str]:
        return self.shown.names

    @cached_property
    def shown(self) -> View:
        return drawn(self.model.kernel_)

    @cached_property
    def path(self) -> Trajectory:
        return self.model.predict(None, self._times())

    @property
    def stderr(self) -> Array | None:
        """The errors of the potential; `None` unless all states have one."""
        errors = self.model.potential_stderr_
        return errors if np.isfinite(errors).all() else None

    @property
    def time_label(self) -> str:
        scale = self.model.time_scale_
        return f"time ({scale})" if scale.unit else "time"

    def _times(self) -> Array:
        """The times that the page shows: all snapshots, and a grid to the end of the forecast."""
        model, snapshots = self.model, self.snapshots
        fixed = model.times_ if snapshots is None else np.union1d(model.times_, snapshots.times)
        end = fixed[-1] if self.forecast is None else max(fixed[-1], self.forecast.times[-1])
        fine = 60 if model.kernel_.n_states <= 5000 else 24
        grid = np.linspace(fixed[0], fixed[-1], fine + 1)
        if end > fixed[-1]:
            grid = np.append(grid, np.linspace(fixed[-1], end, fine // 2 + 1)[1:])
        # Grid points that differ from a snapshot by rounding would give steps of no length.
        apart = np.abs(grid[:, None] - fixed).min(axis=1) > 1e-6 * (end - fixed[0])
        return np.union1d(grid[apart], fixed)

    def landscape(self) -> Section:
        model, path, whole = self.model, self.path, self.shown.label is None
        seen = path.times <= model.times_[-1]
        until = replace(path, times=path.times[seen], probabilities=path.probabilities[seen])
        fluxes = mean_fluxes(model, until) if whole else None
        picture = landscape_picture(self.shown, model.potential_, stderr=self.stderr, fluxes=fluxes)
        about = _about_picture(model.kernel_.n_states, whole)
        return Section("The landscape", (*caution(model), about), (picture,))

    def film(self) -> Section:
        path = self.path
        times = np.union1d(path.times[::3], [*self.model.times_, path.times[-1]])
        film = moving_picture(self.shown, times, _rows(path, times))
        return Section("The population in time", ("Press play, or move the slider.",), (film,))

    def observed(self) -> Section | None:
        seen, path = self.snapshots, self.path
        if seen is None:
            return None
        fine = path.times[path.times <= seen.times[-1]]
        curves = fitted_curves(self.names, seen, fine, _rows(path, fine), self.time_label)
        about = (
            "The states that changed most: points are observed, lines are fitted, and bars are two "
            "standard errors of counting. Below, the residuals: 95 % of them lie in the grey "
            "band if the model is right."
        )
        return Section("Observed and fitted", (about,), (curves,))

    def ahead(self) -> Section | None:
        model, forecast = self.model, self.forecast
        if forecast is None:
            return None
        curves = forecast_curves(self.names, forecast, model.times_[-1], self.time_label)
        return Section("Forecast", (*caution(model), *_about(forecast, model)), (curves,))

    def potential(self) -> Section:
        model, stderr = self.model, self.stderr
        about = () if stderr is None else ("Bars are two standard errors.",)
        picture = ranked(self.names, model.potential_, stderr)
        table = _states(model, self.names)
        return Section("Potential by state", (*caution(model), *about), (picture,), table=table)


def _rows(path: Trajectory, times: Array) -> Array:
    """Probabilities at times of `path`."""
    return path.probabilities[np.searchsorted(path.times, times)]


def _validated(result: CrossValidation) -> Section:
    """The landscape beside its rivals, scored on data that none of them has seen."""
    rows = []
    for name in result.models:
        near = [score.hellinger for score in result.scores if score.model == name]
        rows.append((name, f"{result.mean(name):.5f}", f"{np.mean(near):.4f}"))
    rows += [(name, "not computed", why) for name, why in result.failures.items()]
    header = ("model", "log score (higher is better)", "Hellinger distance (lower is better)")
    about = {
        "leave-one-out": "Each snapshot but the first was left out in turn.",
        "forecast-last": "The last snapshot was left out and forecast from the others.",
        "k-fold": "Part of the individuals of every snapshot was left out in turn.",
    }[result.scheme]
    caption = (
        "Predictions of what was left out. A free chain is a Markov chain with its own rate for "
        "each direction of each edge."
    )
    table = Table(caption, header, rows)
    return Section("Beside models without a landscape", (result.verdict, about), table=table)


def methods_text(model: FreeEnergyRegressor, snapshots: Snapshots | None) -> str:
    """A paragraph for a methods section, with version and citation."""
    kernel = model.kernel_
    how = {
        "likelihood": "maximum likelihood of the snapshot counts under the gradient flow",
        "weak": "least squares in the weak form of the flow, with scoring steps for error bars",
        "neural": "a neural network trained on the quadratic loss of the cited paper",
    }[str(model.method)]
    counts = ""
    if snapshots is not None:
        sizes = np.asarray(snapshots.sizes)
        low, high = f"{sizes.min():g}", f"{sizes.max():g}"
        counts = (
            f" of {low} individuals each" if low == high else f" of {low} to {high} individuals"
        )
    error = f" (standard error {model.beta_stderr_:.2g})" if np.isfinite(model.beta_stderr_) else ""
    beta = f"The estimate of beta was {model.beta_:.3g}{error}."
    if model.beta_verdict_.kind == "given":
        beta = f"beta was fixed at {model.beta_:.3g}."
    elif model.beta_verdict_.kind == "undetermined":
        beta = f"The data did not determine beta; {model.beta_:.3g} was used."
    births = "" if model.growth is None else ", with births and deaths at a rate per state,"
    p = model.diagnostics_.get("p_value")
    test = "" if p is None else f" The goodness-of-fit test gave {p_text(p)}."
    return (
        f"The population on {kernel.n_states} states with {kernel.n_edges} edges was modelled as "
        "the gradient flow of a free energy F = V + beta H (H: entropy relative to the graph's "
        f"stationary distribution){births} in the discrete transport metric W_K (Maas 2011; "
        "Rancati, Maas and Locatello). The energy was estimated from "
        f"{model.times_.size} snapshots{counts} by {how}, with thalweg {__version__}. {beta}{test} "
        "References: J. Maas, Gradient flows of the entropy for finite Markov chains, J. Funct. "
        "Anal. 261 (2011) 2250-2292; Rancati, Maas and Locatello, Learning Discrete Diffusion on "
        f"Graphs via Free-Energy Gradient Flows; thalweg {__version__}, software."
    )


def _states(model: FreeEnergyRegressor, names: list[str]) -> Table:
    rest = model.energy_.equilibrium(model.kernel_) if model.beta_ > 0 else None
    words, order = flags(model), np.argsort(model.potential_)
    caption = "Every state; click a heading to sort."
    if order.size > _MOST_ROWS:
        order = np.concatenate([order[: _MOST_ROWS // 2], order[-(_MOST_ROWS // 2) :]])
        caption = f"The {_MOST_ROWS // 2} lowest and highest states; states.csv holds all of them."
    rows = [
        (
            names[x],
            f"{model.potential_[x]:.4g}",
            f"{model.potential_stderr_[x]:.2g}" if np.isfinite(model.potential_stderr_[x]) else "",
            "" if rest is None else f"{rest[x]:.3g}",
            words[x],
        )
        for x in order
    ]
    return Table(caption, ("state", "V", "standard error", "share at rest", "remark"), rows)


def _lead(model: FreeEnergyRegressor) -> str:
    kernel, times, scale = model.kernel_, model.times_, model.time_scale_
    first, last = scale.labels(times[[0, -1]])
    since = f" Times on the axes are {scale}." if scale.unit else ""
    return (
        f"{kernel.n_states} states, {kernel.n_edges} edges, {times.size} snapshots from {first} to "
        f"{last}.{since}"
    )


def _about_picture(n_states: int, whole: bool) -> str:
    text = "The population moves towards low V. Point at a state for its name and value."
    if whole:
        return text + " Arrows show the strongest net movement over the observed times."
    return (
        f"The population moves towards low V. {n_states} states are too many to draw one by one: "
        "each marker is a patch of neighbouring states, coloured by their mean."
    )


def _about(forecast: Forecast, model: FreeEnergyRegressor) -> tuple[str, ...]:
    """What the bands include, and what they leave out."""
    text = "The states that change most. "
    if not np.isfinite(forecast.lower).all():
        if np.isfinite(model.potential_stderr_).any():
            return (text + f"There are no bands here: {forecast.status.value}",)
        return (text + "There are no bands: this fit has no error bars.",)
    text += (
        f"Bands are meant to contain the true share {forecast.level:.0%} of the time, if one fixed "
        "landscape drives the population. They cover the error of the fit, not the counting noise "
        "of a new sample."
    )
    if model.fitted_.joint_covariance is None:
        text += " On a graph this large they leave out the error of the first snapshot."
    return (text,)


def _facts(model: FreeEnergyRegressor) -> dict[str, str]:
    diagnostics = model.diagnostics_
    facts = {
        "method": str(model.method),
        "beta": f"{model.beta_:.6g}",
        "status": str(diagnostics.get("advice", model.status_.value)),
    }
    for key, value in diagnostics.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            facts[key.replace("_", " ")] = f"{value:.6g}"
    facts["thalweg"] = __version__
    facts["python"] = platform.python_version()
    facts["numpy, scipy"] = f"{version('numpy')}, {version('scipy')}"
    return facts
