"""The problems of the accuracy benchmark: one function draws, fits and measures one run.

Every family of graphs in turn, `V` uniform in [-1, 1], `p0` from a flat Dirichlet. The limit is the
Cramer-Rao bound of the same problem: with `S = d log p / d theta` and `C` the inverse of the Fisher
information, the time average of `E H(p, p_hat)^2` is `1/8 sum_x p_x (S C S^T)_xx` averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.edges.static import edge_divergence
from thalweg.energy import FreeEnergy
from thalweg.flow import gradient_flow
from thalweg.flow.particles import simulate
from thalweg.graphs import GRAPH_FAMILIES, make_graph
from thalweg.kernel import MarkovKernel
from thalweg.learn.diagnostics import goodness_of_fit
from thalweg.learn.likelihood.fit import fit_likelihood
from thalweg.learn.likelihood.frozen import frozen_chain
from thalweg.learn.likelihood.model import FlowModel, Mesh
from thalweg.learn.likelihood.objective import IndependentObjective
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.likelihood.tracked import TrackedObjective
from thalweg.learn.profile import walk_profile
from thalweg.mobility import LogMean
from thalweg.status import Status
from thalweg_bench import delaunay, speed

__all__ = [
    "Problem",
    "coverage_run",
    "cyclic_counts",
    "draw_problem",
    "gof_run",
    "independent_run",
    "landscape_run",
    "robustness_run",
    "speed_run",
    "tracked_run",
]


_FEWEST = {"regular": 4, "watts_strogatz": 4}  # smallest number of states of a random problem
_REFINEMENTS = 4  # halvings of a problem's time steps until its flow is taken from the integrator
_FORECASTS = 4  # sampled forecasts per tracked run, averaged: their noise is half the figure's
_DROP = 1.92  # fall of the log likelihood outside 95 % intervals of beta


@dataclass(frozen=True, eq=False)
class Problem:
    """A flow whose energy is known, and the resolution at which it is computed."""

    kernel: MarkovKernel
    energy: FreeEnergy
    model: FlowModel
    theta: Array
    mesh: Mesh
    probabilities: Array

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Independent snapshots."""
        return np.array([rng.multinomial(n, p / p.sum()) for p in self.probabilities], dtype=float)

    def limit(self, n: float) -> float:
        """The Cramer-Rao bound of the time-averaged squared Hellinger distance; NaN if none."""
        expected = n * self.probabilities
        found = IndependentObjective(self.model, expected).evaluate(self.theta, self.mesh)
        slopes = self.model.sensitivities(self.theta, self.mesh)
        if found is None or slopes is None:
            return float("nan")
        covariance = np.linalg.pinv(found.information, rcond=1e-12, hermitian=True)
        flat = slopes[1].reshape(-1, self.theta.size)
        variance = np.sum((flat @ covariance) * flat, axis=1).reshape(expected.shape)
        return float(np.mean(np.sum(self.probabilities * variance, axis=1)) / 8.0)

    def tracked_limit(self, counts: Array, *, frozen: bool) -> float:
        """The same bound for one population with these counts, forecast from the true start."""
        model, theta = self.model, self.theta
        if frozen:
            # Rates are those of the counts, interval by interval: no start has to be learned.
            model = replace(model, fixed_initial=self.probabilities[0])
            theta = theta[: model.n_parameters]
        objective = TrackedObjective(model, counts, frozen, frozen).reweighted(theta, self.mesh)
        found = None if objective is None else objective.evaluate(theta, self.mesh)
        slopes = self.model.sensitivities(self.theta, self.mesh)
        if found is None or slopes is None:
            # A state so empty that its covariance underflows.
            return float("nan")
        energy = self.kernel.n_states + 1
        covariance = np.linalg.pinv(found.information, rcond=1e-12, hermitian=True)
        flat = slopes[1][:, :, :energy].reshape(-1, energy)
        variance = np.sum((flat @ covariance[:energy, :energy]) * flat, axis=1)
        variance = variance.reshape(counts.shape)
        return float(np.mean(np.sum(self.probabilities * variance, axis=1)) / 8.0)

    def error(self, theta: Array) -> float:
        """Time-averaged squared Hellinger distance of another energy's flow."""
        p = self.model.probabilities(theta, self.mesh)
        if p is None:
            p = _by_integrator(self.model, theta)
        return float(np.mean(hellinger_squared(self.probabilities, p)))


def hellinger_squared(p: Array, q: Array) -> Array:
    return np.asarray(0.5 * np.sum((np.sqrt(p) - np.sqrt(np.maximum(q, 0.0))) ** 2, axis=-1))


def _by_integrator(model: FlowModel, theta: Array) -> Array:
    """The flow by `gradient_flow`, where a state empties too fast for the model's own steps."""
    p0 = model.kernel.stationary * np.exp(model.log_density(theta))
    path = gradient_flow(model.kernel, model.energy(theta), p0 / p0.sum(), model.times)
    return path.probabilities / path.probabilities.sum(axis=1, keepdims=True)


def draw_problem(
    index: int, rng: np.random.Generator, *, n_states: int, beta: float, times: Array
) -> Problem:
    """The `index`-th problem: its family is the index modulo the number of families."""
    families = list(GRAPH_FAMILIES)
    kernel = make_graph(families[index % len(families)], n_states, rng=rng)
    n = kernel.n_states
    potential, p0 = rng.uniform(-1, 1, n), rng.dirichlet(np.ones(n))
    p0 = np.maximum(p0, 1e-12)
    model = FlowModel(kernel, times)
    theta = np.concatenate([potential, [np.log(beta)], np.log(p0 / kernel.stationary)])
    lengths = np.diff(times)
    mesh = Mesh(np.clip(np.ceil(lengths / 0.015), 1, 500).astype(np.int64))
    p = model.probabilities(theta, mesh)
    for _ in range(_REFINEMENTS):
        if p is not None:
            break
        mesh = mesh.refined()
        p = model.probabilities(theta, mesh)
    if p is None:
        p = _by_integrator(model, theta)
    return Problem(kernel, FreeEnergy(potential, beta), model, theta, mesh, p)


def independent_run(
    index: int, seed: int, n_states: int, beta: float, times: Array, n: int
) -> tuple[float, float, bool]:
    """Squared Hellinger distance of the fit, its limit, and whether the fit converged."""
    rng = np.random.default_rng([seed, index])
    problem = draw_problem(index, rng, n_states=n_states, beta=beta, times=times)
    fit = fit_likelihood(problem.kernel, times, problem.sample(n, rng))
    return problem.error(fit.theta), problem.limit(n), bool(fit.status)


def tracked_run(
    index: int, seed: int, beta: float, times: Array, n: int, frozen: bool
) -> tuple[float, float, float, float, float]:
    """Time-averaged Hellinger distances of sampled forecasts from the true start.

    To the flow: of the fit, of the true energy, and of an efficient estimator by the information
    in the same counts. To the population that was seen: of the fit, of the true energy. The
    population follows the flow, or has the paper's rates, those of its own density held over
    each interval.
    """
    rng = np.random.default_rng([seed, index])
    problem = draw_problem(index, rng, n_states=6, beta=beta, times=times)
    p0 = problem.probabilities[0]

    def population(energy: FreeEnergy) -> Array:
        followed = simulate(
            problem.kernel,
            energy,
            p0,
            times,
            n,
            rng=rng,
            method="frozen" if frozen else "exact",
            rates="empirical" if frozen else "mean-field",
        )
        return np.asarray(followed.counts, dtype=float)

    def forecast(energy: FreeEnergy) -> Array:
        if frozen:
            return population(energy) / n
        # At each time a population that follows the flow is a sample of it: draw that.
        theta = np.concatenate([energy.potential, [np.log(energy.beta)], problem.theta[-p0.size :]])
        flow = problem.model.probabilities(theta, problem.mesh)
        assert flow is not None
        return np.array([rng.multinomial(n, p / p.sum()) for p in flow]) / n

    truth = problem.probabilities
    if frozen:
        chain = frozen_chain(problem.model, problem.theta, slopes=False)
        assert chain is not None
        truth = chain.probabilities
    options = LikelihoodOptions(
        observation="tracked",
        discretization="frozen" if frozen else "continuous",
        environment="empirical" if frozen else "mean-field",
    )
    seen = population(problem.energy)
    fit = fit_likelihood(problem.kernel, times, seen, options=options)
    to_flow, to_seen = np.empty((2, 2))
    for j, energy in enumerate((fit.energy, problem.energy)):
        forecasts = [forecast(energy) for _ in range(_FORECASTS)]
        to_flow[j] = np.mean([_distance(truth, q) for q in forecasts])
        to_seen[j] = np.mean([_distance(seen / n, q) for q in forecasts])
    best = float(np.hypot(to_flow[1], np.sqrt(problem.tracked_limit(seen, frozen=frozen))))
    return float(to_flow[0]), float(to_flow[1]), best, float(to_seen[0]), float(to_seen[1])


def _distance(p: Array, q: Array) -> float:
    return float(np.mean(np.sqrt(hellinger_squared(p, q))))


def coverage_run(
    index: int, seed: int, beta: float, times: Array, n: int
) -> tuple[float, float, bool]:
    """Share of the contrasts inside their intervals; 1 or 0 for beta; whether it is identifiable.

    A contrast counts where the information of the true problem pins it to less than the size of V.
    """
    rng = np.random.default_rng([seed, index])
    problem = draw_problem(index, rng, n_states=6, beta=beta, times=times)
    fit = fit_likelihood(problem.kernel, times, problem.sample(n, rng))
    true = IndependentObjective(problem.model, n * problem.probabilities).evaluate(
        problem.theta, problem.mesh
    )
    assert true is not None
    bound = np.linalg.pinv(true.information, rcond=1e-12, hermitian=True)
    states = problem.kernel.n_states
    covariance = fit.potential_covariance
    v, estimate = problem.energy.potential, fit.potential
    inside, counted = 0, 0
    for x in range(states):
        for y in range(x):
            spread = bound[x, x] + bound[y, y] - 2 * bound[x, y]
            if spread > 0.25:
                continue
            half = 1.96 * np.sqrt(covariance[x, x] + covariance[y, y] - 2 * covariance[x, y])
            inside += abs(estimate[x] - estimate[y] - v[x] + v[y]) <= half
            counted += 1
    lower, upper = single_threaded(walk_profile)(fit, drop=_DROP).interval(_DROP)
    identifiable = bound[states, states] < 0.5**2
    share = inside / counted if counted else np.nan
    return share, float(lower <= beta <= upper), bool(identifiable)


def cyclic_counts(
    problem: Problem, n: int, rng: np.random.Generator, strength: float
) -> Array | None:
    """Snapshots of the flow with a force around the graph's cycles added; `None` on a tree.

    The force is random on the edges, its gradient part removed, and scaled so that its root mean
    square over the edges, weighted by conductance, is `strength` times that of the slopes of V.
    """
    kernel = problem.kernel
    source, target, conductance = kernel.edges
    states = kernel.n_states
    if kernel.n_edges < states:
        return None
    force = rng.normal(size=kernel.n_edges)
    incidence = np.zeros((kernel.n_edges, states))
    incidence[np.arange(kernel.n_edges), source] = 1.0
    incidence[np.arange(kernel.n_edges), target] = -1.0
    weight = np.sqrt(conductance)
    fit = np.linalg.lstsq(weight[:, None] * incidence, weight * force, rcond=None)[0]
    force = force - incidence @ fit
    gaps = incidence @ problem.energy.potential
    force *= strength * np.sqrt(conductance @ gaps**2 / (conductance @ force**2))
    mobility, beta, pi = LogMean(), problem.energy.beta, kernel.stationary
    p = problem.probabilities[0]
    rows = [p]
    for length in np.diff(problem.model.times):
        steps = max(1, int(np.ceil(length / 0.005)))
        for _ in range(steps):
            rho = p / pi
            drive = mobility(rho[source], rho[target]) * (gaps + force)
            flux = conductance * (beta * (rho[source] - rho[target]) + drive) * (length / steps)
            # No state gives more than it has.
            out = np.bincount(source, np.maximum(flux, 0), states)
            out += np.bincount(target, np.maximum(-flux, 0), states)
            share = np.minimum(1.0, 0.9 * p / np.maximum(out, 1e-300))
            flux = flux * np.where(flux > 0, share[source], share[target])
            p = p - edge_divergence(source, target, flux, states)
        rows.append(p)
    return np.array([rng.multinomial(n, np.maximum(q, 0) / np.maximum(q, 0).sum()) for q in rows])


def gof_run(index: int, seed: int, beta: float, times: Array, n: int, strength: float) -> float:
    """The p-value for a true flow (`strength = 0`) or one with a cyclic drift; NaN on a tree."""
    rng = np.random.default_rng([seed, index])
    problem = draw_problem(index, rng, n_states=6, beta=beta, times=times)
    counts: Array | None = problem.sample(n, rng)
    if strength > 0:
        counts = cyclic_counts(problem, n, rng, strength)
        if counts is None:
            return float("nan")
    assert counts is not None
    fit = fit_likelihood(problem.kernel, times, counts)
    return goodness_of_fit(fit, rng=rng, n_draws=200).p_value


def landscape_run(index: int, seed: int, kind: str) -> tuple[dict[str, Any], ...]:
    """The rows of the Delaunay benchmark for one landscape."""
    return tuple(delaunay.measure(kind, seed + index)[0])


def speed_run(index: int, seed: int) -> dict[str, dict[str, Any]]:
    """Seconds and error of each method on one small problem, by method."""
    family = GRAPH_FAMILIES[index % len(GRAPH_FAMILIES)]
    rows = speed.compare_small(family, 0.1, np.random.default_rng([seed, index, 0]))
    return {row["method"]: row for row in rows}


def robustness_run(index: int, seed: int) -> str:
    """The status of a fit to a random problem; "exception" and "not finite" are failures too."""
    rng = np.random.default_rng([seed, index])
    family = GRAPH_FAMILIES[index % len(GRAPH_FAMILIES)]
    n_states = int(rng.integers(_FEWEST.get(family, 3), 31))
    beta, n = float(10 ** rng.uniform(-3, 1)), int(10 ** rng.uniform(np.log10(50), 5))
    horizon, count = float(rng.choice([1.0, 2.0, 5.0, 10.0])), int(rng.choice([5, 10, 20, 50]))
    times = np.linspace(0, horizon, count + 1)
    problem = draw_problem(index, rng, n_states=n_states, beta=beta, times=times)
    try:
        fit = fit_likelihood(problem.kernel, times, problem.sample(n, rng))
    except Exception as error:
        return f"exception {type(error).__name__}"
    finite = np.isfinite(fit.potential).all() and np.isfinite(fit.probabilities).all()
    if not (finite and np.isfinite(fit.beta) and np.isfinite(fit.covariance).all()):
        return "not finite"
    if fit.status is Status.CONVERGED and problem.error(fit.theta) > 0.25:
        return "far from the truth"
    return fit.status.name
