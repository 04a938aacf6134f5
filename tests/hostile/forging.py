"""Forged model files: any part changed, with a valid checksum."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

STRANGE: tuple[Any, ...] = (
    None, True, -1, 10**30, 2.5, 1e308, "", "x", "__class__", [], [[]], [None], ["a", 1], {},
    {"type": []}, {"type": "LogMean", "x": 1}, {"tuple": 3}, {"type": "Entropy"},
    {"type": "PowerEnergy", "q": "a"},
)  # fmt: skip
"""Values to put in place of any value of the header."""


def seal(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """A file with a valid checksum, whatever its contents."""
    full = dict(header)
    full["arrays"] = {name: [a.dtype.str, list(a.shape)] for name, a in arrays.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("header.json", json.dumps(full))
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
            archive.writestr(f"{name}.npy", member.getvalue())
        archive.comment = b"sha256:" + b"0" * 64
    body = buffer.getvalue()[:-71]
    return body + b"sha256:" + hashlib.sha256(body).hexdigest().encode()


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value inside nested dictionaries and lists."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in entries:
        yield (*here, key)
        if isinstance(entry, dict | list):
            yield from paths(entry, (*here, key))


def changed(header: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The header with another value at `path`; without it where `value` is `...`."""
    new = copy.deepcopy(header)
    inside: Any = new
    for key in path[:-1]:
        inside = inside[key]
    if value is ...:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return new


def strange_arrays(array: np.ndarray) -> Iterator[np.ndarray]:
    """The array with other shapes, types and contents."""
    yield array[:0]
    yield array.ravel()
    yield array[None]
    yield array[:-1]
    yield np.concatenate([array, array])
    yield np.array(3.0)
    yield np.nan_to_num(array).astype("<i8")
    yield np.nan_to_num(array).astype("|b1")
    for value in (np.nan, np.inf, -1.0, 0.0, 1e308, 5e-324):
        yield np.full(array.shape, value)
    for value in (-1, 2**31 - 1, -(2**31), 10**6):
        yield np.full(array.shape, value, dtype="<i4")
    yield array[::-1].copy()


def forgeries(
    header: dict[str, Any], arrays: dict[str, np.ndarray], every: int = 1
) -> Iterator[tuple[str, bytes]]:
    """Every single change of header and arrays (or one in `every`), each with what it is."""
    header = {key: value for key, value in header.items() if key != "arrays"}
    for place, path in enumerate(paths(header)):
        for value in (..., *STRANGE[place % every :: every]):
            shown = "removed" if value is ... else repr(value)
            yield f"{'.'.join(map(str, path))} {shown}", seal(changed(header, path, value), arrays)
    for name in arrays:
        rest = {key: value for key, value in arrays.items() if key != name}
        yield f"array {name} removed", seal(header, rest)
        for k, array in enumerate(strange_arrays(arrays[name])):
            yield f"array {name} number {k}", seal(header, {**rest, name: array})


def write(folder: Path, number: int, data: bytes) -> Path:
    path = folder / f"{number}.thalweg"
    path.write_bytes(data)
    return path
