"""How functions are compiled: the one place that decides about numba's cache and Python's lock.

Compiled code is kept on disk beside the sources, or in the user's cache folder. Where neither can
be written (an installation for all users, a service without a home), numba refuses to compile a
function that asks for its cache; it is then compiled in memory, anew in each process. Compiled
code releases Python's lock, so that an interruption can be answered while it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.registry import CPUDispatcher

__all__ = ["inner", "njit"]


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with these options; its cache is dropped where there is nowhere to keep it.

    >>> @njit(cache=True)
    ... def twice(x):
    ...     return 2 * x
    >>> twice(3.0)
    6.0
    """
    options.setdefault("nogil", True)
    # Nothing here is handed to C as a callback; the wrapper for that is a third of a small
    # function's compilation.
    options.setdefault("no_cfunc_wrapper", True)

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(**options)(function)
        except RuntimeError as error:
            if not options.get("cache") or "cannot cache" not in str(error):
                raise
        return numba.njit(**{**options, "cache": False})(function)

    return compiled


class _Inner(CPUDispatcher):  # type: ignore[misc]
    """A function without a wrapper for Python, which would crash if Python called it."""

    def __call__(self, *_: object, **__: object) -> Any:
        raise TypeError(f"{self.py_func.__name__} can be called from compiled functions only.")


def inner(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`njit` for functions that only compiled ones call: a fifth less to compile.

    >>> @inner()
    ... def half(x):
    ...     return 0.5 * x
    >>> half(3.0)
    Traceback (most recent call last):
    ...
    TypeError: half can be called from compiled functions only.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        found = njit(no_cpython_wrapper=True, **options)(function)
        if isinstance(found, CPUDispatcher):
            found.__class__ = _Inner
        return found

    return compiled
