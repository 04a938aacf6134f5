"""Optional packages: a missing one is named, together with how to install it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from thalweg.errors import MissingDependencyError


def optional(module: str, *, extra: str, what: str) -> Any:
    """Import `module`, or name the extra of thalweg that installs it.

    Parameters
    ----------
    module : str
        Name of the module, with dots.
    extra : str
        The extra of thalweg that installs it.
    what : str
        What needs it, as the subject of a sentence.

    >>> optional("math", extra="cli", what="this example").sqrt(4.0)
    2.0
    >>> optional("no_such_package", extra="cli", what="this example")
    Traceback (most recent call last):
        ...
    thalweg.errors.MissingDependencyError: this example needs no_such_package; install it with pip
    install 'thalweg[cli]'.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingDependencyError(
            f"{what} needs {package}; install it with pip install 'thalweg[{extra}]'."
        ) from None


def data_frame(data: Any, **options: Any) -> Any:
    """A data frame of pandas, which comes with an extra."""
    return optional("pandas", extra="cli", what="a data frame").DataFrame(data, **options)
