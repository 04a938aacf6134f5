"""Whether a deviance is what a true model leaves."""

from __future__ import annotations

import numpy as np

from thalweg.learn.likelihood.tracked import Judgement

__all__ = ["rejects"]


def rejects(judgement: Judgement, deviations: float = 3.5) -> bool:
    """Whether the deviance is beyond what a true model leaves, by so many standard deviations."""
    half = 0.5 * judgement.expected
    return not 0.5 * judgement.deviance < half + deviations * np.sqrt(half + 1.0) + 2.0
