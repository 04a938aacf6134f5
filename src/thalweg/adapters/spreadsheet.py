"""Text that a spreadsheet would run as a formula is quoted in CSV, and read back as it was.

A cell that begins with `=`, `+`, `-` or `@` is a formula to a spreadsheet, wherever it came from: a
state called `=HYPERLINK(...)` in a graph would be live in the table of results. A leading
apostrophe, which spreadsheets take for "this is text", makes it plain. Numbers stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pandas as pd

_FORMULA = "[=+\\-@\t\r\n＝＋－＠]"
_QUOTED = re.compile(f"'+{_FORMULA}")
_STARTS = re.compile(_FORMULA)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def guarded(text: str) -> str:
    """Quote text that a spreadsheet would take for a formula.

    >>> guarded("=1+1"), guarded("liver"), guarded("-3")
    ("'=1+1", 'liver', '-3')
    """
    formula = _STARTS.match(text) and not _NUMBER.fullmatch(text)
    return "'" + text if formula or _QUOTED.match(text) else text


def unguarded(text: str) -> str:
    """Undo `guarded`.

    >>> unguarded("'=1+1"), unguarded("'tis")
    ('=1+1', "'tis")
    """
    return text[1:] if _QUOTED.match(text) else text


def guarded_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with text quoted where needed."""
    return _mapped(frame, guarded, list(frame.columns))


def unguarded_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """The table as it was before `guarded_frame`, including its header."""
    quoted = [
        column
        for column in frame.columns
        if not pd.api.types.is_numeric_dtype(frame[column])
        and bool(frame[column].astype(str).str.startswith("'").any())
    ]
    if quoted:
        frame = _mapped(frame, unguarded, quoted)
    header = {c: unguarded(c) for c in frame.columns if isinstance(c, str) and unguarded(c) != c}
    return frame.rename(columns=header) if header else frame


def _mapped(frame: pd.DataFrame, change: Callable[[str], str], columns: list[Any]) -> pd.DataFrame:
    """The table with its texts changed, each distinct text once."""
    changed = {}
    for column in columns:
        if pd.api.types.is_numeric_dtype(frame[column]):
            continue
        codes, uniques = pd.factorize(frame[column], use_na_sentinel=True)
        new = [change(value) if isinstance(value, str) else value for value in uniques]
        if any(a is not b and a != b for a, b in zip(new, uniques, strict=True)):
            values = pd.Series([*new, None], dtype=object).to_numpy()[codes]
            changed[column] = pd.Series(values, index=frame.index, dtype=object)
    if not changed:
        return frame
    whole = frame.copy()
    for column, values in changed.items():
        whole[column] = values
    return whole
