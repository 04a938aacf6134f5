"""Options of the commands that take clouds of points instead of counts on states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Basis", "Coordinates", "PointsFlag", "on_points"]

PointsFlag = Annotated[
    bool, typer.Option("--points", help="The file holds points with coordinates, one row each.")
]
Coordinates = Annotated[
    str | None, typer.Option("--coordinates", help="With --points: the columns, as x,y.")
]
Basis = Annotated[
    str | None, typer.Option("--basis", help="With --points, for .h5ad: the embedding in obsm.")
]


def on_points(
    task: str,
    file: Path,
    times: str,
    columns: tuple[str | None, str | None, str | None],
    method: str | None,
    seed: int,
    out: Path | None,
    json: bool,
) -> None:
    """Read the clouds in a file, and interpolate or forecast them."""
    from thalweg.adapters.points import read_points

    time, coordinates, basis = columns
    table = read_points(file, time=time, coordinates=coordinates, basis=basis)
    from thalweg.cli.points import run_points

    run_points(table, times, task=task, method=method, seed=seed, out=out, as_json=json)
