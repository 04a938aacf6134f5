"""`Trajectory`: what a flow gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from thalweg._optional import optional
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Trajectory"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Probabilities at given times, one row per time, and how the computation ended.

    If `status` is not `CONVERGED`, the rows after the last time reached repeat the last state.
    """

    times: Array
    probabilities: Array
    status: Status
    n_steps: int = 0
    n_evaluations: int = 0
    """Right-hand sides of explicit steps, and linear systems of implicit ones."""
    method: str = ""
    """`"explicit"`, `"implicit"`, or `"explicit, implicit from t = ..."`."""

    @property
    def n_states(self) -> int:
        return int(self.probabilities.shape[1])

    @property
    def final(self) -> Array:
        """The last probability."""
        return np.asarray(self.probabilities[-1])

    def after_first(self) -> Trajectory:
        """The same curve without its first time."""
        return Trajectory(
            self.times[1:],
            self.probabilities[1:],
            self.status,
            self.n_steps,
            self.n_evaluations,
            self.method,
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per time (the index), one column per state."""
        pd = optional("pandas", extra="cli", what="a data frame")

        return pd.DataFrame(self.probabilities, index=pd.Index(self.times, name="time"))
