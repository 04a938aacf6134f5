"""Commands that put questions to a landscape: `thalweg fates`, `compare` and `steer`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thalweg.cli.options import Json, ModelFile, Reading, Seed, SnapshotsFile, Table


def fates(
    model: ModelFile,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help=(
                "A set of states, as [bold]name=state,state[/]; at least two of them. Without any, "
                "the sets that hold an individual longest are found."
            ),
        ),
    ] = None,
    when: Annotated[
        bool, typer.Option("--when", help="Mean times to reach each target, instead of fates.")
    ] = False,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    out: Table = None,
    json: Json = False,
) -> None:
    """Where does an individual end up, and when? From every state, with error bars.

    One individual jumps at random in the landscape while the population rests. Its fate is the
    target that it enters first. Columns: state, fate, probability, stderr, lower, upper; with
    [bold]--when[/]: state, target, mean_time, stderr, lower, upper.

    thalweg fates model.thalweg --target left=a,b --target right=c
    """
    from thalweg.cli.fates import run_fates

    run_fates(model, target or [], when, level, out, json)


def compare(
    first: SnapshotsFile,
    second: SnapshotsFile,
    reading: Reading,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="A .csv of all states, or an .html page with a map.")
    ] = None,
    json: Json = False,
) -> None:
    """Are the landscapes behind two data sets the same? Treated against control, for instance.

    Both are fitted on the same graph, separately and together. The p-value says how often data sets
    of one landscape differ as much as these; states and edges that differ are named at a
    false-discovery rate of 5 %. The result does not depend on the constant of the potential.

    thalweg compare control.csv treated.csv --graph edges.csv --out difference.html
    """
    one, other = reading.problem(first), reading.problem(second)
    one.announce(quiet=json)
    other.announce(quiet=json)
    from thalweg.cli.compare import run_compare

    run_compare(one, other, (first.name, second.name), seed=seed, out=out, as_json=json)


def steer(
    model: ModelFile,
    horizon: Annotated[float, typer.Option(help="The time available.")],
    target: Annotated[
        Path | None, typer.Option(help="The population to reach: the last snapshot of this file.")
    ] = None,
    wish: Annotated[
        str | None,
        typer.Option(
            "--raise", help="Or the share that some states must then hold, as [bold]a,b=0.6[/]."
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
            "--from", help="Start from the last snapshot of this file; by default that of the fit."
        ),
    ] = None,
    out: Table = None,
    json: Json = False,
) -> None:
    """How do I get there? The cheapest potential to add so that the population arrives in time.

    The cost is 1/2 of the time integral of |grad u|^2, weighted by the population. The plan is
    simulated, and compared with a lower bound on the cost of any plan. Columns: time, state,
    potential (to add), probability.

    thalweg steer model.thalweg --horizon 3 --raise valley=0.6

    thalweg steer model.thalweg --horizon 3 --raise valley=0.6 --few 2
    """
    from thalweg.cli.steer import run_steer

    run_steer(model, horizon, target=target, wish=wish, few=few, start=start, out=out, as_json=json)
