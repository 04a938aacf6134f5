"""The model file gives back what was written, and refuses everything else with one sentence."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from thalweg.errors import InputError
from thalweg.learn.model_file import read_model, write_model

ARRAYS = {
    "potential": np.linspace(-1, 1, 7),
    "edges": np.arange(6, dtype=np.int32).reshape(2, 3),
    "scalar": np.array(3.5),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 3)),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.thalweg"
    write_model(path, {"beta": 0.1, "names": ["a", "ü"]}, ARRAYS)
    return path


def sealed(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A hostile archive with a valid checksum."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.comment = b"sha256:" + b"0" * 64
    body = buffer.getvalue()[:-71]
    return body + b"sha256:" + hashlib.sha256(body).hexdigest().encode()


def header(arrays: dict[str, object], **more: object) -> bytes:
    return json.dumps({"format": "thalweg-model", "version": 1, "arrays": arrays, **more}).encode()


def npy(array: np.ndarray, **options: bool) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def refused(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_model(path)
    assert "\n" not in str(caught.value)


def test_round_trip(saved: Path) -> None:
    head, arrays = read_model(saved)
    assert head["beta"] == 0.1
    assert head["names"] == ["a", "ü"]
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)
        assert arrays[name].shape == array.shape


def test_same_content_same_bytes_and_numpy_opens_it(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    write_model(again, {"names": ["a", "ü"], "beta": 0.1}, dict(reversed(ARRAYS.items())))
    assert again.read_bytes() == saved.read_bytes()
    with np.load(saved, allow_pickle=False) as opened:
        assert np.array_equal(opened["potential"], ARRAYS["potential"])


def test_every_truncation_is_refused(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    for length in [*range(0, len(data), 37), len(data) - 1]:
        refused(tmp_path / "cut", data[:length], "part of one|checksum|cut off")


def test_every_flipped_byte_is_refused(saved: Path, tmp_path: Path) -> None:
    data = bytearray(saved.read_bytes())
    for place in [*range(0, len(data), 7), *range(len(data) - 40, len(data))]:
        changed = bytearray(data)
        changed[place] ^= 0x10
        refused(tmp_path / "flipped", bytes(changed), "checksum|not a model")


def test_newer_version_is_refused_with_the_remedy(tmp_path: Path) -> None:
    refused(tmp_path / "m", sealed({"header.json": header({}, version=2)}), "upgrade thalweg")


@pytest.mark.parametrize("name", ["../../evil.npy", "/etc/passwd", "a/b.npy", "evil.py", "A.npy"])
def test_unknown_members_are_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path / "m", sealed({"header.json": header({}), name: b"x"}), "no thalweg model")


def test_decompression_bomb_is_refused(tmp_path: Path) -> None:
    bomb = sealed({"header.json": header({}), "a.npy": bytes(10_000_000)}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 100_000
    refused(tmp_path / "m", bomb, "compressed")


def test_pickled_objects_are_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (marker.touch, ())

    pickled = npy(np.array([Evil()], dtype=object), allow_pickle=True)
    for dtype in ("<f8", "|O"):
        members = {"header.json": header({"a": [dtype, [1]]}), "a.npy": pickled}
        refused(tmp_path / "m", sealed(members), "plain array|lists its arrays")
    refused(tmp_path / "m", pickle.dumps(Evil()), "not a model")
    assert not marker.exists()


def test_shapes_that_lie_are_refused_without_taking_memory(tmp_path: Path) -> None:
    small = npy(np.zeros(3))
    huge = small.replace(b"(3,)", b"(10**12,)"[:4])
    for shape, data in [([10**12], small), ([3], huge), ([2], small), ([3], b"junk")]:
        members = {"header.json": header({"a": ["<f8", shape]}), "a.npy": data}
        refused(tmp_path / "m", sealed(members), "type and shape|plain array")


def test_missing_arrays_and_bad_headers_are_refused(tmp_path: Path) -> None:
    for text in (b"{", b"[]", b'{"format": "other"}', header({"a": "f8"}), b"[" * 100_000):
        refused(tmp_path / "m", sealed({"header.json": text}), "header|not a model|lists")
    refused(tmp_path / "m", sealed({"header.json": header({"a": ["<f8", [1]]})}), "arrays")
    refused(tmp_path / "m", sealed({"a.npy": npy(np.zeros(1))}), "no header")
    refused(tmp_path / "m", sealed({"header.json": header({}, version="1")}), "version")


def test_unreadable_and_unwritable_paths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_model(tmp_path / "missing")
    with pytest.raises(InputError, match="cannot be written"):
        write_model(tmp_path / "no" / "folder", {}, {})


def test_only_plain_data_is_written(tmp_path: Path) -> None:
    path = tmp_path / "m"
    for head, arrays in [
        ({"x": object()}, {}),
        ({"x": float("nan")}, {}),
        ({}, {"a": np.array(["text"])}),
        ({}, {"Bad name": np.zeros(1)}),
        ({}, {"a": np.array([object()])}),
    ]:
        with pytest.raises(InputError, match="cannot be"):
            write_model(path, head, arrays)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space"):
        write_model(saved, {"beta": 0.2}, ARRAYS)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]
