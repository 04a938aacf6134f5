"""Text that a spreadsheet would run as a formula is quoted in CSV, and read back as it was.

A cell that begins with `=`, `+`, `-` or `@` is a formula to a spreadsheet, wherever it came from: a
state called `=HYPERLINK(...)` in a graph would be live in the table of results. A leading
apostrophe, which spreadsheets take for "this is text", makes it plain. Numbers stay as they are.
"""

from __future__ import annotations

import re

_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠]")
_QUOTED = re.compile(f"'+{_FORMULA.pattern}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def guarded(text: str) -> str:
    """Quote text that a spreadsheet would take for a formula.

    >>> guarded("=1+1"), guarded("liver"), guarded("-3")
    ("'=1+1", 'liver', '-3')
    """
    formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return "'" + text if formula or _QUOTED.match(text) else text


def unguarded(text: str) -> str:
    """Undo `guarded`.

    >>> unguarded("'=1+1"), unguarded("'tis")
    ('=1+1', "'tis")
    """
    return text[1:] if _QUOTED.match(text) else text
