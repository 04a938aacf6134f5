"""One BLAS thread inside the solvers: on small matrices more threads only wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

__all__ = ["single_threaded"]

P = ParamSpec("P")
R = TypeVar("R")


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def single_threaded(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with BLAS limited to one thread; put it on entry points, not inner loops."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _controller().limit(limits=1):
            return function(*args, **kwargs)

    return limited
