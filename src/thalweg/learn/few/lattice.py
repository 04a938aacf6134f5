"""The lattice of betas and priors that holds the evidence: where its modes are, how it is filled.

Evidence over (log beta, log strength, shape) can have several modes. Sweeps over `beta`, down and
up again with warm starts, find them. From the best one, columns of cells (every strength and shape
that matters at one `beta`) are added outwards until the evidence has fallen far enough on both
sides, or the range of `beta` that the data could speak about ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from thalweg.errors import ConvergenceError
from thalweg.learn import limits
from thalweg.learn.few.inner import Cell, Inner, Place
from thalweg.learn.few.shapes import Shape, make_shapes
from thalweg.learn.likelihood.model import Mesh
from thalweg.learn.profile import RANGE
from thalweg.status import Status

__all__ = ["Column", "Lattice", "explore"]

Array = NDArray[np.float64]
Key = tuple[int, int]
Progress = Callable[[str, int, int], None]

POTENTIAL_POWERS = (0, 1, 2, 3)
INITIAL_POWERS = (1, 2, 3)
_SWEEP = (40.0, 0.01, 10)
"""`beta T` at the ends of a sweep, and its number of values."""
_SWEEP_DROP = 25.0
_SWEEP_AGAIN = 12.0
"""How far below the best of the way down a beta may lie to be tried again on the way up."""
_STRENGTH_STEP = (0.7, 1.6)
"""Least and greatest distance of two log strengths; 2 standard deviations where between."""
_KEEP = 5.0
"""Cells this far below the best of their column are not carried to the next one."""
_EXTEND = 3.5
"""Cells this close to the best of their column get neighbours of other strengths."""
_LEAST_DROP = 1.5
"""Both drops where a column lies far below the best: there only its own best cells matter."""
_SCREEN = 4.0
"""Shapes whose best cell lies this far below the best are left out."""
FALL = 5.0
"""Columns are added until the evidence has fallen by this much."""
_STEP = (0.08, 0.9)
"""Least and greatest distance of two columns in `log beta`."""
_PLATEAU = 0.05
_OTHER_BRANCH = 2.0
"""How much further than the sweep a column may fall before the sweep's fit is tried as a start."""
_FIRST_INITIAL = float(np.log(0.3))
_MOST_COLUMNS = 40


@dataclass(eq=False)
class Column:
    """Cells at one `log beta`, keyed by shape and strength."""

    log_beta: float
    cells: dict[Key, Cell]
    spacing: dict[int, float]
    """Distance of two log strengths, by shape."""

    @property
    def best(self) -> Cell:
        return max(self.cells.values(), key=lambda cell: cell.log_evidence)

    @property
    def value(self) -> float:
        """Log evidence of this beta: strengths and shapes integrated out, no prior on beta."""
        return float(np.logaddexp.reduce(self.logs))

    @property
    def half_deviance(self) -> float:
        """The smallest of its cells that matter."""
        return min(cell.half_deviance for cell in self.cells.values())

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
        """How far each beta lies below the best, in evidence or in fit, whichever is less.

        The evidence alone would let the prior decide: a prior of rough potentials prefers a `beta`
        that smooths them, also where every `beta` fits the counts equally well. The deviance of the
        best fits alone ignores how much freedom they took.
        """
        value = self.values
        deviance = np.array([column.half_deviance for column in self.columns])
        return np.asarray(np.minimum(value.max() - value, deviance - deviance.min()))

    @property
    def best(self) -> Cell:
        return self.columns[int(np.argmax(self.values + self.prior))].best

    def weighted(self, least: float = 1e-4) -> list[tuple[Cell, float]]:
        """Cells with their weights, heaviest first; weights sum to one.

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
        order = [i for i in np.argsort(-w) if w[i] >= least]
        kept = float(w[order].sum())
        return [(cells[i], float(w[i]) / kept) for i in order]


def _shares(logs: Array) -> Array:
    w = np.exp(logs - logs.max())
    return np.asarray(w / w.sum())


@dataclass
class _Explorer:
    inner: Inner
    most: int
    shapes: tuple[Shape, ...]
    progress: Progress | None = None
    centres: dict[int, float] = field(default_factory=dict)
    spacing: dict[int, float] = field(default_factory=dict)
    top: float = -np.inf
    found: list[Cell] = field(default_factory=list)

    @property
    def exhausted(self) -> bool:
        return self.inner.n_cells >= self.most or limits.exhausted()

    def say(self) -> None:
        if self.progress is not None:
            self.progress("averaging over priors", min(self.inner.n_cells, self.most), self.most)

    # ------------------------------------------------------------------ strengths

    def bounded(self, log_strength: float) -> float:
        """Sizes of the potential between 1 / 30 and 100 per span of time."""
        middle = 2.0 * np.log(self.inner.span)
        return float(np.clip(log_strength, middle - 9.0, middle + 7.0))

    def preferred(self, cell: Cell) -> Place:
        """MacKay's fixed point for both strengths."""
        k, place = self.inner.n, cell.place
        v, a = cell.theta[:k], cell.theta[k:]
        used = cell.used(slice(0, k), place.potential, float(np.exp(place.log_strength)))
        rough = max(float(v @ place.potential.matrix @ v), 1e-300)
        used0 = cell.used(slice(k, 2 * k), place.initial, float(np.exp(place.log_initial)))
        rough0 = max(float(a @ place.initial.matrix @ a), 1e-300)
        return replace(
            place,
            log_strength=self.bounded(float(np.log(used / rough))),
            log_initial=float(np.clip(np.log(used0 / rough0), -9.0, 8.0)),
        )

    def settle(
        self, place: Place, theta: Array, mesh: Mesh | None = None, rounds: int = 4
    ) -> Cell | None:
        """The cell at the strengths that the evidence prefers, at this beta."""
        place = replace(place, log_strength=self.bounded(place.log_strength))
        best: Cell | None = None
        near: Cell | None = None
        for _ in range(rounds):
            cell = self.inner.solve(place, theta, mesh, near)
            if cell is None:
                break
            if best is None or cell.log_evidence > best.log_evidence:
                best = cell
            theta, mesh, near = cell.theta, cell.mesh, cell
            new = self.preferred(cell)
            moved = abs(new.log_strength - place.log_strength)
            if max(moved, abs(new.log_initial - place.log_initial)) < 0.4:
                break
            place = new
        return best

    # ------------------------------------------------------------------ modes

    def sweep(self, shape: Shape, initial: Shape, start: Array) -> None:
        high, low, count = _SWEEP
        span = self.inner.span
        betas = [float(b) for b in np.linspace(np.log(high / span), np.log(low / span), count)]
        at: dict[float, Cell] = {}
        for grid in (betas, betas[::-1]):
            if grid is not betas:  # up again only where there may be another mode
                top = max((cell.log_evidence for cell in at.values()), default=0.0)
                grid = [b for b in grid if b in at and at[b].log_evidence > top - _SWEEP_AGAIN]
                if not grid:
                    break
            place = Place(grid[0], 2.0 * float(np.log(span)), _FIRST_INITIAL, shape, initial)
            theta, mesh, best = start, None, -np.inf
            for log_beta in grid:
                self.say()
                if self.exhausted and at:
                    break
                cell = self.settle(replace(place, log_beta=log_beta), theta, mesh, 2)
                if cell is None:
                    break
                old = at.get(log_beta)
                if old is not None and old.log_evidence >= cell.log_evidence:
                    cell = old
                at[log_beta] = cell
                theta, mesh, place = cell.theta, cell.mesh, cell.place
                best = max(best, cell.log_evidence)
                if cell.log_evidence < best - _SWEEP_DROP:
                    break
        self.found += list(at.values())

    def choose_initial(self, cell: Cell, shapes: tuple[Shape, ...]) -> Cell:
        best = cell
        for shape in shapes:
            if shape is not cell.place.initial:
                other = self.settle(replace(cell.place, initial=shape), cell.theta, cell.mesh)
                if other is not None and other.log_evidence > best.log_evidence:
                    best = other
        return best

    # ------------------------------------------------------------------ columns

    def first_column(self, head: Cell) -> Column:
        heads: dict[int, Cell] = {}
        for i, shape in enumerate(self.shapes):
            cell = self.settle(replace(head.place, potential=shape), head.theta, head.mesh)
            if cell is not None:
                heads[i] = cell
        top = max(cell.log_evidence for cell in heads.values())
        kept = {i: cell for i, cell in heads.items() if cell.log_evidence >= top - _SCREEN}
        k = self.inner.n
        for i, cell in kept.items():
            strength = float(np.exp(cell.place.log_strength))
            used = cell.used(slice(0, k), cell.place.potential, strength)
            self.spacing[i] = float(np.clip(2.0 * np.sqrt(2.0 / used), *_STRENGTH_STEP))
            self.centres[i] = cell.place.log_strength
        column = Column(
            head.place.log_beta, {(i, 0): cell for i, cell in kept.items()}, self.spacing
        )
        self.extend(column)
        return column

    def place(self, key: Key, log_beta: float, log_initial: float, initial: Shape) -> Place:
        i, j = key
        strength = self.centres[i] + j * self.spacing[i]
        return Place(log_beta, strength, log_initial, self.shapes[i], initial)

    def extend(self, column: Column) -> None:
        """Add strengths until the evidence has fallen on both sides, for each shape."""
        todo = sorted(column.cells, key=lambda key: -column.cells[key].log_evidence)
        while todo and not self.exhausted:
            key = todo.pop(0)
            near = column.cells[key]
            if near.log_evidence < column.best.log_evidence - self.within(column, _EXTEND):
                continue
            for j in (key[1] - 1, key[1] + 1):
                new = (key[0], j)
                place = self.place(new, column.log_beta, near.place.log_initial, near.place.initial)
                if new in column.cells or self.bounded(place.log_strength) != place.log_strength:
                    continue
                cell = self.inner.solve(place, near.theta, near.mesh, near)
                if cell is not None:
                    column.cells[new] = cell
                    todo.append(new)

    def within(self, column: Column, drop: float) -> float:
        """`drop`, less where the whole column counts for less."""
        return max(_LEAST_DROP, drop - max(self.top - column.best.log_evidence, 0.0))

    def next_column(self, near: Column, log_beta: float) -> Column | None:
        """The column at another beta, warm-started from `near` and from the sweeps."""
        top = near.best
        lead = self.inner.solve(replace(top.place, log_beta=log_beta), top.theta, top.mesh, top)
        if lead is None:
            return None
        log_initial = self.preferred(lead).log_initial
        again = self.other_branch(lead, log_initial)
        cells: dict[Key, Cell] = {}
        shift = lead.theta - top.theta
        for key, cell in near.cells.items():
            if cell.log_evidence < top.log_evidence - self.within(near, _KEEP) or self.exhausted:
                continue
            place = self.place(key, log_beta, log_initial, cell.place.initial)
            start = cell.theta + shift if again is None else again.theta
            found = self.inner.solve(place, start, lead.mesh, lead if again is None else again)
            if found is not None:
                cells[key] = found
        if not cells:
            return None
        column = Column(log_beta, cells, self.spacing)
        self.extend(column)
        return column

    def other_branch(self, lead: Cell, log_initial: float) -> Cell | None:
        """A better cell at `lead`'s place from the sweep, where the sweep fell less than `lead`."""
        log_beta = lead.place.log_beta
        other = min(self.found, key=lambda cell: abs(cell.place.log_beta - log_beta))
        top = max(cell.log_evidence for cell in self.found)
        if self.top - lead.log_evidence < top - other.log_evidence + _OTHER_BRANCH:
            return None
        cell = self.inner.solve(replace(lead.place, log_initial=log_initial), other.theta)
        if cell is None or cell.log_evidence < lead.log_evidence + 0.5:
            return None
        return cell

    def walk(self, first: Column) -> list[Column]:
        columns = [first]
        self.top = first.best.log_evidence
        low, high = (float(np.log(b / self.inner.span)) for b in RANGE)
        for side in (1, -1):
            column, step = first, 0.3
            while not self.exhausted and len(columns) < _MOST_COLUMNS:
                self.say()
                end = high if side > 0 else low
                if (end - column.log_beta) * side <= 1e-9:
                    break
                target = column.log_beta + side * step
                target = min(target, end) if side > 0 else max(target, end)
                new = self.next_column(column, target)
                if new is None:
                    break
                change = abs(new.value - column.value)
                if change > 2.5 and step > _STEP[0] * 2:
                    step = max(step * 0.4, _STEP[0])
                    continue
                columns.append(new)
                columns.sort(key=lambda c: c.log_beta)
                values = [c.value for c in columns]
                if new.value < max(values) - FALL:
                    break
                column = new
                step = float(np.clip(step * (1.6 if change < 0.7 else 1.0), *_STEP))
                if side < 0 and new.log_beta < low + np.log(300.0):
                    if max(values[:3]) - min(values[:3]) < _PLATEAU:
                        break
        return columns


def explore(
    inner: Inner,
    start: Array,
    *,
    most: int,
    seeds: tuple[tuple[float, Array], ...] = (),
    log_beta: float | None = None,
    progress: Progress | None = None,
) -> Lattice:
    """Find the modes, and fill the lattice around the best of them.

    `start` is (potential, initial log density), where sweeps begin; `seeds` are further
    (log beta, start); `most` bounds the number of cells. With `log_beta` given there is one column.
    """
    shapes = make_shapes(inner.model.kernel, POTENTIAL_POWERS)
    starts = make_shapes(inner.model.kernel, INITIAL_POWERS)
    explorer = _Explorer(inner, most, shapes, progress)
    plain = shapes[POTENTIAL_POWERS.index(1)]
    if log_beta is None:
        explorer.sweep(plain, starts[0], start)
    else:
        seeds = ((log_beta, start), *((log_beta, theta) for _, theta in seeds))
    low, high = (float(np.log(b / inner.span)) for b in RANGE)
    for at, theta in seeds:
        v = theta[: inner.n]
        strength = float(np.log(inner.n / max(float(v @ plain.matrix @ v), 1e-12)))
        value = float(np.clip(at, low, high)) if log_beta is None else at
        place = Place(value, strength, _FIRST_INITIAL, plain, starts[0])
        cell = explorer.settle(place, theta)
        if cell is not None:
            explorer.found.append(cell)
    if not explorer.found:
        raise ConvergenceError(Status.NOT_FINITE.value)
    head = max(explorer.found, key=lambda c: c.log_evidence + inner.beta_prior(c.place.log_beta))
    first = explorer.first_column(explorer.choose_initial(head, starts))
    columns = [first] if log_beta is not None else explorer.walk(first)
    prior = np.array([inner.beta_prior(column.log_beta) for column in columns])
    return Lattice(tuple(columns), prior, not explorer.exhausted)
