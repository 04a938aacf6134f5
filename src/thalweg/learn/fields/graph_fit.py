"""The fit on a graph without coordinates: fields with a spectral prior, and beta by simulation.

Given beta and the prior's levels, the fields are at their most likely values. The levels are those
of the largest evidence, with traces from draws of the posterior. The slope `S` of the likelihood in
log beta at these fields is not zero at the true beta, because the fields are fitted too: it has the
mean that fields fitted to simulated snapshots show (`matching`), and beta is where observed and
simulated slopes agree. Simulations use shorter time steps than the fit, so its discretisation
errors cancel as well.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from thalweg._types import Array, Progress
from thalweg.kernel import MarkovKernel
from thalweg.learn.few.choose import few_per_state
from thalweg.learn.fields.conjugate_gradients import Map, conjugate_gradients
from thalweg.learn.fields.flow_map import FlowMap
from thalweg.learn.fields.likelihood import Likelihood, Place
from thalweg.learn.fields.matching import Following, matched_slope
from thalweg.learn.fields.options import Fitter, LargeFit, LargeOptions
from thalweg.learn.fields.spectral_solver import Curvature, Kind, Preconditioning
from thalweg.learn.fields.spectrum import SpectralPrior, Spectrum
from thalweg.learn.fields.start import weak_start
from thalweg.learn.limits import spend
from thalweg.status import Status

_FIRST_SLOPE = 0.2
"""Share of the potential's power that minus the slope in log beta is assumed to be before any
simulation: 0.13 to 0.27 was measured on rough and smooth landscapes of six graphs."""
_LONGEST_STRIDE = 0.7
"""Largest change of log beta in one step."""
_STIFFEST = 100.0
"""Bound on the prior's precision, in units of the information about each mode."""
_SETTLED = 1.6
"""Difference of observed and simulated slopes, in standard errors of log beta, below which
simulations end: its correction leaves a small share of it (`_LEFT`)."""
_MOST_MATCHES = 4
"""Largest number of times that simulations are made: with few individuals beta and levels can go on
moving each other, and what beta still moves then counts as its error."""
_LEFT = 0.15
"""Share of the last correction of log beta that counts as its error: 0.04 to 0.15 was seen."""
_STILL = 1.2
"""Move of all levels together, in their standard errors, below which they have settled."""
_NEAR = 2.0
"""`_STILL` before the first simulations of 1000 states: with more states, errors of levels are
smaller, and simulations follow in any case."""
_LEAST_OWN = 0.5
"""Least share of the information about log beta at given levels that may remain as these follow."""
_SYSTEMATIC = 0.01
"""Error of log beta that more individuals do not remove, from time steps and first-order theory: on
rough grids of 10^4 and 10^5 states beta was one to two percent low, up to three standard errors."""
_WIDEST = 3.0
"""Standard deviation of log beta in the draws where nothing is known about it."""
_ENOUGH, _SHARE = 0.02, 1e-5
"""Twice the log likelihood that a Newton step may still miss, at least and per coefficient that the
data determine."""
_CENTRE, _WEAK = float(np.log(0.1)), 0.05
"""Centre and precision of the weak prior on log beta."""


class GraphFitter(Fitter):
    """The fit without coordinates: a prior on the modes of the kernel, and beta by simulation."""

    def __init__(
        self,
        kernel: MarkovKernel,
        times: Array,
        counts: Array,
        beta: float | None,
        options: LargeOptions,
        progress: Progress | None,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(options, progress, rng)
        n = self.n = kernel.n_states
        self.parts = slice(0, n), slice(n, 2 * n)
        self.free = beta is None
        start = weak_start(kernel, times, counts, beta, rng)
        spectrum = Spectrum(kernel, rng)
        u0, V = (f - f.mean() for f in (start.log_density, start.potential))
        self.z, self.theta = np.concatenate([u0, V]), float(np.log(start.beta))
        likelihood = Likelihood(FlowMap(kernel, times), counts)
        place = self._at(likelihood, self.z, self.theta)
        while place is None:
            self.z = 0.5 * self.z
            place = self._at(likelihood, self.z, self.theta)
        self.place: Place = place
        self.priors = [SpectralPrior.of_field(spectrum, self.z[part]) for part in self.parts]
        self.few = few_per_state(counts)
        kinds: tuple[Kind, ...] = ("graph", "flow") if self.few else ("flow",)
        self.preconditioning = Preconditioning(place, kinds)
        self.force = 0.0
        self.determined = 0.5 * self.n
        self.prepared: tuple[Map, Array, Array] | None = None
        self.about = np.ones(spectrum.knots.size)
        """Information about the potential at the knots."""
        self.along: Array | None = None
        """Derivative of the fields in log beta."""
        self.own = self.curve = np.nan
        """Information about log beta from the data alone, and with the priors'."""
        self.draws: Array | None = None
        self.gains, self.moves = (
            np.ones((2, spectrum.knots.size)),
            np.zeros((2, spectrum.knots.size)),
        )
        self.seed = int(rng.integers(2**31))
        self.unmatched = False
        """Whether simulations had no flow: beta is then not determined."""
        self.spread = np.nan
        """Standard error of log beta."""
        self.level_information: list[Array] = []
        self.change = np.inf
        """Change of log beta by the last simulations, in its standard errors."""
        self.n_matches = 0
        self.goal = self.theta
        """Log beta where the last simulations put it."""

    def _at(self, likelihood: Likelihood, z: Array, theta: float) -> Place | None:
        if np.abs(z).max() > 200.0:
            return None
        return likelihood.at(z[: self.n], z[self.n :], theta)

    def _curvature(self, damping: float = 0.0, *, coarse: bool = False) -> Curvature:
        return Curvature(self.place, self.priors[0], self.priors[1], damping, coarse)

    def _value(self, place: Place, z: Array, theta: float) -> float:
        pull = 0.5 * _WEAK * (theta - _CENTRE) ** 2
        return self._curvature().roughness(z) + pull - place.log_likelihood - self.force * theta

    # ------------------------------------------------------------------ the loop

    def settled(self, round_: int) -> bool:
        first = self.n_matches == 0
        decrement = self._newton_step(0.2 if first else 0.1)
        if decrement > 0.1 * self.determined and round_ % 4 != 3:
            return False
        moved = self._evidence_update()
        if self.free and first:
            power = np.sum(self.priors[1].half(self.z[self.parts[1]]) ** 2)
            self.force = _FIRST_SLOPE * float(power)
        far = _NEAR * np.sqrt(max(self.n / 1000.0, 1.0)) if first else _STILL
        if decrement > 0.01 * self.determined or moved > far:
            return False
        refined = self.refined(self.place)
        if refined is not None:
            self.place = refined
            return False
        if not self.free:
            return True
        again = self.change > _SETTLED and self.n_matches < _MOST_MATCHES
        if (first or again) and not self.unmatched:
            self._match()
            return False
        if moved >= _STILL:
            return False
        self._newton_step(0.1, 1.0)
        return True

    def _newton_step(self, tolerance: float, share: float = 0.5) -> float:
        """One damped Gauss-Newton step in the fields and log beta; its predicted decrement.

        The levels follow beta and shift its optimum: only a `share` of the step in beta is taken.
        With few individuals per state, beta stays where it is until the levels are known: without
        the force of the evidence it would slide towards zero, to where the flow has no solution.
        """
        score, slope = self.place.score()
        prior = self._curvature().prior
        gradient = prior(self.z) - score
        by_theta = _WEAK * (self.theta - _CENTRE) - self.force - slope
        mixed, info = self.place.information(np.zeros((2 * self.n, 1)), np.ones(1))
        value = self._value(self.place, self.z, self.theta)
        promised = 0.0
        for _ in range(10):
            curvature = self._curvature(self.damping)
            self.prepared = self.preconditioning(curvature)
            preconditioner, _, self.about = self.prepared
            right, guess = -gradient[:, None], None
            if self.free:
                right = np.concatenate([right, -mixed], axis=1)
                if self.along is not None:
                    guess = np.column_stack([np.zeros(2 * self.n), self.along])
            solved, taken = conjugate_gradients(
                curvature, right, preconditioner, guess=guess,
                least=max(_ENOUGH, _SHARE * self.determined),
                tolerance=np.array([tolerance, 0.5 * tolerance])[: right.shape[1]],
            )  # fmt: skip
            self.preconditioning.took(taken)
            step, stride = solved[:, 0], 0.0
            if self.free:
                self.along = solved[:, 1]
                self.curve = max(float(info[0] + mixed[:, 0] @ self.along), 1e-3) + _WEAK
                # The roughness of the fields is learned from the data as well.
                pull = float(self.along @ prior(self.along))
                self.own = max(self.curve - pull, 0.15 * self.curve)
                stride = -(by_theta + float(mixed[:, 0] @ step))
                stride /= self.curve * (1.0 + self.damping)
                stride *= share if self.draws is not None else 0.0 if self.few else 1.0
                stride = float(np.clip(stride, -_LONGEST_STRIDE, _LONGEST_STRIDE))
                step = step + stride * self.along
            promised = -0.5 * (float(gradient @ step) + by_theta * stride)
            self.n_iterations += 1
            spend()
            new = self._try(self.z + step, self.theta + stride)
            gain = -np.inf
            if new is not None:
                gain = value - self._value(new, self.z + step, self.theta + stride)
            if new is not None and gain > 0.05 * promised:
                self.place, self.z, self.theta = new, self.z + step, self.theta + stride
                easy = gain > 0.5 * promised
                self.damping = 0.0 if self.damping < 0.2 else self.damping * (0.15 if easy else 1.0)
                return promised
            if promised < 0.01:
                break
            self.damping = max(0.3, 5.0 * self.damping)
        return promised

    def _try(self, z: Array, theta: float) -> Place | None:
        """The place at `z`; if the time step is too long for it, a shorter one is used."""
        new = self._at(self.place.likelihood, z, theta)
        if new is None and np.abs(z - self.z).max() < 10.0:
            if 2 * self.place.likelihood.flow.substeps <= self.options.max_substeps:
                self.place = self.place.finer() or self.place
        return new

    def _posterior_noise(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """White noise, and draws from `N(0, H)` that it and the snapshots' noise make.

        `H` is the curvature of the coarse chain: `H^-1` of the draws are posterior ones.
        """
        n = self.n
        g0, gV, _ = self.place.pull(self.place.noise(count, rng), 1e-3, coarse=True)
        white = rng.standard_normal((2 * n, count))
        initial, potential = self.priors
        draws = [g0 + initial.transposed(white[:n]), gV + potential.transposed(white[n:])]
        return white, np.concatenate(draws)

    def _evidence_update(self) -> float:
        """New levels of both priors, and their change in standard errors."""
        # The same noise in every round: solutions start from the last ones, and levels converge.
        rng = np.random.default_rng(self.seed)
        curvature = self._curvature(coarse=True)
        if self.prepared is None or self.damping > 0.0:
            self.prepared = self.preconditioning(curvature)
        # The preconditioner of the last Newton step was made for the same levels.
        preconditioner, *about = self.prepared
        white, right = self._posterior_noise(self.options.n_probes, rng)
        self.draws, _ = conjugate_gradients(
            curvature, right, preconditioner, tolerance=0.05, min_iterations=2,
            max_iterations=80, guess=self.draws,
        )  # fmt: skip
        moved, determined = 0.0, 0.0
        self.level_information = []
        for i, (prior, part) in enumerate(zip(self.priors, self.parts, strict=True)):
            spectrum, modes = prior.spectrum, prior.spectrum.modes
            x, noise, field = (
                values - spectrum.mean(values)
                for values in (self.draws[part], white[part], self.z[part][:, None])
            )
            known = prior.white_powers(noise) - prior.powers(x)
            power = prior.powers(field)
            known = np.clip(known, 0.02 * modes, modes)
            slope = 0.5 * (known - power) + spectrum.level_slope(prior.levels)
            information = spectrum.level_information(known / modes)
            self.level_information.append(information)
            step = np.linalg.solve(information, slope)
            # Levels that oscillate take shorter steps.
            turned = step * self.moves[i] < 0.0
            self.gains[i] = np.clip(self.gains[i] * np.where(turned, 0.4, 1.3), 0.02, 1.0)
            step = self.gains[i] * np.clip(step, -3.0, 3.0)
            limit = np.log(_STIFFEST * np.maximum(about[i], 0.1 * about[i].max()))
            levels = np.clip(prior.levels + step, -8.0, limit)
            change = self.moves[i] = levels - prior.levels
            moved = max(moved, float(np.sqrt(change @ information @ change)))
            determined += float(known.sum())
            self.priors[i] = replace(prior, levels=levels)
        self.determined = max(determined, 10.0)
        return moved

    def _match(self) -> None:
        """Move log beta to where observed and simulated slopes agree, and the rest with it.

        Observed minus simulated slope and the slopes of the evidence in the levels vanish together.
        Their derivatives and covariances, to first order, give the move and beta's error.
        """
        assert self.along is not None
        assert self.draws is not None
        along, curvature = self.along, self._curvature()
        preconditioner, _, _ = self.preconditioning(curvature)
        pulls = curvature.prior(np.column_stack([along, self.z]))
        shrunk, missed = conjugate_gradients(
            curvature, pulls, preconditioner, tolerance=0.1
        )[0].T  # fmt: skip
        matched = matched_slope(
            curvature, preconditioner, self.place.likelihood.finer(4),
            Following(self.z, self.theta, along, pulls[:, 0], shrunk), self.draws,
            count=self.options.n_simulations, seed=self.seed,
        )  # fmt: skip
        if matched is None:
            self.unmatched = True
            return
        self.n_matches += 1
        own, curve = self.own, self.curve
        noise, follows = own - float(pulls[:, 0] @ shrunk), []
        for prior, part, information in zip(
            self.priors, self.parts, self.level_information, strict=True
        ):
            by_beta = -prior.powers(along[part], self.z[part])
            by_level = -prior.powers(shrunk[part], self.z[part])
            by_level -= prior.powers(along[part], missed[part])
            follow, weight = np.linalg.solve(information, np.column_stack([by_beta, by_level])).T
            own -= float(by_level @ follow)
            curve -= float(by_beta @ follow)
            noise += float(by_level @ weight)
            follows.append(follow)
        own = max(own, _LEAST_OWN * self.own)
        self.spread = float(np.sqrt(max(noise, 0.1 * own) + matched.error**2)) / own
        move = float(
            np.clip((-matched.slope - self.force) / own, -_LONGEST_STRIDE, _LONGEST_STRIDE)
        )
        self.change = abs(move) / self.spread
        self.force += curve * move
        moved = self._at(self.place.likelihood, self.z + move * along, self.theta + move)
        if moved is not None:
            self.place, self.z, self.theta = moved, self.z + move * along, self.theta + move
            self.priors = [
                replace(prior, levels=prior.levels + move * follow)
                for prior, follow in zip(self.priors, follows, strict=True)
            ]
        self.goal = self.theta

    # ------------------------------------------------------------------ the result

    def _spread(self, count: int) -> Array:
        """Draws of the fields' deviations, one per column.

        The pull of the levels towards vanishing modes must not make errors small: the draws are
        those under the prior without it, and hold how far the fields would move under that one.
        """
        pulled = self._curvature().prior(self.z)
        kept = self.priors
        if self.level_information:
            self.priors = [
                replace(prior, levels=prior.spectrum.unpulled(prior.levels, information))
                for prior, information in zip(kept, self.level_information, strict=True)
            ]
        draws = self._draws_around(pulled, count)
        if self._spread_of(self.z[:, None]) < self._spread_of(draws):
            self.priors = [self.priors[0], self._unseen()]
            draws = self._draws_around(pulled, count)
        self.priors = kept
        return draws

    def _draws_around(self, pulled: Array, count: int) -> Array:
        """Draws under the present priors; `pulled` is the pull of those that were fitted with."""
        curvature = self._curvature(coarse=True)
        preconditioner, _, _ = self.preconditioning(curvature)
        _, right = self._posterior_noise(count, self.rng)
        right = np.column_stack([right, pulled - curvature.prior(self.z)])
        x, _ = conjugate_gradients(
            curvature, right, preconditioner, tolerance=0.1, min_iterations=2
        )
        return x[:, :-1] + np.outer(x[:, -1], self.rng.standard_normal(count))

    def _spread_of(self, fields: Array) -> float:
        """Mean square of potentials, one per column, where the population was."""
        weights = np.exp(self.place.log_p).mean(axis=0)
        potentials = fields[self.n :] - weights @ fields[self.n :]
        return float(np.mean(weights @ potentials**2))

    def _unseen(self) -> SpectralPrior:
        """A prior as wide as the data allow, for a potential that is smaller than its own error.

        Where a landscape is too flat to be seen the evidence prefers one that vanishes, however
        little the data say, and errors under that prior vanish with it. But `m` modes with
        information `f` each lose only `m (f / q)^2 / 4` of log evidence at a precision `q`: half,
        at the least `q` that is taken here.
        """
        prior = self.priors[1]
        modes = np.maximum(prior.spectrum.modes, 1e-3)
        least = np.log(self.about) + 0.5 * np.log(0.5 * modes)
        return replace(prior, levels=np.minimum(prior.levels, least))

    def result(self, status: Status) -> LargeFit:
        n, beta = self.n, self.place.beta
        samples, draws, error = np.zeros((0, n)), np.zeros(0), np.nan
        if status is not Status.INTERRUPTED:
            x = self._spread(self.options.n_samples)
            draws, error = np.full(x.shape[1], beta), 0.0
            if self.free and self.along is not None:
                if self.n_matches == 0:
                    error = np.inf if self.unmatched else self.own**-0.5
                else:
                    is_open = self.unmatched or self.change > _SETTLED
                    left = (1.0 if is_open else _LEFT) * self.change * self.spread
                    drift = self.theta - self.goal
                    error = float(np.linalg.norm([self.spread, left, drift, _SYSTEMATIC]))
                moves = min(error, _WIDEST) * self.rng.standard_normal(x.shape[1])
                x = x + self.along[:, None] * moves
                draws = beta * np.exp(moves)
            samples = x[n:].T
        return self.fit_at(self.place, status, samples, draws, error)
