"""What follows from a landscape, for the report: fates, streams, differences."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from thalweg._types import Array
from thalweg._words import p_text
from thalweg.dynamics import (
    Comparison,
    Fates,
    Streams,
    fate_probabilities,
    macrostates,
    streams,
)
from thalweg.errors import InputError
from thalweg.learn import FreeEnergyRegressor
from thalweg.plots.layout import PALETTE, cut, state_texts
from thalweg.report.findings import WITHOUT_BIRTHS, caution
from thalweg.report.graph import drawn, landscape_picture
from thalweg.report.page import Section, Table, page
from thalweg.report.svg import INK, Picture, apart, element, number, table_text, words, wrap

_MOST_STATES = 400
"""Number of states above which the section would take longer than the rest of the page."""
_MOST_TIMES = 7
"""Largest number of times in the diagram of streams, which has room for no more columns."""
_MOST_SETS = 6
"""Largest number of metastable sets: more would not be a summary."""


def fates_section(model: FreeEnergyRegressor, names: Sequence[str]) -> Section | None:
    """Metastable sets, where individuals end up, and the streams between the sets over time.

    `None` if there is nothing to show: too many states, no noise, or a potential that varies in
    time.
    """
    if model.kernel_.n_states > _MOST_STATES or model.time_basis is not None or model.beta_ <= 0:
        return None
    try:
        land = model.landscape_
        sets = macrostates(land, most=_MOST_SETS)
        targets = sets.named_cores(names)
        called = list(targets)
        fates = fate_probabilities(land, targets)
        grid = np.linspace(model.times_[0], model.times_[-1], _MOST_TIMES)
        times = model.times_ if model.times_.size <= _MOST_TIMES else grid
        flow = streams(land, model.population(float(times[0])), times, sets.labels)
    except InputError:
        return None
    modes = sets.modes.times
    slow = modes.value[: sets.n_macrostates - 1]
    text = (
        f"In the resting population an individual lingers in {sets.n_macrostates} sets of states, "
        f"each named after its most typical state; the slowest exchange between them takes "
        f"{_with_error(float(slow[0]), float(modes.stderr[0]))} units of time. The next relaxation "
        f"is {sets.gap:.1f} times faster."
    )
    open_ended = int(np.sum(fates.probabilities.undetermined.any(axis=1)))
    those = "one state" if open_ended == 1 else f"{open_ended} states"
    unsure = (
        f"For {those} the data do not say where an individual ends up: the interval is wider than "
        "0.9.",
    ) if open_ended else ()  # fmt: skip
    births = () if model.growth_ is None else (WITHOUT_BIRTHS,)
    return Section(
        "Where individuals end up",
        (*caution(model), *births, text, *unsure),
        (
            stream_picture(flow, called),
            landscape_picture(
                drawn(model.kernel_), fates.probabilities.value[:, 0],
                stderr=_finite(fates.probabilities.stderr[:, 0]),
                name="fates", label=f"share that ends in the {called[0]}",
            ),
        ),
        table=_fates_table(fates, names),
    )  # fmt: skip


def _finite(stderr: Array) -> Array | None:
    return stderr if np.isfinite(stderr).all() else None


def _with_error(value: float, error: float) -> str:
    """A value to the digits that its error leaves, and the error.

    >>> _with_error(8474.2, 3158.0), _with_error(0.20824, 0.0231), _with_error(1.0, 0.0)
    ('8500 ± 3200', '0.208 ± 0.023', '1')
    """
    if not np.isfinite(error) or error <= 0:
        return number(value)
    digits = 1 - int(np.floor(np.log10(float(f"{error:.1e}"))))
    if not 0 < digits < 7:
        return f"{round(value, digits):.6g} ± {round(error, digits):.6g}"
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _fates_table(fates: Fates, names: Sequence[str]) -> Table:
    e = fates.probabilities
    rows = [
        (names[x], *(_with_error(float(v), float(s)) for v, s in zip(value, error, strict=True)))
        for x, (value, error) in enumerate(zip(e.value, e.stderr, strict=True))
    ]
    caption = "The probability of reaching each set before the others, from each state."
    return Table(caption, ("state", *fates.names), rows)


def stream_picture(flow: Streams, names: Sequence[str]) -> Picture:
    """A Sankey diagram: groups as bars at each time, streams as bands between them."""
    width, height, pad, bar = 716.0, 360.0, 40.0, 12.0
    n_times, size = flow.shares.shape
    room = height - 2 * pad - 10.0 * (size - 1)
    margin = min(260.0, 16.0 + 7.2 * max(len(cut(name, 30)) for name in names))
    left = np.linspace(pad, width - margin - bar, n_times)
    tops = pad + np.concatenate(
        [np.zeros((n_times, 1)), np.cumsum(flow.shares * room + 10.0, axis=1)[:, :-1]], axis=1
    )
    parts, rows = [], []
    colour = [PALETTE[a % len(PALETTE)] for a in range(size)]
    for k, moved in enumerate(flow.moved):
        start, end = tops[k].copy(), tops[k + 1].copy()
        x0, x1 = left[k] + bar, left[k + 1]
        middle = 0.5 * (x0 + x1)
        for a in range(size):
            for b in range(size):
                h = float(moved[a, b]) * room
                y0, y1 = start[a], end[b]
                start[a], end[b] = y0 + h, y1 + h
                rows.append([flow.times[k], flow.times[k + 1], names[a], names[b], moved[a, b]])
                if h < 0.3:
                    continue
                path = (
                    f"M{x0:.1f} {y0:.1f}C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} "
                    f"{y1:.1f}L{x1:.1f} {y1 + h:.1f}C{middle:.1f} {y1 + h:.1f} {middle:.1f} "
                    f"{y0 + h:.1f} {x0:.1f} {y0 + h:.1f}Z"
                )
                hover = f"{names[a]} to {names[b]}: {moved[a, b]:.3f}"
                parts.append(element("path", _title(hover), d=path, fill=colour[a],
                                     fill_opacity="0.35"))  # fmt: skip
    for k, t in enumerate(flow.times):
        for a in range(size):
            hover = f"{names[a]}: {flow.shares[k, a]:.3f}"
            tall = max(float(flow.shares[k, a]) * room, 0.5)
            parts.append(element("rect", _title(hover), x=left[k], y=tops[k, a], width=bar,
                                 height=tall, fill=colour[a]))  # fmt: skip
        middle = left[k] + bar / 2
        parts.append(words(middle, height - 12, number(float(t)), text_anchor="middle"))
    beside = left[-1] + bar + 8
    middles = apart(tops[-1] + 0.5 * flow.shares[-1] * room, 16.0, height - pad)
    for a in range(size):
        body = escape(cut(names[a], 30)) + _title(names[a])
        parts.append(element("text", body, x=beside, y=middles[a] + 4, fill=INK))
    parts.append(words(beside, height - 12, "time"))
    alt = f"Streams of individuals between {size} sets of states over {n_times} times."
    data = table_text(["from_time", "to_time", "from", "to", "share"], rows)
    return Picture("streams", wrap(width, height, parts, alt), alt, data)


def _title(text: str) -> str:
    """The text that appears when the reader points at an element."""
    return element("title", escape(text))


def comparison_page(
    answer: Comparison, labels: tuple[str, str], title: str, cautions: Sequence[str] = ()
) -> str:
    """The page of a comparison: verdict, difference map, tables."""
    kernel, d = answer.kernel, answer.states
    names = state_texts(kernel)
    one, other = labels
    verdicts = [str(answer), *cautions, *_verdicts(answer)]
    about = (
        f"The potential behind {one} minus that behind {other}, relative to the "
        f"{answer.reference.size} states whose own differences are the same in both."
    )
    picture = landscape_picture(
        drawn(kernel), d.value, stderr=d.stderr, name="difference", label="difference"
    )
    rows = [
        (
            names[x], f"{d.value[x]:.4g}", f"{d.stderr[x]:.2g}", f"{d.p_value[x]:.3g}",
            f"{d.q_value[x]:.3g}", "different" if d.q_value[x] <= 0.05 else "",
        )
        for x in np.argsort(d.q_value, kind="stable")
    ]  # fmt: skip
    header = ("state", "difference", "standard error", "p", "false-discovery rate", "")
    sections = [
        Section("Are they the same?", verdicts, headline=True),
        Section(
            "Where they differ", (about,), (picture,), table=Table("Every state.", header, rows)
        ),
        Section("Along edges", (), table=_edges_table(answer, names)),
    ]
    return page(title, f"{one} against {other}, on {kernel.n_states} states.", sections)


def _verdicts(answer: Comparison) -> list[str]:
    out = []
    for what, test in (("potential", answer.same_landscape), ("noise beta", answer.same_beta)):
        if test is not None:
            verb = "differs" if test.p_value < 0.05 else "may be the same"
            out.append(f"The {what} {verb} ({p_text(test.p_value, 3)}).")
    return out


def _edges_table(answer: Comparison, names: Sequence[str]) -> Table:
    d, (source, target, _) = answer.edges, answer.kernel.edges
    rows = [
        (
            names[source[e]], names[target[e]],
            f"{d.value[e]:.4g}", f"{d.stderr[e]:.2g}", f"{d.q_value[e]:.3g}",
        )
        for e in np.argsort(d.q_value, kind="stable")[:1000]
    ]  # fmt: skip
    caption = "The edges along which the potential drop changed most significantly."
    drop = "change of the potential drop"
    return Table(caption, ("from", "to", drop, "standard error", "false-discovery rate"), rows)
