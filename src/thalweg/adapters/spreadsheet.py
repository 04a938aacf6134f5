"""Tables with the texts quoted that a spreadsheet would run as formulas, and the way back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from thalweg._spreadsheet import guarded, unguarded


def guarded_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with text quoted where needed."""
    return _mapped(frame, guarded)


def unguarded_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """The table as it was before `guarded_frame`, including its header."""
    read = _mapped(frame, unguarded)
    return read.rename(columns=lambda name: unguarded(name) if isinstance(name, str) else name)


def _mapped(frame: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """The table with its texts changed, each distinct text once."""
    changed = frame.copy(deep=False)
    for column in frame.columns:
        if pd.api.types.is_numeric_dtype(frame[column]):
            continue
        codes, uniques = pd.factorize(frame[column])
        new = [change(value) if isinstance(value, str) else value for value in uniques]
        if any(a is not b and a != b for a, b in zip(new, uniques, strict=True)):
            values = np.array([*new, None], dtype=object)[codes]
            changed[column] = pd.Series(values, index=frame.index, dtype=object)
    return changed
