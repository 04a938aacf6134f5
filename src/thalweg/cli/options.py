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
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_type_hints

import typer

from thalweg.errors import InputError

if TYPE_CHECKING:
    from thalweg.adapters.points import PointTable
    from thalweg.cli.problem import Problem


_EDGES = "Edges as CSV ([bold]source,target[,weight][/]), GraphML, or a scipy .npz matrix."
_POPULATION = "A table with one state and its share per row."
_MODEL = "A model.thalweg from [bold]thalweg fit[/]"

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same results.")]
SnapshotsFile = Annotated[
    Path,
    typer.Argument(
        help=(
            "CSV, TSV or Parquet: long ([bold]time,state[,count][/]) or wide (one row per time); "
            "or an .h5ad of cells."
        )
    ),
]
TimeColumn = Annotated[str | None, typer.Option(help="The column of times.")]
Largest = Annotated[
    bool,
    typer.Option("--largest-component", help="Keep the largest piece of a disconnected graph."),
]
Times = Annotated[
    str,
    typer.Option(
        help=(
            "As 1,2,5, or as from:to:how-many, like 0:10:21; in the unit of the data, or as dates "
            "if the data have dates."
        )
    ),
]
ModelFile = Annotated[Path, typer.Argument(help=f"{_MODEL}.")]


@dataclass(frozen=True)
class Output:
    """Where the rows of a result go: printed as a table or as JSON, or written to a file."""

    out: Annotated[Path | None, typer.Option(help="CSV file to write; printed by default.")] = None
    json: Json = False

    formats: ClassVar[tuple[str, ...]] = (".csv",)
    """Extensions of the files that the command can write."""

    def __post_init__(self) -> None:
        """Reject a file whose extension names another format."""
        if self.out is not None and self.out.suffix.lower() not in ("", *self.formats):
            raise InputError(
                f"--out is {self.out.name!r}; this command writes {' or '.join(self.formats)}, so "
                "end the name in that."
            )

    @property
    def as_page(self) -> bool:
        return self.out is not None and self.out.suffix.lower() == ".html"


@dataclass(frozen=True)
class PageOutput(Output):
    """Where a curve of populations goes."""

    out: Annotated[
        Path | None,
        typer.Option(help="A .csv, or an .html page with a slider; printed by default."),
    ] = None

    formats = (".csv", ".html")


@dataclass(frozen=True)
class MapOutput(PageOutput):
    """Where a comparison goes."""

    out: Annotated[
        Path | None, typer.Option(help="A .csv of all states, or an .html page with a map.")
    ] = None


@dataclass(frozen=True)
class ReportOutput(Output):
    """Where a report goes."""

    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html")

    formats = (".html", ".htm")


@dataclass(frozen=True)
class Reading:
    """The graph, and how to read the files of a data set."""

    graph: Annotated[Path | None, typer.Option(help=_EDGES)] = None
    time: TimeColumn = None
    state: Annotated[str | None, typer.Option(help="The column of states.")] = None
    count: Annotated[
        str | None,
        typer.Option(help="The column of counts; [bold]none[/]: one individual per row."),
    ] = None
    individuals: Annotated[
        float | None,
        typer.Option(help="For shares: the number of individuals behind each snapshot."),
    ] = None
    replicate: Annotated[
        str | None, typer.Option(help="The column of replicates (animals, batches, runs).")
    ] = None
    weight: Annotated[str | None, typer.Option(help="The column of the edges' weights.")] = None
    positions: Annotated[
        Path | None, typer.Option(help="A table with the states' coordinates.")
    ] = None
    largest_component: Largest = False
    time_key: Annotated[
        str | None, typer.Option(help="For .h5ad: the column of obs with the times.")
    ] = None
    state_key: Annotated[
        str | None,
        typer.Option(help="For .h5ad: the column of obs with clusters, to use as states."),
    ] = None
    neighbors_key: Annotated[
        str | None, typer.Option(help="For .h5ad: the key of the neighbour graph.")
    ] = None

    def problem(self, snapshots: Path) -> Problem:
        """Read the snapshots and the graph."""
        from thalweg.cli.problem import load_problem

        return load_problem(snapshots, self)


@dataclass(frozen=True)
class Clouds:
    """For commands that take clouds of points as well as counts on states."""

    points: Annotated[
        bool, typer.Option("--points", help="The file holds points with coordinates, one per row.")
    ] = False
    coordinates: Annotated[
        str | None, typer.Option(help="With --points: the columns of coordinates, as x,y.")
    ] = None
    basis: Annotated[
        str | None, typer.Option(help="With --points, for .h5ad: the embedding in obsm.")
    ] = None

    @property
    def requested(self) -> bool:
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
            help="[bold]likelihood[/] (most accurate), [bold]weak[/] (instant), [bold]neural[/] "
            "(the paper's network)."
        ),
    ] = "likelihood"
    observation: Annotated[
        str,
        typer.Option(
            help="[bold]independent[/] snapshots, [bold]overdispersed[/] ones (individuals come "
            "in clumps, as in a census), or one [bold]tracked[/] population."
        ),
    ] = "independent"
    growth: Annotated[
        str,
        typer.Option(
            help="Births and deaths: [bold]none[/], learned from [bold]shares[/], or also from "
            "[bold]totals[/] if the counts are the whole population."
        ),
    ] = "none"
    beta: Annotated[float | None, typer.Option(help="The strength of the noise, if known.")] = None
    horizon: Annotated[
        float | None,
        typer.Option(help="How far ahead to forecast; by default as long as the data last."),
    ] = None
    remedies: Annotated[
        bool | None,
        typer.Option(
            "--remedies/--no-remedies",
            help="Try models that may predict better than one landscape: a jump in time, growth, "
            "another mean, an interaction. By default they are tried on up to 30 states if one "
            "landscape is rejected.",
        ),
    ] = None
    max_seconds: Annotated[
        float | None,
        typer.Option(help="Stop the fit after this time and keep the best result so far."),
    ] = None
    seed: Seed = 0


@dataclass(frozen=True)
class Pair:
    """Two populations on a graph, and the mean that makes its geometry."""

    first: Annotated[Path, typer.Argument(help=_POPULATION)]
    second: Annotated[Path, typer.Argument(help=_POPULATION)]
    graph: Annotated[Path, typer.Option(help=_EDGES)]
    mean: Annotated[
        str, typer.Option(help="The mobility: logarithmic, geometric, arithmetic or harmonic.")
    ] = "logarithmic"
    largest_component: Largest = False


@dataclass(frozen=True)
class Running:
    """How `thalweg bench` runs a benchmark."""

    quick: Annotated[bool, typer.Option("--quick", help="Finish in about a minute.")] = False
    seed: Seed = 0
    jobs: Annotated[int, typer.Option(help="Worker processes; -1 uses all cores.")] = 1
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for table, figures and settings; an interrupted sweep resumes from it."
        ),
    ] = None
    cluster: Annotated[
        str | None, typer.Option(help="The address of a Dask scheduler to send the work to.")
    ] = None
    instances: Annotated[
        int | None, typer.Option(help="Graphs per family in a sweep; fewer finish sooner.")
    ] = None
    results: Annotated[
        Path | None,
        typer.Option("--from", help="For reproduce: the folder that holds the results."),
    ] = None
    json: Json = False


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the options of each group in place of the group.

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
            options = [
                (f.name, Parameter.empty if f.default is MISSING else f.default, kinds[f.name])
                for f in fields(groups[name])
            ]
        else:
            options = [(name, own.default, hints[name])]
        parameters += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, default, kind in options
        ]
    parameters.sort(key=lambda each: each.name in ("out", "json"))  # the last in every help

    @wraps(command)
    def spelled_out(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    spelled_out.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    spelled_out.__annotations__ = {each.name: each.annotation for each in parameters}
    return spelled_out
