"""Models of counts: how observations scatter around the flow; one file per model."""

from collections.abc import Mapping
from typing import Any

from thalweg.errors import InputError
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
    "word_of",
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


def word_of(model: CountModel) -> str:
    """The word for a model of counts in a model file, whose summary `model_of` reads.

    >>> word_of(Overdispersed(40.0))
    'overdispersed'
    """
    if type(model) is Overdispersed:
        return "overdispersed"
    if type(model) in (Multinomial, Replicated):
        return "independent"
    raise InputError(
        f"observation is a {type(model).__name__}, which a model file cannot hold; use "
        "Multinomial, Overdispersed or replicates, or keep the fitted model in memory."
    )
