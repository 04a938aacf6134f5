"""Interventions: a fitted model with a changed landscape, without some edges or states, or with
another noise.

Removing an edge has two meanings, chosen by `rates`:

`"keep"` (the default). Individuals that would have used the edge stay: all other jump rates, and
the kernel's stationary distribution, are kept.
`"renormalise"`. Individuals choose among the remaining edges: rows of the kernel are divided by
their new sums, so the other rates of the edge's two ends grow, and the stationary distribution
changes. This is the kernel built from the remaining weights.

The same holds for removed states. Their individuals are taken out of the population.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.base import clone

from thalweg import _checks
from thalweg._types import Array, Index
from thalweg.dynamics.landscape import as_states, is_one
from thalweg.edges.static import degrees
from thalweg.energy import FreeEnergy
from thalweg.errors import InputError
from thalweg.kernel import Edges, MarkovKernel
from thalweg.learn.answer import Fitted
from thalweg.learn.few.mixture import Mixture
from thalweg.learn.regressor import FreeEnergyRegressor

RatesAfter = Literal["keep", "renormalise"]


def perturb(
    model: FreeEnergyRegressor,
    *,
    potential: ArrayLike | Mapping[Any, float] | None = None,
    beta: float | None = None,
    remove_edges: Iterable[tuple[Any, Any]] = (),
    remove_states: Any = (),
    rates: RatesAfter = "keep",
) -> FreeEnergyRegressor:
    """The model after an intervention, which forecasts with bands like the original.

    Parameters
    ----------
    model : FreeEnergyRegressor
        A fitted model.
    potential : array or mapping, optional
        Added to the potential: one number per state, or `{state: number}`.
    beta : float, optional
        Another noise, taken as known; by default the fitted one, with its error.
    remove_edges : pairs of states
        By number or by name.
    remove_states : state or states
        By number or by name. The states that are left are renumbered in their old order.
    rates : {"keep", "renormalise"}
        What happens to the other rates; see `thalweg.dynamics.whatif`.

    >>> from thalweg import Snapshots
    >>> kernel = MarkovKernel.from_weights([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    >>> seen = Snapshots.from_counts([0.0, 1.0, 2.0], [[80, 10, 10], [50, 25, 25], [40, 30, 30]])
    >>> model = FreeEnergyRegressor().fit(kernel, seen)
    >>> cut = perturb(model, remove_edges=[(0, 2)])
    >>> cut.kernel_.n_edges, cut.forecast([0.0, 1.0]).lower.shape
    (2, (2, 3))
    """
    fit, kernel = model._fit, model.kernel_
    change = _added(kernel, potential)
    graph, kept = without(
        kernel, remove_edges=remove_edges, remove_states=remove_states, rates=rates
    )
    energy, potentials = fit.energy, _centred((fit.potentials + change)[:, kept], graph)
    interaction = energy.interaction
    if interaction is not None:
        interaction = interaction[kept][:, kept]
    v = _centred((energy.potential + change)[kept], graph)
    noise = energy.beta if beta is None else _checks.positive(beta, "beta", zero=True)
    initial = fit.initial[kept]
    if initial.sum() <= 0:
        raise InputError(
            "the whole population at the first time is in the removed states; nothing is left to "
            "forecast."
        )
    covariance, draws = _uncertainty(fit, graph, kept, known_beta=beta is not None, beta=noise)
    if draws is not None:
        draws[:, : kept.size] += v
    stderr = fit.potential_stderr[kept]
    if covariance is not None:
        stderr = np.sqrt(np.maximum(np.diag(covariance)[: kept.size], 0.0))
    changed = Fitted(
        energy=FreeEnergy(v, noise, interaction, energy.internal),
        initial=initial / initial.sum(),
        times=fit.times,
        status=fit.status,
        potential_stderr=stderr,
        beta_stderr=fit.beta_stderr if beta is None else 0.0,
        visits=fit.visits[kept],
        potentials=potentials,
        joint_covariance=covariance,
        draws=draws,
        members=_perturbed_members(fit.members, graph, kept, change, beta),
        summary={**fit.summary, "perturbed": "yes"},
    )
    return clone(model)._adopt(graph, changed)


def _perturbed_members(
    members: Mixture | None, graph: MarkovKernel, kept: Index, change: Array, beta: float | None
) -> Mixture | None:
    """The same intervention on every landscape that forecasts are averaged over."""
    if members is None:
        return None
    initials = members.initials[:, kept]
    return Mixture(
        members.weights,
        _centred((members.potentials + change)[:, kept], graph),
        members.betas if beta is None else np.full(members.size, beta),
        initials / initials.sum(axis=1, keepdims=True),
    )


def _centred(v: Array, graph: MarkovKernel) -> Array:
    """Potentials, one per row, of mean zero."""
    return np.asarray(v - (v @ graph.stationary)[..., None])


def _added(kernel: MarkovKernel, potential: ArrayLike | Mapping[Any, float] | None) -> Array:
    change = np.zeros(kernel.n_states)
    if isinstance(potential, Mapping):
        for state, amount in potential.items():
            value = float(_checks.as_array(amount, f"potential of {state!r}"))
            change[as_states(kernel, state, "potential")] += value
    elif potential is not None:
        change += _checks.as_vector(potential, kernel.n_states, "potential")
    return change


def without(
    kernel: MarkovKernel,
    *,
    remove_edges: Iterable[tuple[Any, Any]] = (),
    remove_states: Any = (),
    rates: RatesAfter = "keep",
) -> tuple[MarkovKernel, Index]:
    """The kernel without these edges and states, and the old numbers of the states that are left.

    The parameters are those of `perturb`.

    >>> kernel = MarkovKernel.from_weights([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    >>> without(kernel, remove_edges=[(0, 2)])[0].matrix.toarray()
    array([[0.5, 0.5, 0. ],
           [0.5, 0. , 0.5],
           [0. , 0.5, 0.5]])
    >>> without(kernel, remove_edges=[(0, 2)], rates="renormalise")[0].matrix.toarray()
    array([[0. , 1. , 0. ],
           [0.5, 0. , 0.5],
           [0. , 1. , 0. ]])
    """
    _checks.word(rates, "rates", RatesAfter)
    n = kernel.n_states
    source: Index = kernel.edges.source.astype(np.int64)
    target: Index = kernel.edges.target.astype(np.int64)
    c: Array = kernel.edges.conductance
    keep_edge = np.ones(c.size, dtype=np.bool_)
    place = {pair: e for e, pair in enumerate(zip(source.tolist(), target.tolist(), strict=True))}
    for pair in remove_edges:
        if len(pair) != 2:
            raise InputError(f"remove_edges has {pair!r}; give pairs of states.")
        x, y = (int(as_states(kernel, end, "remove_edges")[0]) for end in pair)
        e = place.get((min(x, y), max(x, y)))
        if e is None:
            raise InputError(
                f"there is no edge between {pair[0]!r} and {pair[1]!r}; only existing edges can be "
                "removed."
            )
        keep_edge[e] = False
    gone = np.zeros(n, dtype=np.bool_)
    removed = [remove_states] if is_one(remove_states) else list(remove_states)
    if removed:
        gone[as_states(kernel, removed, "remove_states")] = True
    kept = np.flatnonzero(~gone)
    if kept.size < 2:
        raise InputError(f"{kept.size} states would be left; keep at least two.")
    keep_edge &= ~gone[source] & ~gone[target]
    source, target, c = source[keep_edge], target[keep_edge], c[keep_edge]
    new = np.cumsum(~gone) - 1
    source, target = new[source], new[target]
    graph = sparse.coo_array((c, (source, target)), shape=(kept.size, kept.size))
    count, label = connected_components(graph, directed=False)
    if count > 1:
        sizes = np.bincount(label)
        largest = ", ".join(map(str, sorted(sizes, reverse=True)[:5]))
        name = kernel.labels[int(kept[label != np.argmax(sizes)][0])]
        raise InputError(
            f"without these the graph falls into {count} pieces of sizes {largest} (state "
            f"{name!r} is cut off); keep an edge between them, or remove the cut-off states too."
        )
    pi = kernel.stationary[kept]
    if rates == "renormalise":
        leaving = degrees(*kernel.edges, n)
        stay = np.maximum(kernel.stationary - leaving, 0.0)[kept]
        pi = stay + degrees(source, target, c, kept.size)
    total = float(pi.sum())
    edges = Edges(source.astype(np.int32), target.astype(np.int32), np.ascontiguousarray(c / total))
    names = None if kernel.names is None else tuple(kernel.names[int(x)] for x in kept)
    where = None if kernel.coordinates is None else kernel.coordinates[kept]
    return MarkovKernel(pi / total, edges, coordinates=where, names=names), kept


def _uncertainty(
    fit: Fitted, graph: MarkovKernel, kept: Index, *, known_beta: bool, beta: float
) -> tuple[Array | None, Array | None]:
    """Covariance of (centred potential, beta, log initial), and draws about zero and beta."""
    n, m = fit.energy.n_states, kept.size
    centring = np.eye(m) - graph.stationary if m <= 4000 else None
    covariance = None
    if fit.joint_covariance is not None and centring is not None:
        start = fit.initial[kept] / fit.initial[kept].sum()
        linear = np.zeros((2 * m + 1, 2 * n + 1))
        linear[:m, kept] = centring
        linear[m, n] = 0.0 if known_beta else 1.0
        linear[np.ix_(np.arange(m + 1, 2 * m + 1), n + 1 + kept)] = np.eye(m) - start
        covariance = np.asarray(linear @ fit.joint_covariance @ linear.T)
    draws = None
    if fit.draws is not None:
        shift = _centred((fit.draws[:, :n] - fit.energy.potential)[:, kept], graph)
        noise = np.full(len(shift), beta) if known_beta else fit.draws[:, n]
        draws = np.column_stack([shift, noise])
    return covariance, draws
