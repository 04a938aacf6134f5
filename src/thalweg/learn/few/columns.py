"""The contents of a lattice: columns of cells, their evidence, and the weights of an average."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg._types import Array
from thalweg.learn.few.inner import Cell

__all__ = ["Column", "Key", "Lattice"]

Key = tuple[int, int]
"""Shape of the prior, and its strength in steps from the shape's best."""


@dataclass(eq=False)
class Column:
    """Cells at one `log beta`, keyed by shape and strength."""

    log_beta: float
    cells: dict[Key, Cell]
    spacing: dict[int, float]
    """Distance of two log strengths, by shape."""

    @property
    def best_key(self) -> Key:
        return max(self.cells, key=lambda key: self.cells[key].log_evidence)

    @property
    def best(self) -> Cell:
        return self.cells[self.best_key]

    def near(self, key: Key, *, solved: bool = False) -> Cell:
        """The cell closest to a key, of the same shape if there is one; `solved`: among those."""
        keys = [k for k, cell in self.cells.items() if cell.solved or not solved]
        return self.cells[min(keys, key=lambda k: (k[0] != key[0], abs(k[1] - key[1]), k))]

    @property
    def value(self) -> float:
        """Log evidence of this beta: strengths and shapes integrated out, no prior on beta."""
        return float(np.logaddexp.reduce(self.logs))

    @property
    def half_deviance(self) -> float:
        """Half deviance, averaged over the cells.

        The smallest would depend on how weak a prior happens to be the last of the column.
        """
        return float(_shares(self.logs) @ [cell.half_deviance for cell in self.cells.values()])

    @property
    def logs(self) -> Array:
        return np.array(
            [c.log_evidence + np.log(self.spacing[key[0]]) for key, c in self.cells.items()]
        )


@dataclass(frozen=True, eq=False)
class Lattice:
    """Columns in increasing `beta`, and whether each end was reached by falling evidence."""

    columns: tuple[Column, ...]
    prior: Array
    """Log prior of each column's beta."""
    finished: bool
    """False where the bound on the work stopped the exploration."""

    @property
    def log_betas(self) -> Array:
        return np.array([column.log_beta for column in self.columns])

    @property
    def values(self) -> Array:
        return np.array([column.value for column in self.columns])

    @property
    def fall(self) -> Array:
        """Distance of each beta below the best, by the least of three measures.

        - The evidence, which alone would let the prior decide: a prior of rough potentials prefers
          a `beta` that smooths them, also where every `beta` fits the counts equally well.
        - The deviance of the best fits, which alone ignores how much freedom they took.
        - The deviance under the prior that is best of all, or the evidence beyond doubt, whichever
          is more. With fewer individuals than states Laplace's method may miss ten units at a small
          `beta`, where most states run empty; the evidence then takes a stronger prior there, under
          which the deviance rises.
        """
        value = self.values
        top = int(np.argmax(value))
        fall, key = value[top] - value, self.columns[top].best_key
        deviance = np.array([column.half_deviance for column in self.columns])
        same = np.array([column.near(key).half_deviance for column in self.columns])
        third = np.maximum(np.maximum(same - same[top], fall - self._doubt), 0.0)
        return np.asarray(np.minimum.reduce([fall, deviance - deviance.min(), third]))

    @property
    def _doubt(self) -> Array:
        """How wrong the evidence of each beta may be against the best one's.

        What the next order of Laplace's method changed; all of that order between different priors.
        """
        best = self.columns[int(np.argmax(self.values))]
        own = best.best.correction
        order = np.array([column.best.correction for column in self.columns])
        alike = np.array([column.best_key == best.best_key for column in self.columns])
        return np.where(alike, np.abs(order - own), np.maximum(np.abs(order), abs(own)))

    @property
    def best(self) -> Cell:
        return self.columns[int(np.argmax(self.values + self.prior))].best

    def weighted(self, enough: float = 0.99) -> list[tuple[Cell, float]]:
        """The cells that hold `enough` of the weight, heaviest first; weights sum to one.

        Half of each weight is the posterior's, half that of the betas which nothing excludes: at
        100 states the posterior alone took 0.395 for a beta of 0.2, and covered V in 0.72 of them.
        """
        x = self.log_betas
        width = np.ones(1) if x.size == 1 else np.gradient(x)
        base = np.log(width) + self.prior
        by_evidence, by_both = _shares(base + self.values), _shares(base - self.fall)
        total = 0.5 * (by_evidence + by_both)
        inside = [total[i] * _shares(column.logs) for i, column in enumerate(self.columns)]
        cells = [cell for column in self.columns for cell in column.cells.values()]
        w = np.concatenate(inside)
        order = np.argsort(-w)
        order = order[: int(np.searchsorted(np.cumsum(w[order]), enough)) + 1]
        kept = float(w[order].sum())
        return [(cells[i], float(w[i]) / kept) for i in order]


def _shares(logs: Array) -> Array:
    w = np.exp(logs - logs.max())
    return np.asarray(w / w.sum())
