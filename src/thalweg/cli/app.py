"""The commands. Each imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thalweg import __version__

app = typer.Typer(
    name="thalweg",
    help=(
        "Learn the energy landscape that drives a population over a graph, from snapshots of the "
        "population, and compute with the transport geometry behind it."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Start with [bold]thalweg demo[/]: it makes a population, and leaves a page to open.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"thalweg {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options that every command has."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder that receives index.html.")] = Path(
        "thalweg-demo"
    ),
    states: Annotated[int, typer.Option(min=10, max=20_000, help="How many states.")] = 1000,
    seed: Annotated[int, typer.Option(help="Same seed, same page.")] = 0,
) -> None:
    """Simulate a population on a Delaunay graph and draw its flow to a page.

    The landscape has several valleys; the population starts at the centre and finds them.
    """
    from thalweg.cli.demo import run

    run(out, states, seed)


@app.command()
def bench(
    name: Annotated[
        str | None, typer.Argument(help="Which benchmark; leave it out to list them.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Finish in about a minute.")] = False,
    seed: Annotated[int, typer.Option(help="Same seed, same problems.")] = 0,
    jobs: Annotated[int, typer.Option(help="Worker processes; -1 takes all cores.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Also write the table, figures and settings here.")
    ] = None,
) -> None:
    """Run one of the library's benchmarks: every figure in the documentation comes from these."""
    from thalweg.cli.bench import list_benchmarks, run

    if name is None:
        list_benchmarks()
    else:
        run(name, quick=quick, seed=seed, jobs=jobs, out=out)
