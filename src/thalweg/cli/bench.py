"""Where `thalweg bench` finds its benchmarks."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from thalweg.errors import MissingDependencyError


def benchmarks() -> ModuleType:
    """The package of benchmarks, which a clone installs beside the library."""
    try:
        return import_module("thalweg_bench.command")
    except ModuleNotFoundError as error:
        if error.name != "thalweg_bench":
            raise
        raise MissingDependencyError(
            "the benchmarks are not installed; in a clone of thalweg, run pip install ./benchmarks."
        ) from None
