"""The commands. Each imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thalweg._version import __version__
from thalweg.cli import questions
from thalweg.cli.options import (
    Clouds,
    Fitting,
    Json,
    ModelFile,
    Page,
    Pair,
    Reading,
    Seed,
    SnapshotsFile,
    Table,
    TimeColumn,
    Times,
    with_groups,
)

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


def _demo_names() -> list[str]:
    from thalweg.cli.demo_names import DEMOS

    return list(DEMOS)


@app.command()
def demo(
    name: Annotated[
        str, typer.Argument(help="Name of the example; see --list.", autocompletion=_demo_names)
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
    if list_them:
        from thalweg.cli.demo_names import print_demos

        print_demos(json)
        return
    from thalweg.cli.demo import run

    run(name, out, states, seed, json)


@app.command()
@with_groups
def check(
    snapshots: SnapshotsFile,
    reading: Reading,
    cost: Annotated[
        bool,
        typer.Option("--cost/--no-cost", help="Run a trial fit to estimate the cost."),
    ] = True,
    json: Json = False,
) -> None:
    """Look at the data before fitting: what was read, what looks odd, what a fit will cost."""
    from thalweg.cli.check import print_check

    print_check(reading.problem(snapshots), json, snapshots, cost=cost)


@app.command()
@with_groups
def fit(
    snapshots: SnapshotsFile,
    reading: Reading,
    fitting: Fitting,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("thalweg-fit"),
    json: Json = False,
) -> None:
    """Learn the landscape and the noise from snapshots; write model, tables and a report.

    Writes model.thalweg, states.csv, forecast.csv and report.html.
    """
    problem = reading.problem(snapshots)
    problem.announce(quiet=json)
    # Only now, so that file errors surface before numba is loaded.
    from thalweg.cli.fit import run_fit

    title = f"The landscape behind {snapshots.name}"
    run_fit(problem, out, fitting, as_json=json, title=title)


@app.command()
@with_groups
def forecast(
    model: Annotated[
        Path,
        typer.Argument(
            help="A model.thalweg from [bold]thalweg fit[/]; with --points, a table or .h5ad."
        ),
    ],
    times: Times,
    clouds: Clouds,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Start from the last snapshot of this file, at the first time."
        ),
    ] = None,
    time: TimeColumn = None,
    method: Annotated[
        str | None,
        typer.Option(help="With --points: landscape, flow, growing, displacement or persistence."),
    ] = None,
    seed: Seed = 0,
    out: Table = None,
    json: Json = False,
) -> None:
    """Forecast the population from a fitted model, with 95 % bands.

    With --points: the cloud of points at times after the last one in a table.
    """
    if clouds.asked:
        table = clouds.read(model, time)
        from thalweg.cli.points import run_points

        run_points(table, times, task="forecast", method=method, seed=seed, out=out, as_json=json)
        return
    from thalweg.cli.forecast import run_forecast

    run_forecast(model, times, start, out, json)


@app.command()
@with_groups
def interpolate(
    snapshots: SnapshotsFile,
    times: Times,
    reading: Reading,
    clouds: Clouds,
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
    out: Page = None,
    json: Json = False,
) -> None:
    """Estimate the population between the snapshots; with --points, the cloud of points."""
    if clouds.asked:
        table = clouds.read(snapshots, reading.time or reading.time_key)
        from thalweg.cli.points import run_points

        run_points(
            table, times, task="interpolate", method=method, seed=seed, out=out, as_json=json
        )
        return
    problem = reading.problem(snapshots)
    problem.announce(quiet=json)
    from thalweg.cli.interpolate import run_interpolate

    run_interpolate(
        problem, times, model_file=model, method=method, seed=seed, out=out, as_json=json
    )


@app.command()
def report(
    model: ModelFile,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    json: Json = False,
) -> None:
    """Draw the report of a fitted model again."""
    from thalweg.cli.forecast import run_report

    run_report(model, out, json)


@app.command()
@with_groups
def distance(pair: Pair, json: Json = False) -> None:
    """Compute the transport distance W_K between two populations on a graph."""
    from thalweg.cli.transport import run_distance

    run_distance(pair, json)


@app.command()
@with_groups
def geodesic(
    pair: Pair,
    steps: Annotated[int, typer.Option(min=2, max=10_000, help="Number of points.")] = 21,
    out: Page = None,
    json: Json = False,
) -> None:
    """Compute the shortest path in W_K from one population to another."""
    from thalweg.cli.transport import run_geodesic

    run_geodesic(pair, steps, out, json)


@app.command()
def simulate(
    model: ModelFile,
    times: Times,
    individuals: Annotated[int, typer.Option(min=1, help="Number of individuals.")] = 1000,
    tracked: Annotated[
        bool, typer.Option(help="Follow one population, or draw a new one at each time.")
    ] = False,
    seed: Seed = 0,
    out: Table = None,
    json: Json = False,
) -> None:
    """Draw snapshots from a fitted model, as a table that [bold]thalweg fit[/] reads."""
    from thalweg.cli.transport import run_simulate

    run_simulate(model, times, individuals, tracked, seed, out, json)


for question in (questions.fates, questions.compare, questions.steer):
    app.command()(with_groups(question))


@app.command()
def bench(
    name: Annotated[
        str | None, typer.Argument(help="Name of the benchmark; leave it out to list them.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Finish in about a minute.")] = False,
    seed: Seed = 0,
    jobs: Annotated[int, typer.Option(help="Worker processes; -1 uses all cores.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for table, figures and settings; a killed sweep resumes here."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="The address of a Dask scheduler to send the work to.")
    ] = None,
    instances: Annotated[
        int | None, typer.Option(help="Graphs per family in a sweep; fewer finish sooner.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option("--from", help="For reproduce: the folder that holds the results."),
    ] = None,
    json: Json = False,
) -> None:
    """Run one of the library's benchmarks: every figure in the documentation comes from these.

    [bold]thalweg bench reproduce --from DIR --out docs[/] makes the page 'Reproducing the paper'
    from results that earlier runs wrote below DIR.
    """
    from thalweg.cli.bench import benchmarks

    command = benchmarks()
    if name is None:
        command.list_benchmarks()
    elif name == "reproduce":
        command.reproduce(results, out)
    else:
        command.run(
            name,
            quick=quick,
            seed=seed,
            jobs=jobs,
            out=out,
            cluster=cluster,
            instances=instances,
            as_json=json,
        )
