"""Learning free energies from snapshots: the estimator, and the methods behind it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thalweg.learn.between import interpolate
    from thalweg.learn.crossval import CrossValidation, OnSnapshots, cross_validate, time_splits
    from thalweg.learn.regressor import FreeEnergyRegressor, load
    from thalweg.learn.time_basis import TimeBasis
    from thalweg.learn.verdict import BetaVerdict
    from thalweg.learn.weak.fit import WeakFit, fit_weak
    from thalweg.learn.weak.options import WeakOptions

__all__ = [
    "BetaVerdict",
    "CrossValidation",
    "FreeEnergyRegressor",
    "OnSnapshots",
    "TimeBasis",
    "WeakFit",
    "WeakOptions",
    "cross_validate",
    "fit_weak",
    "interpolate",
    "load",
    "time_splits",
]

_HOME_OF = {
    "interpolate": "thalweg.learn.between",
    "CrossValidation": "thalweg.learn.crossval",
    "OnSnapshots": "thalweg.learn.crossval",
    "cross_validate": "thalweg.learn.crossval",
    "time_splits": "thalweg.learn.crossval",
    "BetaVerdict": "thalweg.learn.verdict",
    "FreeEnergyRegressor": "thalweg.learn.regressor",
    "load": "thalweg.learn.regressor",
    "TimeBasis": "thalweg.learn.time_basis",
    "WeakFit": "thalweg.learn.weak.fit",
    "fit_weak": "thalweg.learn.weak.fit",
    "WeakOptions": "thalweg.learn.weak.options",
}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'thalweg.learn' has no attribute {name!r}")
    return getattr(import_module(home), name)
