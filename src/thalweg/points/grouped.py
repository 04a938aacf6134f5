"""Error bars for individuals in groups: frames of one run, cells of one animal.

Counts of correlated individuals overstate what is known. `design_effect` estimates by which factor,
so that counts may be divided by it; `grouped_bootstrap` draws groups, not individuals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student

from thalweg import _checks
from thalweg._types import Array
from thalweg.edges.static import symmetrised
from thalweg.energy import FreeEnergy
from thalweg.errors import ConvergenceError, InputError
from thalweg.geometry.operators import transport_weights
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.mobility import Mobility, as_mobility
from thalweg.status import Status

_LEAST_EXPECTED = 5.0
"""Least expected count of a cell in Pearson's statistic."""


@dataclass(frozen=True, eq=False)
class GroupedDraws:
    """Energies refitted to redrawn groups, one row per draw."""

    potentials: Array
    betas: Array
    n_groups: int

    @property
    def potential_stderr(self) -> Array:
        return np.asarray(self.potentials.std(axis=0, ddof=1))

    @property
    def beta_stderr(self) -> float:
        return float(self.betas.std(ddof=1))

    def interval(
        self, values: ArrayLike, centre: float, *, level: float = 0.95
    ) -> tuple[float, float]:
        """`centre` and the spread of a number over the draws, with Student's quantile.

        The degrees of freedom are the number of groups less one, so few runs give wide intervals.
        The number should be positive (a rate, a time): the interval is symmetric in its logarithm.
        """
        logs = np.log(np.asarray(values, dtype=np.float64))
        half = float(student.ppf(0.5 + level / 2, self.n_groups - 1) * logs.std(ddof=1))
        return float(centre * np.exp(-half)), float(centre * np.exp(half))

    def energies(self) -> list[FreeEnergy]:
        pairs = zip(self.potentials, self.betas, strict=True)
        return [FreeEnergy(v, float(b)) for v, b in pairs]


def design_effect(groups: ArrayLike) -> float:
    """The spread between groups, relative to that of independent individuals.

    `groups[g, k, x]` is the number of individuals of group `g` in state `x` at time `k`. The result
    is Pearson's statistic of the groups against their sum, per degree of freedom; at least one.

    >>> rng = np.random.default_rng(0)
    >>> design_effect(rng.multinomial(1000, [0.5, 0.3, 0.2], size=(20, 4))) < 1.5
    True
    """
    table = _groups(groups)
    n = table.shape[0]
    total = table.sum(axis=0)
    share = total / total.sum(axis=1, keepdims=True)
    expected = table.sum(axis=2, keepdims=True) * share
    ok = expected > _LEAST_EXPECTED
    chi = float((((table - expected) ** 2) / np.where(ok, expected, 1.0))[ok].sum())
    return max(1.0, chi / max(int(ok.sum()), 1) * n / (n - 1))


def grouped_bootstrap(
    fit: LikelihoodFit, groups: ArrayLike, *, n_draws: int = 1000, rng: np.random.Generator
) -> GroupedDraws:
    """Draw groups with replacement, and refit each draw by one Newton step from the fit.

    `fit` is the likelihood fit of the groups' sum (divided by any design effect); the step needs
    the scores of the groups only, `sum_k S_k^T (C_gk - n_gk p_k)`, so a thousand draws cost as
    much as one. Deviations are widened by `sqrt(G / (G - 1))`, which few groups need.
    """
    table = _groups(groups)
    model, theta, g = fit.model, fit.theta, table.shape[0]
    if table.shape[1:] != fit.counts.shape:
        raise InputError(
            f"groups have shape {table.shape}; give each group a table of shape {fit.counts.shape}."
        )
    answer = model.sensitivities(theta, fit.mesh)
    if answer is None:
        raise ConvergenceError(Status.NOT_FINITE.value)
    log_p, slopes = answer
    scale = float(fit.counts.sum() / table.sum())
    rest = table - table.sum(axis=2, keepdims=True) * np.exp(log_p)
    scores = scale * np.einsum("gkx,kxj->gj", rest, slopes)
    moves = scores @ fit.covariance
    weights = rng.multinomial(g, np.full(g, 1 / g), size=n_draws) - 1.0
    draws = theta + np.sqrt(g / (g - 1)) * weights @ moves
    energies = [model.energy(row) for row in draws]
    return GroupedDraws(
        np.array([e.potential for e in energies]), np.array([e.beta for e in energies]), g
    )


def relaxation_times(
    kernel: MarkovKernel, energy: FreeEnergy, n: int = 1, *, mobility: Mobility | None = None
) -> Array:
    """The `n` slowest relaxation times of the flow near its equilibrium, dense.

    There `d/dt dp = -beta M(rho) diag(1 / p) dp`, so times are inverse eigenvalues.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> relaxation_times(kernel, FreeEnergy([0.0, 0.0], 1.0))
    array([0.5])
    """
    p = energy.equilibrium(kernel)
    source, target, _ = kernel.edges
    weights = energy.beta * transport_weights(kernel, p, as_mobility(mobility))
    rates = np.linalg.eigvalsh(symmetrised(source, target, weights, p))
    return np.asarray(1 / np.maximum(rates[1 : n + 1], 1e-300))


def _groups(groups: ArrayLike) -> Array:
    table = _checks.as_array(groups, "groups")
    if table.ndim != 3 or table.shape[0] < 2:
        raise InputError(
            f"groups have shape {table.shape}; give two groups or more, shape (groups, times, "
            "states)."
        )
    return table
