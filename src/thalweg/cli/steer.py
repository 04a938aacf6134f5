"""`thalweg steer`: the cheapest way to bring a population to a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from thalweg._types import Array
from thalweg.cli.fates import named_sets
from thalweg.cli.forecast import last_snapshot
from thalweg.cli.output import finish, give, number, say, state_labels
from thalweg.dynamics import push_few, steer
from thalweg.errors import InputError
from thalweg.learn import FreeEnergyRegressor, load


def run_steer(
    model_file: Path, horizon: float, *, target: Path | None, wish: str | None, few: int | None,
    start: Path | None, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Plan from a saved model; write the potential to add, one row per time and state."""
    if (target is None) == (wish is None):
        raise InputError(
            "the target is not clear; give either --target FILE or --raise states=share, not both."
        )
    if few is not None and wish is None:
        raise InputError(
            "--few chooses the states to push for --raise; give --raise instead of --target."
        )
    model = load(model_file)
    kernel = model.kernel_
    p0 = _population(start, model)
    if few is not None:
        _few(model, p0, horizon, _wish(str(wish)), few, out, as_json)
        return
    if target is not None:
        plan = steer(model.landscape_, p0, _population(target, model), horizon)
    else:
        plan = steer(model.landscape_, p0, horizon=horizon, raise_mass=_wish(str(wish)))
    facts: dict[str, Any] = {
        "status": plan.status.name,
        "cost": float(plan.cost.value),
        "cost_stderr": number(float(plan.cost.stderr)),
        "lower_bound": plan.lower_bound,
        "missed": plan.missed,
    }
    if not as_json:
        say(str(plan), stderr=out is None)
    frame = plan.to_frame()
    frame["state"] = np.tile(state_labels(kernel), plan.times.size)
    give(frame, out, as_json, "plan", facts)
    finish(plan.status)


def _few(
    model: FreeEnergyRegressor,
    p0: Array,
    horizon: float,
    wish: tuple[list[str], float],
    most: int,
    out: Path | None,
    as_json: bool,
) -> None:
    plan = push_few(model.landscape_, p0, wish, horizon, most=most)
    facts = {"status": plan.status.name, "cost": plan.cost, "reached": plan.reached}
    if not as_json:
        say(f"cost {plan.cost:.6g}; {plan.reached:.4g} is reached.", stderr=out is None)
    give(plan.to_frame(), out, as_json, "push", facts)
    finish(plan.status)


def _wish(text: str) -> tuple[list[str], float]:
    """States and a share from `a,b=0.6`."""
    states, equals, share = text.rpartition("=")
    try:
        value = float(share)
    except ValueError:
        equals = ""
    if not equals:
        raise InputError(f"--raise is {text!r}; write it as state,state=share, like a,b=0.6.")
    return next(iter(named_sets([states]).values())), value


def _population(file: Path | None, model: FreeEnergyRegressor) -> Array:
    """The last snapshot of a file; without one, the model's population at its last time."""
    if file is None:
        return model.population(float(model.times_[-1]))
    return last_snapshot(file, model.kernel_)[0]
