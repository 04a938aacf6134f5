"""Several samples per time, each with its own scatter: replicates, batches, runs.

The individuals of one replicate (one animal, one batch, one run of a simulation) resemble each
other, so that `n` of them carry less information than `n` independent ones. The flow is fitted to
all counts of a time together, with the multinomial log likelihood divided by a design effect `phi`.
It comes from how far the replicates' scores `d_r = sum_t S_t^T (C_tr - n_tr p_t)` differ, in the
metric of the parameters' covariance `A`:

    phi = R / (R - 1) sum_r d_r^T A d_r / tr(A I).

A replicate seen at several times under one name counts once, so dependence in time is included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.learn.observation.model import CountModel, Residuals, Terms
from thalweg.learn.observation.multinomial import Multinomial
from thalweg.learn.observation.overdispersed import Overdispersed
from thalweg.snapshots import Replicates

_SETTLED = 0.02
"""Relative change of the design effect below which the fit need not be repeated."""
_PLAIN = 1.01
"""Design effect up to which draws are multinomial."""


@dataclass(frozen=True, eq=False)
class Replicated(CountModel):
    """Multinomial counts whose variance is `effect` times larger, by the replicates' scatter.

    Parameters
    ----------
    rows : Replicates, optional
        The counts of each replicate; `None` if `effect` is known.
    effect : float
        Design effect, at least 1; estimated inside the fit if there are `rows`.
    freedom : float
        Degrees of freedom behind the estimate; set by the fit.
    """

    rows: Replicates | None
    effect: float = 1.0
    freedom: float = np.inf

    def __post_init__(self) -> None:
        if self.rows is not None and np.unique(self.rows.labels).size < 2:
            raise InputError(
                "there is one replicate only; two or more under different names are needed to "
                "see how they differ."
            )

    def terms(self, counts: Array, log_p: Array) -> Terms:
        plain, phi = Multinomial().terms(counts, log_p), self.effect
        return Terms(
            plain.value / phi, plain.pull / phi, plain.information / phi, plain.curvature / phi
        )

    def saturated(self, counts: Array) -> float:
        return Multinomial().saturated(counts) / self.effect

    def draw(self, counts: Array, p: Array, rng: np.random.Generator) -> Array:
        if self.effect <= _PLAIN:
            return Multinomial().draw(counts, p, rng)
        rows = []
        for c, row in zip(counts, p, strict=True):
            n = max(float(c.sum()), 1.0)
            s = max(n - self.effect, 0.1) / (self.effect - 1.0)
            rows.append(Overdispersed(s).draw(c[None], row[None], rng)[0])
        return np.array(rows)

    def effective(self, counts: Array) -> Array:
        return np.asarray(counts / self.effect)

    def refined(self, fit: Residuals) -> Replicated:
        if self.rows is None:
            return self
        labels, index = np.unique(self.rows.labels, return_inverse=True)
        slopes = fit.sensitivities()
        scores = np.zeros((labels.size, slopes.shape[2]))
        sizes = np.zeros(labels.size)
        for row, time, label in zip(self.rows.counts, self.rows.times, index, strict=True):
            scores[label] += slopes[time].T @ (row - row.sum() * fit.probabilities[time])
            sizes[label] += row.sum()
        apart = scores - np.outer(sizes / sizes.sum(), scores.sum(axis=0))
        n_labels = labels.size
        # `covariance` is (I / effect + P)^-1; A is (I + effect P)^-1.
        inner = apart @ (fit.covariance / self.effect) @ apart.T * n_labels / (n_labels - 1)
        total = float(np.trace(inner))
        effect = max(total / max(fit.used, 1.0), 1.0)
        spread = total**2 / max(float(np.sum(inner * inner)), 1e-300)
        rest = max(n_labels - 1.0 - spread, 1e-9)
        directions = float(np.clip(spread * (n_labels - 1) / rest, 1.0, max(fit.used, 1.0)))
        return replace(self, effect=effect, freedom=directions * (n_labels - 1))

    def differs(self, other: CountModel) -> bool:
        assert isinstance(other, Replicated)
        return abs(self.effect / other.effect - 1.0) > _SETTLED

    def settled(self) -> Replicated:
        return replace(self, rows=None)

    @property
    def inflation(self) -> float:
        return 1.0 if np.isinf(self.freedom) else self.freedom / max(self.freedom - 2.0, 0.25)

    def null_deviances(self, draws: Array, rng: np.random.Generator) -> Array:
        if np.isinf(self.freedom):
            return draws
        return np.asarray(draws * self.freedom / rng.chisquare(self.freedom, draws.size))

    def summary(self) -> dict[str, float]:
        return {"design_effect": self.effect}
