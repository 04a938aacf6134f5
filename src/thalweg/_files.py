"""Files appear complete or not at all: written beside their place, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from thalweg.errors import InputError

__all__ = ["atomic_write", "make_folder"]


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success it replaces `path`, on failure it is gone.

    >>> folder = tempfile.TemporaryDirectory()
    >>> target = Path(folder.name) / "a.txt"
    >>> with atomic_write(target) as file:
    ...     _ = file.write("whole")
    >>> target.read_text()
    'whole'
    >>> folder.cleanup()
    """
    target = Path(path)
    make_folder(target.parent)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror}; choose a folder that you may write to."
        ) from None
    try:
        encoding = None if "b" in mode else "utf-8"
        with os.fdopen(handle, mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise InputError(
                f"cannot write {target}: {error.strerror or error}; free some space or choose "
                "another folder."
            ) from None
        raise


def make_folder(path: Path) -> None:
    """Make a folder and those above it; one sentence where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder {path}: {error.strerror}; choose one that you may write to."
        ) from None
