"""The weak form: the landscape and beta from snapshot probabilities by two Laplacian solves.

The paper's loss is quadratic in `(V, beta)`. Weighted with the transport metric, its normal
equations telescope (see `thalweg.learn.weak.terms`):

    (sum_j w_j M_j) V + beta sum_j w_j M_j log rho_j = p_0 - p_T,

and one scalar equation for beta. No geodesic and no network is needed, and the cost is that of one
pass over the snapshots and two solves with one time-averaged Laplacian.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import checked, single_threaded
from thalweg._types import Array
from thalweg.edges.fluxes import Drive
from thalweg.edges.static import Graph
from thalweg.energy import Entropy, FreeEnergy, as_interaction, centred
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.inputs import feature_table
from thalweg.learn.time_basis import TimeBasis
from thalweg.learn.weak.noise import NoiseBias, noise_bias, sampling_deviations, telescoped_noise
from thalweg.learn.weak.options import (
    WeakOptions,
    as_sizes,
    check_positive,
)
from thalweg.learn.weak.passes import unexplained
from thalweg.learn.weak.solve import (
    DENSE_SIZE,
    Minimum,
    Problem,
    border,
    choose_ridge,
    minimum,
    problem_of,
)
from thalweg.learn.weak.terms import (
    EdgeForm,
    Nodes,
    Setting,
    WeakSystem,
    assemble,
    is_simple,
)
from thalweg.mobility import LogMean, Mobility, as_mobility
from thalweg.status import Status

_TINY = 64
"""Number of states up to which threads are not limited: on tiny matrices the limit would cost more
than the solve."""

_DEFAULTS = WeakOptions()
"""Made once: checking them takes a good part of the time of a fit of few states."""


@dataclass(frozen=True, eq=False)
class WeakFit:
    """A fitted free energy, and how it was found."""

    energy: FreeEnergy
    """Potential (centred; its time average if it varies), beta and interaction."""
    potentials: Array
    """`(blocks, N)`: one row per function of the time basis; one row for a fixed potential."""
    interactions: Array
    """The strength of each matrix of the interaction basis."""
    coefficients: Array | None
    """The weight of each feature, if the potential is linear in features."""
    ridge: float
    residual: float
    """`sum_k |p_{k-1} - p_k - integral|_1 / sum_k |p_{k-1} - p_k|_1`: the unexplained share."""
    status: Status
    time_basis: TimeBasis | None = None

    @property
    def potential(self) -> Array:
        return self.energy.potential

    @property
    def beta(self) -> float:
        return self.energy.beta

    def energy_at(self, time: float) -> FreeEnergy:
        """The free energy at a time; `energy` itself if the potential is fixed."""
        if self.time_basis is None:
            return self.energy
        e = self.energy
        v = self.time_basis(time) @ self.potentials
        return FreeEnergy(v, e.beta, e.interaction, e.internal)


@checked
def fit_weak(
    kernel: MarkovKernel,
    times: ArrayLike,
    probabilities: ArrayLike,
    *,
    sizes: ArrayLike | None = None,
    pseudo_count: float | None = None,
    beta: float | None = None,
    potential: ArrayLike | None = None,
    options: WeakOptions | None = None,
    rng: np.random.Generator | None = None,
) -> WeakFit:
    """The free energy that best satisfies the integrated master equation, in closed form.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    times : array
        At least two, increasing.
    probabilities : array
        One row per time, positive if beta is to be learned (smooth the counts).
    sizes : array, optional
        Number of individuals at each time; by default the probabilities are taken as exact.
    pseudo_count : float, optional
        The `a` of `(counts + a) / (n + a N)`, if the probabilities are independent counts smoothed
        this way. The noise of the counts, which pulls beta towards zero if they are few per state,
        is then subtracted (trapezoid, logarithmic mean, entropy and metric weights only, and not if
        it is nearly all there is).
    beta : float, optional
        The noise, if known.
    potential : array, optional
        The potential, if known.
    options : WeakOptions, optional
        The loss, and terms of the free energy beside a fixed potential and the entropy.
    rng : numpy.random.Generator, optional
        Draws the noise probes of a large problem.

    >>> from scipy.linalg import expm
    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> times = np.linspace(0, 2, 201)
    >>> heat = [[0.7, 0.2, 0.1] @ expm(0.3 * t * (kernel.matrix.toarray() - np.eye(3)))
    ...         for t in times]
    >>> fit = fit_weak(kernel, times, heat)
    >>> round(fit.beta, 3), bool(abs(fit.potential).max() < 1e-3)
    (0.3, True)
    """
    times = _checks.as_times(times, minimum=2)
    p = _checks.as_probabilities(probabilities, kernel.n_states, "probabilities")
    if p.shape[0] != times.size:
        raise InputError(
            f"probabilities have {p.shape[0]} rows for {times.size} times; give one row per time."
        )
    options = _DEFAULTS if options is None else options
    if options.weighting not in ("metric", "paper", "paper-edges"):
        raise InputError(
            f"weighting is {options.weighting!r}; choose 'metric', 'paper' or 'paper-edges'."
        )
    nodes = Nodes(times, options.quadrature, options.time_basis)
    if beta is not None:
        beta = _checks.positive(beta, "beta", zero=True)
    if beta != 0.0:
        check_positive(p)
    known = None if potential is None else _checks.as_vector(potential, p.shape[1], "potential")
    if known is not None and beta is not None and not options.interactions:
        raise InputError("beta and potential are both given; leave out the one to be learned.")
    if known is not None and options.time_basis is not None:
        raise InputError("a known potential cannot vary in time; leave out time_basis.")
    features = options.features
    table = None if features is None else feature_table(features, kernel.n_states)
    counted = None if sizes is None else as_sizes(sizes, times.size)
    setting = Setting(
        as_mobility(options.mobility),
        options.weighting,
        Entropy() if options.internal is None else options.internal,
        beta != 0.0,
        [
            as_interaction(b, kernel.n_states, f"interactions[{i}]")
            for i, b in enumerate(options.interactions)
        ],
    )
    ridged = options.ridge == "auto" and known is None
    system = _system(kernel, nodes, p, setting, counted if ridged else None, rng)
    signed, bias = beta is None, None
    if beta is not None and beta > 0.0:
        system = _without_beta(system, beta)
    plain = is_simple(nodes, setting) and nodes.shared and isinstance(setting.mobility, LogMean)
    if signed and plain and known is None and counted is not None and pseudo_count is not None:
        exact = kernel.n_states <= DENSE_SIZE
        draws = None if exact else np.random.default_rng(1) if rng is None else rng
        bias = noise_bias(kernel, nodes.points.weight, p, counted, pseudo_count, draws)
    average, products = nodes.averages()

    def minimise() -> Minimum:
        return _minimise(problem_of(kernel, system, table, products), options, bias, signed)

    if known is not None:
        right = system.moments - system.columns[0].T @ known
        theta = border(system.gram, right, system.gram, signed)
        found = Minimum(known[None], theta, system.gram, 0.0, Status.CONVERGED)
    else:
        found = (minimise if kernel.n_states <= _TINY else single_threaded(minimise))()
    potentials = found.potentials - (found.potentials @ kernel.stationary)[:, None]
    if not (np.isfinite(potentials).all() and np.isfinite(found.theta).all()):
        raise InputError("the probabilities are too extreme for the weak form; smooth them more.")
    status = found.status
    if status and signed and not found.schur[0, 0] > 1e-10 * system.gram[0, 0]:
        status = Status.UNDETERMINED
    strengths = found.theta[1:] if signed else found.theta
    terms = [s * b for s, b in zip(strengths, setting.interactions, strict=True)]
    energy = FreeEnergy(
        centred(average @ potentials, kernel),
        float(found.theta[0]) if beta is None else beta,
        sum(terms[1:], start=terms[0]) if terms else None,
        setting.internal,
    )
    return WeakFit(
        energy=energy,
        potentials=potentials,
        interactions=strengths,
        coefficients=None if table is None else _coefficients(kernel, table, potentials),
        ridge=found.ridge,
        residual=_residual(kernel, nodes, p, energy, potentials, setting.mobility),
        status=status,
        time_basis=options.time_basis,
    )


def _system(
    kernel: MarkovKernel,
    nodes: Nodes,
    p: Array,
    setting: Setting,
    sizes: Array | None,
    rng: np.random.Generator | None,
) -> WeakSystem:
    """The normal equations, with the noise of the load if sizes of the snapshots are given."""
    if sizes is None:
        return assemble(kernel, nodes, p, setting)
    telescopes = setting.weighting == "metric" and nodes.time_basis is None
    if telescopes and kernel.n_states <= DENSE_SIZE:
        system = assemble(kernel, nodes, p, setting)
        return replace(system, noise=telescoped_noise(p, sizes)[None])
    rng = np.random.default_rng(0) if rng is None else rng
    rows = [0, -1] if is_simple(nodes, setting) else slice(None)
    return assemble(kernel, nodes, p, setting, sampling_deviations(p[rows], sizes[rows], rng))


def _minimise(
    problem: Problem, options: WeakOptions, bias: NoiseBias | None, signed: bool
) -> Minimum:
    """The minimum at the ridge that was asked for, without the bias of the noise if it is small."""
    if options.ridge == "auto":
        ridge = choose_ridge(problem, signed=signed)
    else:
        ridge = _checks.positive(options.ridge, "ridge", zero=True)
    if bias is not None:
        columns, loads = problem.restrict(bias.column), problem.restrict(bias.load)
        solved, _ = problem.solve(columns, ridge, 1e-3)
        corrected = replace(
            problem,
            gram=problem.gram - bias.gram + float((columns * solved).sum()),
            moments=problem.moments - bias.moment + float((loads * solved).sum()),
        )
        found = minimum(corrected, ridge, signed=signed, tolerance=options.tolerance)
        # The remainder must be well above the error of what was subtracted.
        if found.schur[0, 0] > 4 * bias.gram * np.sqrt(2 / bias.terms):
            return found
    return minimum(problem, ridge, signed=signed, tolerance=options.tolerance)


def _without_beta(system: WeakSystem, beta: float) -> WeakSystem:
    """The equations left when beta is known: its terms move to the right-hand side."""
    return replace(
        system,
        load=system.load - beta * system.columns[:, :, 0],
        moments=(system.moments - beta * system.gram[0])[1:],
        columns=system.columns[:, :, 1:],
        gram=system.gram[1:, 1:],
    )


def _coefficients(kernel: MarkovKernel, features: Array, potentials: Array) -> Array:
    """The weights of the features, `(blocks, d)`; of least norm if features are dependent."""
    shifted = features - kernel.stationary @ features
    return np.asarray(np.linalg.lstsq(shifted, potentials.T)[0].T, np.float64)


def _residual(
    kernel: MarkovKernel,
    nodes: Nodes,
    p: Array,
    energy: FreeEnergy,
    potentials: Array,
    mobility: Mobility,
) -> float:
    """The share of the increments that the master equation leaves."""
    gap = p[:-1] - p[1:]
    moved = float(np.abs(gap).sum())
    if moved == 0:
        return 0.0
    if energy.interaction is None and nodes.time_basis is None:
        graph, drive = Graph.of(kernel, mobility), Drive.of(energy, mobility, p[0])
        return unexplained(graph, drive, nodes.points, nodes.steps, nodes.shared, p) / moved
    form = EdgeForm(kernel, mobility)
    for j in range(nodes.count):
        here = nodes.probability(p, j)
        weights = form.weights(here)
        rest = np.zeros(kernel.n_states)
        if energy.interaction is not None:
            rest = rest + energy.interaction @ here
        if energy.beta > 0:
            rest = rest + energy.beta * energy.internal.derivative(np.log(here / kernel.stationary))
        for k, share, chi in nodes.parts(j):
            gap[k] -= share * nodes.steps[k] * form.apply(weights, chi @ potentials + rest)
    return float(np.abs(gap).sum()) / moved
