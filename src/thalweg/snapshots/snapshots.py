"""`Snapshots`: the number of individuals seen in each state, at each of several times."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from thalweg import _checks
from thalweg._door import checked
from thalweg._optional import optional
from thalweg._sparse import as_sparse, dense
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.snapshots.replicates import Replicates, gather
from thalweg.snapshots.times import TimeScale, read_times

if TYPE_CHECKING:
    from thalweg.snapshots.clouds import PointSnapshots


DENSE_LIMIT = 50_000_000
"""Number of entries up to which counts are a dense array, and above which a sparse one."""


@dataclass(frozen=True, eq=False)
class Snapshots:
    """Counts of individuals per state (columns) at increasing times (rows).

    The individuals of one time need not be those of another, the numbers seen may differ, and the
    times may be irregular. Build it with a `from_*` constructor, which checks its input; the arrays
    are read-only afterwards. `counts` is dense up to 5e7 entries and a sparse CSR array above.

    >>> seen = Snapshots.from_counts([0, 1, 3], [[8, 2], [5, 5], [1, 3]])
    >>> seen
    Snapshots(n_times=3, n_states=2, sizes=4..10)
    >>> seen.frequencies[2]
    array([0.25, 0.75])
    >>> seen.drop(1).times  # the snapshot at time 1
    array([0., 3.])
    >>> len(seen), seen[:-1].times, seen.between(1, 3).times
    (3, array([0., 1.]), array([1., 3.]))
    """

    times: Array
    counts: Array | sparse.csr_array
    names: tuple[Hashable, ...] | None = field(default=None, kw_only=True)
    scale: TimeScale = field(default=TimeScale(), kw_only=True)
    """What the times mean: their unit, and the date of time 0 if they were dates."""
    replicates: Replicates | None = field(default=None, kw_only=True)
    """The counts of each replicate, if there were several per time."""

    # ---------------------------------------------------------------- constructors

    @classmethod
    @checked
    def from_counts(
        cls,
        times: ArrayLike,
        counts: ArrayLike | sparse.sparray | sparse.spmatrix,
        *,
        names: Sequence[Hashable] | None = None,
        replicates: Sequence[Hashable] | None = None,
    ) -> Snapshots:
        """Snapshots from a table of counts, one row per time, one column per state.

        Parameters
        ----------
        times : sequence
            Numbers, dates, durations or labels such as `"day 2"`; see `TimeScale`.
        counts : array or sparse matrix
            Not negative; fractions are individuals divided between states.
        names : sequence, optional
            One name per state.
        replicates : sequence, optional
            The replicate (animal, batch, run) of each row; times may then repeat.

        >>> seen = Snapshots.from_counts(["2024-02-28", "2024-03-01"], [[8, 2], [5, 5]])
        >>> seen.times, str(seen.scale)
        (array([0., 2.]), 'days since 2024-02-28')
        >>> rows = [[8, 2], [6, 4], [5, 5], [3, 7]]
        >>> seen = Snapshots.from_counts([0, 0, 1, 1], rows, replicates=["a", "b", "a", "b"])
        >>> seen.counts.tolist(), seen.replicates.count
        ([[14.0, 6.0], [8.0, 12.0]], 2)
        """
        if replicates is not None:
            return cls._with_replicates(*read_times(times), counts, names, replicates)
        t, scale = _read_times(times)
        table: Any
        if sparse.issparse(counts):
            table = as_sparse(counts, "counts")
        else:
            table = _checks.as_array(counts, "counts")
        if table.ndim != 2 or table.shape[0] != t.size or table.shape[1] < 1:
            raise InputError(
                f"counts have shape {table.shape} for {t.size} times; give one row per time and "
                f"one column per state, shape ({t.size}, number of states)."
            )
        _ask_about_shares(table)
        return cls._checked(t, table, names, scale)

    @classmethod
    @checked
    def from_samples(
        cls,
        times: ArrayLike,
        samples: Iterable[ArrayLike],
        n_states: int,
        *,
        names: Sequence[Hashable] | None = None,
        replicates: Sequence[Hashable] | None = None,
    ) -> Snapshots:
        """Snapshots from the states of the individuals.

        Parameters
        ----------
        times : sequence
            Numbers, dates, durations or labels; see `TimeScale`.
        samples : sequence of arrays
            The states of the individuals, one array of integers per time.
        n_states : int
            Number of states.
        names : sequence, optional
            One name per state.
        replicates : sequence, optional
            The replicate of each array; times may then repeat.

        >>> Snapshots.from_samples([0, 1], [[0, 0, 2], [2, 1]], n_states=3).counts
        array([[2., 0., 1.],
               [0., 1., 1.]])
        """
        t, scale = _read_times(times) if replicates is None else read_times(times)
        n_states = _checks.whole(n_states, "n_states", 1)
        clouds = [np.asarray(sample) for sample in samples]
        if len(clouds) != t.size:
            raise InputError(f"{len(clouds)} samples for {t.size} times; give one array per time.")
        for k, states in enumerate(clouds):
            _check_sample(states, n_states, k, t[k])
        row = np.repeat(np.arange(t.size), [states.size for states in clouds])
        column = np.concatenate([states.astype(np.int64) for states in clouds])
        ones = np.ones(row.size)
        table = sparse.coo_array((ones, (row, column)), shape=(t.size, n_states)).tocsr()
        if replicates is not None:
            return cls._with_replicates(t, scale, table, names, replicates)
        return cls._checked(t, table, names, scale)

    @classmethod
    @checked
    def from_frame(
        cls,
        frame: Any,
        *,
        time: str,
        state: str,
        count: str | None = None,
        states: Sequence[Hashable] | MarkovKernel | int | None = None,
        replicate: str | None = None,
    ) -> Snapshots:
        """Snapshots from a table with one row per individual (or per `count` of individuals).

        Parameters
        ----------
        frame : data frame
            A pandas frame, or anything with `to_pandas()` (polars, pyarrow), rows in any order.
        time : str
            The column of times.
        state : str
            The column of states.
        count : str, optional
            The column of counts; by default each row is one individual.
        states : sequence, MarkovKernel or int, optional
            The names of all states in the kernel's order, the kernel itself, or the number of
            numbered states. By default integers number the states, and names are sorted.
        replicate : str, optional
            The column that names each row's replicate (animal, batch, run).

        >>> import pandas as pd
        >>> df = pd.DataFrame({"day": [4, 2, 2, 4], "type": ["b", "a", "b", "b"]})
        >>> seen = Snapshots.from_frame(df, time="day", state="type", states=["a", "b"])
        >>> seen.times, seen.counts.tolist(), seen.names
        (array([2., 4.]), [[1.0, 1.0], [0.0, 2.0]], ('a', 'b'))
        """
        optional("pandas", extra="cli", what="reading a data frame")
        from thalweg.snapshots.frames import read_frame

        t, table, names, labels, scale = read_frame(frame, time, state, count, states, replicate)
        if labels is not None:
            return cls._with_replicates(t, scale, table, names, labels)
        _ask_about_shares(table)
        return cls._checked(t, table, names, scale)

    @classmethod
    @checked
    def from_points(
        cls,
        times: ArrayLike,
        points: Iterable[ArrayLike],
        *,
        kernel: MarkovKernel | None = None,
        n_states: int | None = None,
        n_neighbors: int | None = None,
        states: Literal["kmeans", "farthest", "points"] = "kmeans",
        rng: np.random.Generator | None = None,
    ) -> PointSnapshots:
        """Snapshots from clouds of points: each point is counted in the nearest state.

        The result keeps `kernel`, `points` and `labels`, and turns distributions over states back
        into points with `to_points` and `sample`.

        Parameters
        ----------
        times : sequence
            Numbers, dates, durations or labels; see `TimeScale`.
        points : sequence of arrays
            One cloud per time, one row per point.
        kernel : MarkovKernel, optional
            Its states, which need coordinates, are used. By default states are chosen, and the
            kernel is that of their nearest neighbours.
        states : {"kmeans", "farthest", "points"}
            How to choose states: k-means centres (every snapshot weighs the same), points far from
            each other, or all points.
        n_states : int, optional
            Number of states; by default the square root of the number of points, at most 100.
        n_neighbors : int, optional
            Number of neighbours of each state.
        rng : numpy.random.Generator, optional
            Chooses the states; by default with seed 0.
        """
        from thalweg.snapshots.clouds import build

        return build(
            times, points, kernel=kernel, n_states=n_states, n_neighbors=n_neighbors,
            states=states, rng=rng,
        )  # fmt: skip

    @classmethod
    def _with_replicates(
        cls,
        t: Array,
        scale: TimeScale,
        counts: Any,
        names: Sequence[Hashable] | None,
        replicates: Sequence[Hashable],
    ) -> Snapshots:
        """Snapshots from one row per time and replicate, in any order."""
        table = _checks.as_array(counts.toarray() if sparse.issparse(counts) else counts, "counts")
        if t.ndim != 1 or table.ndim != 2 or table.shape[0] != t.size:
            raise InputError(
                f"counts have shape {table.shape} for {t.size} times; give one row per time and "
                "replicate, and its time, which may repeat."
            )
        if table.min(initial=0.0) < 0:
            return cls._checked(t, table, names, scale)  # which says where
        when, pooled, parts = gather(t, table, replicates)
        for shares in (table, pooled):
            _ask_about_shares(shares)
        return replace(cls._checked(when, pooled, names, scale), replicates=parts)

    @classmethod
    def _checked(
        cls,
        times: Array,
        table: Array | sparse.csr_array,
        names: Sequence[Hashable] | None,
        scale: TimeScale,
    ) -> Snapshots:
        """The last checks, common to all constructors: signs, empty snapshots, names."""
        values = table.data if isinstance(table, sparse.csr_array) else table
        if values.size and values.min() < 0:
            coo = sparse.coo_array(table)
            k = int(np.argmin(coo.data))
            raise InputError(
                f"counts are {coo.data[k]:.6g} at time {times[coo.row[k]]:g}, state "
                f"{int(coo.col[k])}; a count cannot be negative: correct or remove it."
            )
        totals = np.asarray(table.sum(axis=1)).ravel()
        if totals.min() <= 0:
            k = int(np.argmin(totals))
            raise InputError(
                f"the snapshot at time {times[k]:g} (row {k}) is empty; drop that time."
            )
        called = None if names is None else _checks.as_names(names, int(table.shape[1]))
        times = times.copy()
        times.flags.writeable = False
        if table.shape[0] * table.shape[1] <= DENSE_LIMIT:
            table = dense(table)
        if isinstance(table, np.ndarray):
            table = np.ascontiguousarray(table)
            table.flags.writeable = False
        return cls(times, table, names=called, scale=scale)

    # ---------------------------------------------------------------- what it knows

    @property
    def n_times(self) -> int:
        return int(self.times.size)

    @property
    def n_states(self) -> int:
        return int(self.counts.shape[1])

    @property
    def is_sparse(self) -> bool:
        return isinstance(self.counts, sparse.csr_array)

    @cached_property
    def sizes(self) -> Array:
        """Number of individuals seen at each time."""
        return np.asarray(self.counts.sum(axis=1)).ravel()

    @cached_property
    def frequencies(self) -> Array | sparse.csr_array:
        """Counts divided by sizes: the raw histograms, dense or sparse as the counts are."""
        if isinstance(self.counts, sparse.csr_array):
            return sparse.csr_array(sparse.diags_array(1 / self.sizes) @ self.counts)
        return np.asarray(self.counts / self.sizes[:, None])

    def __repr__(self) -> str:
        low, high = self.sizes.min(), self.sizes.max()
        sizes = f"{low:g}" if low == high else f"{low:g}..{high:g}"
        return f"Snapshots(n_times={self.n_times}, n_states={self.n_states}, sizes={sizes})"

    # ---------------------------------------------------------------- others made from it

    @checked
    def select(self, indices: ArrayLike | slice) -> Snapshots:
        """The snapshots at these positions (integers, booleans or a slice), in order of time."""
        try:
            rows = np.arange(self.n_times)[indices]  # type: ignore[index]
        except TypeError:
            raise InputError(
                f"{indices!r} does not count snapshots; between(start, stop) selects by time."
            ) from None
        except IndexError:
            raise InputError(
                f"indices {indices!r} do not fit {self.n_times} snapshots; use 0 to "
                f"{self.n_times - 1}."
            ) from None
        rows = np.unique(np.atleast_1d(rows))
        if rows.size == 0:
            raise InputError("no snapshot is selected; keep at least one.")
        kept = Snapshots._checked(self.times[rows], self.counts[rows], self.names, self.scale)
        parts = None if self.replicates is None else self.replicates.select(rows)
        return replace(self, times=kept.times, counts=kept.counts, replicates=parts)

    @checked
    def drop(self, times: ArrayLike) -> Snapshots:
        """All snapshots but those at these times, for instance to forecast them from the rest.

        >>> seen = Snapshots.from_counts([0, 1, 3], [[8, 2], [5, 5], [1, 3]])
        >>> seen.drop([1, 3]).times
        array([0.])
        """
        keep = np.ones(self.n_times, dtype=bool)
        for time in self.scale.numbers(np.atleast_1d(np.asarray(times))):
            nearest = int(np.argmin(abs(self.times - time)))
            if not np.isclose(self.times[nearest], time, rtol=1e-9, atol=1e-12):
                raise InputError(
                    f"there is no snapshot at time {time:g}; the nearest is at "
                    f"{self.times[nearest]:g}."
                )
            keep[nearest] = False
        return self.select(keep)

    @checked
    def between(self, start: float | str, stop: float | str) -> Snapshots:
        """The snapshots at times (or dates) from `start` to `stop`, both included."""
        low, high = self.scale.numbers(np.array([start, stop]))
        return self.select((self.times >= low) & (self.times <= high))

    def __len__(self) -> int:
        """The number of times."""
        return self.n_times

    def __getitem__(self, indices: int | slice | ArrayLike) -> Snapshots:
        """The snapshots at these positions, as `select` gives them: `seen[:-1]`, `seen[::2]`."""
        return self.select(indices)

    @checked
    def on(self, scale: TimeScale) -> Snapshots:
        """The same snapshots with their times in another scale, such as that of a fitted model.

        >>> later = Snapshots.from_counts(["2024-03-05", "2024-03-06"], [[4, 1], [3, 2]])
        >>> later.on(TimeScale("days", "2024-02-28")).times
        array([6., 7.])
        """
        times = np.asarray(self.scale.converted(self.times, scale))
        return replace(self, times=times, scale=scale)

    @checked
    def resample(self, *, rng: np.random.Generator) -> Snapshots:
        """A bootstrap replicate: as many individuals at each time, drawn with replacement.

        Sizes that are not whole are rounded. If there are replicates, whole ones are drawn.
        """
        _checks.generator(rng)
        if self.replicates is not None:
            return self._pooled(self.replicates.resampled(rng))
        sizes = np.maximum(self.sizes.round(), 1).astype(np.int64)
        return self._redrawn(lambda k, c: rng.multinomial(sizes[k], c / c.sum()))

    @checked
    def thin(self, fraction: float, *, rng: np.random.Generator) -> Snapshots:
        """Keep each individual independently with probability `fraction`; counts are rounded.

        Replicates stay apart.
        """
        _checks.generator(rng)
        if _checks.positive(fraction, "fraction", zero=True) > 1 or fraction == 0:
            raise InputError(f"fraction is {fraction:g}; it must lie in (0, 1].")
        if self.replicates is not None:
            return self._pooled(self.replicates.thinned(fraction, rng))
        return self._redrawn(lambda k, c: rng.binomial(c.round().astype(np.int64), fraction))

    def _pooled(self, parts: Replicates) -> Snapshots:
        """The snapshots at the same times that these replicates make up."""
        pooled = parts.pooled(self.n_times)
        new = Snapshots._checked(self.times, pooled, self.names, self.scale)
        return replace(new, replicates=parts)

    def _redrawn(self, draw: Callable[[int, Array], NDArray[Any]]) -> Snapshots:
        """The snapshots with `draw(k, counts)` in place of the counts at time `k`."""
        new = self.counts.copy()
        for k in range(self.n_times):
            if isinstance(new, sparse.csr_array):
                row = new.data[new.indptr[k] : new.indptr[k + 1]]
            else:
                row = new[k]
            row[:] = draw(k, row)
        return Snapshots._checked(self.times, new, self.names, self.scale)


def _read_times(values: Any) -> tuple[Array, TimeScale]:
    numbers, scale = read_times(values)
    return _checks.as_times(numbers), scale


def _ask_about_shares(table: Array | sparse.csr_array) -> None:
    """Reject fractions that sum to one at every time: their number of individuals is unknown."""
    values = table.data if isinstance(table, sparse.csr_array) else table
    totals = np.asarray(table.sum(axis=1)).ravel()
    if values.size and (values % 1 != 0).any() and (abs(totals - 1.0) < 0.02).all():
        raise InputError(
            "the counts are fractions that sum to 1 at every time: shares do not say how many "
            "individuals were seen; multiply them by that number (the effective sample size; on "
            "the command line, --individuals)."
        )


def _check_sample(states: NDArray[Any], n_states: int, k: int, time: float) -> None:
    """Reject what is not a list of states."""
    if states.ndim != 1:
        raise InputError(
            f"the sample at time {time:g} has shape {states.shape}; give a flat list of states."
        )
    if states.size == 0:
        raise InputError(f"the snapshot at time {time:g} (row {k}) is empty; drop that time.")
    if states.dtype.kind not in "iu":
        raise InputError(
            f"the sample at time {time:g} holds {states.dtype} values; states are integers from 0 "
            f"to {n_states - 1}: convert them, or use from_frame for states with names."
        )
    wrong = (states < 0) | (states >= n_states)
    if wrong.any():
        raise InputError(
            f"state {states[np.argmax(wrong)]} at time {time:g} is outside 0 to {n_states - 1}; "
            "correct it, or raise n_states."
        )
