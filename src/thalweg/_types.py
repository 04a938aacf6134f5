"""Names for the types that most signatures share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Index = NDArray[np.int64]
Counts = NDArray[np.int64]
"""Numbers of individuals per state."""
Index32 = NDArray[np.int32]
"""The states at the ends of edges, which are many."""
Tokens = NDArray[np.int64]
"""Sequences of tokens, by their numbers."""
Mask = NDArray[np.bool_]
Progress = Callable[[str, int, int], None]
"""Called as `progress(what, done, total)` during long work."""
