"""Checks at the door: everything behind them trusts its arguments.

Each check returns the argument as a fresh float64 array of the right shape, or raises `InputError`
with one sentence that names the number, the place and the remedy.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.errors import InputError

SUM_TOLERANCE = 1e-8
"""Largest error of the sum of a probability."""


def as_array(values: ArrayLike | Any, name: str) -> NDArray[np.float64]:
    """`values` as a float64 array with no NaN and no infinity."""
    try:
        _check_plain(values, name)
        array = np.array(values, dtype=np.float64)
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be an array of numbers ({error}).") from None
    if not np.all(np.isfinite(array)):
        place = np.argwhere(~np.isfinite(array))[0]
        where = ", ".join(str(int(i)) for i in place)
        raise InputError(
            f"{name} is {array[tuple(place)]} at position {where or 0}; "
            "every entry must be a finite number: remove or impute it."
        )
    return array


def _check_plain(values: Any, name: str) -> None:
    """Reject what numpy would turn into float64 with a loss, or by guessing."""
    pieces = values if isinstance(values, list | tuple) else (values,)
    if any(isinstance(piece, np.ma.MaskedArray) and np.ma.is_masked(piece) for piece in pieces):
        raise InputError(
            f"{name} is a masked array with masked entries; fill them (values.filled(0)) or leave "
            "them out."
        )
    found = np.asarray(values)
    if found.dtype.kind == "O":
        kinds = {type(value) for value in found.ravel()}
        texts = any(issubclass(kind, str | bytes) for kind in kinds)
        imaginary = any(issubclass(kind, complex | np.complexfloating) for kind in kinds)
    else:
        texts, imaginary = found.dtype.kind in "USTa", found.dtype.kind == "c"
    if imaginary:
        raise InputError(f"{name} holds complex numbers; take the real part if that is meant.")
    if texts:
        raise InputError(f"{name} holds text, not numbers; convert it, for instance with float().")
    if found.dtype.kind in "mM":
        raise InputError(
            f"{name} holds dates or durations; give numbers (Snapshots.from_counts takes dates, "
            "and a model that was fitted to dates takes them in predict)."
        )


def as_vector(values: ArrayLike, n_states: int, name: str) -> NDArray[np.float64]:
    """`values` as a finite float64 vector with one entry per state."""
    array = as_array(values, name)
    if array.shape != (n_states,):
        raise InputError(
            f"{name} has shape {array.shape}, but the kernel has {n_states} states: "
            f"give one number per state, shape ({n_states},)."
        )
    return array


def as_probability(values: ArrayLike, n_states: int, name: str = "p") -> NDArray[np.float64]:
    """`values` as a probability vector: non-negative, sum one (rounding errors are divided out).

    >>> as_probability([1, 3], 2)
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: p sums to 4, not 1; divide it by its sum.
    """
    array = as_vector(values, n_states, name)
    _check_mass(array, name)
    return array / array.sum()


def as_probabilities(values: ArrayLike, n_states: int, name: str = "ps") -> NDArray[np.float64]:
    """`values` as an array of probability vectors, one per row."""
    array = as_array(values, name)
    if array.ndim != 2 or array.shape[1] != n_states:
        raise InputError(
            f"{name} has shape {array.shape}, but the kernel has {n_states} states: "
            f"give one distribution per row, shape (number of distributions, {n_states})."
        )
    sums = array.sum(axis=1)
    wrong = (array.min(axis=1) < 0) | (np.abs(sums - 1) > SUM_TOLERANCE)
    for k in np.flatnonzero(wrong):
        _check_mass(array[k], f"{name}[{k}]")
    return np.asarray(array / sums[:, None])


def _check_mass(array: NDArray[np.float64], name: str) -> None:
    worst = int(np.argmin(array))
    if array[worst] < 0:
        raise InputError(
            f"{name} is {array[worst]:.6g} at state {worst}; a probability cannot be negative: "
            "clip it at zero and divide by the sum."
        )
    total = float(array.sum())
    if abs(total - 1) > SUM_TOLERANCE:
        raise InputError(f"{name} sums to {total:.10g}, not 1; divide it by its sum.")


def as_times(values: ArrayLike, name: str = "times", minimum: int = 1) -> NDArray[np.float64]:
    """`values` as strictly increasing times.

    >>> as_times([0, 2, 1])
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: times[2] = 1 comes after times[1] = 2; sort the times in
    increasing order.
    """
    array = as_array(values, name)
    if array.ndim != 1 or array.size < minimum:
        raise InputError(
            f"{name} must be a list of at least {minimum} increasing number"
            f"{'s' if minimum > 1 else ''}, not an array of shape {array.shape}."
        )
    steps = np.diff(array)
    if np.any(steps <= 0):
        k = int(np.argmax(steps <= 0))
        if steps[k] == 0:
            raise InputError(
                f"{name}[{k + 1}] = {array[k + 1]:.6g} repeats {name}[{k}]; "
                "merge the snapshots that share a time."
            )
        raise InputError(
            f"{name}[{k + 1}] = {array[k + 1]:.6g} comes after {name}[{k}] = {array[k]:.6g}; "
            "sort the times in increasing order."
        )
    return array


def as_counts(values: ArrayLike, times: NDArray[np.float64], n_states: int) -> NDArray[np.float64]:
    """`values` as counts, one row per time and one column per state, with no time left empty.

    >>> as_counts([[3, 1]], np.array([0.0]), 3)
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: counts have 2 states, but the kernel has 3; add a column of zeros
    for each state that was never seen.
    """
    table = as_array(values, "counts")
    if table.ndim != 2 or table.shape[0] != times.size:
        raise InputError(
            f"counts have shape {table.shape} for {times.size} times; give one row per time and "
            f"one column per state, shape ({times.size}, {n_states})."
        )
    if table.shape[1] != n_states:
        remedy = (
            "build the kernel on all the states that occur, or drop the others."
            if table.shape[1] > n_states
            else "add a column of zeros for each state that was never seen."
        )
        raise InputError(
            f"counts have {table.shape[1]} states, but the kernel has {n_states}; {remedy}"
        )
    if table.min() < 0:
        k, x = np.unravel_index(int(np.argmin(table)), table.shape)
        raise InputError(f"counts[{k}, {x}] is {table[k, x]:g}; a count cannot be negative.")
    empty = np.flatnonzero(table.sum(axis=1) == 0)
    if empty.size:
        first = int(empty[0])
        raise InputError(
            f"snapshot {first} (time {times[first]:g}) has no samples; drop it: times need not be "
            "regular."
        )
    return table


def whole(value: Any, name: str, least: int = 0) -> int:
    """`value` as an integer that is at least `least`.

    >>> whole(None, "seed")
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: seed is None; it must be a whole number, 0 or more.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} is {value!r}; it must be a whole number, {least} or more.")
    return int(value)


def as_names(names: Any, n_states: int) -> tuple[Any, ...]:
    """`names` as a tuple with one distinct name per state.

    >>> as_names([["a"], ["b"]], 2)
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: the name ['a'] is a list; name states with text, numbers or tuples
    of them.
    """
    try:
        given = tuple(names)
    except TypeError:
        raise InputError(f"names is {names!r}; give a list with one name per state.") from None
    for name in given:
        try:
            hash(name)
        except TypeError:
            raise InputError(
                f"the name {str(name)[:40]} is a {type(name).__name__}; name states with text, "
                "numbers or tuples of them."
            ) from None
    if len(given) != n_states or len(set(given)) != len(given):
        raise InputError(
            f"{len(given)} names ({len(set(given))} different) for {n_states} states; give each "
            "state its own name."
        )
    return given


def generator(rng: Any) -> np.random.Generator:
    """`rng` itself, if it is a numpy generator."""
    if not isinstance(rng, np.random.Generator):
        raise InputError(
            f"rng is {rng!r}; give a generator, for instance np.random.default_rng(0)."
        )
    return rng


def positive(value: float, name: str, *, zero: bool = False) -> float:
    """`value` as a finite float that is positive (or not negative, with `zero=True`)."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number, not {value!r}.") from None
    if not np.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise InputError(
            f"{name} is {number:g}; it must be {'zero or ' if zero else ''}positive and finite."
        )
    return number


def word(value: str, name: str, known: Any) -> None:
    """Reject a word that is not one of the `Literal` type `known`.

    >>> from typing import Literal
    >>> word("fast", "method", Literal["exact", "quick"])
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: method is 'fast'; choose 'exact' or 'quick'.
    """
    if value not in get_args(known):
        raise InputError(f"{name} is {value!r}; choose {' or '.join(map(repr, get_args(known)))}.")


def share(value: float, name: str) -> float:
    """`value` as a float strictly between 0 and 1."""
    number = positive(value, name, zero=True)
    if not 0 < number < 1:
        raise InputError(f"{name} is {number:g}; it must lie strictly between 0 and 1.")
    return number
