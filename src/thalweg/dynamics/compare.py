"""Tests whether two landscapes and their betas are the same, and where they differ.

A potential is known up to a constant only, so nothing here depends on how the two are centred. An
edge compares differences of potentials across it. A state is compared with a *reference*, the
states that did not move among themselves: they are found by a robust start (the median of the
difference) and kept while they stay within two standard errors. One state pushed up therefore
shows up as one state, not as all others pulled down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import false_discovery_control, norm

from thalweg._door import single_threaded
from thalweg._optional import data_frame
from thalweg._sparse import dense
from thalweg._types import Array, Index
from thalweg._words import p_text
from thalweg.dynamics.joint import JointFit, SameTests, ScoreTest, fit_jointly, same_tests
from thalweg.dynamics.landscape import as_landscape
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.answer import check_match, two_times
from thalweg.learn.likelihood.objective import IndependentObjective
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.learn.regressor import FreeEnergyRegressor
from thalweg.snapshots import Snapshots
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd


_NEAR = 2.0
"""Number of standard errors within which a state counts as unmoved."""


@dataclass(frozen=True, eq=False)
class Differences:
    """Differences `a - b` with standard errors and false-discovery rates."""

    value: Array
    stderr: Array
    p_value: Array
    q_value: Array
    """The false-discovery rate if this one and all clearer ones are called different."""

    def columns(self) -> dict[str, Array]:
        """As they stand in tables."""
        return {
            "difference": self.value,
            "stderr": self.stderr,
            "p_value": self.p_value,
            "q_value": self.q_value,
        }

    def significant(self, level: float = 0.05) -> Index:
        """The positions that differ, at this false-discovery rate."""
        return np.flatnonzero(self.q_value <= level)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The answer of `compare`.

    `same` tests the landscape and beta together, `same_landscape` the potential while beta may
    differ, `same_beta` beta while the potential may differ; None if the graph is too large.
    """

    kernel: MarkovKernel
    same: ScoreTest | None
    same_landscape: ScoreTest | None
    same_beta: ScoreTest | None
    states: Differences
    edges: Differences
    reference: Index
    """The states that did not move among themselves."""
    beta: tuple[float, float]
    joint: JointFit | None
    status: Status

    @property
    def p_value(self) -> float:
        """P-value of the hypothesis that landscape and beta are the same."""
        return float("nan") if self.same is None else self.same.p_value

    def to_frame(self) -> pd.DataFrame:
        """One row per state: difference of the potentials, its error, and significance."""
        return data_frame(
            {
                "state": list(self.kernel.labels),
                **self.states.columns(),
                "reference": np.isin(np.arange(self.kernel.n_states), self.reference),
            }
        )

    def edges_to_frame(self) -> pd.DataFrame:
        """One row per edge: the change of the potential drop along it."""
        names = np.array(self.kernel.labels, dtype=object)
        source, target, _ = self.kernel.edges
        ends = {"source": names[source], "target": names[target]}
        return data_frame({**ends, **self.edges.columns()})

    def __str__(self) -> str:
        if self.same is None:
            head = "The graph is too large for the global test."
        else:
            verb = "differ" if self.same.p_value < 0.05 else "may be the same"
            head = f"The landscapes {verb} ({p_text(self.same.p_value, 3)})."
        return (
            f"{head} {self.states.significant().size} of {self.kernel.n_states} states and "
            f"{self.edges.significant().size} of {self.kernel.n_edges} edges differ at a "
            f"false-discovery rate of 5 %; beta {self.beta[0]:.4g} and {self.beta[1]:.4g}."
        )


@single_threaded
def compare(
    a: FreeEnergyRegressor | Snapshots,
    b: FreeEnergyRegressor | Snapshots,
    kernel: MarkovKernel | None = None,
    *,
    seed: int = 0,
    **options: Any,
) -> Comparison:
    """Compare the landscapes behind two data sets on the same graph.

    Parameters
    ----------
    a, b : FreeEnergyRegressor or Snapshots
        Two models fitted to independent snapshots by the likelihood, or the two data sets.
    kernel : MarkovKernel, optional
        The graph, if data sets are given.
    seed : int
        Seed of the two fits, if data sets are given.
    **options
        Of `FreeEnergyRegressor`, if data sets are given.

    >>> from thalweg import make_graph
    >>> rng = np.random.default_rng(0)
    >>> graph = make_graph("complete", 5, rng=rng)
    >>> model = FreeEnergyRegressor().fit(graph, Snapshots.from_counts(
    ...     [0.0, 1.0], [[500, 300, 100, 50, 50], [300, 300, 200, 100, 100]]))
    >>> twin = compare(model, model)
    >>> twin.p_value > 0.9, twin.states.significant().size
    (True, 0)
    """
    one, other = (_fitted(model, kernel, options, seed) for model in (a, b))
    graph = one.kernel_
    _check_same_graph(graph, other.kernel_)
    fits = one._fit.source, other._fit.source
    joint: JointFit | None = None
    tests: tuple[ScoreTest | None, ScoreTest | None, ScoreTest | None] = (None, None, None)
    status = one.status_ and other.status_
    if isinstance(fits[0], LikelihoodFit) and isinstance(fits[1], LikelihoodFit):
        asked = fits[0].settings.prior_strength
        strength = None if isinstance(asked, str) else float(asked)
        joint = fit_jointly(_data(fits[0]), _data(fits[1]), strength=strength)
        status = status and joint.status
        tests = same_tests(joint)
    elif fits[0] is None or fits[1] is None:
        raise InputError(
            "compare needs the data behind both fits, and a model read from a file has none; give "
            "the snapshots and the kernel instead."
        )
    gap, directions = _difference(one, other)
    source, target, _ = graph.edges
    along = directions[:, source] - directions[:, target]
    edges = _judged(gap[source] - gap[target], np.sqrt(np.sum(along**2, axis=0)))
    states, reference = _state_differences(gap, directions)
    return Comparison(
        graph, *tests, states, edges, reference, (one.beta_, other.beta_), joint, status
    )


@single_threaded
def compare_globally(a: Snapshots, b: Snapshots, kernel: MarkovKernel) -> SameTests:
    """The global tests of `compare` alone: one joint fit, no fits of either data set.

    Parameters are those of `compare`.

    >>> from thalweg import make_graph
    >>> graph = make_graph("complete", 3, rng=np.random.default_rng(0))
    >>> seen = Snapshots.from_counts([0.0, 1.0], [[500, 300, 200], [300, 300, 400]])
    >>> compare_globally(seen, seen, graph).same.p_value > 0.9
    True
    """
    data = []
    for snapshots in (a, b):
        check_match(kernel, snapshots)
        two_times(snapshots)
        model = LikelihoodOptions().model(kernel, snapshots.times)
        data.append(IndependentObjective(model, dense(snapshots.counts)))
    return same_tests(fit_jointly(*data))


def _fitted(
    model: FreeEnergyRegressor | Snapshots,
    kernel: MarkovKernel | None,
    options: dict[str, Any],
    seed: int,
) -> FreeEnergyRegressor:
    if isinstance(model, FreeEnergyRegressor):
        if options:
            raise InputError(
                f"{', '.join(options)} cannot change a model that is already fitted; give the "
                "snapshots and the kernel instead."
            )
        if model.method != "likelihood":
            raise InputError(
                f"the model was fitted with method={model.method!r}, which has no error bars; "
                "compare models fitted with method='likelihood'."
            )
        return model
    if not isinstance(model, Snapshots) or kernel is None:
        raise InputError(
            "compare takes two fitted FreeEnergyRegressors, or two Snapshots and their kernel."
        )
    return FreeEnergyRegressor(seed=seed, **options).fit(kernel, model)


def _check_same_graph(one: MarkovKernel, other: MarkovKernel) -> None:
    if not one.same_graph(other):
        raise InputError(
            f"the two models live on different graphs ({one} and {other}); fit both on one kernel: "
            "potentials can only be compared state by state on the same one."
        )


def _data(fit: LikelihoodFit) -> IndependentObjective:
    """Counts divided to the effective number of independent individuals."""
    plain = fit.settings.observation == "independent"
    if not plain or fit.settings.discretization != "continuous" or fit.model.n_basis > 1:
        raise InputError(
            "compare takes independent snapshots of a fixed potential; fit both data sets "
            "with observation='independent' and without a time basis."
        )
    if not fit.model.n_initial:
        raise InputError("compare fits the starts of both data sets; leave initial out.")
    return IndependentObjective(fit.model, fit.noise.effective(fit.counts))


def _difference(a: FreeEnergyRegressor, b: FreeEnergyRegressor) -> tuple[Array, Array]:
    """`V_a - V_b`, and rows whose outer products add up to its covariance."""
    rows = []
    for which, model in (("first", a), ("second", b)):
        directions = as_landscape(model).directions
        if not directions.size and np.isinf(model.potential_stderr_).any():
            raise InputError(f"the {which} data set cannot be compared. {model.beta_verdict_}")
        if not directions.size:
            raise InputError(
                "a model has no error bars, so differences cannot be judged; fit both with "
                "method='likelihood' and a fixed potential."
            )
        rows.append(directions[:, :-1])
    return a.potential_ - b.potential_, np.concatenate(rows)


def _judged(value: Array, stderr: Array) -> Differences:
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(stderr > 0, np.abs(value) / stderr, np.where(value == 0, 0.0, np.inf))
    p = 2.0 * norm.sf(z)
    return Differences(value, stderr, p, false_discovery_control(p))


def _state_differences(gap: Array, directions: Array) -> tuple[Differences, Index]:
    """Differences from the reference states, and which they are."""
    middle = _median(gap, 1.0 / np.maximum(np.sum(directions**2, axis=0), 1e-300))
    centre = int(np.argmin(np.abs(gap - middle)))
    variance = np.sum((directions - directions[:, centre : centre + 1]) ** 2, axis=0)
    close = np.abs(gap - gap[centre]) <= _NEAR * np.sqrt(variance)
    value, error = gap, variance
    for _ in range(20):
        # Weights by the precision of each state relative to their plain mean: no single state is
        # the reference, which would have no error and pass its own on to all others.
        even = directions @ (close / close.sum())
        variance = np.sum((directions - even[:, None]) ** 2, axis=0)
        weight = close / np.maximum(variance, 0.5 * np.median(variance[close]))
        weight = weight / weight.sum()
        value = gap - weight @ gap
        moved = directions - (directions @ weight)[:, None]
        error = np.sqrt(np.sum(moved**2, axis=0))
        now = np.abs(value) <= _NEAR * error
        if not now.any() or np.array_equal(now, close):
            break
        close = now
    return _judged(value, error), np.flatnonzero(close)


def _median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, 0.5 * total[-1])])
