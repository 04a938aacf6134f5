"""The commands. Each imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from thalweg._version import __version__
from thalweg.cli.options import (
    Clouds,
    Fitting,
    Json,
    MapOutput,
    ModelFile,
    Output,
    PageOutput,
    Pair,
    Reading,
    ReportOutput,
    Running,
    Seed,
    SnapshotsFile,
    TimeColumn,
    Times,
    with_groups,
)
from thalweg.errors import MissingDependencyError

app = typer.Typer(
    name="thalweg",
    help=(
        "Learn the energy landscape that drives a population over a graph, from snapshots of the "
        "population, and compute with the transport geometry behind it."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=(
        "Start with [bold]thalweg demo[/]: it simulates a population and writes a page. "
        "Exit codes: 0 done, 2 wrong input or a file that cannot be read or written, 3 not "
        "converged (results are still written), 130 interrupted. "
        "[bold]thalweg --install-completion[/] sets up completion in your shell."
    ),
)

DEMOS = {
    "valleys": "five hundred places on a plane, several valleys (the default)",
    "cells": "cells that mature from one stem state into three fates, along a branching tree",
    "molecule": "a molecule with three basins over two dihedral angles, a torus",
}


def _command(function: Callable[..., None]) -> Callable[..., None]:
    return app.command()(with_groups(function))


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


@_command
def demo(
    name: Annotated[
        str,
        typer.Argument(help="Name of the example; see --list.", autocompletion=lambda: list(DEMOS)),
    ] = "valleys",
    out: Annotated[Path, typer.Option(help="Folder in which to write index.html.")] = Path(
        "thalweg-demo"
    ),
    states: Annotated[
        int | None, typer.Option(min=10, max=20_000, help="Approximate number of states.")
    ] = None,
    seed: Seed = 0,
    list_them: Annotated[bool, typer.Option("--list", help="List the examples.")] = False,
    json: Json = False,
) -> None:
    """Simulate a population, recover the landscape that moved it, and draw both on a page.

    By default, five hundred places with several valleys; the population starts at the centre.
    """
    if not list_them:
        from thalweg.cli.demo import run_demo

        run_demo(name, out, states, seed, json)
    elif json:
        from json import dumps

        print(dumps(DEMOS, indent=2))
    else:
        for each, what in DEMOS.items():
            print(f"{each:10s} {what}")


@_command
def check(
    snapshots: SnapshotsFile,
    reading: Reading,
    cost: Annotated[
        bool,
        typer.Option("--cost/--no-cost", help="Run a trial fit to estimate the cost."),
    ] = True,
    json: Json = False,
) -> None:
    """Look at the data before fitting: what was read, what looks odd, and what a fit will cost."""
    from thalweg.cli.check import print_check

    print_check(reading.problem(snapshots), json, snapshots, cost=cost)


@_command
def fit(
    snapshots: SnapshotsFile,
    reading: Reading,
    fitting: Fitting,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("thalweg-fit"),
    json: Json = False,
) -> None:
    """Learn the landscape and the noise from snapshots; write a model, tables and a report.

    Writes model.thalweg, states.csv, forecast.csv and report.html.
    """
    problem = reading.problem(snapshots)
    problem.announce(quiet=json)
    # Only now, so that file errors surface before numba is loaded.
    from thalweg.cli.fit import run_fit

    title = f"The landscape behind {snapshots.name}"
    run_fit(problem, out, fitting, as_json=json, title=title)


@_command
def forecast(
    model: Annotated[
        Path,
        typer.Argument(
            help="A model.thalweg from [bold]thalweg fit[/]; with --points, a table or .h5ad."
        ),
    ],
    times: Times,
    clouds: Clouds,
    output: Output,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Start from the last snapshot in this file, placed at the first of the times.",
        ),
    ] = None,
    time: TimeColumn = None,
    method: Annotated[
        str | None,
        typer.Option(help="With --points: landscape, flow, growing, displacement or persistence."),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Forecast the population from a fitted model, with 95 % bands.

    With --points: the cloud of points at times after the last one in a table.
    """
    if clouds.requested:
        from thalweg.cli.points import run_points

        run_points(clouds.read(model, time), times, "forecast", method, seed, output)
    else:
        from thalweg.cli.forecast import run_forecast

        run_forecast(model, times, start, output)


@_command
def interpolate(
    snapshots: SnapshotsFile,
    times: Times,
    reading: Reading,
    clouds: Clouds,
    output: PageOutput,
    model: Annotated[
        Path | None, typer.Option(help="A model.thalweg; by default the landscape is fitted first.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help=(
                "[bold]flow[/]: follow the landscape, bent to meet the snapshots (default with "
                "three or more); [bold]geodesic[/]: the shortest path in W_K between the two "
                "nearest ones. With --points also growing, bridge, displacement, curved, "
                "unbalanced, landscape."
            )
        ),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Estimate the population between the snapshots; with --points, the cloud of points."""
    if clouds.requested:
        from thalweg.cli.points import run_points

        table = clouds.read(snapshots, reading.time or reading.time_key)
        run_points(table, times, "interpolate", method, seed, output)
        return
    problem = reading.problem(snapshots)
    problem.announce(quiet=output.json)
    from thalweg.cli.interpolate import run_interpolate

    run_interpolate(problem, times, model, method, seed, output)


@_command
def report(model: ModelFile, output: ReportOutput) -> None:
    """Draw the report of a fitted model again."""
    from thalweg.cli.forecast import run_report

    run_report(model, output)


@_command
def distance(pair: Pair, json: Json = False) -> None:
    """Compute the transport distance W_K between two populations on a graph."""
    from thalweg.cli.transport import run_distance

    run_distance(pair, json)


@_command
def geodesic(
    pair: Pair,
    output: PageOutput,
    steps: Annotated[int, typer.Option(min=2, max=10_000, help="Number of points.")] = 21,
) -> None:
    """Compute the shortest path in W_K from one population to another."""
    from thalweg.cli.transport import run_geodesic

    run_geodesic(pair, steps, output)


@_command
def simulate(
    model: ModelFile,
    times: Times,
    output: Output,
    individuals: Annotated[int, typer.Option(min=1, help="Number of individuals.")] = 1000,
    tracked: Annotated[
        bool,
        typer.Option(help="Follow the same individuals, instead of drawing new ones at each time."),
    ] = False,
    seed: Seed = 0,
) -> None:
    """Draw snapshots from a fitted model, as a table that [bold]thalweg fit[/] reads."""
    from thalweg.cli.transport import run_simulate

    run_simulate(model, times, individuals, tracked, seed, output)


@_command
def fates(
    model: ModelFile,
    output: Output,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "A set of states, as [bold]name=state,state[/]; give at least two. By default, the "
                "sets that hold an individual longest are found."
            ),
        ),
    ] = None,
    when: Annotated[
        bool, typer.Option("--when", help="Give mean times to reach each target, not fates.")
    ] = False,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
) -> None:
    """Where does an individual end up, and when? From every state, with error bars.

    One individual jumps at random in the landscape while the population rests. Its fate is the
    target that it enters first. Columns: state, fate, probability, stderr, lower, upper; with
    [bold]--when[/]: state, target, mean_time, stderr, lower, upper.

    thalweg fates model.thalweg --target left=a,b --target right=c
    """
    from thalweg.cli.fates import run_fates

    run_fates(model, target or [], when, level, output)


@_command
def compare(
    first: SnapshotsFile,
    second: SnapshotsFile,
    reading: Reading,
    output: MapOutput,
    seed: Seed = 0,
) -> None:
    """Are the landscapes behind two data sets the same? Treated against control, for instance.

    Both are fitted on the same graph, separately and together. The p-value says how often data sets
    of one landscape differ as much as these; states and edges that differ are named at a
    false-discovery rate of 5 %. The result does not depend on the constant of the potential.

    thalweg compare control.csv treated.csv --graph edges.csv --out difference.html
    """
    one, other = reading.problem(first), reading.problem(second)
    one.announce(quiet=output.json)
    other.announce(quiet=output.json)
    from thalweg.cli.compare import run_compare

    run_compare(one, other, (first.name, second.name), seed, output)


@_command
def steer(
    model: ModelFile,
    horizon: Annotated[float, typer.Option(help="The time available.")],
    output: Output,
    target: Annotated[
        Path | None, typer.Option(help="The population to reach: the last snapshot in this file.")
    ] = None,
    wish: Annotated[
        str | None,
        typer.Option(
            "--raise",
            help="Instead of --target: the share to reach in some states, as [bold]a,b=0.6[/].",
        ),
    ] = None,
    few: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Push at most this many states, constantly, instead of all of them over time.",
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Start from the last snapshot in this file; by default from the fit's last time.",
        ),
    ] = None,
) -> None:
    """How do I get there? The cheapest potential to add so that the population arrives in time.

    The cost is 1/2 of the time integral of |grad u|^2, weighted by the population. The plan is
    simulated, and compared with a lower bound on the cost of any plan. Columns: time, state,
    potential (to add), probability.

    thalweg steer model.thalweg --horizon 3 --raise valley=0.6

    thalweg steer model.thalweg --horizon 3 --raise valley=0.6 --few 2
    """
    from thalweg.cli.steer import run_steer

    run_steer(model, horizon, target=target, wish=wish, few=few, start=start, output=output)


@_command
def bench(
    running: Running,
    name: Annotated[
        str | None, typer.Argument(help="Name of the benchmark; leave it out to list them.")
    ] = None,
) -> None:
    """Run one of the library's benchmarks: every figure in the documentation comes from these.

    [bold]thalweg bench reproduce --from DIR --out docs[/] makes the page 'Reproducing the paper'
    from results that earlier runs wrote below DIR.
    """
    if find_spec("thalweg_bench") is None:
        raise MissingDependencyError(
            "the benchmarks are not installed; in a clone of thalweg, run pip install ./benchmarks."
        )
    command = import_module("thalweg_bench.command")
    if name is None:
        command.list_benchmarks()
    elif name == "reproduce":
        command.reproduce(running.results, running.out)
    else:
        command.run(name, running)
