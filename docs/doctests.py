"""Docstrings as the site shows them: doctests as code, and one entry per parameter.

Markdown takes a bare `>>>` for a quotation. Runs of doctest lines outside an Examples section are
fenced here. An entry `name : A sentence.` of a Parameters section has its sentence after the colon,
where numpydoc has the type: it moves to the line below.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"^(\*{0,2}[A-Za-z_][\w]*(?:, \*{0,2}[A-Za-z_]\w*)*) : (.+)$")
_SECTIONS = ("Parameters", "Returns", "Attributes", "Examples", "Raises", "Notes")


class Doctests(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if not obj.is_alias and obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(text: str) -> str:
    """The docstring with doctests fenced and sentences of parameters on lines of their own."""
    lines = text.split("\n")
    out: list[str] = []
    section, k = "", 0
    while k < len(lines):
        line = lines[k]
        under = lines[k + 1] if k + 1 < len(lines) else ""
        if line in _SECTIONS and under.startswith("---"):
            section = line
            out += [line, under]
            k += 2
            continue
        if line.startswith(">>>") and section != "Examples":
            block = []
            while k < len(lines) and lines[k].strip():
                block.append(lines[k])
                k += 1
            fence = ["```pycon", *block, "```"]
            out += fence if section == "" else ["", "Examples", "--------", *block]
            section = section if section == "" else "Examples"
            continue
        entry = _ENTRY.match(line) if section in ("Parameters", "Attributes") else None
        if entry and _is_sentence(entry[2], under):
            out += [f"{entry[1]} :", f"    {entry[2]}"]
        else:
            out.append(line)
        k += 1
    return "\n".join(out)


def _is_sentence(rest: str, under: str) -> bool:
    """Whether what follows the colon is a description, not a type."""
    return rest.endswith((".", ";", ",")) or len(rest.split()) > 6 or not under.startswith("    ")
