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

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.edges.static import symmetrised
from thalweg.energy import FreeEnergy
from thalweg.errors import ConvergenceError
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

    def predict(self, kernel: MarkovKernel, times: ArrayLike, p0: Array | None = None) -> Array:
        """The flow from the first snapshot (or from `p0` at `times[0]`) at `times`."""
        when = _checks.as_times(times)
        if p0 is not None:
            return gradient_flow(kernel, self.energy, p0, when, rtol=1e-6).probabilities
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
    rungs: list[tuple[float, Array, float, float]] = []
    for _ in range(_TRIES):
        # A graph with a bottleneck mixes so slowly that the fastest clock has no computable flow.
        if search.can_flow(beta, u):
            break
        beta /= 10.0
    for _ in range(_RUNGS):
        found = search.fit(beta, u, iterations=_ITERATIONS if rungs else 4 * _ITERATIONS)
        if found is None:
            break
        u, misfit = found
        rungs.append((beta, u, misfit, search.entropy(beta, u)))
        if _passed(rungs, search.slack):
            break
        beta /= _RATIO
    if not rungs:
        raise ConvergenceError(Status.NOT_FINITE.value)
    best = _choice(rungs, search.slack)
    beta, u, _, _ = rungs[best]
    v = beta * u
    status = Status.CONVERGED if best < len(rungs) - 1 else Status.MAX_ITERATIONS
    return RelaxationFit(
        FreeEnergy(v - kernel.stationary @ v, beta),
        search.initial,
        snapshots.times,
        np.array([r[0] for r in rungs]),
        np.array([r[2] for r in rungs]),
        np.array([r[3] for r in rungs]),
        status,
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


def _choice(rungs: list[tuple[float, Array, float, float]], slack: float) -> int:
    misfit = np.array([r[2] for r in rungs])
    entropy = np.nan_to_num(np.array([r[3] for r in rungs]), nan=np.inf)
    allowed = misfit <= misfit.min() + slack * max(1.0, misfit.min() / slack**2)
    return int(np.argmin(np.where(allowed, entropy, np.inf)))


def _passed(rungs: list[tuple[float, Array, float, float]], slack: float) -> bool:
    """Whether the choice, and any misfit clearly better than its own, lie some rungs back."""
    misfit = np.array([r[2] for r in rungs])
    best = _choice(rungs, slack)
    if misfit[best] > misfit.min() + slack:
        best = max(best, int(np.argmin(misfit)))
    return len(rungs) - 1 - best >= _PAST


class _Search:
    """Gauss-Newton in `U` at a fixed `beta`."""

    def __init__(self, kernel: MarkovKernel, snapshots: Snapshots, prior: float) -> None:
        counts = snapshots.counts
        self.counts = counts if isinstance(counts, np.ndarray) else np.asarray(counts.toarray())
        self.kernel, self.times = kernel, snapshots.times
        smooth = estimate_probabilities(kernel, snapshots, smoother=HeatKernel())
        self.initial = smooth.probabilities[0]
        self._last = smooth.probabilities[-1]
        self._rough = prior * roughness(kernel)
        self._floor = saturated(self.counts[1:])
        self.slack = float(np.sqrt(0.5 * kernel.n_states * (self.times.size - 1)))
        self._mesh = Mesh(np.full(self.times.size - 1, 4, dtype=np.int64), 2)

    def fastest(self) -> float:
        """A clock so fast that the flow rests at the time of the last snapshot."""
        gap = np.linalg.eigvalsh(symmetrised(*self.kernel.edges, self.kernel.stationary))[1]
        return 3.0 / float(max(gap, 1e-6) * (self.times[-1] - self.times[0]))

    def can_flow(self, beta: float, u: Array) -> bool:
        """Whether the flow at this clock can be computed on the mesh."""
        model = FlowModel(self.kernel, self.times, fixed_initial=self.initial, fixed_beta=beta)
        return model.probabilities(beta * u, self._mesh) is not None

    def resting(self) -> Array:
        """`U` of the last snapshot as an equilibrium."""
        u = -np.log(self._last / self.kernel.stationary)
        return np.asarray(u - u.mean())

    def fit(self, beta: float, u: Array, *, iterations: int) -> tuple[Array, float] | None:
        """The likeliest `U` and its misfit, half the deviance."""
        model = FlowModel(self.kernel, self.times, fixed_initial=self.initial, fixed_beta=beta)
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
        return u - u.mean(), now[3]

    def _evaluate(
        self, model: FlowModel, beta: float, u: Array
    ) -> tuple[float, Array, Array, float] | None:
        answer = model.sensitivities(beta * u, self._mesh)
        if answer is None:
            return None
        log_p, slopes = answer
        misfit, gradient, curvature = self._floor, self._rough @ u, self._rough.copy()
        for k in range(1, self.times.size):
            j = beta * slopes[k]
            seen = self.counts[k]
            misfit -= float(seen @ log_p[k])
            gradient = gradient - j.T @ seen
            curvature += j.T @ (seen.sum() * np.exp(log_p[k])[:, None] * j)
        if not np.isfinite(misfit):
            return None
        return misfit + 0.5 * float(u @ self._rough @ u), gradient, curvature, misfit

    def entropy(self, beta: float, u: Array) -> float:
        span = self.times[-1] - self.times[0]
        grid = self.times[0] + span * np.linspace(0, 1, _PATH_STEPS + 1) ** 2
        flow = gradient_flow(self.kernel, FreeEnergy(beta * u, beta), self.initial, grid, rtol=1e-5)
        return path_entropy(self.kernel, beta, u, grid, flow.probabilities)
