"""`thalweg steer`: the cheapest way to bring a population to a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from thalweg._types import Array
from thalweg.cli.fates import named_sets
from thalweg.cli.forecast import announced, last_snapshot
from thalweg.cli.options import Output
from thalweg.cli.output import give, number, say, state_labels
from thalweg.dynamics import push_few, steer
from thalweg.errors import InputError
from thalweg.learn import FreeEnergyRegressor
from thalweg.report.findings import WITHOUT_BIRTHS


def run_steer(
    model_file: Path, horizon: float, *, target: Path | None, wish: str | None, few: int | None,
    start: Path | None, output: Output,
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
    model, cautions = announced(model_file, output, growing=WITHOUT_BIRTHS)
    land, p0 = model.landscape_, _population(start, model)
    if few is not None:
        push = push_few(land, p0, _wish(str(wish)), horizon, most=few)
        frame, key, status = push.to_frame(), "push", push.status
        facts: dict[str, Any] = {"cost": push.cost, "reached": push.reached}
        said = f"The push costs {push.cost:.6g} and reaches a share of {push.reached:.4g}."
    else:
        if target is not None:
            plan = steer(land, p0, _population(target, model), horizon)
        else:
            plan = steer(land, p0, horizon=horizon, raise_mass=_wish(str(wish)))
        frame, key, status = plan.to_frame(), "plan", plan.status
        frame["state"] = np.tile(state_labels(model.kernel_), plan.times.size)
        facts = {
            "cost": float(plan.cost.value),
            "cost_stderr": number(float(plan.cost.stderr)),
            "lower_bound": plan.lower_bound,
            "missed": plan.missed,
        }
        said = str(plan)
    facts["cautions"] = cautions
    if not output.json:
        say(said, stderr=output.out is None)
    give(frame, output, key, facts, status)


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
