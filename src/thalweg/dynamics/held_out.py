"""A test of the fitted flow on snapshots that the fit has not used.

In the manner of a Chapman-Kolmogorov test, the prediction for a time that was not fitted is
compared with a snapshot of that time. The statistic is Pearson's,
`sum_x (n_x - n p_x)^2 / (n p_x)`. Its null distribution includes both sources of randomness:
landscapes and starts drawn from the posterior, and snapshots drawn from the population of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg._door import single_threaded
from thalweg._sparse import dense
from thalweg._types import Array
from thalweg.dynamics.landscape import Landscape
from thalweg.errors import InputError
from thalweg.flow import gradient_flow
from thalweg.learn.answer import check_match
from thalweg.learn.regressor import FreeEnergyRegressor
from thalweg.snapshots import Snapshots


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Agreement of held-out snapshots with the model, one entry per time."""

    times: Array
    expected: Array
    """The population that the model expects, one row per time."""
    statistic: Array
    p_value: Array
    """The share of data sets from the model's own posterior that fit no better."""

    def __str__(self) -> str:
        parts = [f"t = {t:g}: p = {p:.3g}" for t, p in zip(self.times, self.p_value, strict=True)]
        worst = float(self.p_value.min())
        verdict = "disagree with" if worst < 0.05 / self.times.size else "agree with"
        return f"The held-out snapshots {verdict} the model ({', '.join(parts)})."


@single_threaded
def held_out(
    model: FreeEnergyRegressor, snapshots: Snapshots, *, n_draws: int = 199, seed: int = 0
) -> HeldOut:
    """Compare snapshots that the fit has not used with the model's forecast.

    Parameters
    ----------
    model : FreeEnergyRegressor
        Fitted by the likelihood to independent snapshots at other times.
    snapshots : Snapshots
        Snapshots of other individuals, at times after the first of the fit.
    n_draws : int
        Number of landscapes drawn from the posterior.
    seed : int
        Seed of the draws.

    >>> from thalweg import MarkovKernel
    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> counts = [[800, 150, 50], [600, 290, 110], [400, 410, 190]]
    >>> model = FreeEnergyRegressor().fit(kernel, Snapshots.from_counts([0.0, 0.5, 1.5], counts))
    >>> middle = Snapshots.from_counts([1.0], [[47, 37, 16]])
    >>> bool(held_out(model, middle, n_draws=49).p_value[0] > 0.05)
    True
    """
    fit, kernel = model._fit, model.kernel_
    check_match(kernel, snapshots)
    if fit.joint_covariance is None:
        raise InputError(
            "the model has no joint covariance (it has too many states, was not fitted by the "
            "likelihood, or leaves beta open), so its forecast has no error to judge by; fit with "
            "method='likelihood'."
        )
    if snapshots.times[0] <= model.times_[0]:
        raise InputError(
            f"the held-out snapshots begin at {snapshots.times[0]:g}, but the flow starts at "
            f"{model.times_[0]:g}; hold out later ones."
        )
    rng, n = np.random.default_rng(seed), kernel.n_states
    when = np.insert(snapshots.times, 0, model.times_[0])
    expected = np.maximum(model.predict(None, when).probabilities[1:], 1e-12)
    values, vectors = np.linalg.eigh(fit.joint_covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    landscape = Landscape(kernel, fit.energy)
    counts = dense(snapshots.counts)
    sizes = np.rint(counts.sum(axis=1)).astype(np.int64)
    observed = pearson(counts, expected)
    reached, done = np.zeros(snapshots.n_times), 0
    for _ in range(n_draws):
        change = root @ rng.standard_normal(values.size)
        start = fit.initial * np.exp(change[n + 1 :])
        flow = gradient_flow(
            kernel, landscape.moved(change), start / start.sum(), when, mobility=model._mobility,
            rtol=1e-6,
        )  # fmt: skip
        if not flow.status:
            continue
        drawn = [
            rng.multinomial(m, p / p.sum())
            for m, p in zip(sizes, flow.probabilities[1:], strict=True)
        ]
        reached += pearson(np.array(drawn, dtype=np.float64), expected) >= observed
        done += 1
    return HeldOut(snapshots.times, expected, observed, (1.0 + reached) / (1.0 + done))


def pearson(counts: Array, expected: Array) -> Array:
    """`sum_x (n_x - n p_x)^2 / (n p_x)` of each row.

    >>> pearson(np.array([[6.0, 4.0]]), np.array([[0.5, 0.5]]))
    array([0.4])
    """
    mean = counts.sum(axis=1, keepdims=True) * expected
    return np.asarray(np.sum((counts - mean) ** 2 / mean, axis=1))
