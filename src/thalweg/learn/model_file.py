"""The file format of fitted models: an uncompressed zip of plain arrays and one JSON header.

    header.json        {"format": "thalweg-model", "version": 1, "arrays": {name: [dtype, shape]}}
    <name>.npy         one array each, numbers only
    archive comment    sha256:<digest of everything before the comment>

`numpy.load` and any zip tool can open it. Nothing in it is executed, unpacked to disk or
decompressed, so a file cannot need more memory than its own size. Anything unexpected is rejected:
a truncated file, a changed byte, a newer version, a member with another name.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg._files import atomic_write
from thalweg.errors import InputError

FORMAT = "thalweg-model"
VERSION = 1
"""Increased when older code can no longer read a file."""

_HEADER = "header.json"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DTYPES = ("<f8", "<i8", "<i4", "|b1")
_DATE = (1980, 1, 1, 0, 0, 0)
_MARK = b"sha256:"
_END = struct.Struct("<4s4H2LH")
_MAGIC = b"\x93NUMPY\x01\x00"
_DESCRIPTION = re.compile(
    rb"\{'descr': '([<|][a-z][0-9])', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n"
)


def write_model(
    path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    """Write header and arrays; the file appears under its name only when it is complete.

    The same content gives the same bytes.
    """
    plain = {name: _plain(name, values) for name, values in sorted(arrays.items())}
    full = {
        "format": FORMAT,
        "version": VERSION,
        "arrays": {name: [a.dtype.str, list(a.shape)] for name, a in plain.items()},
        **header,
    }
    try:
        text = json.dumps(full, allow_nan=False, sort_keys=True, indent=1)
    except (TypeError, ValueError) as error:
        raise InputError(f"the model cannot be written as plain data ({error}).") from None
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(_HEADER, _DATE), text)
        for name, array in plain.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _DATE), member.getvalue())
        archive.comment = _MARK + b"0" * 64
    data = buffer.getvalue()[: -len(_MARK) - 64]
    comment = _MARK + hashlib.sha256(data).hexdigest().encode()
    _replace(Path(path), data + comment)


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of a file that `write_model` wrote; anything else is an `InputError`."""
    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}).") from None
    _check_digest(file, data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = _members(file, archive)
    except InputError:
        raise
    except (
        zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, struct.error, ValueError,
        OverflowError,
    ) as error:  # fmt: skip
        raise InputError(f"{file} is damaged ({error}); save the model again.") from None
    header = _header(file, members.pop(_HEADER, None))
    declared = header["arrays"]
    if {f"{name}.npy" for name in declared} != set(members):
        raise InputError(f"{file} does not hold the arrays that it lists; save the model again.")
    arrays = {}
    for name, (dtype, shape) in declared.items():
        arrays[name] = _array(file, name, members[f"{name}.npy"], str(dtype), tuple(shape))
    return header, arrays


def _plain(name: str, values: Any) -> NDArray[Any]:
    array = np.ascontiguousarray(values)
    if array.ndim == 0 or np.ndim(values) == 0:
        array = np.asarray(values)
    if array.dtype.kind == "f":
        array = array.astype("<f8")
    elif array.dtype.kind in "iu" and array.dtype.itemsize != 4:
        array = array.astype("<i8")
    if array.dtype.str not in _DTYPES or not _NAME.fullmatch(name):
        raise InputError(
            f"array {name!r} of type {array.dtype} cannot be saved; only numbers and truth values."
        )
    return array


def _replace(path: Path, data: bytes) -> None:
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}; make it.")
    with atomic_write(path, "wb") as file:
        file.write(data)


def _check_digest(file: Path, data: bytes) -> None:
    """The digest in the archive's comment covers every byte before it."""
    tail = len(_MARK) + 64
    body, comment = data[:-tail], data[-tail:]
    if len(data) < _END.size + tail or not data.startswith(b"PK"):
        raise InputError(f"{file} is not a model saved by thalweg, or only a part of one.")
    if not comment.startswith(_MARK):
        raise InputError(
            f"{file} does not end with a checksum: it is cut off, or not a model saved by thalweg."
        )
    if hashlib.sha256(body).hexdigest().encode() != comment[len(_MARK) :]:
        raise InputError(f"{file} is damaged: its checksum does not match; save the model again.")


def _members(file: Path, archive: zipfile.ZipFile) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    for info in archive.infolist():
        name = info.filename
        known = name == _HEADER or (name.endswith(".npy") and _NAME.fullmatch(name[:-4]))
        if not known or name in members:
            raise InputError(f"{file} holds a member {name[:80]!r} that no thalweg model has.")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise InputError(f"{file} holds compressed data, which no thalweg model has.")
        members[name] = archive.read(info)
    return members


def _header(file: Path, text: bytes | None) -> dict[str, Any]:
    if text is None:
        raise InputError(f"{file} has no header; it is not a model saved by thalweg.")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{file} has a header that is not JSON; save the model again.") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError(f"{file} is not a model saved by thalweg.")
    version = header.get("version")
    if not isinstance(version, int) or version < 1:
        raise InputError(f"{file} has no valid version number; save the model again.")
    if version > VERSION:
        raise InputError(
            f"{file} has format version {version}, but this thalweg reads versions up to "
            f"{VERSION}; upgrade thalweg."
        )
    arrays = header.get("arrays")
    valid = isinstance(arrays, dict) and all(
        isinstance(entry, list)
        and len(entry) == 2
        and entry[0] in _DTYPES
        and isinstance(entry[1], list)
        and all(isinstance(size, int) and size >= 0 for size in entry[1])
        for entry in arrays.values()
    )
    if not valid:
        raise InputError(f"{file} lists its arrays in a way that no thalweg model does.")
    return header


def _array(file: Path, name: str, data: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array of a `.npy` member; its size is compared before any memory is taken."""
    start = len(_MAGIC) + 2
    length = int.from_bytes(data[len(_MAGIC) : start], "little")
    described = _DESCRIPTION.fullmatch(data[start : start + length])
    if not data.startswith(_MAGIC) or described is None:
        raise InputError(f"{file}: array {name!r} is not a plain array of numbers.")
    found = tuple(int(size) for size in re.findall(rb"[0-9]+", described[2]))
    body, kind = data[start + length :], np.dtype(dtype)
    if (
        described[1].decode() != dtype
        or found != shape
        or len(body) != math.prod(shape) * kind.itemsize
    ):
        raise InputError(
            f"{file}: array {name!r} does not have the type and shape that the header lists."
        )
    return np.frombuffer(body, dtype=kind).reshape(shape).copy()
