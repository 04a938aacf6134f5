"""How much higher a state that emptied could lie: what is tried, and what contradicts it."""

from __future__ import annotations

RISES = (1.0, 2.0, 3.0)
"""Spreads of the landscape by which a state that emptied is lifted."""
CONTRADICTED = 1.92
"""Rise of half the deviance at which a value is outside its 95 % interval."""
