"""The weak form: the landscape and beta from snapshot probabilities by two Laplacian solves.

The paper's loss is quadratic in `(V, beta)`. Weighted with the transport metric, its normal
equations telescope (see `thalweg.learn.weak.terms`):

    (sum_j w_j M_j) V + beta sum_j w_j M_j log rho_j = p_0 - p_T,

and one scalar equation for beta. No geodesic and no network is needed, and the cost is that of one
pass over the snapshots and two solves with one time-averaged Laplacian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from thalweg import _checks
from thalweg._door import checked, single_threaded
from thalweg._types import Array
from thalweg.edges.static import Graph
from thalweg.energy import Entropy, FreeEnergy, centred
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.time_basis import TimeBasis
from thalweg.learn.weak.noise import (
    NoiseBias,
    noise_bias,
    sampling_deviations,
    telescoped_noise,
)
from thalweg.learn.weak.options import (
    Ridge,
    WeakOptions,
    as_features,
    as_sizes,
    as_symmetric,
    check_positive,
    probability_rows,
)
from thalweg.learn.weak.passes import unexplained
from thalweg.learn.weak.solve import (
    DENSE_SIZE,
    Problem,
    border,
    bordered,
    choose_ridge,
    problem_of,
)
from thalweg.learn.weak.terms import (
    EdgeForm,
    Nodes,
    Setting,
    WeakSystem,
    assemble,
    nodes_of,
)
from thalweg.mobility import LogMean, Mobility, as_mobility
from thalweg.status import Status

_TINY = 64
"""Number of states up to which threads are not limited."""


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
    p = probability_rows(probabilities, kernel.n_states)
    if p.shape[0] != times.size:
        raise InputError(
            f"probabilities have {p.shape[0]} rows for {times.size} times; give one row per time."
        )
    options = WeakOptions() if options is None else options
    quadrature, weighting, ridge = options.quadrature, options.weighting, options.ridge
    features, time_basis = options.features, options.time_basis
    mobility = as_mobility(options.mobility)
    internal = Entropy() if options.internal is None else options.internal
    known_beta = None if beta is None else _checks.positive(beta, "beta", zero=True)
    nodes = nodes_of(times, quadrature)
    if weighting not in ("metric", "paper", "paper-edges"):
        raise InputError(f"weighting is {weighting!r}; choose 'metric', 'paper' or 'paper-edges'.")
    with_beta = known_beta != 0.0
    if with_beta:
        check_positive(p)
    basis = [as_symmetric(b, kernel.n_states, i) for i, b in enumerate(options.interactions)]
    known_potential = (
        None if potential is None else _checks.as_vector(potential, kernel.n_states, "potential")
    )
    if known_potential is not None and known_beta is not None and not basis:
        raise InputError("beta and potential are both given; leave out the one to be learned.")
    table = None if features is None else as_features(features, kernel.n_states)
    counted = None if sizes is None else as_sizes(sizes, times.size)
    noisy = ridge == "auto" and counted is not None and known_potential is None
    exact = weighting == "metric" and time_basis is None and kernel.n_states <= DENSE_SIZE
    setting = Setting(mobility, weighting, internal, with_beta, basis, time_basis)
    deviations: list[Array] = []
    if noisy and not exact:
        assert counted is not None
        draw = np.random.default_rng(0) if rng is None else rng
        n_probes = 1 if kernel.n_states > 50_000 else 8
        rows = [0, -1] if setting.is_simple else slice(None)
        deviations = sampling_deviations(p[rows], counted[rows], n_probes, draw)
    system = assemble(kernel, nodes, p, setting, deviations)
    if noisy and exact:
        assert counted is not None
        system = replace(system, noise=telescoped_noise(p, counted)[None])
    signed = with_beta and known_beta is None
    bias = None
    if pseudo_count is not None and counted is not None and signed and known_potential is None:
        if setting.is_simple and isinstance(mobility, LogMean) and quadrature == "trapezoid":
            dense = kernel.n_states <= DENSE_SIZE
            bias = noise_bias(
                kernel, nodes, p, counted, _checks.positive(pseudo_count, "pseudo_count"),
                n_probes=1 if kernel.n_states > 50_000 else 8,
                rng=None if dense else (np.random.default_rng(1) if rng is None else rng),
            )  # fmt: skip
    if with_beta and known_beta is not None:
        system = _without_beta(system, known_beta)
    if known_potential is not None:
        if time_basis is not None:
            raise InputError("a known potential cannot vary in time; leave out time_basis.")
        right = system.moments - system.columns[0].T @ known_potential
        theta = border(system.gram, right, system.gram, signed)
        found = _Minimum(known_potential[None], theta, system.gram, 0.0, Status.CONVERGED)
    else:
        problem = problem_of(kernel, system, table, _time_gram(nodes, time_basis))
        # On tiny matrices the thread limit would cost more than the solve.
        minimise = _minimise if kernel.n_states <= _TINY else single_threaded(_minimise)
        found = minimise(problem, ridge, signed, options.tolerance, bias)
    potentials = found.potentials - (found.potentials @ kernel.stationary)[:, None]
    average = _average(nodes, time_basis) @ potentials
    if not (np.isfinite(average).all() and np.isfinite(found.theta).all()):
        raise InputError("the probabilities are too extreme for the weak form; smooth them more.")
    status = found.status
    if status and signed and not found.schur[0, 0] > 1e-10 * system.gram[0, 0]:
        status = Status.UNDETERMINED
    beta_found = float(found.theta[0]) if signed else (known_beta or 0.0)
    strengths = found.theta[1:] if signed else found.theta
    energy = FreeEnergy(centred(average, kernel), beta_found, _combine(basis, strengths), internal)
    return WeakFit(
        energy=energy,
        potentials=potentials,
        interactions=strengths,
        coefficients=None if table is None else _coefficients(kernel, table, potentials),
        ridge=found.ridge,
        residual=_residual(kernel, nodes, p, energy, potentials, mobility, time_basis),
        status=status,
        time_basis=time_basis,
    )


class _Minimum(NamedTuple):
    potentials: Array
    theta: Array
    schur: Array
    ridge: float
    status: Status


def _minimise(
    problem: Problem, ridge: Ridge, signed: bool, tolerance: float, bias: NoiseBias | None
) -> _Minimum:
    if ridge == "auto":
        strength = choose_ridge(problem, signed=signed)
    else:
        strength = _checks.positive(ridge, "ridge", zero=True)
    if bias is not None:
        columns, loads = problem.restrict(bias.column), problem.restrict(bias.load)
        solved, _ = problem.solve(columns, strength, 1e-3)
        corrected = problem.adjusted(
            problem.gram - bias.gram + float((columns * solved).sum()),
            problem.moments - bias.moment + float((loads * solved).sum()),
        )
        x, theta, schur, status = bordered(corrected, strength, signed=signed, tolerance=tolerance)
        # The remainder must be well above the error of what was subtracted.
        if schur[0, 0] > 4 * bias.gram * np.sqrt(2 / bias.terms):
            return _Minimum(problem.lift(x), theta, schur, strength, status)
    x, theta, schur, status = bordered(problem, strength, signed=signed, tolerance=tolerance)
    return _Minimum(problem.lift(x), theta, schur, strength, status)


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
    time_basis: TimeBasis | None,
) -> float:
    form = EdgeForm(kernel, mobility)
    gap = p[:-1] - p[1:]
    moved = float(np.abs(gap).sum())
    if moved == 0:
        return 0.0
    if time_basis is None and energy.interaction is None and isinstance(energy.internal, Entropy):
        left = unexplained(
            Graph.of(kernel, mobility), nodes.points, nodes.steps,
            nodes.quadrature == "trapezoid", p, energy.potential, energy.beta,
        )  # fmt: skip
        return float(left) / moved
    for j in range(nodes.count):
        here = nodes.probability(p, j)
        weights = form.weights(here)
        rest = np.zeros(kernel.n_states)
        if energy.interaction is not None:
            rest = rest + energy.interaction @ here
        if energy.beta > 0:
            rest = rest + energy.beta * energy.internal.derivative(np.log(here / kernel.stationary))
        for k, share, chi in nodes.basis(time_basis, j):
            gap[k] -= share * nodes.steps[k] * form.apply(weights, chi @ potentials + rest)
    return float(np.abs(gap).sum()) / moved


def _average(nodes: Nodes, basis: TimeBasis | None) -> Array:
    if basis is None:
        return np.ones(1)
    return sum(step * chi for step, chi in nodes.shares(basis)) / nodes.steps.sum()


def _time_gram(nodes: Nodes, basis: TimeBasis | None) -> Array:
    if basis is None:
        return np.ones((1, 1))
    total = sum(step * np.outer(chi, chi) for step, chi in nodes.shares(basis))
    total = np.asarray(total / nodes.steps.sum())
    values = np.linalg.eigvalsh(total)
    if values[0] <= 1e-10 * values[-1]:
        raise InputError(
            f"the {basis.size} functions of the time basis are dependent on the "
            f"{nodes.steps.size} intervals (a piece without a snapshot interval?); use fewer."
        )
    return total


def _combine(
    basis: Sequence[Array | sparse.csr_array], strengths: Array
) -> Array | sparse.csr_array | None:
    if not basis:
        return None
    total = strengths[0] * basis[0]
    for strength, b in zip(strengths[1:], basis[1:], strict=True):
        total = total + strength * b
    return total
