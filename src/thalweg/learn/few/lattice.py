"""The lattice of betas and priors that holds the evidence: where its modes are, how it is filled.

Evidence over (log beta, log strength, shape) can have several modes. Sweeps over `beta`, down and
up again with warm starts, find them. From the best one, columns of cells (every strength and shape
that matters at one `beta`) are added outwards until the evidence has fallen far enough on both
sides, or the range of `beta` that the data could speak about ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from thalweg._types import Array, Progress
from thalweg.errors import ConvergenceError
from thalweg.learn import limits
from thalweg.learn.few.columns import Column, Key, Lattice
from thalweg.learn.few.inner import Cell, Inner, Place
from thalweg.learn.few.shapes import Shape, make_shapes
from thalweg.learn.likelihood.model import Mesh
from thalweg.learn.profile import RANGE
from thalweg.status import Status

__all__ = ["explore"]

POTENTIAL_POWERS = (0, 1, 2, 3)
INITIAL_POWERS = (1, 2, 3)
"""Some of those of the potential."""
_SWEEP = (40.0, 0.01, 8)
"""`beta T` at the ends of a sweep, and its number of values."""
_SWEEP_DROP = 25.0
_SWEEP_AGAIN = 8.0
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
_STEP, _FIRST_STEP = (0.08, 1.2), 0.6
"""Least and greatest distance of two columns in `log beta`, and the greatest of the first."""
_ROOT_STEP, _TOO_FAR = 1.0, 4.0
"""Change of the root of the evidence's fall that a step aims at, and change of the evidence beyond
which it is taken back.

A normal posterior has 1.4 standard deviations between columns: sums over them give its mean and
spread to 0.1 %, and the root of its fall, by which the ends of its interval are found, is linear.
"""
_PLATEAU = 0.1
"""Range of three values below which the limit of a vanishing beta is taken to be reached."""
_OTHER_BRANCH = 2.0
"""How much further than the sweep a column may fall before the sweep's fit is tried as a start."""
_EXACT = 1.0
"""How far below the best cells and columns may lie that are solved for each shape. On 16 data sets
of 100 states errors were within 1 % of those with 3: the heaviest cells are solved in the end."""
_TUNINGS = 6
_TUNED = 0.2
"""Changes of both log strengths that are not worth another round."""
_PEAKS = 2
"""Peaks of the sweep that are solved."""
_SOLVED_SHARE = 0.9
"""Share of the weight that solved cells hold in the end, as far as their number allows."""
_POLISHED = 1500
_POLISHED_BOUNDS = (12, 150)
"""Cells that may be solved in the end: the first number per state, within the others."""
_FIRST_INITIAL = float(np.log(0.3))
_MOST_COLUMNS = 40


def _distance(one: Place, other: Place) -> float:
    """Distance between the strengths of two places, in logarithms."""
    gap = abs(one.log_strength - other.log_strength)
    return float(max(gap, abs(one.log_initial - other.log_initial)))


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
    """Rough cells of the sweep."""
    suspicion: float = _OTHER_BRANCH
    seeds: list[Cell] = field(default_factory=list)
    reference: Key | None = None
    """The best prior of the first column, which all columns hold for comparison."""

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
        used, used0 = cell.used()
        rough = max(float(v @ place.potential.matrix @ v), 1e-300)
        rough0 = max(float(a @ place.initial.matrix @ a), 1e-300)
        return replace(
            place,
            log_strength=self.bounded(float(np.log(used / rough))),
            log_initial=float(np.clip(np.log(used0 / rough0), -9.0, 8.0)),
        )

    def tuned(self, near: Cell, place: Place, *, rounds: int = _TUNINGS) -> Cell:
        """The cell at the strengths that the evidence prefers, expanded from a solved one."""
        cell = near if place is near.place else self.inner.expand(near, place)
        for _ in range(rounds):
            new = self.preferred(cell)
            if _distance(new, cell.place) < _TUNED:
                break
            cell = self.inner.expand(near, new)
        return cell

    def settle(
        self, place: Place, theta: Array, near: Cell | None = None, rounds: int = 3
    ) -> Cell | None:
        """The solved cell at the strengths that the evidence prefers, at this beta."""
        place = replace(place, log_strength=self.bounded(place.log_strength))
        best: Cell | None = None
        mesh: Mesh | None = None
        for _ in range(rounds):
            cell = self.inner.solve(place, theta, mesh, near)
            if cell is None:
                break
            if best is None or cell.log_evidence > best.log_evidence:
                best = cell
            guess = self.tuned(cell, cell.place)
            if guess is cell or _distance(guess.place, place) < 0.4:
                break
            place, theta, mesh, near = guess.place, guess.theta, cell.mesh, guess
        return best

    # ------------------------------------------------------------------ modes

    def sweep(self, shape: Shape, initial: Shape, start: Array) -> None:
        """Rough cells over the whole range of beta, on the coarsest time steps."""
        high, low, count = _SWEEP
        span = self.inner.span
        betas = [float(b) for b in np.linspace(np.log(high / span), np.log(low / span), count)]
        mesh = Mesh(self.inner.mesh.substeps, 1)
        at: dict[float, Cell] = {}
        for grid in (betas, betas[::-1]):
            if grid is not betas:  # up again only where there may be another mode
                top = max((cell.log_evidence for cell in at.values()), default=0.0)
                grid = [b for b in grid if b in at and at[b].log_evidence > top - _SWEEP_AGAIN]
                if not grid:
                    break
            place = Place(grid[0], 2.0 * float(np.log(span)), _FIRST_INITIAL, shape, initial)
            theta, near, best = start, None, -np.inf
            for log_beta in grid:
                self.say()
                if self.exhausted and at:
                    break
                for _ in range(1 if near else 2):  # the first begins with any strength
                    cell = self.inner.solve(
                        replace(place, log_beta=log_beta), theta, mesh, near, rough=True
                    )
                    if cell is None:
                        break
                    near = self.tuned(cell, cell.place, rounds=2)
                    place, theta = near.place, near.theta
                if cell is None or near is None:
                    break
                old = at.get(log_beta)
                if old is not None and old.log_evidence >= near.log_evidence:
                    near, place, theta = old, old.place, old.theta
                at[log_beta] = near
                best = max(best, near.log_evidence)
                if near.log_evidence < best - _SWEEP_DROP:
                    break
        self.found += list(at.values())

    def head(self) -> Cell | None:
        """The best of the sweep's peaks and of the seeds, solved."""
        prior = self.inner.beta_prior
        cells = sorted(self.found, key=lambda cell: cell.place.log_beta)
        values = [cell.log_evidence + prior(cell.place.log_beta) for cell in cells]
        padded = [-np.inf, *values, -np.inf]
        peaks = [i for i in range(len(cells)) if padded[i + 1] >= max(padded[i], padded[i + 2])]
        peaks = sorted(peaks, key=lambda i: -values[i])[:_PEAKS]
        heads = [self.settle(cells[i].place, cells[i].theta, cells[i]) for i in peaks]
        solved = [self.inner.corrected(c) for c in (*heads, *self.seeds) if c is not None]
        if not solved:
            return None
        return max(solved, key=lambda cell: cell.log_evidence + prior(cell.place.log_beta))

    def choose_initial(self, cell: Cell, shapes: tuple[Shape, ...]) -> Cell:
        """The cell with the best prior of the start, solved."""
        others = [shape for shape in shapes if shape is not cell.place.initial]
        guesses = [self.tuned(cell, replace(cell.place, initial=shape)) for shape in others]
        guess = max(guesses, key=lambda other: other.log_evidence)
        if guess.log_evidence <= cell.log_evidence:
            return cell
        solved = self.inner.solve(guess.place, guess.theta, cell.mesh, cell)
        return solved if solved and solved.log_evidence > cell.log_evidence else cell

    # ------------------------------------------------------------------ columns

    def first_column(self, head: Cell) -> Column:
        own = head.place
        guesses = [
            self.tuned(head, own if s is own.potential else replace(own, potential=s))
            for s in self.shapes
        ]
        top = max(cell.log_evidence for cell in guesses)
        heads: dict[int, Cell] = {}
        for i, guess in enumerate(guesses):
            if guess.log_evidence >= top - 1.5 * _SCREEN:
                cell: Cell | None = guess
                if not guess.solved:
                    cell = self.inner.solve(guess.place, guess.theta, head.mesh, guess)
                if cell is not None:
                    heads[i] = cell
        if not heads:
            heads[self.shapes.index(head.place.potential)] = head
        top = max(cell.log_evidence for cell in heads.values())
        kept = {i: cell for i, cell in heads.items() if cell.log_evidence >= top - _SCREEN}
        for i, cell in kept.items():
            step = 2.0 * np.sqrt(2.0 / cell.used()[0])
            self.spacing[i] = float(np.clip(step, *_STRENGTH_STEP))
            self.centres[i] = cell.place.log_strength
        column = Column(
            head.place.log_beta, {(i, 0): cell for i, cell in kept.items()}, self.spacing
        )
        self.extend(column)
        self.finish(column)
        return column

    def finish(self, column: Column) -> None:
        """Ensure that the best cell is solved; its next order in Laplace's method serves all cells.

        Where states run empty, a cell of a stronger prior may be expanded to an evidence 6 too high
        from one of a weaker prior, under which the data have less information.
        """
        while not column.best.solved and not self.exhausted:
            key, cell = column.best_key, column.best
            found = self.inner.solve(cell.place, cell.theta, cell.mesh, cell)
            column.cells[key] = found or replace(cell, log_evidence=-np.inf)
        correction = self.inner.corrected(column.near(column.best_key, solved=True)).correction
        for key, cell in column.cells.items():
            column.cells[key] = cell.with_correction(correction)

    def place(self, key: Key, log_beta: float, log_initial: float, initial: Shape) -> Place:
        i, j = key
        strength = self.centres[i] + j * self.spacing[i]
        return Place(log_beta, strength, log_initial, self.shapes[i], initial)

    def extend(self, column: Column) -> None:
        """Add strengths until the evidence has fallen on both sides, for each shape."""
        todo = sorted(column.cells, key=lambda key: -column.cells[key].log_evidence)
        while todo:
            key = todo.pop(0)
            near = column.cells[key]
            if near.log_evidence < column.best.log_evidence - self.within(column, _EXTEND):
                continue
            for j in (key[1] - 1, key[1] + 1):
                new = (key[0], j)
                place = self.place(new, column.log_beta, near.place.log_initial, near.place.initial)
                if new in column.cells or self.bounded(place.log_strength) != place.log_strength:
                    continue
                column.cells[new] = self.inner.expand(column.near(new, solved=True), place)
                column.cells[new].forget()
                todo.append(new)

    def within(self, column: Column, drop: float) -> float:
        """`drop`, less where the whole column counts for less."""
        return max(_LEAST_DROP, drop - max(self.top - column.best.log_evidence, 0.0))

    def next_column(self, near: Column, log_beta: float, slope: Array) -> Column | None:
        """The column at another beta, warm-started from `near` and from the sweep.

        `slope`: how the best cell follows `log beta`. The best cell is solved, and the best ones of
        other shapes where they matter; all others are expanded.
        """
        key, top = near.best_key, near.best
        start = top.theta + (log_beta - near.log_beta) * slope
        lead = self.inner.solve(replace(top.place, log_beta=log_beta), start, top.mesh, top)
        if lead is None:
            return None
        log_initial = self.preferred(lead).log_initial
        lead = self.other_branch(lead, log_initial) or lead
        column = Column(log_beta, {key: lead}, self.spacing)
        least = top.log_evidence - self.within(near, _KEEP)
        carried = [
            k for k, cell in near.cells.items() if cell.log_evidence >= least or k == self.reference
        ]
        matters = self.top - lead.log_evidence < _EXACT
        for new in sorted(carried, key=lambda k: (-near.cells[k].log_evidence, k)):
            if new in column.cells:
                continue
            place = self.place(new, log_beta, log_initial, lead.place.initial)
            cell = self.inner.expand(column.near(new, solved=True), place)
            first = all(other[0] != new[0] for other in column.cells)
            if first and matters and cell.log_evidence > lead.log_evidence - _EXACT:
                if not self.exhausted:
                    cell = self.inner.solve(place, cell.theta, lead.mesh, cell) or cell
            cell.forget()
            column.cells[new] = cell
        self.extend(column)
        self.finish(column)
        return column

    def other_branch(self, lead: Cell, log_initial: float) -> Cell | None:
        """A better cell at `lead`'s place from the sweep, where the sweep fell less than `lead`."""
        log_beta = lead.place.log_beta
        if not self.found:
            return None
        other = min(self.found, key=lambda cell: abs(cell.place.log_beta - log_beta))
        top = max(cell.log_evidence for cell in self.found)
        if self.top - lead.log_evidence < top - other.log_evidence + self.suspicion:
            return None
        cell = self.inner.solve(replace(lead.place, log_initial=log_initial), other.theta)
        if cell is None or cell.log_evidence + lead.correction < lead.log_evidence + 0.5:
            self.suspicion *= 2.0  # the sweep is rough: suspect less easily after a false alarm
            return None
        return self.inner.corrected(cell)

    def polish(self, lattice: Lattice) -> None:
        """Solve the expanded cells that carry most of the weight, the heaviest first.

        Where a state empties between two snapshots the data's information changes from cell to
        cell, and expanded cells have too small an error: on six draws from five states with such a
        hill it fell from 0.6 to 0.4.
        """
        left = int(np.clip(_POLISHED // self.inner.n, *_POLISHED_BOUNDS))
        for _ in range(2):  # the weights move with the first round
            for cell, _ in lattice.weighted(_SOLVED_SHARE):
                if cell.solved or left <= 0 or self.exhausted:
                    continue
                left -= 1
                found = self.inner.solve(cell.place, cell.theta, cell.mesh, cell)
                if found is not None:
                    found.forget(every=True)
                for column in lattice.columns:
                    for key, old in column.cells.items():
                        if old is cell and found is not None:
                            column.cells[key] = found

    def walk(self, first: Column) -> list[Column]:
        columns = [first]
        self.top, self.reference = first.best.log_evidence, first.best_key
        low, high = (float(np.log(b / self.inner.span)) for b in RANGE)
        slope, bend = self.inner.along_beta(first.best)
        begin = _ROOT_STEP * np.sqrt(2.0 / bend) if bend > 0.0 else _STEP[1]
        for side in (1, -1):
            column, along = first, slope
            step = float(np.clip(begin, _STEP[0], _FIRST_STEP))
            while not self.exhausted and len(columns) < _MOST_COLUMNS:
                self.say()
                end = high if side > 0 else low
                if (end - column.log_beta) * side <= 1e-9:
                    break
                target = column.log_beta + side * step
                target = min(target, end) if side > 0 else max(target, end)
                new = self.next_column(column, target, along)
                if new is None:
                    break
                change = abs(new.value - column.value)
                if change > _TOO_FAR and step > _STEP[0] * 2:
                    step = max(step * 0.4, _STEP[0])
                    continue
                columns.append(new)
                columns.sort(key=lambda c: c.log_beta)
                values = [c.value for c in columns]
                if new.value < max(values) - FALL:
                    break
                roots = np.sqrt([max(values) - c.value for c in (column, new)])
                step *= float(np.clip(_ROOT_STEP / max(abs(roots[1] - roots[0]), 1e-3), 0.6, 1.8))
                step = float(np.clip(step, *_STEP))
                along = self.inner.along_beta(new.best)[0]
                for cell in column.cells.values():
                    cell.forget(every=True)
                column = new
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
    starts = tuple(shape for shape in shapes if shape.power in INITIAL_POWERS)
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
        initial = _FIRST_INITIAL
        if explorer.found:
            swept = min(explorer.found, key=lambda cell: abs(cell.place.log_beta - value))
            initial = swept.place.log_initial
        place = Place(value, strength, initial, plain, starts[0])
        cell = explorer.settle(place, theta)
        if cell is not None:
            explorer.seeds.append(cell)
    head = explorer.head()
    if head is None:
        raise ConvergenceError(Status.NOT_FINITE.value)
    first = explorer.first_column(explorer.choose_initial(head, starts))
    columns = [first] if log_beta is not None else explorer.walk(first)
    prior = np.array([inner.beta_prior(column.log_beta) for column in columns])
    lattice = Lattice(tuple(columns), prior, not explorer.exhausted)
    explorer.polish(lattice)
    return lattice
