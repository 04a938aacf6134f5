"""`Trajectory`: the result of a flow."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from thalweg._optional import data_frame
from thalweg._sketch import sketch
from thalweg._types import Array
from thalweg.snapshots.times import TimeScale
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
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
    names: tuple[Hashable, ...] | None = None
    """Names of the states, if the kernel has them."""
    scale: TimeScale = field(default_factory=TimeScale)
    """What the times mean: dates if the data had dates."""

    @property
    def n_states(self) -> int:
        return int(self.probabilities.shape[1])

    @property
    def final(self) -> Array:
        """The last probability."""
        return np.asarray(self.probabilities[-1])

    def after_first(self) -> Trajectory:
        """The same curve without its first time."""
        return replace(self, times=self.times[1:], probabilities=self.probabilities[1:])

    def to_frame(self) -> pd.DataFrame:
        """A data frame with one row per time (the index) and one column per state."""
        columns = self.scale.column(self.times)
        return data_frame(self.probabilities, index=columns, columns=self.names).rename_axis("time")

    def __repr__(self) -> str:
        first, last = self.scale.labels(self.times[[0, -1]])
        return (
            f"Trajectory({self.times.size} times from {first} to {last}, "
            f"{self.n_states} states, {self.status.name})"
        )

    def _repr_html_(self) -> str:
        return sketch(repr(self), self.times, self.probabilities, self.names)
