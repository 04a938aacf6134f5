"""One way to run independent pieces of work, on one core, on all, or on a cluster.

It uses joblib: `with joblib.parallel_config(backend="dask"):` around any call that takes `jobs`
moves its work to the cluster, if `jobs` is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from joblib import Parallel, delayed

from thalweg._types import Progress

T = TypeVar("T")


def unordered(
    function: Callable[..., T], items: Sequence[tuple[Any, ...]], *, jobs: int | None = None
) -> Iterator[tuple[int, T]]:
    """`(index, function(*items[index]))` for every item, each as soon as it is done."""
    work = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
    yield from work(delayed(_numbered)(function, k, item) for k, item in enumerate(items))


def parallel_map(
    function: Callable[..., T],
    items: Sequence[tuple[Any, ...]],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    what: str = "working",
) -> list[T]:
    """`[function(*item) for item in items]`, in order, with progress as pieces finish.

    >>> parallel_map(pow, [(2, 3), (3, 2)], jobs=1)
    [8, 9]
    """
    results: list[Any] = [None] * len(items)
    for done, (k, result) in enumerate(unordered(function, items, jobs=jobs), start=1):
        results[k] = result
        if progress is not None:
            progress(what, done, len(items))
    return results


def _numbered(function: Callable[..., T], k: int, item: tuple[Any, ...]) -> tuple[int, T]:
    return k, function(*item)
