"""One HTML file from titled sections of sentences, pictures and tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from thalweg.report.script import SCRIPT
from thalweg.report.svg import Picture


@dataclass(frozen=True)
class Table:
    """A table that the reader can sort and filter."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A heading, then sentences (plain text, escaped here), pictures, facts, a table."""

    title: str
    sentences: Sequence[str] = ()
    figures: Sequence[Picture] = ()
    facts: dict[str, str] = field(default_factory=dict)
    table: Table | None = None
    quote: str = ""
    """A paragraph with a button that copies it."""
    headline: bool = False
    """Whether the sentences are the findings that open the page."""


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page as text; opening it makes no request to any host."""
    body = "\n".join(_section(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f'<body><main><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>\n{body}\n'
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def _section(section: Section) -> str:
    parts = [f"<section><h2>{escape(section.title)}</h2>"]
    if section.headline:
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in section.sentences)
        parts.append(f'<ol class="headline">{items}</ol>')
    else:
        parts += [f"<p>{escape(sentence)}</p>" for sentence in section.sentences]
    parts += [_picture(figure) for figure in section.figures]
    if section.facts:
        rows = "".join(
            f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>"
            for key, value in section.facts.items()
        )
        parts.append(f'<table class="facts">{rows}</table>')
    if section.table is not None:
        parts.append(_table(section.table))
    if section.quote:
        parts.append(
            f'<blockquote id="methods">{escape(section.quote)}</blockquote>'
            '<button type="button" data-copy="methods">Copy</button>'
        )
    return "\n".join([*parts, "</section>"])


def _picture(picture: Picture) -> str:
    parts = [f'<figure data-name="{escape(picture.name)}"><div class="drawing">{picture.svg}</div>']
    if picture.frames is not None:
        count = len(picture.frames["labels"])
        parts.append(
            '<div class="film"><button type="button" class="play">Play</button>'
            f'<input type="range" min="0" max="{count - 1}" value="0" step="1" aria-label="time">'
            '<output aria-live="polite"></output></div>'
            f'<script type="application/json">{_inert(picture.frames)}</script>'
        )
    kinds = ["svg", "png"] + (["csv"] if picture.data else [])
    buttons = "".join(
        f'<button type="button" data-save="{kind}" '
        f'aria-label="Save {escape(picture.name)} as {kind.upper()}">{kind.upper()}</button>'
        for kind in kinds
    )
    parts.append(
        f'<figcaption><span>{escape(picture.alt)}</span><span class="save">'
        '<button type="button" class="enlarge" aria-pressed="false">Enlarge</button> Save: '
        f"{buttons}</span></figcaption>"
    )
    if picture.data:
        parts.append(f'<script type="text/csv">{_inert(picture.data)}</script>')
    return "".join([*parts, "</figure>"])


def _inert(value: object) -> str:
    """JSON that cannot close the element that contains it."""
    return json.dumps(value).replace("<", "\\u003c")


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"><button type="button">{escape(name)}</button></th>'
        for name in table.header
    )
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return (
        '<div><label class="filter">Filter <input type="search" aria-label="filter rows"></label>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.caption)}">'
        f'<table class="sortable"><caption>{escape(table.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></div>"
    )


_STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #57606a; --line: #d8dee4; --paper: #fff;
        --accent: #0a5c8f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa4ae; --line: #30363d; --paper: #0d1117; --accent: #79c0ff; }
}
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1, p, li, td, th, blockquote { overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; margin: 0.4rem 0; } h2 { font-size: 1.25rem; margin: 2.4rem 0 0.4rem; }
.lead { color: var(--soft); font-size: 1.1rem; max-width: 46rem; } p { max-width: 46rem; }
.headline { padding-left: 1.4rem; max-width: 48rem; }
.headline li { margin: 0.5rem 0; } .headline li:nth-child(-n+3) { font-size: 1.12rem; }
figure { border: 1px solid var(--line); border-radius: 10px; margin: 1rem 0;
         overflow: hidden; }
.drawing { overflow-x: auto; padding: 0.4rem; }
.drawing svg { display: block; width: 100%; max-width: 50rem; margin: 0 auto; }
.drawing.large svg { width: 50rem; max-width: none; }
.enlarge { display: none; }
@media (max-width: 44rem) { .enlarge { display: inline-block; } }
figcaption { display: flex; flex-wrap: wrap; gap: 0.4rem 1.2rem; justify-content: space-between;
             color: var(--soft); font-size: 0.92rem; padding: 0.5rem 0.9rem;
             border-top: 1px solid var(--line); }
.film { display: flex; gap: 0.8rem; align-items: center; padding: 0.3rem 0.9rem 0.7rem; }
.film input { flex: 1; min-width: 6rem; } .film output { min-width: 5rem; }
button { font: inherit; font-size: 0.9em; color: var(--accent); background: none; cursor: pointer;
         border: 1px solid var(--line); border-radius: 6px; padding: 0.15rem 0.55rem;
         margin-left: 0.3rem; }
button:focus-visible, input:focus-visible, .scroll:focus-visible { outline: 2px solid var(--accent);
         outline-offset: 2px; }
table { border-collapse: collapse; font-size: 0.95rem; }
.facts th { text-align: left; font-weight: 500; color: var(--soft);
            padding: 0.2rem 1.2rem 0.2rem 0; }
td { font-variant-numeric: tabular-nums; }
.scroll { max-height: 28rem; overflow: auto; border: 1px solid var(--line); border-radius: 10px;
          margin-top: 0.5rem; }
.sortable { width: 100%; } .sortable caption { text-align: left; color: var(--soft);
            padding: 0.4rem 0.8rem; }
.sortable th { position: sticky; top: 0; background: var(--paper); text-align: left;
            white-space: nowrap; overflow-wrap: normal; }
.sortable th button { border: 0; margin: 0; padding: 0.4rem 0.8rem; font-weight: 600; }
.sortable th[aria-sort=ascending] button::after { content: " \\25b2"; }
.sortable th[aria-sort=descending] button::after { content: " \\25bc"; }
.sortable td { white-space: nowrap; padding: 0.25rem 0.8rem; border-top: 1px solid var(--line); }
.filter { color: var(--soft); } .filter input { font: inherit; margin-left: 0.4rem; }
blockquote { margin: 0.6rem 0; padding: 0.6rem 1rem; border-left: 3px solid var(--line);
             max-width: 46rem; }
@media print { .save, .film, .filter, button { display: none; } .scroll { max-height: none; } }
"""
