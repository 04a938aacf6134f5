"""What public functions share: `checked` arguments, and `single_threaded` linear algebra.

`checked` reads the types that the signature names. Numbers, whole numbers, flags, words and
tolerances are checked before the call, since a wrong one may cause much work before it fails, or
not fail at all. Arguments of other types have their own checks; if one slips through and the call
fails, the first argument of a wrong type is named instead of a traceback.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import ThreadpoolController

from thalweg.errors import InputError, ThalwegError

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

_LARGEST = 2**63 - 1
"""Largest whole number that arrays can hold."""
_WORDS: dict[Any, str] = {
    float: "a number",
    int: "a whole number",
    bool: "True or False",
    str: "text",
    Path: "a path",
    None: "None",
}
_SLIPPED = (TypeError, AttributeError, ValueError, KeyError, IndexError)


def checked(function: F) -> F:
    """`function` with arguments checked: one of the wrong type is rejected in one sentence.

    >>> @checked
    ... def share(part: float, *, tolerance: float = 1e-8) -> float:
    ...     return part
    >>> share("x")
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: part is 'x'; it must be a number.
    >>> share(1.0, tolerance=0.0)
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: tolerance is 0; it must be positive and finite.
    """

    @wraps(function)
    def checking(*arguments: Any, **options: Any) -> Any:
        bound = list(_bound(function, arguments, options))
        for name, value, hint in bound:
            _check(name, value, hint)
        try:
            return function(*arguments, **options)
        except ThalwegError:
            raise
        except _SLIPPED:
            for name, value, hint in bound:
                _refuse(name, value, hint, plain=False)
            raise

    return checking  # type: ignore[return-value]


def single_threaded(function: Callable[P, R]) -> Callable[P, R]:
    """`function` with BLAS limited to one thread: on small matrices several wait for each other.

    It belongs on entry points, not on inner loops.
    """

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _controller().limit(limits=1):
            return function(*args, **kwargs)

    return limited


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def check_kinds(function: Callable[..., Any], values: dict[str, Any]) -> None:
    """Reject values that do not have the types in the signature of `function`."""
    for name, hint in _hints(function).items():
        if name in values:
            _check(name, values[name], hint)
            _refuse(name, values[name], hint, plain=False)


def named(kind: Callable[..., R], options: dict[str, Any]) -> R:
    """The value of this kind with the given options, of which an unknown one is rejected.

    >>> from thalweg.diffusion.sampling import Sampling
    >>> named(Sampling, {"n_step": 5})
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: there is no option 'n_step'; did you mean 'n_steps'?
    """
    from thalweg._words import did_you_mean  # which a first distance does not need

    known = signature(kind).parameters
    for name in options:
        if name not in known:
            raise InputError(f"there is no option {name!r}{did_you_mean(name, known)}")
    check_kinds(kind, options)
    return kind(**options)


def _bound(
    function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    hints = _hints(function)
    for (name, hint), value in zip(hints.items(), arguments, strict=False):
        yield name, value, hint
    for name, value in options.items():
        if name in hints:
            yield name, value, hints[name]


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The type of each argument in order; `Any` if its name is not known at run time."""
    found: dict[str, Any] = {}
    for name, parameter in signature(function).parameters.items():
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            break
        hint = parameter.annotation
        if isinstance(hint, str):
            try:
                hint = eval(hint, getattr(function, "__globals__", {}))
            except (NameError, TypeError, AttributeError):
                hint = Any
        found[name] = Any if hint is Parameter.empty else hint
    return found


def _check(name: str, value: Any, hint: Any) -> None:
    _refuse(name, value, hint, plain=True)
    if name.endswith("tolerance") and isinstance(value, Real) and not 0 < float(value) < np.inf:
        raise InputError(f"{name} is {value:g}; it must be positive and finite.")


def _refuse(name: str, value: Any, hint: Any, *, plain: bool) -> None:
    """Raise if `value` has another type; with `plain`, only if all alternatives are plain types."""
    kinds = list(_kinds(hint))
    if plain and not all(kind in _WORDS or get_origin(kind) is Literal for kind in kinds):
        return
    if any(_fits(value, kind) for kind in kinds):
        return
    words_asked = any(get_origin(kind) is Literal for kind in kinds)
    if words_asked and isinstance(value, str):
        return  # Functions name the words they know.
    plainly = value is None or isinstance(value, str | bytes | Real)
    shown = repr(value)[:60] if plainly else _a(type(value).__name__)
    if isinstance(value, type):
        shown = f"the class {value.__name__}"
    if isinstance(value, Integral) and abs(int(value)) > _LARGEST:
        raise InputError(f"{name} is {float(value):.3g}, too large for a number here.")
    if isinstance(value, list | tuple) and any(get_origin(kind) is Sequence for kind in kinds):
        shown = f"{value!r:.60}"
    if set(kinds) >= _ARRAY_KINDS:
        kinds = [np.ndarray, *(kind for kind in kinds if kind not in _ARRAY_KINDS)]
    words = " or ".join(dict.fromkeys(_word(kind) for kind in kinds))
    raise InputError(f"{name} is {shown}; it must be {words}.")


def _kinds(hint: Any) -> Iterator[Any]:
    """The alternatives of a hint."""
    if get_origin(hint) in (Union, types.UnionType):
        for part in get_args(hint):
            yield from _kinds(part)
    else:
        yield None if hint is type(None) else hint


_ARRAY_KINDS = frozenset(_kinds(ArrayLike))


def _fits(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    if kind is int:
        return isinstance(value, Integral) and abs(int(value)) <= _LARGEST
    if kind is float:
        large = isinstance(value, Integral) and abs(int(value)) > _LARGEST
        return isinstance(value, Real) and not large
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if get_origin(kind) is Sequence:  # Arrays and indices will do.
        names = get_args(kind) == (Hashable,)
        return hasattr(value, "__iter__") and (
            not names or all(isinstance(name, Hashable) for name in value)
        )
    kind = get_origin(kind) or kind
    if kind is Callable or (isinstance(kind, type) and kind.__name__ == "Callable"):
        return callable(value)
    try:
        return isinstance(value, kind)
    except TypeError:  # A hint without a run-time check, such as ArrayLike or a protocol.
        return True


def _word(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    if get_origin(kind) is Literal:
        return " or ".join(repr(word) for word in get_args(kind))
    name = getattr(get_origin(kind) or kind, "__name__", str(kind))
    if get_args(kind) == (Hashable,):
        return "a list of text, numbers or tuples"
    return {"Callable": "a function", "Sequence": "a list", "ndarray": "an array of numbers"}.get(
        name, _a(name)
    )


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "aeioAEIO" else f"a {name}"
