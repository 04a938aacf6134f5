"""Cross-validation over times and individuals, with rivals in the same table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone

from thalweg._door import checked
from thalweg._optional import data_frame
from thalweg._parallel import parallel_map
from thalweg._sparse import dense
from thalweg._types import Array
from thalweg.errors import InputError, ThalwegError
from thalweg.kernel import MarkovKernel
from thalweg.learn.answer import check_match
from thalweg.learn.inputs import as_problem
from thalweg.learn.limits import as_progress
from thalweg.learn.regressor import FreeEnergyRegressor
from thalweg.learn.rivals import MOST_STATES, fokker_planck, free_ctmc, no_movement, pure_heat
from thalweg.snapshots import Snapshots, hellinger
from thalweg.snapshots.density import smoothed

if TYPE_CHECKING:
    import pandas as pd


Scheme = Literal["leave-one-out", "forecast-last", "k-fold"]
Rival = Callable[[MarkovKernel, Array, Array, Array], Array]

LANDSCAPE = "landscape"


def _linear(kernel: MarkovKernel, times: Array, counts: Array, at: Array) -> Array:
    """Shares on straight lines between the neighbouring snapshots; after them the last one."""
    return np.column_stack([np.interp(at, times, column) for column in smoothed(counts).T])


RIVALS: dict[str, Rival] = {
    "no movement": lambda k, t, c, at: no_movement(k, t, c, at=at),
    "linear interpolation": _linear,
    "free chain": lambda k, t, c, at: free_ctmc(k, t, c, at=at),
    "Fokker-Planck chain": lambda k, t, c, at: fokker_planck(k, t, c, at=at),
    "pure heat": lambda k, t, c, at: pure_heat(k, t, c, at=at),
}
_USUAL = ("no movement", "linear interpolation", "free chain", "Fokker-Planck chain")


class Score(NamedTuple):
    """The score of one model on one held-out snapshot."""

    model: str
    fold: int
    time: float
    log_score: float
    """Mean log-likelihood of a held-out individual; higher is better."""
    hellinger: float
    """Distance of the prediction from the held-out histogram; lower is better."""
    variance: float
    """Variance of the log score relative to the landscape's, from counting."""
    individuals: float


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """Scores of the landscape and its rivals on held-out snapshots."""

    scheme: Scheme
    scores: tuple[Score, ...]
    failures: dict[str, str]
    """Models that could not be computed, and why."""

    @property
    def models(self) -> list[str]:
        """The models, best first."""
        names = dict.fromkeys(score.model for score in self.scores)
        return sorted(names, key=lambda name: -self.mean(name))

    def mean(self, model: str) -> float:
        """The mean log score of all held-out individuals."""
        rows = [score for score in self.scores if score.model == model]
        sizes = np.array([row.individuals for row in rows])
        return float(np.array([row.log_score for row in rows]) @ sizes / sizes.sum())

    def gap(self, model: str) -> tuple[float, float]:
        """The lead of the landscape over a model, and its standard error from counting."""
        rows = [score for score in self.scores if score.model == model]
        sizes = np.array([row.individuals for row in rows])
        variance = np.array([row.variance for row in rows]) @ sizes**2 / sizes.sum() ** 2
        return self.mean(LANDSCAPE) - self.mean(model), float(np.sqrt(variance))

    @property
    def verdict(self) -> str:
        """One sentence: does the landscape predict better than models without one?"""
        what = {
            "leave-one-out": "snapshots left out",
            "forecast-last": "the last snapshot",
            "k-fold": "individuals left out",
        }[self.scheme]
        rivals = [name for name in self.models if name != LANDSCAPE]
        if LANDSCAPE not in self.models or not rivals:
            why = self.failures.get(LANDSCAPE) or next(iter(self.failures.values()), "no rival")
            return f"Predictions of {what} could not be compared: {why.rstrip('.')}."
        best = rivals[0]
        gap, error = self.gap(best)
        by = f"({gap:+.3g} ± {error:.2g} per individual, in log-likelihood)"
        if gap > 2 * error:
            return f"The landscape predicts {what} better than every rival; next is {best!r} {by}."
        if gap > -2 * error:
            return f"The landscape predicts {what} as well as the best rival, {best!r} {by}."
        return (
            f"The landscape predicts {what} worse than {best!r} {by}: do not rely on its forecasts."
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per model and held-out snapshot."""
        return data_frame(self.scores, columns=list(Score._fields)).drop(columns="variance")

    def __str__(self) -> str:
        lines = [f"{'model':>22}  {'log score':>10}  {'Hellinger':>9}"]
        for name in self.models:
            rows = [score.hellinger for score in self.scores if score.model == name]
            lines.append(f"{name:>22}  {self.mean(name):10.5f}  {np.mean(rows):9.4f}")
        lines += [f"{name:>22}  not computed: {why}" for name, why in self.failures.items()]
        return "\n".join([*lines, self.verdict])

    def __repr__(self) -> str:
        return f"CrossValidation(scheme={self.scheme!r}, models={self.models})"


@checked
def cross_validate(
    model: FreeEnergyRegressor,
    kernel: Any,
    snapshots: Any,
    *,
    scheme: Scheme = "leave-one-out",
    rivals: Sequence[str] = _USUAL,
    n_folds: int = 5,
    seed: int = 0,
    jobs: int | None = None,
) -> CrossValidation:
    """Score the landscape on held-out data, beside models without one.

    Parameters
    ----------
    model : FreeEnergyRegressor
        The settings to test; it is cloned, not changed. Its `progress` is called as
        `progress(what, done, total)` after every model of every fold.
    kernel : MarkovKernel, networkx graph or matrix
        The graph, as `FreeEnergyRegressor.fit` takes it.
    snapshots : Snapshots or data frame
        The data, as `FreeEnergyRegressor.fit` takes them.
    scheme : {"leave-one-out", "forecast-last", "k-fold"}
        Leave out each snapshot but the first in turn, forecast the last one, or leave out a share
        of the individuals of every snapshot.
    rivals : sequence of str
        Names from `thalweg.learn.crossval.RIVALS`; by default all but `"pure heat"`.
    n_folds : int
        Number of folds of individuals, for `"k-fold"`.
    seed : int
        Seed of the generator that assigns individuals to folds.
    jobs : int, optional
        Number of worker processes; by default one.

    Returns
    -------
    CrossValidation
        Scores by model and held-out snapshot; `print` it for the table and the verdict.

    Examples
    --------
    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> counts = [[800, 150, 50], [600, 290, 110], [470, 370, 160], [400, 410, 190]]
    >>> seen = Snapshots.from_counts([0.0, 0.5, 1.0, 1.5], counts)
    >>> result = cross_validate(FreeEnergyRegressor(method="weak"), kernel, seen)
    >>> result.models[-1]
    'no movement'
    """
    graph, seen = as_problem(kernel, snapshots)
    check_match(graph, seen)
    unknown = [name for name in rivals if name not in RIVALS]
    if unknown:
        raise InputError(f"there is no rival {unknown[0]!r}; choose from {', '.join(RIVALS)}.")
    folds = _folds(seen, scheme, n_folds, np.random.default_rng(seed))
    chosen = [r for r in rivals if r != "Fokker-Planck chain" or graph.n_states <= MOST_STATES]
    fresh = clone(model).set_params(progress=None)
    work = [
        (name, fresh, graph, kept, out.times)
        for kept, out in folds
        for name in (LANDSCAPE, *chosen)
    ]
    progress = as_progress(model.progress)
    answers = iter(
        parallel_map(_predicted, work, jobs=jobs, progress=progress, what="comparing models")
    )
    scores: list[Score] = []
    failures: dict[str, str] = {}
    for fold, (_, out) in enumerate(folds):
        predicted: dict[str, Array] = {}
        for name in (LANDSCAPE, *chosen):
            answer = next(answers)
            if isinstance(answer, str):
                failures[name] = answer
            else:
                predicted[name] = answer
        scores += _scores(fold, out, predicted)
    for name in set(rivals) - set(chosen):
        failures[name] = f"fitted up to {MOST_STATES} states only"
    return CrossValidation(scheme, tuple(scores), failures)


def time_splits(snapshots: Snapshots) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Leave-one-time-out splits in the form of scikit-learn's `cv`: positions to fit and to score.

    The first snapshot always stays: a flow runs forwards only.

    >>> seen = Snapshots.from_counts([0, 1, 2], [[3, 1], [2, 2], [1, 3]])
    >>> [out.tolist() for _, out in time_splits(seen)]
    [[1], [2]]
    """
    if snapshots.n_times < 3:
        raise InputError(
            f"there are {snapshots.n_times} snapshots; leaving one out needs three or more."
        )
    every = np.arange(snapshots.n_times)
    return [(np.delete(every, k), np.array([k])) for k in range(1, snapshots.n_times)]


class OnSnapshots(BaseEstimator):  # type: ignore[misc]
    """A regressor on given data in the form that scikit-learn's searches over settings take.

    `X` holds positions of snapshots; parameters are searched as `model__prior` and so on.

    Parameters
    ----------
    model : FreeEnergyRegressor
        The settings to start from.
    kernel : MarkovKernel
        The graph.
    snapshots : Snapshots
        The data.

    Examples
    --------
    >>> from sklearn.model_selection import GridSearchCV
    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> seen = Snapshots.from_counts([0, 1, 2], [[90, 10], [70, 30], [60, 40]])
    >>> base = OnSnapshots(FreeEnergyRegressor(method="weak"), kernel, seen)
    >>> search = GridSearchCV(base, {"model__beta": [0.1, 1.0]}, cv=time_splits(seen))
    >>> sorted(search.fit(base.positions).best_params_)
    ['model__beta']
    """

    def __init__(
        self, model: FreeEnergyRegressor, kernel: MarkovKernel, snapshots: Snapshots
    ) -> None:
        self.model = model
        self.kernel = kernel
        self.snapshots = snapshots

    @property
    def positions(self) -> NDArray[np.intp]:
        """The `X` of a search: one row per snapshot."""
        return np.arange(len(self.snapshots))[:, None]

    def fit(self, X: Any, y: Any = None) -> OnSnapshots:
        """Fit to the snapshots at these positions."""
        self.model_ = clone(self.model).fit(self.kernel, self.snapshots[np.ravel(X)])
        return self

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-likelihood of an individual at these positions."""
        return float(self.model_.score(self.snapshots[np.ravel(X)]))


def _folds(
    seen: Snapshots, scheme: Scheme, n_folds: int, rng: np.random.Generator
) -> list[tuple[Snapshots, Snapshots]]:
    if scheme == "leave-one-out":
        return [(seen[kept], seen[out]) for kept, out in time_splits(seen)]
    if scheme == "forecast-last":
        return [(seen[kept], seen[out]) for kept, out in time_splits(seen)[-1:]]
    if scheme != "k-fold":
        raise InputError(
            f"scheme is {scheme!r}; choose 'leave-one-out', 'forecast-last' or 'k-fold'."
        )
    if not 2 <= n_folds <= seen.sizes.min():
        raise InputError(
            f"n_folds is {n_folds}; choose from 2 to the smallest snapshot's "
            f"{seen.sizes.min():g} individuals."
        )
    counts = dense(seen.counts).round().astype(np.int64)
    share = np.full(n_folds, 1 / n_folds)
    dealt = np.moveaxis(rng.multinomial(counts, share), -1, 0)
    if (dealt.sum(axis=2) == 0).any():
        raise InputError("a fold got no individual of some snapshot; take fewer folds.")
    return [
        (_counted(seen, counts - part), _counted(seen, part)) for part in dealt.astype(np.float64)
    ]


def _counted(seen: Snapshots, counts: Array) -> Snapshots:
    return Snapshots.from_counts(seen.times, counts, names=seen.names)


def _predicted(
    name: str, model: FreeEnergyRegressor, kernel: MarkovKernel, kept: Snapshots, at: Array
) -> Array | str:
    """Probabilities at the times `at`; the reason where there are none."""
    try:
        if name == LANDSCAPE:
            return model.fit(kernel, kept).predict(None, at).probabilities
        return RIVALS[name](kernel, kept.times, dense(kept.counts), at)
    except (ThalwegError, FloatingPointError, np.linalg.LinAlgError) as error:
        return str(error)


def _scores(fold: int, out: Snapshots, predicted: dict[str, Array]) -> list[Score]:
    """Scores of every model on one fold."""
    held = dense(out.counts)
    logs = {name: np.log(np.maximum(p, 1e-300)) for name, p in predicted.items()}
    scores = []
    for name, p in predicted.items():
        for k, time in enumerate(out.times):
            n = float(held[k].sum())
            q, apart = held[k] / n, logs.get(LANDSCAPE, logs[name])[k] - logs[name][k]
            spread = float(q @ (apart - q @ apart) ** 2) / n
            near = float(hellinger(q, p[k] / p[k].sum()))
            scores.append(Score(name, fold, float(time), float(q @ logs[name][k]), near, spread, n))
    return scores
