"""`fit_likelihood`: the free energy under which the counts are most likely."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import single_threaded
from thalweg._types import Array
from thalweg.kernel import MarkovKernel
from thalweg.learn.likelihood.model import FlowModel
from thalweg.learn.likelihood.options import LikelihoodOptions
from thalweg.learn.likelihood.result import LikelihoodFit
from thalweg.learn.likelihood.stages import Seed, Stages
from thalweg.learn.likelihood.tracked import PSEUDO_COUNT
from thalweg.snapshots.density import smoothed
from thalweg.status import Status


@single_threaded
def fit_likelihood(
    kernel: MarkovKernel,
    times: ArrayLike,
    counts: ArrayLike,
    *,
    options: LikelihoodOptions | None = None,
) -> LikelihoodFit:
    """The free energy and the initial distribution that make the counts most likely.

    `counts[k, x]`: individuals seen in state `x` at `times[k]`. The flow of the energy is computed
    with exact derivatives, started from the weak form, and improved by Marquardt's method; see
    `LikelihoodOptions` for observation models, known parts and further terms.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> counts = [[800, 150, 50], [600, 290, 110], [470, 370, 160], [400, 410, 190]]
    >>> fit = fit_likelihood(kernel, [0.0, 0.5, 1.0, 1.5], counts)
    >>> fit.status.name, bool(fit.beta > 0), fit.probabilities.shape
    ('CONVERGED', True, (4, 3))
    """
    options = LikelihoodOptions() if options is None else options
    grid = _checks.as_times(times, minimum=2)
    table = _checks.as_counts(counts, grid, kernel.n_states)
    model = options.model(kernel, grid)
    if options.observation == "tracked":
        if options.environment == "empirical" and options.initial is None:
            model = replace(model, fixed_initial=smoothed(table[0], PSEUDO_COUNT))
    if model.n_growth and options.observation != "tracked":
        return _with_growth(model, table, options)
    return Stages(model, table, options).run()


def _with_growth(model: FlowModel, counts: Array, options: LikelihoodOptions) -> LikelihoodFit:
    """Transport alone first; growth starts from there, so it never fits worse."""
    alone = replace(model, growth_features=None)
    transport = Stages(alone, counts, replace(options, growth=None), brief=True).run()
    if transport.status is Status.INTERRUPTED:
        return transport
    theta = np.insert(transport.theta, model.growth_slice.start, np.zeros(model.n_growth))
    # Sizes are those of the fit: the weak form's, far too large on few counts, would leave the
    # rates without a prior, and the search would follow them to infinity.
    spread = float(np.sqrt(model.kernel.stationary @ transport.potential**2))
    seed = Seed(theta, transport.beta, max(spread + transport.beta, 0.1 / model.span))
    search = Stages(model, counts, options, brief=True, seed=seed)
    fit = search.run()
    before = fit.noise.deviance(counts, transport.probabilities)
    if fit.noise.deviance(counts, fit.probabilities) > before and options.growth is not None:
        if options.growth.totals is None and options.prior_strength == "evidence":
            same = replace(options, prior_strength=transport.prior.strength)
            search = Stages(model, counts, same, brief=True, seed=seed)
            fit = search.run()
    fit = replace(fit, transport=transport.probabilities)
    return search.shrunk(fit) if options.prior_strength == "evidence" else fit
