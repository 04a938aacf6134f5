"""Networks: the paper's own method as printed, and potentials as networks of features.

Torch is imported only when a network is trained, and then runs on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

from thalweg._optional import optional

P = ParamSpec("P")
R = TypeVar("R")


def load_torch() -> Any:
    return optional("torch", extra="neural", what="a neural method")


def one_thread(train: Callable[P, R]) -> Callable[P, R]:
    """Train on one thread: on networks this small several only wait for each other."""

    @wraps(train)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        torch = load_torch()
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return train(*args, **kwargs)
        finally:
            torch.set_num_threads(before)

    return limited


def linear_layers(torch: Any, sizes: Sequence[int], seed: int) -> list[Any]:
    """Linear layers between these sizes, with torch's first weights for this seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return [torch.nn.Linear(a, b) for a, b in pairwise(sizes)]
