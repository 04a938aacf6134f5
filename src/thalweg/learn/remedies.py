"""If one landscape is rejected: the further assumption that best predicts left-out individuals.

Each remedy is the fit's own model with one more part (or a chain without any landscape).
Individuals are assigned to folds; every model is fitted to all folds but one and judged by the log
likelihood of the individuals left out, so that mere flexibility gains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from thalweg._types import Array, Progress
from thalweg.errors import InputError, ThalwegError
from thalweg.kernel import MarkovKernel
from thalweg.learn.growth import Growth
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.learn.limits import exhausted
from thalweg.learn.observation import Multinomial
from thalweg.learn.rivals import free_ctmc
from thalweg.learn.time_basis import TimeBasis
from thalweg.mobility import ArithmeticMean, GeometricMean, HarmonicMean, LogMean
from thalweg.status import Status

Predict = Callable[[LikelihoodFit, Array], tuple[Array, str]]

MOST_STATES = 100
"""Most states: above, one dense fit takes some 10 s, and each fold needs a dozen."""
_MOST_BREAKS = 4
"""Number of times tried at which a landscape may jump."""
_SURE = 2.5
"""Standard errors by which a remedy must be ahead: seven are tried."""
NONE = "one landscape"
_NEXT = {
    "growth": ' Fit it with growth="states" (--growth shares).',
    "a landscape that jumps": " Fit it with time_basis=TimeBasis.piecewise([time]).",
    "another mean": " Fit it with mobility=.",
    "an interaction": " Fit it with interactions=.",
    "free rates without a landscape": " The population may go round in cycles.",
}
"""The step that a winner suggests."""


@dataclass(frozen=True)
class Remedies:
    """Predictions of left-out individuals by each remedy, against one landscape.

    Parameters
    ----------
    gains : dict
        By remedy, the gain in log likelihood per left-out individual, and its standard error.
    details : dict
        What a remedy found, such as the time of a jump.
    failures : dict
        Remedies that could not be tried, and why.

    >>> print(Remedies({"growth": (0.02, 0.004), "another mean": (0.001, 0.002)}, {}, {}))
    What predicts left-out individuals best is growth: their log-likelihood is higher by 0.02 ± \
0.004 each than with one landscape. Fit it with growth="states" (--growth shares).
    """

    gains: dict[str, tuple[float, float]]
    details: dict[str, str]
    failures: dict[str, str]

    @property
    def ranking(self) -> list[str]:
        """The remedies, best first."""
        return sorted(self.gains, key=lambda name: -self.gains[name][0])

    @property
    def winner(self) -> str | None:
        """The best remedy, if it is significantly better than one landscape."""
        best = next(iter(self.ranking), None)
        if best is None or self.gains[best][0] <= _SURE * self.gains[best][1]:
            return None
        return best

    def __str__(self) -> str:
        best = self.winner
        if best is None:
            tried = ", ".join(self.ranking) or "nothing"
            return (
                f"Nothing that was tried ({tried}) predicts left-out individuals better than one "
                "landscape does."
            )
        gain, error = self.gains[best]
        detail = self.details.get(best, "")
        return (
            f"What predicts left-out individuals best is {best}{detail}: their log-likelihood is "
            f"higher by {gain:.2g} ± {error:.1g} each than with one landscape.{_NEXT.get(best, '')}"
        )

    def __repr__(self) -> str:
        return f"Remedies(winner={self.winner!r}, ranking={self.ranking})"


def find_remedies(
    fit: LikelihoodFit, *, n_folds: int = 3, seed: int = 0, progress: Progress | None = None
) -> Remedies:
    """Try every remedy on the data of a fit.

    Parameters
    ----------
    fit : LikelihoodFit
        A fit to independent snapshots under the continuous flow.
    n_folds : int
        Number of parts into which the individuals of each snapshot are divided.
    seed : int
        Seed of the generator that divides them.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    """
    _check(fit, n_folds)
    rng = np.random.default_rng(seed)
    whole = np.rint(fit.counts).astype(np.int64)
    dealt = np.moveaxis(rng.multinomial(whole, np.full(n_folds, 1 / n_folds)), -1, 0)
    folds = [part for part in dealt if part.sum(axis=1).min() > 0]
    candidates: dict[str, Predict] = {NONE: _plain, **REMEDIES}
    logs: dict[str, list[Array]] = {name: [] for name in candidates}
    found: dict[str, list[str]] = {name: [] for name in candidates}
    failures: dict[str, str] = {}
    total = len(folds) * len(candidates)
    for k, part in enumerate(folds):
        kept = (whole - part).astype(np.float64)
        for j, (name, predict) in enumerate(candidates.items()):
            if progress is not None:
                progress("trying remedies", k * len(candidates) + j, total)
            if name in failures:
                continue
            if exhausted():
                failures[name] = "the time was up"
                continue
            try:
                p, detail = predict(fit, kept)
            except (ThalwegError, np.linalg.LinAlgError, FloatingPointError) as error:
                failures[name] = str(error)
                continue
            logs[name].append(np.log(np.maximum(p, 1e-300)))
            found[name].append(detail)
    if NONE in failures:
        raise InputError(f"the landscape itself could not be fitted again: {failures[NONE]}")
    gains, details = {}, {}
    for name in REMEDIES:
        if name not in failures:
            gains[name] = _gain(folds, logs[name], logs[NONE])
            details[name] = max(found[name], key=found[name].count)
    return Remedies(gains, details, failures)


def _check(fit: LikelihoodFit, n_folds: int) -> None:
    plain = fit.settings.observation == "independent" and fit.settings.discretization
    if plain != "continuous" or not isinstance(fit.noise, Multinomial):
        raise InputError(
            "remedies are judged by individuals left out, who must have been sampled "
            "independently; fit with observation='independent' and without replicates."
        )
    if fit.model.n_states > MOST_STATES:
        raise InputError(
            f"remedies are tried on up to {MOST_STATES} states, and the graph has "
            f"{fit.model.n_states}; merge states, or fit with growth= or time_basis= yourself and "
            "compare the scores."
        )
    least = float(fit.counts.sum(axis=1).min())
    if not 2 <= n_folds <= least:
        raise InputError(
            f"n_folds is {n_folds}; choose from 2 to the smallest snapshot's {least:g} individuals."
        )


def _gain(
    folds: list[NDArray[np.int64]], logs: list[Array], base: list[Array]
) -> tuple[float, float]:
    """Mean gain of a left-out individual, and its standard error from counting."""
    size = float(sum(part.sum() for part in folds))
    apart = [mine - other for mine, other in zip(logs, base, strict=True)]
    gain = sum(float(np.sum(part * gap)) for part, gap in zip(folds, apart, strict=True)) / size
    square = sum(float(np.sum(part * gap**2)) for part, gap in zip(folds, apart, strict=True))
    return gain, float(np.sqrt(max(square / size - gain**2, 0.0) / size))


# ------------------------------------------------------------------------ the remedies


def _refit(fit: LikelihoodFit, counts: Array, **changes: object) -> LikelihoodFit:
    options: LikelihoodOptions = replace(fit.settings, hurried=True, **changes)  # type: ignore[arg-type]
    again = fit_likelihood(fit.kernel, fit.times, counts, options=options)
    if again.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return again


def _plain(fit: LikelihoodFit, counts: Array) -> tuple[Array, str]:
    return _refit(fit, counts).probabilities, ""


def _jump(fit: LikelihoodFit, counts: Array) -> tuple[Array, str]:
    """Two landscapes, one before and one after a snapshot; the snapshot is the likeliest one."""
    inner = fit.times[1:-1]
    if not inner.size:
        raise InputError("a landscape that jumps needs three snapshots or more.")
    chosen = np.unique(np.linspace(0, inner.size - 1, min(inner.size, _MOST_BREAKS)).astype(int))
    found = {
        float(inner[k]): _refit(fit, counts, time_basis=TimeBasis.piecewise([float(inner[k])]))
        for k in chosen
    }
    when = max(found, key=lambda t: found[t].log_likelihood)
    return found[when].probabilities, f" at time {when:g}"


def _births(fit: LikelihoodFit, counts: Array) -> tuple[Array, str]:
    return _refit(fit, counts, growth=Growth()).probabilities, ""


def _mean(fit: LikelihoodFit, counts: Array) -> tuple[Array, str]:
    own = type(fit.settings.mobility)
    means = (LogMean(), GeometricMean(), ArithmeticMean(), HarmonicMean())
    found = {
        type(mean).__name__: _refit(fit, counts, mobility=mean)
        for mean in means
        if type(mean) is not own
    }
    name = max(found, key=lambda key: found[key].log_likelihood)
    return found[name].probabilities, f" ({name})"


def _crowding(fit: LikelihoodFit, counts: Array) -> tuple[Array, str]:
    """Individuals that repel or attract each other within a state and between neighbours."""
    terms = (*fit.settings.interactions, *_neighbourhoods(fit.kernel))
    again = _refit(fit, counts, interactions=terms)
    strength = float(again.interaction_strengths[-2:].sum())
    return again.probabilities, " (repulsion)" if strength > 0 else " (attraction)"


def _neighbourhoods(kernel: MarkovKernel) -> Iterator[Array]:
    """`delta_xy / pi_x` and `K_xy / pi_y`: densities of a state itself, and of its neighbours."""
    pi = kernel.stationary
    yield np.diag(1.0 / pi)
    shared = kernel.flow_matrix.toarray() / np.outer(pi, pi)
    np.fill_diagonal(shared, 0.0)
    yield 0.5 * (shared + shared.T)


def _chain(fit: LikelihoodFit, counts: Array) -> tuple[Array, str]:
    return free_ctmc(fit.kernel, fit.times, counts), ""


REMEDIES: dict[str, Predict] = {
    "a landscape that jumps": _jump,
    "growth": _births,
    "another mean": _mean,
    "an interaction": _crowding,
    "free rates without a landscape": _chain,
}
"""By name, the function that fits to counts and predicts the probabilities at their times."""
