"""Options and arguments that several commands share, alone or in groups.

A command takes a group as one parameter, a dataclass whose fields are the options; `with_groups`
spells them out for Typer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from thalweg.adapters.points import PointTable
    from thalweg.cli.problem import Problem


_EDGES = "Edges as CSV ([bold]source,target[,weight][/]), GraphML, or a scipy .npz matrix."
_POPULATION = "A table with one state and its share per row."

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same results.")]
Table = Annotated[Path | None, typer.Option(help="CSV file to write; printed by default.")]
Page = Annotated[
    Path | None, typer.Option(help="A .csv, or an .html page with a slider; printed by default.")
]
SnapshotsFile = Annotated[
    Path,
    typer.Argument(
        help=(
            "CSV, TSV or Parquet: long ([bold]time,state[,count][/]) or wide (one row per time); "
            "or an .h5ad of cells."
        )
    ),
]
TimeColumn = Annotated[str | None, typer.Option("--time", help="The column of times.")]
Largest = Annotated[
    bool,
    typer.Option("--largest-component", help="Keep the largest piece of a disconnected graph."),
]
Times = Annotated[
    str,
    typer.Option(
        help=(
            "As 1,2,5 or as from:to:how-many, like 0:10:21; in the unit of the data, or as dates "
            "where they have dates."
        )
    ),
]
ModelFile = Annotated[Path, typer.Argument(help="A model.thalweg from [bold]thalweg fit[/].")]


@dataclass(frozen=True)
class Reading:
    """The graph, and how to read the files of a data set."""

    graph: Annotated[Path | None, typer.Option("--graph", help=_EDGES)] = None
    time: TimeColumn = None
    state: Annotated[str | None, typer.Option("--state", help="The column of states.")] = None
    count: Annotated[
        str | None,
        typer.Option(
            "--count", help="The column of counts; [bold]none[/]: one individual per row."
        ),
    ] = None
    individuals: Annotated[
        float | None,
        typer.Option(
            "--individuals", help="For shares: the number of individuals behind each snapshot."
        ),
    ] = None
    replicate: Annotated[
        str | None,
        typer.Option("--replicate", help="The column of replicates (animals, batches, runs)."),
    ] = None
    weight: Annotated[str | None, typer.Option("--weight", help="The edges' weights.")] = None
    positions: Annotated[
        Path | None, typer.Option(help="A table with the states' coordinates.")
    ] = None
    largest_component: Largest = False
    time_key: Annotated[
        str | None, typer.Option("--time-key", help="For .h5ad: the obs column of times.")
    ] = None
    state_key: Annotated[
        str | None,
        typer.Option(
            "--state-key", help="For .h5ad: the obs column of clusters to take as states."
        ),
    ] = None
    neighbors_key: Annotated[
        str | None,
        typer.Option("--neighbors-key", help="For .h5ad: the key of the neighbour graph."),
    ] = None

    def problem(self, snapshots: Path) -> Problem:
        """Read the snapshots and the graph."""
        from thalweg.cli.problem import load_problem

        return load_problem(snapshots, self)


@dataclass(frozen=True)
class Clouds:
    """For commands that take clouds of points as well as counts on states."""

    points: Annotated[
        bool, typer.Option("--points", help="The file holds points with coordinates, one row each.")
    ] = False
    coordinates: Annotated[
        str | None, typer.Option("--coordinates", help="With --points: the columns, as x,y.")
    ] = None
    basis: Annotated[
        str | None, typer.Option("--basis", help="With --points, for .h5ad: the embedding in obsm.")
    ] = None

    @property
    def asked(self) -> bool:
        return bool(self.points or self.coordinates or self.basis)

    def read(self, file: Path, time: str | None) -> PointTable:
        """Read the clouds in a file."""
        from thalweg.adapters.points import read_points

        return read_points(file, time=time, coordinates=self.coordinates, basis=self.basis)


@dataclass(frozen=True)
class Fitting:
    """What `thalweg fit` fits, and how."""

    method: Annotated[
        str,
        typer.Option(
            help="[bold]likelihood[/] (best), [bold]weak[/] (instant), [bold]neural[/] (paper)."
        ),
    ] = "likelihood"
    observation: Annotated[
        str,
        typer.Option(
            help="[bold]independent[/] snapshots, [bold]overdispersed[/] ones (individuals in "
            "clumps, a census), or one [bold]tracked[/] population."
        ),
    ] = "independent"
    growth: Annotated[
        str,
        typer.Option(
            help="Births and deaths: [bold]none[/], learned from [bold]shares[/], or also from "
            "[bold]totals[/] if the counts are the whole population."
        ),
    ] = "none"
    beta: Annotated[float | None, typer.Option(help="The noise, if known.")] = None
    horizon: Annotated[
        float | None, typer.Option(help="How far to forecast; as long as the data by default.")
    ] = None
    remedies: Annotated[
        bool | None,
        typer.Option(
            "--remedies/--no-remedies",
            help="Try models that may predict better than one landscape: a jump in time, growth, "
            "another mean, an interaction. By default if it is rejected on up to 30 states.",
        ),
    ] = None
    max_seconds: Annotated[
        float | None, typer.Option(help="Stop the fit after this time, keeping the best so far.")
    ] = None
    seed: Seed = 0


@dataclass(frozen=True)
class Pair:
    """Two populations on a graph, and the mean that makes its geometry."""

    first: Annotated[Path, typer.Argument(help=_POPULATION)]
    second: Annotated[Path, typer.Argument(help=_POPULATION)]
    graph: Annotated[Path, typer.Option("--graph", help=_EDGES)]
    mean: Annotated[
        str, typer.Option(help="logarithmic, geometric, arithmetic or harmonic mobility.")
    ] = "logarithmic"
    largest_component: Largest = False


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the options of each group in the place of the group.

    >>> list(signature(with_groups(lambda: None)).parameters)
    []
    >>> def show(file: str, clouds: Clouds) -> None: ...
    >>> list(signature(with_groups(show)).parameters)
    ['file', 'points', 'coordinates', 'basis']
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for name, own in signature(command).parameters.items():
        if name in groups:
            kinds = get_type_hints(groups[name], include_extras=True)
            pairs = [
                (each.name, Parameter.empty if each.default is MISSING else each.default, kind)
                for each, kind in zip(fields(groups[name]), kinds.values(), strict=True)
            ]
        else:
            pairs = [(name, own.default, hints[name])]
        parameters += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, default, kind in pairs
        ]

    @wraps(command)
    def spelled_out(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    spelled_out.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    spelled_out.__annotations__ = {each.name: each.annotation for each in parameters}
    return spelled_out
