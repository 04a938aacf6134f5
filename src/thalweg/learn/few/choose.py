"""When a fit is handed to the average over priors: one table, with the evidence beside each limit.

- `SURE_BETA`, standard error of `log beta`: on 134 data sets of 6 and 10 states with 1000 to 20000
  individuals per snapshot, ordinary fits with an error below 0.2 covered V in 0.951 and beta in
  0.954 (87 sets); between 0.2 and 0.3 in 0.71 and 0.77 (17), above 1 V in 0.70 (14).
- `DATA_DECIDE`, share of the potential's directions that the data rather than a prior as strong as
  the evidence wants it determine. With the fit's own prior it was at least 0.965 in all of those
  87, and 0.1 to 0.54 in six fits to 150 or 1000 individuals on a path of 8, all with an error of
  `log beta` below 0.25 and a flattened potential.
- `VAGUE`, median error of the potential in units of beta: on a path of 100 states cut by one that
  nobody visits, an ordinary fit was wrong by 600 with an error of 51, and beta 1; on one of 30
  whose middle hardly anybody visits, by 16 with an error of 7.
- `MOST_STATES`: a solved cell costs three evaluations of 5 ms at 100 states, and a fit needs 30 to
  60; at 300 states an evaluation takes ten times as long. Beyond 300 states, data sets with many
  individuals go to the matrix-free likelihood.
- `FEW_PER_STATE`, individuals per state over all snapshots, below which that likelihood's curvature
  can be sure of a wrong beta.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from thalweg._types import Array
from thalweg.learn.likelihood.model import FlowModel
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.status import Status

__all__ = ["applies", "applies_to", "few_per_state", "is_few"]

DATA_DECIDE = 0.95
SURE_BETA = 0.2
VAGUE = 3.0
MOST_STATES = 600
FEW_PER_STATE = 50.0


def applies(fit: LikelihoodFit) -> bool:
    """Whether averages over priors are available for a fit of this kind and size."""
    return applies_to(fit.model, fit.settings)


def applies_to(model: FlowModel, options: LikelihoodOptions) -> bool:
    """The same, before anything was fitted."""
    plain = (
        options.observation == "independent"
        and options.discretization == "continuous"
        and options.prior_strength == "evidence"
        and model.features is None
        and model.time_basis is None
        and model.fixed_potential is None
        and model.n_interactions == 0
        and not model.grows
        and model.fixed_initial is None
    )
    return plain and model.n_states <= MOST_STATES


def few_per_state(counts: Array | sparse.csr_array) -> bool:
    """Whether individuals are few for the number of states.

    >>> few_per_state(np.full((4, 10), 12)), few_per_state(np.full((4, 10), 13))
    (True, False)
    """
    return float(counts.sum()) < FEW_PER_STATE * counts.shape[1]


def is_few(fit: LikelihoodFit) -> bool:
    """Whether the data leave so much open that one set of parameters would mislead.

    True where the data alone do not determine nearly every direction of the potential, or the size
    of beta, or where the search found no clear optimum.
    """
    if fit.status is not Status.CONVERGED:
        return True
    n = fit.model.n_states
    # Constants are never determined and never matter: they are left out of the share.
    strength = fit.prior.updated(fit.theta, fit.information)
    share = fit.prior.with_strength(strength).determined(fit.information) * n / (n - 1)
    if share <= DATA_DECIDE:
        return True
    if np.median(fit.potential_stderr) > VAGUE * fit.beta:
        return True
    return fit.model.learns_beta and not fit.log_beta_stderr <= SURE_BETA
