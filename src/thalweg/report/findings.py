"""What a fit means, in sentences for someone who is new to the method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg._sparse import dense
from thalweg._words import listed, p_text
from thalweg.learn import CrossValidation, FreeEnergyRegressor
from thalweg.plots.layout import state_texts
from thalweg.snapshots import Snapshots, hellinger
from thalweg.status import Status

_NAMED_STATES = 500
"""Number of states above which no single state is named as the destination."""
_REJECTED = 0.01
"""P-value below which one landscape is said not to explain the data."""
_MANY = 1e6
"""Individuals per snapshot from which counts are a census rather than a sample."""


def findings(
    model: FreeEnergyRegressor,
    snapshots: Snapshots | None = None,
    fitted: NDArray[np.float64] | None = None,
    validation: CrossValidation | None = None,
) -> list[str]:
    """Whether to believe the fit, where the population goes, how strong the noise is; then details.

    The most important sentences come first, since readers remember those. `fitted`: the model's
    probabilities at the times of the snapshots, computed here if absent.
    """
    diagnostics = model.diagnostics_
    sentences = []
    if not model.status_ and model.status_ is not Status.UNDETERMINED:
        sentences.append(f"The fit did not finish cleanly. {model.status_.value}")
    sentences += _verdict(diagnostics)
    if validation is not None:
        sentences.append(validation.verdict)
    if model.growth_ is not None:
        sentences.append(str(model.growth_))
    sentences += _destination(model)
    sentences.append(_noise(model))
    sentences += _scatter(diagnostics)
    if snapshots is not None:
        sentences.append(_agreement(model, snapshots, fitted))
    return sentences + _unknown(model)


def silences(model: FreeEnergyRegressor) -> list[str]:
    """What the data do not say: states without data, open questions, assumptions."""
    said = _unknown(model)
    open_ = model.diagnostics_.get("undetermined") or []
    if open_:
        shown = "; ".join(str(text) for text in open_[:3])
        said.append(f"The data leave open: {shown}.")
    said.append(
        "V is known only up to a constant, and only where the population has been: compare states "
        "with each other, not with zero."
    )
    seen = {"tracked": "followed over time", "overdispersed": "sampled in clumps"}
    how = seen.get(str(model.observation), "sampled independently")
    lives = "neither born nor lost" if model.growth is None else "born and lost at constant rates"
    where = "one landscape that does not change"
    if model.time_basis is not None:
        where = "a landscape that changes in time as specified"
    said.append(
        f"The fit assumes that individuals are {how}, {lives}, on {where}. A forecast assumes that "
        "this remains so."
    )
    said.append(
        "A landscape that fits need not be the cause: other dynamics can lead through the same "
        "snapshots."
    )
    return said


def rejected(model: FreeEnergyRegressor) -> bool:
    """Whether the test of fit says that one landscape does not explain the data."""
    p = model.diagnostics_.get("p_value")
    return p is not None and p < _REJECTED


WITHOUT_BIRTHS = "This model has births and deaths, which are left out here: individuals only move."
"""Said where a model with growth answers a question about movement alone."""


def caution(model: FreeEnergyRegressor) -> tuple[str, ...]:
    """The warnings to show beside every picture of the landscape; empty if there are none."""
    said = []
    if rejected(model):
        p = p_text(model.diagnostics_["p_value"])
        said.append(
            f"A single landscape does not explain these data ({p}): treat what is shown with "
            "caution."
        )
    if model.beta_verdict_.kind == "undetermined":
        said.append("The data do not determine beta: what is shown is one possibility among many.")
    return tuple(said)


def _unknown(model: FreeEnergyRegressor) -> list[str]:
    sentences = []
    unseen = model.diagnostics_["never_visited"]
    if unseen:
        count = len(unseen)
        were = "state was" if count == 1 else "states were"
        sentences.append(
            f"{count} {were} never visited ({_listed(model, unseen)}): "
            f"{'its' if count == 1 else 'their'} potential is inferred from the neighbours."
        )
    vague = [x for x in _vague(model) if x not in set(unseen)]
    if vague:
        are = "state is" if len(vague) == 1 else "states are"
        further = "further " if unseen else ""
        sentences.append(
            f"{len(vague)} {further}{are} hardly determined by the data ({_listed(model, vague)}): "
            "the error bar is wider than the landscape is high."
        )
    if model.times_.size == 2:
        sentences.append(
            "Only two times were seen. Two snapshots can always be joined by some landscape, so "
            "this fit has not been tested; a third time would test it."
        )
    return sentences


def _destination(model: FreeEnergyRegressor) -> list[str]:
    """Where the fitted population gathers in the end, and where it came from."""
    kernel = model.kernel_
    unknown = model.beta_verdict_.kind == "undetermined"
    if kernel.n_states > _NAMED_STATES or model.beta_ <= 0 or unknown:
        return []
    rest, first = model.energy_.equilibrium(kernel), model.initial_
    names = state_texts(kernel)
    ends = [x for x in np.argsort(-rest)[:3] if rest[x] > 1.5 / kernel.n_states]
    if not ends:
        return []
    where = ", ".join(f"{names[x][:40]} ({rest[x]:.0%})" for x in ends)
    share = "most" if rest[ends].sum() > 0.5 else "the largest shares"
    said = f"At rest, {share} of the population would be in {where}"
    if rejected(model):
        said = (
            f"If this landscape held all the same, {share} of the population at rest would be in "
        )
        said += where
    if model.growth_ is not None:
        said = f"Without births and deaths: {said[0].lower()}{said[1:]}"
    lost = int(np.argmax(first - rest))
    if lost not in ends and first[lost] > rest[lost] + 0.02:
        said += f"; the share of {names[lost][:40]} would fall from {first[lost]:.0%} to "
        said += f"{rest[lost]:.0%}"
    return [f"{said}."]


def flags(model: FreeEnergyRegressor) -> list[str]:
    """A warning for each state whose potential should not be trusted; empty for the others."""
    unseen = set(model.diagnostics_["never_visited"])
    vague = set(_vague(model))
    return [
        "never visited" if x in unseen else "poorly determined" if x in vague else ""
        for x in range(model.kernel_.n_states)
    ]


def _agreement(
    model: FreeEnergyRegressor, snapshots: Snapshots, fitted: NDArray[np.float64] | None
) -> str:
    if fitted is None:
        fitted = model.predict(None, snapshots.on(model.time_scale_).times).probabilities
    seen = dense(snapshots.frequencies)
    distance = float(np.mean(hellinger(seen, fitted)))
    occupied = (seen > 0).sum(axis=1)
    noise = float(np.mean(np.sqrt(np.maximum(occupied - 1, 1) / (8 * snapshots.sizes))))
    if model.diagnostics_.get("p_value") is not None:
        # The test below has the last word; two verdicts could disagree.
        return (
            f"Fitted and observed populations differ by a Hellinger distance of {distance:.3g} on "
            f"average; counting noise alone would give about {noise:.3g}."
        )
    if distance < 1.3 * noise:
        how = "as close as counting noise allows"
    elif distance < 2.5 * noise:
        how = "somewhat further than counting noise alone"
    else:
        how = f"{distance / noise:.0f} times as far as counting noise alone would give"
    return (
        f"Fitted and observed populations differ by a Hellinger distance of {distance:.3g} on "
        f"average: {how} ({noise:.3g})."
    )


def _verdict(diagnostics: dict[str, Any]) -> list[str]:
    p = diagnostics.get("p_value")
    if p is None:
        return []
    if diagnostics.get("n_times") == 2:
        return [] if p >= 0.05 else [
            f"The fit misses its two snapshots by more than counting noise ({p_text(p)}). Some "
            "landscape joins any two, so this says more about the fit than about the population."
        ]  # fmt: skip
    tried = diagnostics.get("remedies")
    if p < _REJECTED:
        wider = diagnostics.get("errors_widened_by")
        usual = "Cycles" if "growth_says" in diagnostics else "Growth, cycles,"
        return [
            f"A landscape with noise does not explain these data ({p_text(p)}). "
            + (
                f"{tried} Treat V with caution."
                if tried
                else f"{usual} or a landscape that changes in time are the usual reasons "
                "(fit --remedies tries them). Treat V with caution."
            )
            + (f" Error bars are {wider:.0f} times as wide to cover the misfit." if wider else "")
            + _clumped(diagnostics)
        ]
    if p < 0.05:
        signs = f"There are signs that one landscape does not explain everything ({p_text(p)})."
        return [f"{signs} {tried}" if tried else signs]
    return [f"The data are consistent with a population sliding down one landscape ({p_text(p)})."]


def _clumped(diagnostics: dict[str, Any]) -> str:
    """What to try where so many individuals were counted that other errors must be larger."""
    each = diagnostics["n_samples"] / diagnostics["n_times"]
    known = {"design_effect", "concentration"} & diagnostics.keys()
    if known or each < _MANY:
        return ""
    return (
        f" With {each:,.0f} individuals per snapshot almost any model is rejected, unless they are "
        "independent: fit --observation overdispersed estimates how far the counts scatter."
    )


def _scatter(diagnostics: dict[str, Any]) -> list[str]:
    """How much more the counts scatter than those of independent individuals, if estimated."""
    effect = diagnostics.get("design_effect")
    s = diagnostics.get("concentration")
    if s is not None:
        n = diagnostics["n_samples"] / diagnostics["n_times"]
        effect = (n + s) / (1.0 + s)
    if effect is None:
        return []
    text = "Counts scatter no more than those of independent individuals would."
    if effect > 1.05:
        text = (
            f"Counts scatter {effect:.3g} times as much (in variance) as those of independent "
            "individuals would; the error bars allow for it."
        )
    if s is not None:
        text += (
            " Without replicates a wrong landscape can pass for scatter: the p-value only tests "
            "whether residuals at neighbouring times are alike."
        )
    return [text]


def _noise(model: FreeEnergyRegressor) -> str:
    spread = float(np.ptp(model.potential_))
    verdict = model.beta_verdict_
    if verdict.kind == "undetermined":
        return (
            f"{verdict} The value used for forecasts is beta = {model.beta_:.3g}, with a landscape "
            f"that spans {spread:.3g}; read both as one possibility among many."
        )
    error = f" ± {model.beta_stderr_:.2g}" if np.isfinite(model.beta_stderr_) else ""
    if model.beta_ <= 0 and model.method == "weak":
        return (
            "The weak form found no noise (beta = 0), which it often does where counts are small; "
            "the likelihood method can tell whether there is any."
        )
    if model.beta_ <= 0:
        return "No noise was found (beta = 0): the population moves straight downhill."
    ratio = spread / model.beta_
    kind = (
        "noise dominates, and the population mostly spreads"
        if ratio < 2
        else "noise and landscape both matter"
        if ratio < 12
        else "the landscape dominates, and the population gathers in its valleys"
    )
    found = "is"
    if verdict.kind == "determined":
        error = f" (95 %: {verdict.lower:.3g} to {verdict.upper:.3g})"
    elif verdict.kind == "given":
        found, error = "was given as", ""
    return (
        f"The noise {found} beta = {model.beta_:.3g}{error}. The landscape spans {spread:.3g}, "
        f"which is {ratio:.3g} times beta: {kind}."
    )


def _vague(model: FreeEnergyRegressor) -> list[int]:
    stderr = model.potential_stderr_
    if not np.isfinite(stderr).any():
        return []
    spread = float(np.ptp(model.potential_))
    return [int(x) for x in np.flatnonzero(2 * stderr > max(spread, 1e-12))]


def _listed(model: FreeEnergyRegressor, states: Sequence[int]) -> str:
    return listed((model.kernel_.labels[x] for x in states), 8)
