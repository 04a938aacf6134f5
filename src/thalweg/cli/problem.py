"""Snapshots and graph from files, matched by the names of the states."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from thalweg._types import Array
from thalweg.adapters.edges import read_graph
from thalweg.adapters.pieces import coordinate_table, read_table
from thalweg.adapters.tables import read_snapshots, state_key
from thalweg.cli.options import Reading
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.snapshots import Snapshots
from thalweg.snapshots.columns import STATE_NAMES, TIME_NAMES, Oddity, choose, require

_PLAIN = re.compile(
    r"(time|state|count|weight)s? (?:is|are) (?:column |the edge attribute )?'\1s?'"
    r"|edges run from 'source' to 'target'|every edge counts 1"
)
"""Messages that only repeat what the files say."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The input of a fit, and the choices made while reading it."""

    name: str
    """The file of the snapshots."""
    kernel: MarkovKernel
    snapshots: Snapshots
    messages: tuple[str, ...]
    """Choices made while reading; an `Oddity` is a warning."""
    own_states: bool = False
    """Whether the states are groups of this file's cells, which mean nothing in another file."""

    @property
    def guesses(self) -> list[str]:
        return [text for text in self.messages if not isinstance(text, Oddity)]

    @property
    def oddities(self) -> list[str]:
        return [str(text) for text in self.messages if isinstance(text, Oddity)]

    @property
    def summary(self) -> str:
        """The number of snapshots and of individuals, in words."""
        sizes = np.asarray(self.snapshots.sizes)
        low, high = (f"{n:g}" if n < 1e6 else f"{n:,.0f}" for n in (sizes.min(), sizes.max()))
        if sizes.size == 1:
            return f"1 snapshot of {low} individual{'' if low == '1' else 's'}"
        each = f"{low} individuals each" if low == high else f"{low} to {high} individuals"
        return f"{sizes.size} snapshots of {each}"

    def announce(self, *, quiet: bool) -> None:
        """Print what is about to be fitted, the choices made, and what is odd."""
        if quiet:
            return
        from thalweg.cli.check import warnings
        from thalweg.cli.output import say

        say(f"{self.name}: {self.summary} on {self.kernel.n_states} states", stderr=True)
        for line in [*detected_lines(self.guesses), *(f"! {text}" for text in warnings(self))]:
            say(line, stderr=True)


def announce_reading(file: Path, messages: Iterable[str]) -> None:
    """Print the choices made while reading a file, and what is odd about it."""
    from thalweg.cli.output import say

    named = _named(file, messages)
    guesses = [text for text in named if not isinstance(text, Oddity)]
    odd = [f"! {text}" for text in named if isinstance(text, Oddity)]
    for line in [*detected_lines(guesses), *odd]:
        say(line, stderr=True)


def detected_lines(guesses: Iterable[str]) -> list[str]:
    """The choices made, one line per file; what the files state explicitly is left out.

    >>> detected_lines(["a.csv: time is column 'time'", "a.csv: state is column 'place'"])
    ["detected: a.csv: state is column 'place'"]
    >>> detected_lines(["edges.csv: weight is 'weight'"])
    []
    """
    by_file: dict[str, list[str]] = {}
    for guess in guesses:
        file, _, text = guess.partition(": ") if ": " in guess else ("", "", guess)
        if text and not _PLAIN.fullmatch(text):
            by_file.setdefault(file and f"{file}: ", []).append(text)
    return [f"detected: {file}{'; '.join(texts)}" for file, texts in by_file.items()]


def load_problem(snapshots: Path, reading: Reading) -> Problem:
    """Read both files and match them; each choice made is reported.

    An `.h5ad` file brings its own graph, the neighbours of its cells.
    """
    individuals = reading.individuals
    if individuals is not None and not (np.isfinite(individuals) and individuals > 0):
        raise InputError(f"--individuals is {individuals:g}; it must be a positive number.")
    if snapshots.suffix.lower() == ".h5ad":
        for option in ("graph", "count", "weight", "positions", "individuals"):
            if getattr(reading, option) is not None:
                raise InputError(f"--{option} has no effect on an .h5ad file; leave it out.")
        return _cells(snapshots, reading)
    if reading.graph is None:
        raise InputError(
            "the graph is missing; give its file of edges with --graph. (If each row is a point "
            "with coordinates, use thalweg interpolate or forecast with --points.)"
        )
    if reading.graph.exists() and snapshots.exists() and reading.graph.samefile(snapshots):
        raise InputError(
            f"{snapshots.name} is given as snapshots and as graph; give the file of edges with "
            "--graph."
        )
    kernel, about_graph, outside = read_graph(
        reading.graph, weight=reading.weight, largest_component=reading.largest_component
    )
    assert kernel.names is not None
    if reading.positions is not None:
        kernel = replace(kernel, coordinates=_positions(reading.positions, kernel))
    table = read_snapshots(
        snapshots,
        time=reading.time,
        state=reading.state,
        count=reading.count,
        states=kernel.names,
        outside=outside,
        individuals=individuals,
        replicate=reading.replicate,
    )
    messages = (*_named(reading.graph, about_graph), *_named(snapshots, table.messages))
    return Problem(snapshots.name, kernel, table.snapshots, messages)


def _named(file: Path, messages: Iterable[str]) -> list[str]:
    """Each message with the file it is about; an oddity stays one."""
    return [type(text)(f"{file.name}: {text}") for text in messages]


def _cells(path: Path, reading: Reading) -> Problem:
    from thalweg.adapters.cells import cell_problem, label_columns, read_h5ad

    adata = read_h5ad(path)
    time_key, state_key = reading.time_key or reading.time, reading.state_key or reading.state
    messages: list[str] = []
    if time_key is None:
        columns = list(adata.obs.columns)
        where = f"obs of {path.name}"
        time_key = str(require(columns, None, TIME_NAMES, "time", where, "--time-key"))
        messages.append(f"time is obs[{time_key!r}]")
    cells = cell_problem(
        adata,
        time_key=time_key,
        state_key=state_key,
        neighbors_key=reading.neighbors_key,
        largest_component=reading.largest_component,
    )
    if state_key is None:
        count = cells.kernel.n_states
        grouped = count < adata.n_obs
        said = f"{count} groups of neighbouring cells" if grouped else "each cell is a state"
        own = label_columns(adata, time_key)
        hint = f" (--state-key {own[0]} takes the groups of that column)" if own else ""
        messages.append(said + hint)
    named = tuple(_named(path, (*messages, *cells.messages)))
    return Problem(path.name, cells.kernel, cells.snapshots, named, own_states=state_key is None)


def _positions(path: Path, kernel: MarkovKernel) -> Array:
    """Coordinates from a table with a column of names and two or more of numbers."""
    frame = read_table(path)
    columns = list(frame.columns)
    name = choose(columns, None, STATE_NAMES, "state", path.name)
    name = columns[0] if name is None else name
    rest = [column for column in columns if column != name]
    if not rest:
        raise InputError(f"{path.name} has one column; positions need a state and its coordinates.")
    known = {state_key(value): k for k, value in enumerate(frame[name])}
    missing = [str(s) for s in kernel.labels if state_key(s) not in known]
    if missing:
        raise InputError(
            f"{path.name} has no position for {len(missing)} of {kernel.n_states} states, "
            f"{missing[0]!r} for one; add them, or leave the positions out."
        )
    rows = [known[state_key(s)] for s in kernel.labels]
    return coordinate_table(frame.iloc[rows], rest, path.name)
