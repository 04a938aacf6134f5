"""Models of counts: how observations scatter around the flow; one file per model."""

from collections.abc import Mapping
from typing import Any

from thalweg.learn.observation.model import CountModel, Residuals, Terms
from thalweg.learn.observation.multinomial import Multinomial
from thalweg.learn.observation.overdispersed import Overdispersed
from thalweg.learn.observation.replicated import Replicated

__all__ = [
    "CountModel",
    "Multinomial",
    "Overdispersed",
    "Replicated",
    "Residuals",
    "Terms",
    "model_of",
]


def model_of(summary: Mapping[str, Any]) -> CountModel:
    """The model of counts that gave this summary, its estimates taken as known.

    >>> model_of({"concentration": 40.0}).concentration
    40.0
    """
    if "concentration" in summary:
        return Overdispersed(float(summary["concentration"]))
    if "design_effect" in summary:
        return Replicated(None, float(summary["design_effect"]))
    return Multinomial()
