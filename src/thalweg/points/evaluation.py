"""Leave-one-time-out: the distance of each method and baseline to a snapshot it never saw."""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._door import checked, named
from thalweg._optional import data_frame
from thalweg._parallel import parallel_map
from thalweg._types import Array
from thalweg.errors import InputError, ThalwegError
from thalweg.points.baselines import BASELINES, FORECAST_BASELINES, even
from thalweg.points.coupling import mean_error, wasserstein1
from thalweg.points.interpolation import PointInterpolator
from thalweg.points.methods import FORECASTS, METHODS
from thalweg.snapshots import PointSnapshots, WeightedPoints, hellinger
from thalweg.snapshots.clouds import assign

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BASELINES", "FORECAST_BASELINES", "leave_one_time_out"]


@checked
def leave_one_time_out(
    times: ArrayLike,
    points: Iterable[ArrayLike],
    *,
    methods: Sequence[str] = ("auto", *METHODS),
    baselines: Sequence[str] = tuple(BASELINES),
    left_out: Sequence[int] | None = None,
    most: int | None = None,
    jobs: int | None = 1,
    **options: Any,
) -> pd.DataFrame:
    """One row per left-out time and method: exact W1 on points, Hellinger on states, seconds.

    States, kernel, bandwidth, couplings and the choice of `"auto"` come from the other times alone;
    the left-out points are only counted on those states for the comparison. `mean_error` is the
    distance of the means, a lower bound on W1. A method that fails keeps its row, with the reason.

    Parameters
    ----------
    times : array
        At least three, increasing.
    points : iterable of arrays
        One cloud per time, one row per point.
    methods, baselines : sequence of str
        Names of the methods and of the baselines to compare.
    left_out : sequence of int, optional
        Positions to leave out; by default the inner times. The last position is forecast.
    most : int, optional
        Number of points to which clouds are thinned for W1, which is exact up to thousands.
    jobs : int, optional
        Number of worker processes; -1 uses all cores.
    **options
        Of `PointInterpolator`: `n_states`, `n_partitions`, `seed` and others.

    >>> rng = np.random.default_rng(0)
    >>> clouds = [rng.normal([t, 0], 0.3, size=(50, 2)) for t in (0, 1, 2)]
    >>> table = leave_one_time_out([0, 1, 2], clouds, methods=["flow"], n_states=10,
    ...     n_partitions=1, baselines=["mixture of neighbours"])
    >>> table["method"].tolist(), bool((table["w1"] > 0).all())
    (['flow', 'mixture of neighbours'], True)
    """
    t = _checks.as_times(times, minimum=3)
    clouds = [_checks.as_array(x, f"points[{k}]") for k, x in enumerate(points)]
    every = ("auto", *METHODS, *FORECASTS)
    for kind, given, names in (("method", methods, every), ("baseline", baselines, BASELINES)):
        for name in given:
            if name not in names:
                choices = ", ".join(dict.fromkeys(names))
                raise InputError(f"there is no {kind} {name!r}; choose {choices}.")
    places = list(range(1, t.size - 1)) if left_out is None else [int(k) for k in left_out]
    for k in places:
        if not 1 <= k < t.size:
            raise InputError(
                f"position {k} cannot be left out; use 1 to {t.size - 1} (the first snapshot has "
                "nothing before it)."
            )
    named(PointInterpolator, options)
    work = [(t, clouds, k, tuple(methods), tuple(baselines), most, options) for k in places]
    rows = parallel_map(_one_time, work, jobs=jobs)
    frame: pd.DataFrame = data_frame([row for some in rows for row in some])
    return frame


def _one_time(
    t: Array, clouds: list[Array], k: int, methods: tuple[str, ...], baselines: tuple[str, ...],
    most: int | None, options: dict[str, Any],
) -> list[dict[str, Any]]:  # fmt: skip
    """The rows of one left-out time."""
    time, last, started = float(t[k]), k == t.size - 1, clock.perf_counter()
    model = PointInterpolator(**options).fit(np.delete(t, k), clouds[:k] + clouds[k + 1 :])
    setup = clock.perf_counter() - started
    seen, truth = model.partitions_[0], even(clouds[k])
    rows: list[dict[str, Any]] = []
    allowed = ("auto", *(FORECASTS if last else METHODS))
    names = [(m, "model") for m in methods if m in allowed]
    names += [(b, "baseline") for b in baselines if not last or b in FORECAST_BASELINES]
    for name, kind in names:
        rng = np.random.default_rng([model.seed, 3, k])
        began, row = clock.perf_counter(), {"time": time, "method": name, "kind": kind}
        chosen, why = name, ""
        try:
            if kind == "baseline":
                cloud = BASELINES[name](seen, time, rng)
            else:
                ask = model.forecast if last else model.interpolate
                guess = ask(time, method=name)  # type: ignore[arg-type]
                cloud, chosen, why = guess.points, guess.method, guess.why
        except ThalwegError as error:
            rows.append({**row, "why": str(error)})
            continue
        seconds = clock.perf_counter() - began + (setup if kind == "model" else 0.0)
        rows.append({
            **row, "chosen": chosen, "w1": wasserstein1(cloud, truth, most=most, rng=rng),
            "hellinger": float(hellinger(_on_states(seen, cloud), _on_states(seen, truth))),
            "mean_error": mean_error(cloud, truth), "seconds": seconds, "why": why,
        })  # fmt: skip
    return rows


def _on_states(seen: PointSnapshots, cloud: WeightedPoints) -> Array:
    assert seen.kernel.coordinates is not None
    (labels,) = assign(seen.kernel.coordinates, [cloud.points])
    p = np.bincount(labels, weights=cloud.weights, minlength=seen.n_states)
    return np.asarray(p / p.sum())
