"""Files and folders written completely or not at all: first beside their place, then renamed."""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from thalweg.errors import InputError

_FORBIDDEN = "choose a folder that you may write to"
_FULL = "free some space or choose another folder"


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; it replaces `path` on success, and is deleted otherwise.

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
    with _reported(f"write {target}", _FORBIDDEN):
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        encoding = None if "b" in mode else "utf-8"
        with _reported(f"write {target}", _FULL):
            with os.fdopen(handle, mode, encoding=encoding) as file:
                yield file
                file.flush()
                _set_mode(file.fileno(), target, 0o666)
                os.fsync(file.fileno())
            os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


@contextmanager
def _reported(what: str, remedy: str) -> Iterator[None]:
    """Report a failure of the system in one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot {what}: {error.strerror or error}; {remedy}.") from None


def _set_mode(new: int | Path, old: Path, usual: int) -> None:
    """Give `new` the mode of `old`, which it will replace, or the default mode of a new file."""
    try:
        found = os.stat(old, follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISLNK(found.st_mode):
            raise FileNotFoundError
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        mode = usual & ~mask
    if os.name == "posix" or not isinstance(new, int):
        os.chmod(new, mode)


def make_folder(path: Path) -> None:
    """Make a folder and those above it; a failure is reported in one sentence."""
    with _reported(f"make the folder {path}", "choose one that you may write to"):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Open a folder beside `path`; it replaces `path` on success, and is removed on failure.

    An older folder is kept until the new one is complete, and then the two are swapped at once. One
    that holds more than the new one is not deleted: the new files are renamed into it.

    >>> place = tempfile.TemporaryDirectory()
    >>> with atomic_folder(Path(place.name) / "out") as folder:
    ...     _ = (folder / "a.txt").write_text("whole")
    >>> sorted(p.name for p in (Path(place.name) / "out").iterdir())
    ['a.txt']
    >>> place.cleanup()
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_dir():
        raise InputError(f"{path} is a file; choose another name for the folder of the results.")
    make_folder(target.parent)
    # A working directory, or the mount point of a disk, must not be replaced.
    stays = target.is_dir() and (_is_here(target) or target.is_mount())
    place = target if stays else target.parent
    _sweep(place, target)
    with _reported(f"write {path}", _FORBIDDEN):
        # A random name that only this user may read, so that nothing can be planted in it.
        staged = Path(tempfile.mkdtemp(prefix=f"{_prefix(target)}{os.getpid()}-", dir=place))
    try:
        with _reported(f"write {path}", _FULL):
            yield staged
            for entry in staged.iterdir():
                _set_mode(entry, target / entry.name, stat.S_IMODE(entry.stat().st_mode))
            _sync(staged)
            _take_place(staged, target, stays)
    except InputError as error:
        raise InputError(str(error).replace(str(staged), str(path))) from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _is_here(folder: Path) -> bool:
    """Whether this process, and so the shell that started it, runs in the folder or below it."""
    try:
        here = Path.cwd()
    except OSError:
        return False
    return here.is_relative_to(folder)


def _prefix(target: Path) -> str:
    return f".{target.name}.thalweg-{socket.gethostname()}-"


def _sweep(place: Path, target: Path) -> None:
    """Remove what killed processes of this machine left behind for `target`."""
    for left in place.glob(f"{glob.escape(_prefix(target))}*"):
        number = left.name.removeprefix(_prefix(target)).partition("-")[0]
        if number.isdigit() and not _alive(int(number)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return process != os.getpid()


def _sync(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError:
            if os.name == "posix" and path.is_file():
                raise
        finally:
            os.close(handle)


def _take_place(staged: Path, target: Path, stays: bool) -> None:
    if not target.exists():
        _set_mode(staged, target, 0o777)
        os.rename(staged, target)
        return
    names = {entry.name for entry in staged.iterdir()}
    foreign = any(entry.name not in names for entry in target.iterdir())
    if not (foreign or stays):
        _set_mode(staged, target, 0o777)
    if foreign or stays or not _exchange(staged, target):
        for name in sorted(names):
            os.replace(staged / name, target / name)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step, if the system can (Linux: `renameat2`)."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2
    arguments = (here, os.fsencode(first), here, os.fsencode(second), ctypes.c_uint(exchange))
    return bool(swap(*arguments) == 0)
