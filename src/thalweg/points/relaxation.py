"""The flow behind few snapshots far apart: `V = beta U`, and the clock that they leave open.

Two snapshots fix where a population goes but not when: as `beta` grows the flow arrives earlier,
and fits just as well. For each `beta` on a falling ladder the likeliest `U` is found, with the
start tied to the first snapshot and a weak smoothness prior on `U`, minus the logarithm of the
equilibrium density. Among the values of `beta` that the data do not exclude, the fit takes the one
whose walk departs least from free diffusion of the same rate, in relative entropy of paths

    D(beta) = beta int sum_x p_x sum_y K(x, y) h(exp((U_x - U_y) / 2)) dt,   h(r) = r log r - r + 1.

A fast clock pays for drift long after the population has arrived, a slow one for the steep `U` that
it needs to arrive at all. With more snapshots the likelihood decides, and little choice is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._sparse import dense
from thalweg._types import Array
from thalweg.edges.static import symmetrised
from thalweg.energy import FreeEnergy
from thalweg.errors import ConvergenceError, InputError
from thalweg.flow import gradient_flow
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import saturated
from thalweg.learn.likelihood.priors import roughness
from thalweg.snapshots import HeatKernel, Snapshots, estimate_probabilities
from thalweg.status import Status

MOST_STATES = 300
"""Largest number of states, since matrices are dense."""
_RATIO = 1.4
"""Factor between two rungs of the ladder of `beta`."""
_PRIOR = 0.5
"""Default precision of the smoothness prior."""
_RUNGS = 14
"""Largest number of rungs."""
_TRIES = 10
"""Number of tenfold slower clocks tried before giving up."""
_PAST = 2
"""Number of rungs tried beyond the choice."""
_ITERATIONS = 15
"""Gauss-Newton iterations per rung; four times as many on the first."""
_GAIN = 0.05
"""Fall of the misfit below which a rung ends."""
_RELATIVE_GAIN = 1e-4
"""The same, relative to the misfit."""
_PATH_STEPS = 24
"""Number of time steps of the path entropy."""


@dataclass(frozen=True, eq=False)
class RelaxationFit:
    """A free energy with its initial distribution, and how its clock was chosen."""

    energy: FreeEnergy
    initial: Array
    times: Array
    betas: Array
    """The ladder, falling."""
    misfits: Array
    """Half the deviance of each rung."""
    entropies: Array
    """Path entropy of each rung against free diffusion."""
    status: Status

    @property
    def misfit(self) -> float:
        """Half the deviance of the chosen rung."""
        return float(self.misfits[np.argmin(np.abs(self.betas - self.energy.beta))])

    def predict(self, kernel: MarkovKernel, times: ArrayLike, p0: Array | None = None) -> Array:
        """The flow from the first snapshot (or from `p0` at `times[0]`) at `times`."""
        when = _checks.as_times(times)
        if p0 is not None:
            return gradient_flow(kernel, self.energy, p0, when, rtol=1e-6).probabilities
        if when[0] < self.times[0]:
            raise InputError(
                f"time is {when[0]:g}, before the first snapshot at {self.times[0]:g}; ask for it "
                "or a later time."
            )
        grid = np.unique(np.concatenate([self.times[:1], when]))
        path = gradient_flow(kernel, self.energy, self.initial, grid, rtol=1e-6).probabilities
        return np.asarray(path[np.searchsorted(grid, when)])


@single_threaded
def fit_relaxation(
    kernel: MarkovKernel,
    snapshots: Snapshots,
    *,
    prior: float = _PRIOR,
    fastest: float | None = None,
    start: Array | None = None,
) -> RelaxationFit:
    """The flow through the snapshots whose walk departs least from free diffusion.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    snapshots : Snapshots
        Counts at two or more times.
    prior : float
        Precision of the smoothness prior on `U`.
    fastest : float, optional
        The largest `beta` tried; by default so large that the flow would rest long before the last
        snapshot.
    start : array, optional
        A guess of `U` there; by default the last snapshot as an equilibrium.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> seen = Snapshots.from_counts([0.0, 2.0], [[900, 90, 10], [100, 300, 600]])
    >>> fit = fit_relaxation(kernel, seen)
    >>> bool(abs(fit.predict(kernel, [2.0])[0, 2] - 0.6) < 0.02)
    True
    """
    if kernel.n_states > MOST_STATES:
        raise ConvergenceError(
            f"the relaxation fit holds dense matrices and takes {MOST_STATES} states at most, not "
            f"{kernel.n_states}; use fewer states."
        )
    search = _Search(kernel, snapshots, prior)
    beta = fastest or search.fastest()
    u = search.resting() if start is None else start
    for _ in range(_TRIES):
        # A graph with a bottleneck mixes so slowly that the fastest clock has no computable flow.
        if search.flow(beta).probabilities(beta * u, search.mesh) is not None:
            break
        beta /= 10.0
    rungs: list[_Rung] = []
    for _ in range(_RUNGS):
        found = search.fit(beta, u, iterations=_ITERATIONS if rungs else 4 * _ITERATIONS)
        if found is None:
            break
        rungs.append(found)
        if _passed(rungs, search.slack):
            break
        beta, u = beta / _RATIO, found.u
    if not rungs:
        raise ConvergenceError(Status.NOT_FINITE.value)
    best = _choice(rungs, search.slack)
    v = rungs[best].beta * rungs[best].u
    betas, _, misfits, entropies = zip(*rungs, strict=True)
    return RelaxationFit(
        FreeEnergy(v - kernel.stationary @ v, rungs[best].beta),
        search.initial,
        snapshots.times,
        np.array(betas),
        np.array(misfits),
        np.array(entropies),
        Status.CONVERGED if best < len(rungs) - 1 else Status.MAX_ITERATIONS,
    )


def path_entropy(kernel: MarkovKernel, beta: float, u: Array, times: Array, ps: Array) -> float:
    """`D(beta)` along a path of distributions, trapezoids in time."""
    source, target, conductance = kernel.edges
    half = 0.5 * (u[source] - u[target])
    forth, back = _excess(half), _excess(-half)
    rho = ps / kernel.stationary
    rates = (rho[:, source] * forth + rho[:, target] * back) @ conductance
    return float(beta * np.trapezoid(rates, times))


def _excess(log_ratio: Array) -> Array:
    r = np.exp(log_ratio)
    return np.asarray(r * log_ratio - r + 1)


class _Rung(NamedTuple):
    beta: float
    u: Array
    misfit: float
    entropy: float


def _choice(rungs: list[_Rung], slack: float) -> int:
    """The least path entropy among the rungs that fit about as well as the best."""
    misfit = np.array([rung.misfit for rung in rungs])
    entropy = np.nan_to_num(np.array([rung.entropy for rung in rungs]), nan=np.inf)
    allowed = misfit <= misfit.min() + slack * max(1.0, misfit.min() / slack**2)
    return int(np.argmin(np.where(allowed, entropy, np.inf)))


def _passed(rungs: list[_Rung], slack: float) -> bool:
    """Whether the choice, and any misfit clearly better than its own, lie some rungs back."""
    misfit = np.array([rung.misfit for rung in rungs])
    best = _choice(rungs, slack)
    if misfit[best] > misfit.min() + slack:
        best = max(best, int(np.argmin(misfit)))
    return len(rungs) - 1 - best >= _PAST


class _Search:
    """Gauss-Newton in `U` at a fixed `beta`."""

    def __init__(self, kernel: MarkovKernel, snapshots: Snapshots, prior: float) -> None:
        self.kernel, self.times = kernel, snapshots.times
        self.counts = dense(snapshots.counts)
        smooth = estimate_probabilities(kernel, snapshots, smoother=HeatKernel()).probabilities
        self.initial, self._last = smooth[0], smooth[-1]
        self._rough = prior * roughness(kernel)
        self._floor = saturated(self.counts[1:])
        self.slack = float(np.sqrt(0.5 * kernel.n_states * (self.times.size - 1)))
        self.mesh = Mesh(np.full(self.times.size - 1, 4, dtype=np.int64), 2)

    def fastest(self) -> float:
        """A clock so fast that the flow rests at the time of the last snapshot."""
        gap = np.linalg.eigvalsh(symmetrised(*self.kernel.edges, self.kernel.stationary))[1]
        return 3.0 / float(max(gap, 1e-6) * (self.times[-1] - self.times[0]))

    def resting(self) -> Array:
        """`U` of the last snapshot as an equilibrium."""
        u = -np.log(self._last / self.kernel.stationary)
        return np.asarray(u - u.mean())

    def flow(self, beta: float) -> FlowModel:
        return FlowModel(self.kernel, self.times, fixed_initial=self.initial, fixed_beta=beta)

    def fit(self, beta: float, u: Array, *, iterations: int) -> _Rung | None:
        """The likeliest `U`, by Marquardt's method; `None` if the flow cannot be computed."""
        model = self.flow(beta)
        now = self._evaluate(model, beta, u)
        if now is None:
            return None
        damping = 1e-4
        for _ in range(iterations):
            value, gradient, curvature, _ = now
            lift = damping * np.diag(np.diag(curvature))
            step = -cho_solve(cho_factor(curvature + lift), gradient)
            new = self._evaluate(model, beta, u + step)
            if new is None or not new[0] < value:
                damping *= 10
                if damping > 1e8:
                    break
                continue
            u, now, damping = u + step, new, max(damping / 5, 1e-10)
            if value - new[0] < max(_GAIN, _RELATIVE_GAIN * value):
                break
        u = u - u.mean()
        return _Rung(beta, u, now[3], self._entropy(beta, u))

    def _evaluate(
        self, model: FlowModel, beta: float, u: Array
    ) -> tuple[float, Array, Array, float] | None:
        """Objective, gradient, curvature and misfit, half the deviance."""
        answer = model.sensitivities(beta * u, self.mesh)
        if answer is None:
            return None
        log_p, slopes = answer
        misfit, gradient, curvature = self._floor, self._rough @ u, self._rough.copy()
        for k in range(1, self.times.size):
            j, seen = beta * slopes[k], self.counts[k]
            misfit -= float(seen @ log_p[k])
            gradient = gradient - j.T @ seen
            curvature += j.T @ (seen.sum() * np.exp(log_p[k])[:, None] * j)
        if not np.isfinite(misfit):
            return None
        return misfit + 0.5 * float(u @ self._rough @ u), gradient, curvature, misfit

    def _entropy(self, beta: float, u: Array) -> float:
        """Path entropy of the flow, on times that are denser at the start."""
        span = self.times[-1] - self.times[0]
        grid = self.times[0] + span * np.linspace(0, 1, _PATH_STEPS + 1) ** 2
        flow = gradient_flow(self.kernel, FreeEnergy(beta * u, beta), self.initial, grid, rtol=1e-5)
        return path_entropy(self.kernel, beta, u, grid, flow.probabilities)
