"""Small dense systems of single states, at all stages at once: built, inverted, applied.

A state's own density and potential obey, its neighbours held fixed,

    w - J (a w + m q) / mass = r1,    q + J_mid ((k w + a q) / mass) = r2,

with `J`, `J_mid` the integrals over the stages and `m, a, k` the state's diagonal coefficients.
States are taken sixteen at a time with these innermost, so every operation is one of vectors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg._compile import njit

__all__ = ["LocalBlocks", "apply_blocks", "fill_block", "invert_blocks"]

Array = NDArray[np.float64]
Single = NDArray[np.float32]
States = NDArray[np.int64]

LANES = 16
_PIVOT = 1e-4
"""Elimination goes without exchanges of rows while the pivots are larger than this."""


class LocalBlocks(NamedTuple):
    """The inverses for `states`, sixteen to a group; a group that is not full repeats its last."""

    states: States
    inverse: Single
    """`(groups, 2 stages, 2 stages, 16)`."""


def invert_blocks(
    states: States, diagonals: tuple[Array, Array, Array], mass: Array, ends: Array, mid: Array
) -> LocalBlocks:
    """The inverses of the equations above; `ends`, `mid` hold the integrals in their columns."""
    size = 2 * mass.shape[1]
    groups = -(-states.size // LANES)
    full = np.resize(states, groups * LANES) if states.size else states
    full[states.size :] = states[-1:]
    inverse = np.empty((groups, size, size, LANES), np.float32)
    sound = np.empty(groups, np.bool_)
    _invert(full, *diagonals, mass, ends, mid, inverse, sound)
    block = np.empty((size, size, LANES))[:, :, 0]
    m, a, k = diagonals
    for g in np.flatnonzero(~sound):
        for lane, x in enumerate(full[g * LANES : (g + 1) * LANES]):
            fill_block(block, m[x], a[x], k[x], mass[x], ends, mid)
            inverse[g, :, :, lane] = np.linalg.inv(block)
    return LocalBlocks(full, inverse)


@njit(cache=True, fastmath={"contract"}, error_model="numpy")
def _invert(
    states: States,
    m: Array,
    a: Array,
    k: Array,
    mass: Array,
    ends: Array,
    mid: Array,
    inverse: Single,
    sound: NDArray[np.bool_],
) -> None:
    """Inverses of the groups whose pivots are large enough; `sound` marks these."""
    groups, size = inverse.shape[:2]
    work = np.empty((size, size, LANES))
    for g in range(groups):
        for lane in range(LANES):
            x = states[g * LANES + lane]
            fill_block(work[:, :, lane], m[x], a[x], k[x], mass[x], ends, mid)
        sound[g] = _reduce(work)
        if sound[g]:
            for i in range(size):
                for j in range(size):
                    for lane in range(LANES):
                        inverse[g, i, j, lane] = work[i, j, lane]


@njit(cache=True, fastmath={"contract"}, error_model="numpy")
def _reduce(work: Array) -> bool:
    """Gauss and Jordan: the inverses, in place; false if a pivot was small."""
    size, lanes = work.shape[1:]
    factor = np.empty(lanes)
    sound = True
    for p in range(size):
        for lane in range(lanes):
            sound = sound and abs(work[p, p, lane]) > _PIVOT
            factor[lane] = 1.0 / work[p, p, lane]
            work[p, p, lane] = 1.0
        for j in range(size):
            row = work[p, j]
            for lane in range(lanes):
                row[lane] *= factor[lane]
        for i in range(size):
            if i == p:
                continue
            for lane in range(lanes):
                factor[lane] = work[i, p, lane]
                work[i, p, lane] = 0.0
            for j in range(size):
                row, top = work[i, j], work[p, j]
                for lane in range(lanes):
                    row[lane] -= factor[lane] * top[lane]
    return sound


@njit(cache=True, error_model="numpy")
def fill_block(
    block: Array, m: Array, a: Array, k: Array, mass: Array, ends: Array, mid: Array
) -> None:
    count = m.size
    for j in range(count):
        pull, push = k[j] / mass[j], a[j] / mass[j]
        for i in range(count):
            block[i, j] = -ends[j, i] * a[j]
            block[i, count + j] = -ends[j, i] * m[j]
            block[count + i, j] = mid[j, i] * pull
            block[count + i, count + j] = mid[j, i] * push
    for i in range(count):
        light = 1.0 / mass[i]
        for j in range(2 * count):
            block[i, j] *= light
        block[i, i] += 1.0
        block[count + i, count + i] += 1.0


@njit(cache=True, fastmath={"contract"}, error_model="numpy")
def apply_blocks(states: States, inverse: Single, w: Array, q: Array) -> None:
    """Replace `w, q` of the states, in place, by the inverses times them."""
    groups, size = inverse.shape[:2]
    count = size // 2
    before = np.empty((size, LANES))
    after = np.empty((size, LANES))
    for g in range(groups):
        for lane in range(LANES):
            x = states[g * LANES + lane]
            for i in range(count):
                before[i, lane] = w[x, i]
                before[count + i, lane] = q[x, i]
        for i in range(size):
            for lane in range(LANES):
                after[i, lane] = 0.0
            for j in range(size):
                for lane in range(LANES):
                    after[i, lane] += inverse[g, i, j, lane] * before[j, lane]
        for lane in range(LANES):
            x = states[g * LANES + lane]
            for i in range(count):
                w[x, i] = after[i, lane]
                q[x, i] = after[count + i, lane]
