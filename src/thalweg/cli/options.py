"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "CountColumn",
    "GraphFile",
    "Individuals",
    "Json",
    "Largest",
    "MeanName",
    "ModelFile",
    "NeighborsKey",
    "OptionalGraph",
    "Population",
    "ReplicateColumn",
    "Seed",
    "SnapshotsFile",
    "StateColumn",
    "StateKey",
    "TimeColumn",
    "TimeKey",
    "Times",
    "WeightColumn",
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same results.")]
SnapshotsFile = Annotated[
    Path,
    typer.Argument(
        help=(
            "CSV, TSV or Parquet: long ([bold]time,state[,count][/]) or wide (one row per time); "
            "or an .h5ad of cells."
        )
    ),
]
GraphFile = Annotated[
    Path,
    typer.Option(
        "--graph",
        help="Edges as CSV ([bold]source,target[,weight][/]), GraphML, or a scipy .npz matrix.",
    ),
]
TimeColumn = Annotated[str | None, typer.Option("--time", help="The column of times.")]
StateColumn = Annotated[str | None, typer.Option("--state", help="The column of states.")]
CountColumn = Annotated[
    str | None,
    typer.Option("--count", help="The column of counts; [bold]none[/]: one individual per row."),
]
Individuals = Annotated[
    float | None,
    typer.Option(
        "--individuals", help="For shares: the number of individuals behind each snapshot."
    ),
]
ReplicateColumn = Annotated[
    str | None,
    typer.Option("--replicate", help="The column of replicates (animals, batches, runs)."),
]
WeightColumn = Annotated[str | None, typer.Option("--weight", help="The edges' weights.")]
Largest = Annotated[
    bool,
    typer.Option("--largest-component", help="Keep the largest piece of a disconnected graph."),
]
OptionalGraph = Annotated[
    Path | None,
    typer.Option(
        "--graph",
        help="Edges as CSV ([bold]source,target[,weight][/]), GraphML, or a scipy .npz matrix.",
    ),
]
TimeKey = Annotated[
    str | None, typer.Option("--time-key", help="For .h5ad: the obs column of times.")
]
StateKey = Annotated[
    str | None,
    typer.Option("--state-key", help="For .h5ad: the obs column of clusters to take as states."),
]
NeighborsKey = Annotated[
    str | None, typer.Option("--neighbors-key", help="For .h5ad: the key of the neighbour graph.")
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
Population = Annotated[Path, typer.Argument(help="A table with one state and its share per row.")]
MeanName = Annotated[
    str, typer.Option(help="logarithmic, geometric, arithmetic or harmonic mobility.")
]
