"""Sweeps that can be resumed: every finished cell is on disk, and the same command continues.

A cell is a dictionary of plain values, its coordinates in the sweep. Its random generator is
derived from those coordinates and the sweep's seed, so that results do not depend on the number of
workers, on the order of the work, or on interruptions. A cell that raises becomes a row with its
status; nothing is dropped, and the same command tries it again.

The journal is a text file, one line per finished cell, each with its own checksum: a line cut
short by a kill, or damaged on disk, is recognised, reported and done again.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thalweg._parallel import unordered
from thalweg._types import Progress
from thalweg._version import __version__
from thalweg.errors import InputError
from thalweg_bench import BenchSettings

__all__ = ["Cell", "SweepResult", "cell_generator", "run_sweep", "swept", "was_interrupted"]

Cell = Mapping[str, Any]
Work = Callable[[Cell, np.random.Generator], Mapping[str, Any]]

_OF_A_FAILURE = {"status", "seconds"}
"""All that is known of a cell that raised."""


@dataclass(frozen=True)
class SweepResult:
    """One row per cell in the order of the cells: coordinates, results, `status`, `seconds`."""

    table: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def failed(self) -> pd.DataFrame:
        return self.table[self.table["status"] != "ok"]


def cell_generator(sweep: str, seed: int, cell: Cell) -> np.random.Generator:
    """The generator of one cell: the same for the same sweep, seed and coordinates, anywhere.

    >>> a = cell_generator("size", 0, {"n": 6}).random()
    >>> a == cell_generator("size", 0, {"n": 6}).random() != cell_generator("size", 1, {"n": 6})
    True
    """
    digest = hashlib.sha256(f"{sweep}|{seed}|{_canonical(cell)}".encode()).digest()
    return np.random.default_rng(np.random.SeedSequence(int.from_bytes(digest[:16], "big")))


def run_sweep(
    name: str,
    work: Work,
    cells: Sequence[Cell],
    *,
    seed: int,
    jobs: int | None = 1,
    folder: Path | None = None,
    fingerprint: str = "",
    progress: Progress = lambda what, done, total: None,
) -> SweepResult:
    """Run `work(cell, rng)` for every cell and collect the rows.

    `folder`: where the journal is kept; without it nothing is written. `fingerprint`: what else the
    results depend on (a version, say); a journal with another one is set aside, not mixed in.
    `work` must be importable by the workers and return plain values.

    An interruption (Ctrl-C) ends the sweep with the cells that are finished, and a note.
    """
    keys = [_canonical(cell) for cell in cells]
    if len(set(keys)) < len(keys):
        raise InputError(f"two cells of the sweep {name!r} have the same coordinates.")
    notes: list[str] = []
    journal = None
    done: dict[str, dict[str, Any]] = {}
    if folder is not None:
        journal = Journal(folder / f"{name}.journal", f"{name}|{seed}|{fingerprint}")
        journal.lock()
    try:
        if journal is not None:
            done, messages = journal.read()
            notes += messages
        _finish(name, work, cells, keys, seed, jobs, journal, done, notes, progress)
    finally:
        if journal is not None:
            journal.close()
    rows = [{**cell, **done[key]} for cell, key in zip(cells, keys, strict=True) if key in done]
    if not rows:
        raise InputError(f"the sweep {name!r} was stopped before its first cell was finished.")
    if len(rows) < len(cells):
        notes.append(
            f"stopped early: {len(rows)} of {len(cells)} cells were run; the same command runs "
            "the others."
        )
    return SweepResult(pd.DataFrame(rows), tuple(notes))


def swept(
    settings: BenchSettings, name: str, work: Work, cells: Sequence[Cell], **changed: Any
) -> SweepResult:
    """`run_sweep` as the user set it up; `changed` replaces arguments of it."""
    usual = {
        "seed": settings.seed, "jobs": settings.jobs, "folder": settings.folder,
        "fingerprint": __version__, "progress": settings.progress,
    }  # fmt: skip
    return run_sweep(name, work, cells, **{**usual, **changed})


def _finish(
    name: str,
    work: Work,
    cells: Sequence[Cell],
    keys: Sequence[str],
    seed: int,
    jobs: int | None,
    journal: Journal | None,
    done: dict[str, dict[str, Any]],
    notes: list[str],
    progress: Progress,
) -> None:
    """Run the cells that are not in `done` or failed, and add them to it and to the journal."""
    failed = [key for key in keys if key in done and set(done[key]) <= _OF_A_FAILURE]
    if failed:
        notes.append(f"{len(failed)} cells that had failed were run again")
    for key in failed:
        del done[key]
    known = sum(key in done for key in keys)
    todo = [k for k, key in enumerate(keys) if key not in done]
    if journal is not None and known and todo:
        notes.append(f"went on from {known} finished cells of {len(cells)}")
    elif journal is not None and known and not todo:
        notes.append(f"all {known} cells were already finished; nothing was run")
    progress(name, known, len(cells))
    items = [(work, name, seed, dict(cells[k])) for k in todo]
    _stop_at_termination()
    try:
        for finished, (i, row) in enumerate(unordered(_run_cell, items, jobs=jobs), start=1):
            key = keys[todo[i]]
            done[key] = row
            if journal is not None:
                journal.append(key, row)
            progress(name, known + finished, len(cells))
    except KeyboardInterrupt:
        return


def _stop_at_termination() -> None:
    """Let SIGTERM end a sweep as Ctrl-C does, keeping what is finished."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def was_interrupted(error: BaseException) -> bool:
    """Whether an error comes from Ctrl-C, which compiled code turns into a `SystemError`.

    >>> was_interrupted(ValueError("no")), was_interrupted(KeyboardInterrupt())
    (False, True)
    """
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, KeyboardInterrupt):
            return True
        if isinstance(chain, SystemError) and "with an exception set" in str(chain):
            return True
        chain = chain.__cause__ or chain.__context__
    return False


def _run_cell(work: Work, name: str, seed: int, cell: Cell) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        row = {
            key: _plain(value)
            for key, value in work(cell, cell_generator(name, seed, cell)).items()
        }
        row.setdefault("status", "ok")
    except Exception as error:  # a failed cell is a row, whatever failed
        if was_interrupted(error):
            raise KeyboardInterrupt from error
        row = {
            "status": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        }
    row["seconds"] = round(time.perf_counter() - started, 4)
    return row


class Journal:
    """Finished cells, one per line, after a first line that identifies their sweep."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path, self.owner = path, owner
        self._file: Any = None
        self._lock: int | None = None

    def lock(self) -> None:
        """Keep other processes out until `close`, or until this process ends, however it does."""
        try:
            import fcntl
        except ImportError:  # Windows has no such lock.
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        place = self.path.with_name(f".{self.path.name}.lock")
        handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise InputError(
                f"another process is running this sweep in {self.path.parent}; wait until it is "
                "done, or choose another folder."
            ) from None
        self._lock = handle

    def read(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """The rows by key, and what was wrong with the file."""
        if not self.path.exists():
            return {}, []
        rows: dict[str, dict[str, Any]] = {}
        damaged = 0
        with self.path.open(encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n")
        owner = _unseal(lines[0])
        if owner != {"owner": self.owner}:
            aside = self.path.with_suffix(f".journal.{int(time.time())}")
            os.replace(self.path, aside)
            return {}, [f"{self.path.name} belongs to other settings; it was kept as {aside.name}"]
        for line in lines[1:]:
            if not line:
                continue
            content = _unseal(line)
            if content == {"owner": self.owner}:
                continue
            if not _is_row(content):
                damaged += 1
                continue
            rows[content["key"]] = content["row"]
        notes = []
        if damaged:
            cells = "cell" if damaged == 1 else "cells"
            notes.append(f"{damaged} damaged {cells} in {self.path.name}: done again")
            self._rewrite(rows)
        return rows, notes

    def append(self, key: str, row: dict[str, Any]) -> None:
        """Write a finished cell through to the disk."""
        if self._file is None:
            self._open()
        self._file.write(_seal({"key": key, "row": row}) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        # A line cut short by a kill must not swallow the next one.
        ragged = not fresh and not self.path.read_bytes().endswith(b"\n")
        self._file = self.path.open("a", encoding="utf-8")
        if fresh:
            self._file.write(_seal({"owner": self.owner}) + "\n")
        elif ragged:
            self._file.write("\n")

    def _rewrite(self, rows: dict[str, dict[str, Any]]) -> None:
        from thalweg._files import atomic_write

        with atomic_write(self.path) as file:
            file.write(_seal({"owner": self.owner}) + "\n")
            for key, row in rows.items():
                file.write(_seal({"key": key, "row": row}) + "\n")


def _canonical(cell: Cell) -> str:
    return json.dumps(dict(cell), sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return value


def _seal(content: dict[str, Any]) -> str:
    text = json.dumps(content)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]} {text}"


def _unseal(line: str) -> Any:
    """The content of a line, or None where it is damaged."""
    digest, _, text = line.partition(" ")
    if hashlib.sha256(text.encode()).hexdigest()[:16] != digest:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_row(content: Any) -> bool:
    """Whether a line holds a finished cell; a checksum alone does not say so."""
    return (
        isinstance(content, dict)
        and isinstance(content.get("key"), str)
        and isinstance(content.get("row"), dict)
        and isinstance(content["row"].get("status"), str)
        and isinstance(content["row"].get("seconds"), int | float)
    )
