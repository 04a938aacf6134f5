"""One HTML file from titled sections of sentences and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import plotly.graph_objects as go
from plotly.io import to_html
from plotly.offline import get_plotlyjs

__all__ = ["Section", "page"]


@dataclass(frozen=True)
class Section:
    """A heading, sentences (plain text, escaped), figures, and a small table of facts."""

    title: str
    sentences: Sequence[str] = ()
    figures: Sequence[go.Figure] = ()
    facts: dict[str, str] = field(default_factory=dict)


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page as text; plotly's code is inside it, once."""
    body = "\n".join(_section(section) for section in sections)
    return _PAGE.format(
        title=escape(title), lead=escape(lead), body=body, style=_STYLE, code=get_plotlyjs()
    )


def _section(section: Section) -> str:
    parts = [f"<section><h2>{escape(section.title)}</h2>"]
    parts += [f"<p>{escape(sentence)}</p>" for sentence in section.sentences]
    for figure in section.figures:
        drawn = go.Figure(figure)
        drawn.update_layout(paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)")
        drawn.update_layout(font={"color": "#7d8590"}, legend={"bgcolor": "rgba(0,0,0,0)"})
        # One grey that is quiet on white and on black: the page follows the reader's scheme.
        lines = {"gridcolor": _QUIET, "zerolinecolor": _QUIET, "linecolor": _QUIET}
        drawn.update_xaxes(**lines)
        drawn.update_yaxes(**lines)
        html = to_html(
            drawn,
            include_plotlyjs=False,
            full_html=False,
            auto_play=False,
            config={"responsive": True, "displayModeBar": False},
        )
        parts.append(f'<div class="figure">{html}</div>')
    if section.facts:
        rows = "".join(
            f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>"
            for key, value in section.facts.items()
        )
        parts.append(f"<table>{rows}</table>")
    return "\n".join([*parts, "</section>"])


_QUIET = "rgba(128,128,128,0.25)"

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #57606a; --line: #d8dee4; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa4ae; --line: #30363d; --paper: #0d1117; }
}
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1, p, td, th { overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; margin: 0.4rem 0; } h2 { font-size: 1.25rem; margin: 2.2rem 0 0.4rem; }
.lead { color: var(--soft); font-size: 1.1rem; max-width: 46rem; } p { max-width: 46rem; }
.figure { border: 1px solid var(--line); border-radius: 10px; margin: 1rem 0; overflow: hidden; }
table { border-collapse: collapse; font-size: 0.95rem; }
th { text-align: left; font-weight: 500; color: var(--soft); padding: 0.2rem 1.2rem 0.2rem 0; }
td { font-variant-numeric: tabular-nums; }
"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style><script>{code}</script></head>
<body><h1>{title}</h1><p class="lead">{lead}</p>
{body}
</body></html>
"""
