"""Deterministic graphs: paths, cycles, stars, lattices, cubes, and Hamming graphs of sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
from scipy import sparse

from thalweg import _checks
from thalweg._door import checked
from thalweg._types import Array, Index
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel

_MAX_STATES = 1_000_000
"""Largest number of states."""


def path(n: int) -> MarkovKernel:
    """States in a row, each joined to the next.

    >>> path(3).stationary
    array([0.25, 0.5 , 0.25])
    """
    n = _checks.whole(n, "n", 2)
    state = np.arange(n - 1)
    position = np.column_stack([np.arange(n, dtype=np.float64), np.zeros(n)])
    return walk(n, state, state + 1, position)


def cycle(n: int) -> MarkovKernel:
    """States in a ring."""
    n = _checks.whole(n, "n", 3)
    state = np.arange(n)
    return walk(n, state, (state + 1) % n, circle(n))


def star(n: int) -> MarkovKernel:
    """State 0 joined to all others.

    >>> star(4).stationary * 6
    array([3., 1., 1., 1.])
    """
    n = _checks.whole(n, "n", 2)
    leaves = np.arange(1, n)
    position = np.vstack([[0.0, 0.0], circle(n - 1)])
    return walk(n, np.zeros(n - 1, dtype=np.int64), leaves, position)


def hypercube(dimension: int) -> MarkovKernel:
    """Binary words, joined where one bit differs; state `x` is the word of its binary digits.

    >>> hypercube(3)
    MarkovKernel(n_states=8, n_edges=12)
    """
    dimension = _checks.whole(dimension, "dimension", 1)
    what = f"a cube of dimension {dimension}"
    _check_states(dimension * math.log10(2), what, "choose 19 or less")
    state = np.arange(2**dimension)
    a = np.concatenate([state[state >> k & 1 == 0] for k in range(dimension)])
    b = np.concatenate([state[state >> k & 1 == 0] | 1 << k for k in range(dimension)])
    # Each bit moves the drawing in its own direction.
    angle = np.pi * (np.arange(dimension) + 0.5) / dimension
    length = 0.8 ** np.arange(dimension, dtype=np.float64)
    direction = np.column_stack([length * np.cos(angle), length * np.sin(angle)])
    bits = state[:, None] >> np.arange(dimension) & 1
    return walk(state.size, a, b, bits @ direction)


def lattice(shape: Sequence[int], *, periodic: bool = False) -> MarkovKernel:
    """A box of states in any dimension.

    States are numbered like the entries of an array of that shape; coordinates are its indices.

    Parameters
    ----------
    shape : sequence of int
        Number of states along each side.
    periodic : bool
        Whether to wrap every side.

    >>> lattice((2, 3)).n_edges, lattice((3, 3, 3), periodic=True).n_edges
    (7, 81)
    """
    sides = tuple(_checks.whole(side, "a side of shape", 1) for side in shape)
    if max(sides, default=0) < 2:
        raise InputError(f"shape is {sides}; give at least two states.")
    _check_states(sum(map(math.log10, sides)), f"a lattice of shape {sides}")
    state = np.arange(math.prod(sides)).reshape(sides)
    a, b = [], []
    for axis, side in enumerate(sides):
        ahead = np.moveaxis(state, axis, 0)
        a.append(ahead[:-1].ravel())
        b.append(ahead[1:].ravel())
        # With two states in a row the wrapped edge is the edge itself.
        if periodic and side > 2:
            a.append(ahead[-1].ravel())
            b.append(ahead[0].ravel())
    position = np.stack(np.unravel_index(state.ravel(), sides), axis=1).astype(np.float64)
    return walk(state.size, np.concatenate(a), np.concatenate(b), position)


def triangular_lattice(n_rows: int, n_columns: int) -> MarkovKernel:
    """Rows of states with a diagonal in each cell: inner states have six neighbours."""
    if min(_checks.whole(n_rows, "n_rows"), _checks.whole(n_columns, "n_columns")) < 2:
        raise InputError(
            f"a triangular lattice of {n_rows} x {n_columns} is a path; give both sides at least 2."
        )
    _check_states(math.log10(n_rows) + math.log10(n_columns), "a triangular lattice")
    state = np.arange(n_rows * n_columns).reshape(n_rows, n_columns)
    a = [state[:, :-1], state[:-1], state[:-1, 1:]]
    b = [state[:, 1:], state[1:], state[1:, :-1]]
    row, column = np.divmod(state.ravel(), n_columns)
    position = np.column_stack([column + 0.5 * row, -math.sqrt(0.75) * row])
    one, other = (np.concatenate([x.ravel() for x in ends]) for ends in (a, b))
    return walk(state.size, one, other, position)


@checked
def hamming_kernel(
    n_tokens: int, length: int, token_kernel: MarkovKernel | None = None
) -> MarkovKernel:
    """The walk on sequences that changes the token at one random position.

    `K = (1 / length) sum_i I x .. x K_token x .. x I`, with the token kernel at position `i`, so
    that rows sum to one; a factor `1 / length` is missing in the paper's formula. The state of a
    sequence is the number that it spells in base `n_tokens`, first position first.

    Parameters
    ----------
    n_tokens : int
        Number of tokens.
    length : int
        Number of positions; `n_tokens^length` may not exceed 10^6.
    token_kernel : MarkovKernel, optional
        The walk of one token; by default to each other token with the same probability.

    >>> kernel = hamming_kernel(3, 2)
    >>> kernel.n_states, kernel.matrix.toarray()[0].round(3).tolist()
    (9, [0.0, 0.25, 0.25, 0.25, 0.0, 0.0, 0.25, 0.0, 0.0])
    """
    n_tokens, length = _checks.whole(n_tokens, "n_tokens", 2), _checks.whole(length, "length", 1)
    what = f"{n_tokens} tokens at {length} positions"
    _check_states(length * math.log10(n_tokens), what, "work with one position at a time")
    n_states = n_tokens**length
    if token_kernel is None:
        off = sparse.csr_array(1.0 - np.eye(n_tokens))
        flow, pi = off / (n_tokens * (n_tokens - 1)), np.full(n_tokens, 1 / n_tokens)
    else:
        if token_kernel.n_states != n_tokens:
            raise InputError(
                f"the token kernel has {token_kernel.n_states} states, but n_tokens is {n_tokens}; "
                "make them agree."
            )
        flow, pi = token_kernel.flow_matrix, token_kernel.stationary
    weight = sparse.diags_array(pi)
    total = sparse.csr_array((n_states, n_states))
    for position in range(length):
        factors = [flow if k == position else weight for k in range(length)]
        total = total + reduce(sparse.kron, factors).tocsr() / length
    stationary = reduce(np.kron, [pi] * length)
    stay = np.maximum(stationary - np.asarray(total.sum(axis=1)).ravel(), 0.0)
    stay[stay < 1e-13 * stationary] = 0.0
    return MarkovKernel.from_weights(total + sparse.diags_array(stay))


# -------------------------------------------------------------------- parts


def walk(
    n: int, a: Index, b: Index, coordinates: Array | None, weights: Array | None = None
) -> MarkovKernel:
    """The walk along edges between `a` and `b`, each given once, by default of weight 1."""
    values = np.ones(a.size) if weights is None else weights
    upper = sparse.coo_array((values, (a, b)), shape=(n, n))
    return MarkovKernel.from_weights(upper + upper.T, coordinates=coordinates)


def circle(n: int) -> Array:
    """Positions on the unit circle."""
    angle = 2 * np.pi * np.arange(n) / n
    return np.column_stack([np.cos(angle), np.sin(angle)])


def _check_states(log_count: float, what: str, remedy: str = "choose smaller sides") -> None:
    """Reject `10**log_count` states if they are too many; the number itself might overflow."""
    if log_count > math.log10(_MAX_STATES) + 1e-9:
        raise InputError(
            f"{what} has about 10^{log_count:.1f} states, more than {_MAX_STATES}; {remedy}."
        )
