"""Numbers as they appear in sentences."""

from __future__ import annotations

__all__ = ["p_text"]


def p_text(p: float, digits: int = 2) -> str:
    """A p-value as text; one too small to be taken literally is given as a bound.

    >>> p_text(0.03217), p_text(0.03217, 3), p_text(0.0), p_text(3e-14)
    ('p = 0.032', 'p = 0.0322', 'p < 1e-12', 'p < 1e-12')
    """
    return "p < 1e-12" if p < 1e-12 else f"p = {p:.{digits}g}"
