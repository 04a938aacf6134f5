"""What the data say about beta: a value with an interval, a bound, or nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy
from scipy.stats import chi2, norm

from thalweg._types import Array

Kind = Literal["given", "determined", "undetermined", "not assessed"]

_OPEN = 50.0
"""Factor from the estimate beyond which a widened bound counts as none."""

_MOST_DRAWN = 10**9
"""Number of individuals above which numpy cannot draw tables of given margins."""


@dataclass(frozen=True)
class BetaVerdict:
    """Whether the data determine beta, and between which bounds.

    Parameters
    ----------
    kind : str
        `"determined"` if the data give both bounds; `"undetermined"` if one is missing; `"given"`
        if beta was given; `"not assessed"` for methods without error bars.
    lower, upper : float
        Bounds at the 95 % level; 0 and infinity if the data give none.
    reason : str
        Why beta is not determined, if known.

    >>> print(BetaVerdict("undetermined", 0.0, 0.25))
    The data bound beta from above only: beta < 0.25, and 0 is not excluded.
    """

    kind: Kind
    lower: float = 0.0
    upper: float = np.inf
    reason: str = ""

    @property
    def determined(self) -> bool:
        """Whether beta is known, from the data or beforehand."""
        return self.kind in ("given", "determined")

    @property
    def vacuous(self) -> bool:
        """Whether the data say nothing at all about beta."""
        return self.kind == "undetermined" and self.lower == 0.0 and self.upper == np.inf

    def widened(self, beta: float, factor: float) -> BetaVerdict:
        """The same with bounds `factor` times as far from `beta`, on the scale of its logarithm.

        If the lower one falls below a fiftieth of `beta`, the data no longer exclude 0.

        >>> print(BetaVerdict("determined", 0.9, 1.1).widened(1.0, 4.0))
        The data determine beta: between 0.656 and 1.46 (95 %).
        """
        if self.kind not in ("determined", "undetermined") or not beta > 0:
            return self
        with np.errstate(over="ignore"):
            lower = beta * float((self.lower / beta) ** factor)
            upper = beta * float(np.float64(self.upper / beta) ** factor)
        if lower > beta / _OPEN:
            return replace(self, lower=lower, upper=upper)
        return replace(
            self, kind="undetermined", lower=0.0, upper=upper if upper < beta * _OPEN else np.inf
        )

    def __str__(self) -> str:
        if self.kind == "given":
            return f"beta was given: {self.lower:.4g}."
        if self.kind == "not assessed":
            return "Whether the data determine beta was not assessed by this method."
        if self.kind == "determined":
            return f"The data determine beta: between {self.lower:.3g} and {self.upper:.3g} (95 %)."
        if self.lower > 0:
            return f"The data bound beta from below only: beta > {self.lower:.3g}." + self._because
        if np.isfinite(self.upper):
            return (
                f"The data bound beta from above only: beta < {self.upper:.3g}, and 0 is not "
                "excluded." + self._because
            )
        if self.reason:
            return "Beta is not determined." + self._because
        return "The data do not determine beta: any value fits with a potential of its own."

    @property
    def _because(self) -> str:
        return f" {self.reason}" if self.reason else ""


def unassessed() -> BetaVerdict:
    """The verdict of methods that give no error bars."""
    return BetaVerdict("not assessed")


_ENOUGH = 30
"""Draws above the observed value that determine a p-value to a fifth of itself."""
_TIED = 1e-7
"""Difference of two ratios that is rounding."""
_FIRST, _FAR = 50, 4.0
"""Draws after which a table that many standard deviations above them is not drawn further."""


def movement_p_value(counts: Array, *, rng: np.random.Generator, n_draws: int = 399) -> float:
    """The p-value of 'all snapshots are samples of one distribution': large if nothing moved.

    Twice the log likelihood ratio against a free distribution at every time, compared with tables
    of the same margins; if it is far outside, or there are too many counts to draw, with its
    chi-square approximation. The draws end as soon as the answer is clear.

    >>> still = np.array([[30.0, 20.0], [31.0, 19.0], [30.0, 20.0]])
    >>> movement_p_value(still, rng=np.random.default_rng(0)) > 0.5
    True
    """
    table = np.rint(counts[:, counts.sum(axis=0) > 0]).astype(np.int64)
    table = table[table.sum(axis=1) > 0]
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    if freedom <= 0:
        return 1.0
    margins = _entropies(table.sum(axis=1)) + _entropies(table.sum(axis=0))
    margins -= _entropies(table.sum())
    seen = 2.0 * (_entropies(table) - margins)
    if seen > freedom + 8.0 * np.sqrt(2.0 * freedom) + 10.0 or table.sum() >= _MOST_DRAWN:
        return float(chi2.sf(seen, freedom))
    sizes, pooled = table.sum(axis=1), table.sum(axis=0)
    above, drawn = 0, np.empty(n_draws)
    for i in range(n_draws):
        left, draw = pooled.copy(), np.zeros_like(table)
        for k, size in enumerate(sizes[:-1]):
            draw[k] = rng.multivariate_hypergeometric(left, int(size), method="marginals")
            left = left - draw[k]
        draw[-1] = left
        drawn[i] = 2.0 * (_entropies(draw) - margins)  # all tables have these margins
        above += int(drawn[i] >= seen - _TIED)
        done = i + 1
        if above >= _ENOUGH:
            return (above + 1.0) / (done + 1.0)
        if done == _FIRST:
            spread = max(float(drawn[:done].std(ddof=1)), _TIED)
            deviations = (seen - drawn[:done].mean()) / spread
            if deviations > _FAR:
                return float(norm.sf(deviations))
    return (above + 1.0) / (n_draws + 1.0)


def _entropies(counts: NDArray[np.int64]) -> float:
    """The sum of `x log x`."""
    return float(xlogy(counts, counts).sum())
