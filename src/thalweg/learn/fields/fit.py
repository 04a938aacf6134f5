"""`fit_likelihood_large`: from counts to a free energy with error bars, for many states."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import reverse_cuthill_mckee

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array, Progress
from thalweg.energy import FreeEnergy
from thalweg.kernel import Edges, MarkovKernel
from thalweg.learn.fields.evidence import (
    Probes,
    least_variance,
    probe,
    slope_of_log_determinant,
    updated_scales,
)
from thalweg.learn.fields.flow_map import FlowMap
from thalweg.learn.fields.graph_fit import GraphFitter
from thalweg.learn.fields.likelihood import Likelihood
from thalweg.learn.fields.options import Fitter, LargeFit, LargeOptions
from thalweg.learn.fields.posterior import Point, Posterior
from thalweg.learn.fields.preconditioner import Information, Preconditioner, solve
from thalweg.learn.fields.prior import field_prior, is_thin
from thalweg.learn.fields.start import weak_start
from thalweg.learn.limits import exhausted, spend
from thalweg.status import Status

_JACOBIAN_FLOATS = 1.2e8
"""Largest number of entries in the tangents of the smooth functions: 1 GB."""
_MOST_DIMENSIONS = 3
"""Dimensions up to which coordinates help: on neighbour graphs of 400 points in five dimensions
they covered V in 0.15 and 0.21 and gave beta 1.86 +- 0.17 for 1; the graph alone covered both."""
_PROBED = 80
"""Number of smooth functions that detect coordinates along a curve."""
_FIRST_NOISE = 0.002
"""First scale of the noises, as a share of the spread of the start."""
_LONG_STEP = 10.0
"""Step in white coefficients below which a failed flow is due to its time step."""
_LEAST_SHARE = 0.05
"""Least share of a change of the force that is taken at once."""
_FIRST_PRECISION = 100.0
"""Precision of log beta around its start until the evidence is used: a joint optimum shrinks it."""


@single_threaded
def fit_likelihood_large(
    kernel: MarkovKernel,
    times: ArrayLike,
    counts: ArrayLike,
    *,
    coordinates: ArrayLike | Literal["kernel"] | None = None,
    beta: float | None = None,
    options: LargeOptions | None = None,
    progress: Progress | None = None,
    rng: np.random.Generator | None = None,
) -> LargeFit:
    """Maximum a posteriori `V`, `beta` and initial distribution of independent snapshots.

    The prior is a Gaussian field whose roughness is chosen by evidence: smooth in space if there
    are coordinates, otherwise along the graph. Where the counts reject the fit that is smooth in
    space, the better of the two is returned. `LargeFit.goodness` tests the fit that is returned.
    Interrupting returns the best iterate with status `INTERRUPTED`.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    times : array
        At least two, increasing.
    counts : array
        One row per time.
    coordinates : array or "kernel", optional
        One row per state, or the kernel's own. They are left out if the states lie on a curve in
        space or space has more than three dimensions.
    beta : float, optional
        The noise, if known.
    options : LargeOptions, optional
        The effort.
    progress : callable, optional
        Called as `progress(what, done, total)`.
    rng : numpy.random.Generator, optional
        Draws the probes of the stochastic traces and the posterior samples.
    """
    options = LargeOptions() if options is None else options
    rng = np.random.default_rng(0) if rng is None else rng
    times = _checks.as_times(times, minimum=2)
    table = _checks.as_counts(counts, times, kernel.n_states)
    known = None if beta is None else _checks.positive(beta, "beta")
    places = kernel.coordinates if isinstance(coordinates, str) else coordinates
    if places is not None:
        places = kernel.with_labels(coordinates=places).coordinates
    if places is not None and (
        places.shape[1] > _MOST_DIMENSIONS or is_thin(places, min(_PROBED, kernel.n_states // 4))
    ):
        places = None
    # Neighbours side by side in memory: the passes over the edges are several times faster.
    order = reverse_cuthill_mckee(kernel.flow_matrix, symmetric_mode=True)
    data = _reordered(kernel, order), times, np.ascontiguousarray(table[:, order])
    place = np.argsort(order)

    def along_graph() -> LargeFit:
        fitter = GraphFitter(*data, known, options, progress, rng)
        return _restored(fitter.run(), kernel, table, place)

    if places is None:
        return along_graph()
    fitter = _Fitter(*data, places[order], known, options, progress, rng)
    fit = replace(_restored(fitter.run(), kernel, table, place), in_space=True)
    if not (options.fall_back and fit.status is Status.CONVERGED and fit.rejected) or exhausted():
        return fit
    # A prior that is smooth in space can lead far away from landscapes that fit: 1000 states
    # with two individuals each gave a beta of 6.5 for 0.2.
    other = along_graph()
    return fit if fit.goodness.statistic <= other.goodness.statistic else other


def _reordered(kernel: MarkovKernel, order: NDArray[np.integer]) -> MarkovKernel:
    """The kernel with its states in this order."""
    source, target, conductance = kernel.edges
    place = np.argsort(order)
    a, b = place[source], place[target]
    low, high = np.minimum(a, b), np.maximum(a, b)
    by_place = np.lexsort((high, low))
    edges = Edges(
        low[by_place].astype(np.int32), high[by_place].astype(np.int32), conductance[by_place]
    )
    return MarkovKernel(kernel.stationary[order], edges)


def _restored(
    fit: LargeFit, kernel: MarkovKernel, counts: Array, place: NDArray[np.integer]
) -> LargeFit:
    """The fit with the states in the order of `kernel`."""
    return replace(
        fit,
        kernel=kernel,
        counts=counts,
        energy=FreeEnergy(fit.potential[place], fit.beta),
        initial=fit.initial[place],
        probabilities=fit.probabilities[:, place],
        potential_stderr=fit.potential_stderr[place],
        potential_samples=fit.potential_samples[:, place],
    )


class _Fitter(Fitter):
    """The fit with coordinates: a smooth prior in them, and exact traces in smooth directions."""

    def __init__(
        self,
        kernel: MarkovKernel,
        times: Array,
        counts: Array,
        coordinates: Array,
        beta: float | None,
        options: LargeOptions,
        progress: Progress | None,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(options, progress, rng)
        start = weak_start(kernel, times, counts, beta, rng)
        room = int(_JACOBIAN_FLOATS / counts.size)
        n_functions = max(8, min(options.n_functions, kernel.n_states // 4, 3 * room // 4))
        priors = []
        for field, share in ((start.log_density, 3), (start.potential, 1)):
            count = max(8, n_functions // share)
            prior = field_prior(
                kernel, count, coordinates=coordinates, spreads=options.spreads, rng=rng
            )
            scales = np.full(prior.scales.size, max(float(np.std(field)), 0.1))
            n_bands = scales.size - len(options.spreads)
            scales[:n_bands] *= 0.7 ** np.arange(n_bands)
            # Noise enters when the smooth part has converged: until then misfit is not noise.
            scales[n_bands:] *= _FIRST_NOISE
            priors.append(prior.with_scales(scales))
        initial, potential = priors
        posterior = Posterior(
            Likelihood(FlowMap(kernel, times), counts), initial, potential,
            fixed_log_beta=None if beta is None else float(np.log(beta)),
            anchor=(float(np.log(start.beta)), _FIRST_PRECISION),
        )  # fmt: skip
        w0 = initial.coefficients(start.log_density - start.log_density.mean(), 0.5)
        wV = potential.coefficients(start.potential - start.potential.mean(), 0.5)
        z = np.concatenate([w0, wV, [np.log(start.beta)]])
        while (point := posterior.point(z)) is None:
            z[:-1] *= 0.5
        self.point: Point = point
        self.information: Information | None = None
        self.stale, self.fine = 0, False
        self.z_probes = rng.choice([-1.0, 1.0], size=(z.size, options.n_probes))
        self.probes: Probes | None = None
        self.pushed, self.share = 0.0, 1.0
        """Last change of the force that the evidence asked for, and the share that is taken."""

    @property
    def posterior(self) -> Posterior:
        return self.point.posterior

    # ------------------------------------------------------------------ the loop

    def settled(self, round_: int) -> bool:
        # Rough traces are enough until the fit is near.
        if self.information is None or self.stale > 12:
            spans = None if self.information is None else self.information.spans
            self.information = Information.at(self.point, spans)
        decrement, self.stale = self._newton_step(0.1)
        moved, fine = self._evidence_update(self.fine), self.fine
        if not fine and decrement < 0.2 * max(self.determined, 10.0) and moved < 0.6:
            # Beta is free, with the force of the evidence in place of the anchor at the start.
            self.fine = True
            posterior = replace(self.posterior, anchor=Posterior.anchor)
            self.point = replace(self.point, posterior=posterior)
            self._evidence_update(True)
        settled = fine and decrement < 0.02 * max(self.determined, 10.0) and moved < 0.15
        if not settled:
            return False
        refined = self.refined(self.point.place)
        if refined is not None:
            posterior = replace(self.posterior, likelihood=refined.likelihood)
            self.point = replace(self.point, posterior=posterior, place=refined)
            return False
        for _ in range(2):
            decrement, _ = self._newton_step(0.05)
            if decrement < 0.05:
                break
        return True

    def _newton_step(self, tolerance: float) -> tuple[float, int]:
        """One damped Gauss-Newton step; its predicted decrement and its CG iterations."""
        assert self.information is not None
        gradient = self.point.gradient()
        promised, iterations = 0.0, 0
        for _ in range(12):
            preconditioner = Preconditioner.of(self.posterior, self.information, self.damping)
            step, iterations = solve(
                self.point, -gradient[:, None], preconditioner, tolerance=tolerance,
                max_iterations=60,
            )  # fmt: skip
            step = step[:, 0]
            promised = -0.5 * float(gradient @ step)
            self.n_iterations += 1
            spend()
            new = self._try(self.point.z + step)
            gain = -np.inf if new is None else self.point.value - new.value
            if new is not None and gain > 0.05 * promised:
                self.point = new
                self.damping = 0.0 if self.damping < 1e-2 else 0.2 * self.damping
                return promised, iterations
            if promised < 1e-3:
                break
            self.damping = max(0.1, 5.0 * self.damping)
        return promised, iterations

    def _try(self, z: Array) -> Point | None:
        """The point at `z`; if the time step is too long for it, a shorter one is used from here.

        A long step fails where drift over one step exceeds the distance between neighbours.
        """
        new = self.posterior.point(z)
        if new is None and np.abs(z - self.point.z).max() < _LONG_STEP:
            finer = self.posterior.finer()
            if finer.likelihood.flow.substeps <= self.options.max_substeps:
                new = finer.point(z)
                here = finer.point(self.point.z) if new is not None else None
                self.point = self.point if here is None else here
        return new

    def _evidence_update(self, fine: bool) -> float:
        """New prior scales and a new force; the largest change that matters."""
        assert self.information is not None
        preconditioner = Preconditioner.of(self.posterior, self.information)
        if fine:
            self.probes = probe(self.point, preconditioner, self.z_probes, 0.1, self.probes)
        new_scales, counts = updated_scales(
            self.point, preconditioner, self.probes if fine else None, 1.5 if fine else 1.0
        )
        if not fine:
            for new, prior in zip(new_scales, self.posterior.priors, strict=True):
                rough = slice(new.size - len(prior.spreads), None)
                new[rough] = prior.scales[rough]
        moved = max(
            float(np.max(np.abs(np.log(new / prior.scales)) * np.minimum(1.0, count / 4.0)))
            for new, prior, count in zip(new_scales, self.posterior.priors, counts, strict=True)
        )
        self.determined = float(counts[0].sum() + counts[1].sum())
        force = 0.0
        if fine and self.probes is not None and self.posterior.fixed_log_beta is None:
            force = -0.5 * slope_of_log_determinant(self.point, self.probes)
            # Force and beta that answer each other in turns meet in the middle.
            if (force - self.posterior.force) * self.pushed < 0.0:
                self.share = max(0.5 * self.share, _LEAST_SHARE)
            else:
                self.share = min(1.5 * self.share, 1.0)
            self.pushed = force - self.posterior.force
            force = self.posterior.force + self.share * self.pushed
            change = self.pushed * np.sqrt(self.probes.log_beta_variance)
            moved = max(moved, 0.5 * abs(change))
        self.point = self.point.rescaled(new_scales, force)
        return moved

    # ------------------------------------------------------------------ the result

    def result(self, status: Status) -> LargeFit:
        post, point, place = self.posterior, self.point, self.point.place
        samples, draws, log_beta_stderr = np.zeros((0, place.V.size)), np.zeros(0), np.nan
        if self.information is not None and status is not Status.INTERRUPTED:
            preconditioner = Preconditioner.of(post, Information.at(point, self.information.spans))
            scores = point.random_scores(self.options.n_samples, self.rng)
            right = np.concatenate([scores, post.along_beta], axis=1)
            solved, _ = solve(point, right, preconditioner, tolerance=0.03, min_iterations=2)
            samples = post.potential.field(post.split(solved)[1][:, :-1]).T
            draws = place.beta * np.exp(solved[-1, :-1])
            log_beta_stderr = float(np.sqrt(max(solved[-1, -1], least_variance(point))))
            if post.fixed_log_beta is not None:
                log_beta_stderr, draws = 0.0, np.full(draws.size, place.beta)
        return self.fit_at(place, status, samples, draws, log_beta_stderr)
