"""Individuals that come in clumps: Dirichlet-multinomial counts.

The distribution behind each snapshot scatters around the flow's like a Dirichlet variable of
concentration `s`, and the individuals are drawn from it: with `a = s p` and `n` individuals,

    log L = log G(s) - log G(n + s) + sum_x [log G(C_x + a_x) - log G(a_x)],    G = Gamma,

so that `Cov C = n phi (diag p - p p^T)` with the design effect `phi = (n + s) / (1 + s)`. A census
of dependent individuals and a simulation whose frames are correlated are of this kind.

The concentration is estimated inside the fit: it maximises `log L + u/2 mean log phi`, with `u`
the number of parameters that the fit has used. The second term (Cox and Reid's) corrects for
residuals being smaller than errors, as `n - 1` does in a variance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import digamma, gammaln, zeta

from thalweg import _checks
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.learn.observation.model import CountModel, Residuals, Terms

_LEAST = 0.1
"""Smallest concentration considered: the snapshots would be nearly point masses."""
_MOST = 1e3
"""Largest concentration, in units of the number of individuals: a design effect of 1.001."""
_SETTLED = 0.02
"""Change of `log s` below which the fit need not be repeated."""
_FREEDOM = 4.0
"""Degrees of freedom below which scatter and misfit cannot be distinguished."""


@dataclass(frozen=True)
class Overdispersed(CountModel):
    """Dirichlet-multinomial counts.

    Parameters
    ----------
    concentration : float, optional
        `s`; by default estimated inside the fit.
    freedom : float
        Degrees of freedom behind the estimate; set by the fit.

    >>> Overdispersed(50.0).design_effect(1000.0).round(2)
    np.float64(20.59)
    """

    concentration: float | None = None
    freedom: float = np.inf

    def __post_init__(self) -> None:
        if self.concentration is not None:
            _checks.positive(self.concentration, "concentration")

    @property
    def _s(self) -> float:
        return 100.0 if self.concentration is None else self.concentration

    def design_effect(self, sizes: Array | float) -> Array:
        """Variance of a count, relative to a multinomial one."""
        return np.asarray((sizes + self._s) / (1.0 + self._s))

    def terms(self, counts: Array, log_p: Array) -> Terms:
        n, s = counts.sum(axis=1, keepdims=True), self._s
        p = np.exp(log_p)
        a = np.maximum(s * p, 1e-290)
        seen = counts > 0
        c, b = counts[seen], a[seen]
        value = float(np.sum(gammaln(n + s) - gammaln(s)) - np.sum(gammaln(c + b) - gammaln(b)))
        slope, information = np.zeros_like(p), np.zeros_like(p)
        slope[seen] = b * (digamma(c + b) - digamma(b))
        information[seen] = b * b * np.maximum(zeta(2.0, b) - zeta(2.0, c + b), 0.0)
        pull = slope - p * slope.sum(axis=1, keepdims=True)
        expected = n * p / self.design_effect(n)
        return Terms(value, pull, information, np.maximum(information, expected))

    def saturated(self, counts: Array) -> float:
        share = counts / counts.sum(axis=1, keepdims=True)
        return -self.terms(counts, np.log(np.maximum(share, 1e-300))).value

    def draw(self, counts: Array, p: Array, rng: np.random.Generator) -> Array:
        sizes = np.maximum(np.rint(counts.sum(axis=1)), 1).astype(np.int64)
        out = np.empty_like(counts)
        for k, (n, row) in enumerate(zip(sizes, p, strict=True)):
            # Logarithms of gamma variables: a tiny shape would otherwise underflow to zero.
            a = np.maximum(self._s * row, 1e-290)
            logs = np.log(rng.standard_gamma(a + 1.0)) + np.log(rng.random(a.size)) / a
            q = np.exp(logs - logs.max())
            out[k] = rng.multinomial(n, q / q.sum())
        return out

    def effective(self, counts: Array) -> Array:
        return np.asarray(counts / self.design_effect(counts.sum(axis=1, keepdims=True)))

    def started(self, counts: Array) -> Overdispersed:
        if self.concentration is not None:
            return self
        low = 10.0 * counts.shape[1]
        return Overdispersed(float(min(low, counts.sum(axis=1).max())), freedom=0.0)

    def refined(self, fit: Residuals) -> Overdispersed:
        if np.isinf(self.freedom):  # the concentration was given
            return self
        sizes = fit.counts.sum(axis=1)
        cells = float(np.sum(-np.expm1(-sizes[:, None] * fit.probabilities)))
        freedom = cells - sizes.size - fit.used
        if freedom < _FREEDOM:
            raise InputError(
                f"{sizes.size} snapshots leave {max(freedom, 0.0):.1f} degrees of freedom to "
                "estimate the overdispersion from; give more snapshots, replicates, or the "
                "concentration as Overdispersed(concentration=...)."
            )
        log_p = np.log(np.maximum(fit.probabilities, 1e-300))

        def loss(log_s: float) -> float:
            model = Overdispersed(float(np.exp(log_s)))
            adjustment = 0.5 * fit.used * float(np.mean(np.log(model.design_effect(sizes))))
            return model.terms(fit.counts, log_p).value - adjustment

        grid = np.linspace(np.log(_LEAST), np.log(_MOST * sizes.max()), 40)
        best = int(np.argmin([loss(x) for x in grid]))
        found = minimize_scalar(
            loss,
            bounds=(grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]),
            method="bounded",
            options={"xatol": 1e-3},
        )
        return replace(self, concentration=float(np.exp(found.x)), freedom=freedom)

    def differs(self, other: CountModel) -> bool:
        assert isinstance(other, Overdispersed)
        return abs(float(np.log(self._s / other._s))) > _SETTLED

    @property
    def inflation(self) -> float:
        """Variance of a Student variable: the design effect is known from few residuals only."""
        return 1.0 if np.isinf(self.freedom) else self.freedom / max(self.freedom - 2.0, 1.0)

    @property
    def absorbs_misfit(self) -> bool:
        return bool(np.isfinite(self.freedom))

    def summary(self) -> dict[str, float]:
        return {"concentration": self._s}
