"""Options of a likelihood fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._sparse import dense
from thalweg._types import Array
from thalweg.energy import Entropy, InternalEnergy, as_interaction
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.growth import Growth
from thalweg.learn.inputs import feature_table
from thalweg.learn.likelihood.model import FlowModel
from thalweg.learn.likelihood.optimize import Optimizer
from thalweg.learn.observation import CountModel, Multinomial
from thalweg.learn.time_basis import TimeBasis
from thalweg.mobility import LogMean, Mobility


@dataclass(frozen=True, eq=False)
class LikelihoodOptions:
    """Options of a fit: everything except the data.

    `observation`: `"independent"`, each snapshot a fresh sample; `"tracked"`, the same individuals
    seen again at every time. `environment`: whether the rates of tracked individuals are set by
    their own density, as in the paper's simulations (`"empirical"`), or by that of an infinite
    population (`"mean-field"`). `discretization`: `"continuous"`, the flow; `"frozen"`, rates held
    over each interval, as in the paper. `prior_strength`: `"evidence"`, or a number (0.01 is weak,
    0 is off). Known parts: `beta`, `potential`, `initial`, `interaction`.
    """

    observation: Literal["independent", "tracked"] = "independent"
    noise: CountModel = field(default_factory=Multinomial)
    """How the counts of independent snapshots scatter."""
    discretization: Literal["continuous", "frozen"] = "continuous"
    environment: Literal["empirical", "mean-field"] = "empirical"
    prior_strength: float | Literal["evidence"] = "evidence"
    beta: float | None = None
    potential: ArrayLike | None = None
    initial: ArrayLike | None = None
    features: ArrayLike | None = None
    """`V = features @ weights`, shape (n_states, n_features)."""
    time_basis: TimeBasis | None = None
    interactions: Sequence[ArrayLike] = ()
    """Symmetric matrices whose combination is learned."""
    interaction: ArrayLike | None = None
    """A known interaction."""
    mobility: Mobility = field(default_factory=LogMean)
    internal: InternalEnergy = field(default_factory=Entropy)
    growth: Growth | None = None
    """Births and deaths in addition to transport."""
    tolerance: float = 1e-4
    max_iterations: int = 100
    optimizer: Optimizer | None = None
    """The search for the minimum; by default Marquardt's method with BFGS (`optimize`)."""
    hurried: bool = False
    """Stop early, for callers that average over priors if an optimum is hard to find."""
    mesh_tolerance: float = 0.1
    """Largest time-integration error, as a share of the statistical one (in variance)."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("observation", ("independent", "tracked")),
            ("discretization", ("continuous", "frozen")),
            ("environment", ("mean-field", "empirical")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise InputError(
                    f"{name} is {value!r}; choose {' or '.join(repr(a) for a in allowed)}."
                )
        plain = self.observation == "independent" and self.discretization == "continuous"
        if not (plain or isinstance(self.noise, Multinomial)):
            raise InputError(
                f"{type(self.noise).__name__} counts are those of independent snapshots of the "
                "continuous flow; leave out observation='tracked' and discretization='frozen'."
            )
        if self.growth is not None and not plain:
            raise InputError(
                "growth is learned from independent snapshots of the continuous flow; leave out "
                "observation='tracked' and discretization='frozen'."
            )
        if self.prior_strength != "evidence":
            if isinstance(self.prior_strength, str):
                raise InputError(f"prior is {self.prior_strength!r}; give a number or 'evidence'.")
            _checks.positive(self.prior_strength, "prior", zero=True)

    def model(self, kernel: MarkovKernel, times: Array) -> FlowModel:
        """The parametrised flow these options describe; checks the shapes."""
        n = kernel.n_states
        features = None
        if self.features is not None:
            features = feature_table(self.features, n)
        potential = None
        if self.potential is not None:
            potential = _checks.as_vector(self.potential, n, "potential")
            if features is None:
                features = np.zeros((n, 0))
        basis = [_symmetric(w, n, f"interactions[{j}]") for j, w in enumerate(self.interactions)]
        known = np.zeros((0, 0))
        if self.interaction is not None:
            known = _symmetric(self.interaction, n, "interaction")
        beta = None if self.beta is None else _checks.positive(self.beta, "beta", zero=True)
        initial = None
        if self.initial is not None:
            initial = _checks.as_probability(self.initial, n, "initial")
        model = FlowModel(
            kernel,
            times,
            features=features,
            time_basis=self.time_basis,
            fixed_potential=potential,
            interactions=np.array(basis) if basis else np.zeros((0, n, n)),
            fixed_interaction=known,
            fixed_beta=beta,
            fixed_initial=initial,
            mobility=self.mobility,
            internal=self.internal,
            growth=None if self.growth is None else self.growth.known(n),
            growth_features=None if self.growth is None else self.growth.columns(n),
        )
        if model.n_parameters == 0:
            raise InputError(
                "potential, beta and initial are all given: nothing is left to learn; leave one "
                "of them out."
            )
        return model


def _symmetric(matrix: ArrayLike, n: int, name: str) -> Array:
    return dense(as_interaction(matrix, n, name)).astype(np.float64)
