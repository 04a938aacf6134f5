"""Checks of the content of a model file, before anything computes with it.

A checksum shows that a file is complete, not that its content makes sense: anyone can compute one.
The settings are compared with the annotations of the estimator's own settings, so that a new
setting needs no second list here.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from thalweg.errors import InputError
from thalweg.status import Status

Arrays = Mapping[str, NDArray[Any]]

_PER_STATE = ("stationary", "potential", "initial", "visits", "potential_stderr")
_PER_EDGE = ("edge_source", "edge_target", "conductance")
_FINITE = ("stationary", "conductance", "potential", "initial", "visits", "times", "potentials")
_HEADER = {"beta": float, "internal": dict, "summary": dict, "verdict": dict, "settings": dict}
_LARGEST = 1e150
"""Size above which a product of two numbers overflows; no landscape is that high."""
_MOST_PARTS = 1000
"""Largest number of interactions, or of layers of a network."""


def check_content(header: Mapping[str, Any], arrays: Arrays, settings: type) -> None:
    """Raise `InputError` unless header and arrays can be those of a fitted model.

    Parameters
    ----------
    header : mapping
        The file's JSON header.
    arrays : mapping
        The file's arrays by name.
    settings : type
        The dataclass whose annotations say what each setting may be.

    >>> check_content({"beta": "cold"}, {}, object)
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: the model's 'beta' is 'cold', not a number.
    """
    for name, kind in _HEADER.items():
        _need(name in header, f"lacks {name!r}")
        if kind is float:
            _number(header[name], name)
        else:
            _need(isinstance(header[name], dict), f"has no table {name!r}")
    error = header.get("beta_stderr")
    error = None if error == "inf" else error  # infinite where the data do not determine beta
    if error is not None:
        _number(error, "beta_stderr")
    status = header.get("status")
    _need(isinstance(status, str) and status in Status.__members__, "has an unknown status")
    _arrays(arrays)
    _graph(arrays)
    _verdict(header["verdict"], int(arrays["stationary"].size))
    _need(all(_plain(value) for value in header["summary"].values()), "has a strange summary")
    _settings(header["settings"], settings)
    layers = header.get("network_layers", 0)
    _need(_count(layers), "has a strange number of network layers")


def _need(sound: bool, what: str) -> None:
    if not sound:
        raise InputError(f"the model {what}; save the model again.")


def _number(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"the model's {name!r} is {str(value)[:40]!r}, not a number.")
    _need(0 <= value <= _LARGEST, f"has a {name} of {float(min(abs(value), 1e308)):g} in size")


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_PARTS


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int | float)


def _arrays(arrays: Arrays) -> None:
    for name in (*_PER_STATE, *_PER_EDGE, "times", "potentials"):
        _need(name in arrays, f"lacks the array {name!r}")
    n = arrays["stationary"].size
    _need(arrays["stationary"].ndim == 1 and n >= 2, "has fewer than two states")
    for name in _PER_STATE:
        _need(
            arrays[name].shape == (n,), f"has {name} of shape {arrays[name].shape} for {n} states"
        )
    _need(
        arrays["potentials"].ndim == 2
        and arrays["potentials"].shape[1] == n
        and len(arrays["potentials"]) >= 1,
        f"has potentials of shape {arrays['potentials'].shape} for {n} states",
    )
    for name, array in arrays.items():
        integers = name in ("edge_source", "edge_target") or name.endswith(("_row", "_column"))
        _need(array.dtype.kind == ("i" if integers else "f"), f"has {name} of type {array.dtype}")
        if integers:
            continue
        known = np.isfinite(array) | (np.isnan(array) & (name not in _FINITE))
        if name.endswith("_stderr"):  # infinite where the data do not determine it
            known |= np.isposinf(array)
        _need(bool(known.all()), f"has {name} that is not finite")
        _need(
            not (abs(array[np.isfinite(array)]) > _LARGEST).any(), f"has {name} beyond all bounds"
        )
    _need(bool((arrays["visits"] >= 0).all()), "has negative visits")
    with np.errstate(invalid="ignore"):
        _need(not (arrays["potential_stderr"] < 0).any(), "has negative errors")


def _graph(arrays: Arrays) -> None:
    pi = arrays["stationary"]
    source, target, conductance = (arrays[name] for name in _PER_EDGE)
    n, count = pi.size, source.size
    _need(source.ndim == 1 and count >= n - 1, f"has too few edges for {n} states")
    _need(source.shape == target.shape == conductance.shape, "has edges of different sizes")
    # Compiled loops trust these indices: out of range they would read foreign memory.
    inside = bool((source >= 0).all() and (source < target).all() and (target < n).all())
    _need(inside, "has edges that lead outside its graph")
    order = source.astype(np.int64) * n + target
    _need(bool((np.diff(order) > 0).all()), "has edges out of order")
    _need(bool(conductance.min() > 0 and pi.min() > 0), "has edges or states without weight")
    _need(abs(float(pi.sum()) - 1) < 1e-8, f"has shares that sum to {float(pi.sum()):g}, not 1")
    leaving = np.bincount(source, conductance, n) + np.bincount(target, conductance, n)
    _need(bool((leaving <= pi * (1 + 1e-8)).all()), "has edges heavier than their states")
    links = sparse.coo_array((np.ones(count), (source, target)), shape=(n, n))
    _need(connected_components(links, directed=False)[0] == 1, "has a disconnected graph")


def _verdict(verdict: Mapping[str, Any], n_states: int) -> None:
    for name, value in verdict.items():
        if isinstance(value, list):
            _need(all(isinstance(entry, str | int) for entry in value), f"has a strange {name!r}")
        else:
            _need(_plain(value), f"has a strange {name!r}")
    unseen = verdict.get("never_visited")
    _need(
        isinstance(unseen, list) and all(type(x) is int and 0 <= x < n_states for x in unseen),
        "does not say which states were never seen",
    )
    p = verdict.get("p_value")
    _need(p is None or (type(p) is float and 0 <= p <= 1), "has a p-value outside [0, 1]")


def _settings(settings: Mapping[str, Any], known: type) -> None:
    hints = typing.get_type_hints(known)
    for name, value in settings.items():
        if name == "interactions":
            _need(_count(value), "has a strange number of interactions")
        elif name == "time_basis":
            numbers = value is None or (
                isinstance(value, list)
                and all(type(x) in (int, float) and abs(x) < _LARGEST for x in value)
            )
            _need(numbers, "has a strange time basis")
        elif name in hints:
            _need(
                _matches(value, hints[name]),
                f"has the setting {name} = {str(value)[:40]!r}, which no fit has",
            )


def _matches(value: Any, hint: Any) -> bool:
    """Whether a value from JSON can stand for this annotation."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return type(value) is str and value in typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, part) for part in typing.get_args(hint))
    if hint is type(None):
        return value is None
    if hint is bool:
        return type(value) is bool
    if hint is int:
        return type(value) is int and 0 <= value < 2**63
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value) and abs(value) < _LARGEST
    if hint is str:
        return type(value) is str
    # A mobility, an internal energy, a smoother: a table that names its type, or nothing.
    return value is None or (isinstance(value, dict) and isinstance(value.get("type"), str))
