"""Phrases that several messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def p_text(p: float, digits: int = 2) -> str:
    """A p-value as text; one too small to be taken literally is given as a bound.

    >>> p_text(0.03217), p_text(0.03217, 3), p_text(0.0), p_text(3e-14)
    ('p = 0.032', 'p = 0.0322', 'p < 1e-12', 'p < 1e-12')
    """
    return "p < 1e-12" if p < 1e-12 else f"p = {p:.{digits}g}"


def listed(items: Iterable[object], most: int = 12) -> str:
    """The first items as text, each at most 40 characters long, and how many more there are.

    >>> listed(["liver", "lung"]), listed(range(5), 2)
    ('liver, lung', '0, 1 and 3 more')
    """
    texts = [str(item)[:40] for item in items]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a sentence about an unknown word: the known one most like it, if there is one.

    >>> did_you_mean("vally", ["Valleys", "cells"]), did_you_mean("x", ["cells"])
    ("; did you mean 'Valleys'?", '.')
    """
    lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=cutoff)
    return f"; did you mean {lower[close[0]]!r}?" if close else "."


def damage(error: Exception) -> str:
    """The first line of another library's error about a damaged file.

    >>> damage(ValueError("bad header\\nat byte 3")), damage(ValueError())
    ('bad header', 'damaged')
    """
    text = str(error).strip()
    return text.splitlines()[0][:160] if text else "damaged"
