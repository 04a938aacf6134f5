"""`thalweg distance`, `geodesic`, `simulate`: the geometry and its flows, from files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from thalweg._sparse import dense
from thalweg._types import Array
from thalweg._words import listed
from thalweg.adapters.edges import read_graph
from thalweg.adapters.pieces import as_numbers, read_table
from thalweg.adapters.tables import state_key
from thalweg.cli.forecast import announced
from thalweg.cli.options import Output, PageOutput, Pair
from thalweg.cli.output import finish, give, give_page, long_table, parse_times, say
from thalweg.cli.problem import announce_reading
from thalweg.errors import InputError
from thalweg.geometry import Geodesic, TransportGeometry
from thalweg.kernel import MarkovKernel
from thalweg.mobility import NAMED
from thalweg.snapshots.columns import COUNT_NAMES, STATE_NAMES, choose


def run_distance(pair: Pair, as_json: bool) -> None:
    """Print the distance between the populations in two files."""
    geodesic, _ = _geodesic(pair)
    if as_json:
        answer = {
            "distance": geodesic.distance,
            "error_estimate": geodesic.error_estimate,
            "status": geodesic.status.name,
        }
        print(json.dumps(answer))
    else:
        print(f"{geodesic.distance:.12g}")
    if not geodesic.status:
        say(f"error estimate {geodesic.error_estimate:.2g}", stderr=True)
    finish(geodesic.status)


def _geodesic(pair: Pair) -> tuple[Geodesic, MarkovKernel]:
    """The geodesic between the populations in two files; choices made in reading are printed."""
    mean = NAMED.get(pair.mean)
    if mean is None:
        raise InputError(f"--mean is {pair.mean!r}; choose {', '.join(NAMED)}.")
    found = read_graph(pair.graph, largest_component=pair.largest_component)
    announce_reading(pair.graph, found.messages)
    ends = [_population(path, found.kernel) for path in (pair.first, pair.second)]
    return TransportGeometry(found.kernel, mean).geodesic(*ends), found.kernel


def run_geodesic(pair: Pair, steps: int, output: PageOutput) -> None:
    """Write the populations along the geodesic, as a table or as a page with a slider."""
    geodesic, kernel = _geodesic(pair)
    facts = {"distance": geodesic.distance}
    points = geodesic.at(np.linspace(0, 1, steps))
    if output.as_page:
        from thalweg.report import Section, page
        from thalweg.report.graph import drawn, moving_picture

        film = moving_picture(drawn(kernel), points.times, points.probabilities)
        said = f"The distance is {geodesic.distance:.6g}; the path has constant speed."
        sections = [Section("The path", (said,), (film,))]
        text = page("Geodesic", f"{pair.first.name} to {pair.second.name}", sections)
        give_page(text, output, facts, geodesic.status)
    else:
        frame = long_table(kernel, points.times, points.probabilities)
        give(frame, output, "geodesic", facts, geodesic.status)


def run_simulate(
    model_file: Path, times: str, individuals: int, tracked: bool, seed: int, output: Output
) -> None:
    """Draw snapshots from a fitted model, as a table that `thalweg fit` reads."""
    model, cautions = announced(model_file, output)
    when = parse_times(times, model.time_scale_)
    # Drawn by the model itself, with its saved mobility and dynamics.
    model.set_params(observation="tracked" if tracked else "independent")
    seen = model.sample(when, individuals, rng=np.random.default_rng(seed))
    frame = long_table(model.kernel_, when, dense(seen.counts), scale=model.time_scale_)
    frame = frame.rename(columns={"probability": "count"})
    frame["count"] = frame["count"].astype(int)
    facts = {"individuals": individuals, "cautions": cautions}
    give(frame[frame["count"] > 0], output, "snapshots", facts, None)


def _population(path: Path, kernel: MarkovKernel) -> Array:
    """A distribution over the kernel's states: a table with one state and its number per row."""
    frame = read_table(path)
    columns = list(frame.columns)
    state = choose(columns, None, STATE_NAMES, "state", path.name)
    state = columns[0] if state is None else state
    rest = [column for column in columns if column != state]
    names = ("probability", "p", "share", *COUNT_NAMES)
    value = choose(rest, None, names, "probability", path.name)
    value = rest[0] if value is None and len(rest) == 1 else value
    if value is None:
        raise InputError(
            f"{path.name} needs a column of states and one of probabilities or counts; it has "
            f"{listed(columns)}."
        )
    known = {state_key(name): k for k, name in enumerate(kernel.names or ())}
    p = np.zeros(kernel.n_states)
    for row, (name, number) in enumerate(zip(frame[state], as_numbers(frame[value]), strict=True)):
        key = state_key(name)
        if key not in known:
            raise InputError(f"{path.name}: the graph has no state {key[:40]!r} (row {row + 2}).")
        if not np.isfinite(number) or number < 0:
            raise InputError(
                f"{path.name}: the value of {key[:40]!r} must be a number that is not negative "
                f"(row {row + 2})."
            )
        p[known[key]] += number
    if p.sum() <= 0:
        raise InputError(f"{path.name} holds no mass.")
    return np.asarray(p / p.sum())
