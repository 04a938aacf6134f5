"""Questions to a fitted model: `thalweg.dynamics` as methods of the regressor.

Each method is the function of the same name in `thalweg.dynamics`, applied to the fitted landscape
with its posterior; see there for the parameters. Times are those of the data; where a population is
needed, it is the model's own at that time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

import thalweg  # whose `dynamics`, the room above, is loaded on first use
from thalweg._types import Array, Progress
from thalweg.errors import InputError
from thalweg.flow import Trajectory
from thalweg.snapshots import Snapshots

if TYPE_CHECKING:
    import thalweg.dynamics
    from thalweg.learn.answer import Fitted
    from thalweg.learn.regressor import FreeEnergyRegressor
    from thalweg.learn.remedies import Remedies


class Questions:
    """Methods of a fitted `FreeEnergyRegressor`."""

    if TYPE_CHECKING:
        fitted_: Fitted
        _diagnostics: dict[str, Any] | None
        seed: int
        progress: Progress | bool | None

        @property
        def times_(self) -> Array: ...

        @property
        def diagnostics_(self) -> dict[str, Any]: ...

        def predict(self, p0: ArrayLike | None, times: ArrayLike) -> Trajectory: ...

    @property
    def landscape_(self) -> thalweg.dynamics.Landscape:
        """Kernel, energy and its uncertainty: what the functions of `thalweg.dynamics` take."""
        return thalweg.dynamics.as_landscape(self)  # type: ignore[arg-type]

    def population(self, t: float) -> Array:
        """The model's own population at time `t`."""
        if t < self.times_[0]:
            raise InputError(
                f"t is {t:g}, before the first snapshot at {self.times_[0]:g}; the flow runs "
                "forwards only: give a later time."
            )
        p = self.predict(None, [t]).final
        return np.asarray(p / p.sum())

    def transition_rates(self, t: float | None = None, **options: Any) -> sparse.csr_array:
        """Jump rates of one individual at time `t`; at rest by default."""
        land = self.landscape_
        p = None if t is None else self.population(t)
        return thalweg.dynamics.transition_rates(
            land.kernel, land.energy, p, mobility=land.mobility, **options
        )

    def transition_matrix(self, t0: float, t1: float, **options: Any) -> Array:
        """Probabilities from each state at `t0` to each at `t1`, along the fitted flow."""
        return thalweg.dynamics.transition_matrix(
            self.landscape_, self.population(t0), (t0, t1), **options
        )

    def relaxation_modes(self, n_modes: int = 10, **options: Any) -> thalweg.dynamics.Modes:
        """Relaxation times and modes at rest, slowest first."""
        return thalweg.dynamics.relaxation_modes(self.landscape_, n_modes, **options)

    def macrostates(
        self, n_macrostates: int | None = None, **options: Any
    ) -> thalweg.dynamics.Macrostates:
        """Metastable sets of states."""
        return thalweg.dynamics.macrostates(self.landscape_, n_macrostates, **options)

    def basins(self) -> thalweg.dynamics.Basins:
        """The landscape's basins and the saddles between them."""
        return thalweg.dynamics.basins(self.landscape_)

    def fate_probabilities(self, targets: Any = None, **options: Any) -> thalweg.dynamics.Fates:
        """Fates of individuals; by default among the cores of the macrostates."""
        land = self.landscape_
        if targets is None:
            targets = self.macrostates().named_cores(land.kernel.labels)
        return thalweg.dynamics.fate_probabilities(land, targets, **options)

    def committor(self, a: Any, b: Any, **options: Any) -> thalweg.dynamics.Estimate:
        """The probability of reaching `b` before `a`."""
        return thalweg.dynamics.committor(self.landscape_, a, b, **options)

    def mean_first_passage_time(self, targets: Any, **options: Any) -> thalweg.dynamics.Estimate:
        """The mean time until the targets are first entered."""
        return thalweg.dynamics.mean_first_passage_time(self.landscape_, targets, **options)

    def passage_quantiles(
        self, targets: Any, *quantiles: float, **options: Any
    ) -> thalweg.dynamics.Estimate:
        """Quantiles of the time until the targets are first entered."""
        wanted = quantiles or (0.05, 0.5, 0.95)
        return thalweg.dynamics.passage_quantiles(self.landscape_, targets, wanted, **options)

    def descendants(
        self, states: Any, t0: float, t1: float, **options: Any
    ) -> thalweg.dynamics.Kinship:
        """The law at `t1` of the individuals in `states` at `t0`."""
        return thalweg.dynamics.descendants(
            self.landscape_, states, self.population(t0), (t0, t1), **options
        )

    def ancestors(
        self, states: Any, t0: float, t1: float, **options: Any
    ) -> thalweg.dynamics.Kinship:
        """The law at `t0` of the individuals in `states` at `t1`."""
        return thalweg.dynamics.ancestors(
            self.landscape_, states, self.population(t0), (t0, t1), **options
        )

    def fluxes(self, t: float, **options: Any) -> thalweg.dynamics.Estimate:
        """The net flux along each edge at time `t`."""
        first = float(self.times_[0])
        return thalweg.dynamics.fluxes(
            self.landscape_, self.population(first), (first, t), **options
        )

    def reactive_flux(self, a: Any, b: Any, **options: Any) -> thalweg.dynamics.ReactiveFlux:
        """The traffic from `a` to `b` at rest, and its strongest routes."""
        return thalweg.dynamics.reactive_flux(self.landscape_, a, b, **options)

    def streams(
        self, times: ArrayLike, labels: ArrayLike, **options: Any
    ) -> thalweg.dynamics.Streams:
        """Streams of individuals between groups of states over successive times."""
        first = float(np.asarray(times, dtype=np.float64).ravel()[0])
        return thalweg.dynamics.streams(
            self.landscape_, self.population(first), times, labels, **options
        )

    def velocity(self, embedding: ArrayLike, t: float | None = None) -> Array:
        """The velocity of the population on an embedding; of the landscape alone by default."""
        land = self.landscape_
        p = None if t is None else self.population(t)
        return thalweg.dynamics.velocity(land.kernel, land.energy, embedding, p)

    def held_out(self, snapshots: Snapshots, **options: Any) -> thalweg.dynamics.HeldOut:
        """Whether snapshots that the fit has not used agree with its forecast."""
        return thalweg.dynamics.held_out(self, snapshots, **options)  # type: ignore[arg-type]

    def compare(self, other: FreeEnergyRegressor, **options: Any) -> thalweg.dynamics.Comparison:
        """Whether another fit on the same graph has the same landscape."""
        return thalweg.dynamics.compare(self, other, **options)  # type: ignore[arg-type]

    def perturb(self, **changes: Any) -> FreeEnergyRegressor:
        """The model after an intervention."""
        return thalweg.dynamics.perturb(self, **changes)  # type: ignore[arg-type]

    def steer(
        self, target: ArrayLike | None = None, horizon: float = 1.0, *, t0: float | None = None,
        **options: Any,
    ) -> thalweg.dynamics.Steering:  # fmt: skip
        """The cheapest potential that leads from the population at `t0` to a target.

        By default `t0` is the last time of the data.
        """
        start = self.population(float(self.times_[-1]) if t0 is None else t0)
        return thalweg.dynamics.steer(self.landscape_, start, target, horizon, **options)

    def push_few(
        self, raise_mass: tuple[Any, float], horizon: float = 1.0, *, t0: float | None = None,
        **options: Any,
    ) -> thalweg.dynamics.Intervention:  # fmt: skip
        """Choose a few states to push from `t0` on (by default the last time of the data)."""
        start = self.population(float(self.times_[-1]) if t0 is None else t0)
        return thalweg.dynamics.push_few(self.landscape_, start, raise_mass, horizon, **options)

    def remedies(self, *, n_folds: int = 3, max_seconds: float | None = None) -> Remedies:
        """Find what predicts left-out individuals better than one landscape, if that is rejected.

        A landscape that jumps in time, growth, another mean, an interaction, and free rates are
        each fitted to `n_folds` parts of the data. The answer is kept in `diagnostics_`, and so in
        reports and in the model's file.

        >>> from thalweg import FreeEnergyRegressor, MarkovKernel
        >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
        >>> counts = [[800, 150, 50], [600, 290, 110], [470, 370, 160], [400, 410, 190]]
        >>> seen = Snapshots.from_counts([0.0, 0.5, 1.0, 1.5], counts)
        >>> FreeEnergyRegressor().fit(kernel, seen).remedies().winner is None
        True
        """
        from thalweg.learn.likelihood.result import LikelihoodFit
        from thalweg.learn.limits import as_progress, work_limit
        from thalweg.learn.remedies import find_remedies

        source = self.fitted_.source
        if not isinstance(source, LikelihoodFit):
            raise InputError(
                "remedies need the data of a likelihood fit, which a saved model does not hold; "
                "fit again with method='likelihood'."
            )
        with work_limit(max_seconds):
            found = find_remedies(
                source, n_folds=n_folds, seed=self.seed, progress=as_progress(self.progress)
            )
        self._diagnostics = {**self.diagnostics_, "remedies": str(found)}
        return found
