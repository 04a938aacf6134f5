"""How functions are compiled: the one place that decides about numba's cache and Python's lock.

Compiled code is kept on disk beside the sources, or in the user's cache folder. Where neither can
be written (an installation for all users, a service without a home), numba refuses to compile a
function that asks for its cache; it is then compiled in memory, again in each process. Compiled
code releases Python's lock, so that an interruption can be handled while it runs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event

try:
    from numba.core.codegen import JITCodeLibrary
    from numba.core.compiler import Compiler
    from numba.core.registry import CPUDispatcher
except ImportError:  # in a version of numba that was not tried
    JITCodeLibrary = Compiler = CPUDispatcher = object


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with these options, without its cache if there is nowhere to keep it.

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


class _NoCollection(event.Listener):  # type: ignore[misc]
    """No garbage collection while numba compiles: little of what it makes is garbage."""

    def __init__(self) -> None:
        self.depth, self.paused = 0, False

    def on_start(self, event: object) -> None:
        self.depth += 1
        if self.depth == 1 and gc.isenabled():
            self.paused = True
            gc.disable()

    def on_end(self, event: object) -> None:
        self.depth -= 1
        if self.depth == 0 and self.paused:
            self.paused = False
            gc.enable()


# Compilations hold numba's lock: one at a time.
event.register("numba:compile", _NoCollection())


_TRIED = tuple(numba.version_info[:2]) == (0, 68)
"""Whether numba is the version whose inner workings `_Part` is written for.

With another one, functions that only compiled ones call are compiled as all others are.
"""


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function that is never called from Python, only linked into others.

    LLVM optimises everything that a function calls when it compiles that function: optimising the
    parts beforehand, and making machine code of them, is wasted.
    """

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    @property
    def codegen(self) -> _Part:
        return self

    def set_env(self, name: str, environment: object) -> None:
        """Nothing: the function has no address where its environment could be put."""

    def serialize_using_object_code(self) -> Any:
        return self.serialize_using_bitcode()


class _PartCompiler(Compiler):  # type: ignore[misc]
    """Numba's compiler, into a `_Part`."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        self.state.library = _Part(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class _Inner(CPUDispatcher):  # type: ignore[misc]
    """A function without a wrapper for Python, which would crash if Python called it."""

    def __call__(self, *_: object, **__: object) -> Any:
        raise TypeError(f"{self.py_func.__name__} can be called from compiled functions only.")


def inner(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`njit` for functions that only compiled ones call, which leaves less to compile.

    >>> @inner()
    ... def half(x):
    ...     return 0.5 * x
    >>> @njit()
    ... def quarter(x):
    ...     return half(half(x))
    >>> quarter(3.0)
    0.75
    """
    if not _TRIED:
        return njit(**options)

    def compiled(function: Callable[..., Any]) -> Any:
        found = njit(no_cpython_wrapper=True, pipeline_class=_PartCompiler, **options)(function)
        if isinstance(found, CPUDispatcher):
            found.__class__ = _Inner
        return found

    return compiled
