"""Lattices against closed forms, the Hamming kernel against Kronecker products."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from thalweg.errors import InputError
from thalweg.graphs import (
    cycle,
    hamming_kernel,
    hypercube,
    lattice,
    make_graph,
    path,
    star,
    triangular_lattice,
)
from thalweg.kernel import MarkovKernel


def spectrum(kernel: MarkovKernel) -> np.ndarray:
    return np.sort(np.linalg.eigvals(kernel.matrix.toarray()).real)


def test_spectra_are_the_known_ones() -> None:
    n = 9
    np.testing.assert_allclose(
        spectrum(path(n)), np.sort(np.cos(np.pi * np.arange(n) / (n - 1))), atol=1e-12
    )
    np.testing.assert_allclose(
        spectrum(cycle(n)), np.sort(np.cos(2 * np.pi * np.arange(n) / n)), atol=1e-12
    )
    np.testing.assert_allclose(spectrum(star(n)), [-1] + [0] * (n - 2) + [1], atol=1e-7)
    bits = [bin(x).count("1") for x in range(16)]
    np.testing.assert_allclose(
        spectrum(hypercube(4)), np.sort([1 - b / 2 for b in bits]), atol=1e-9
    )


def test_lattices_agree_with_each_other() -> None:
    for periodic, family in ((False, "grid"), (True, "torus")):
        box = lattice((4, 5), periodic=periodic)
        same = make_graph(family, 20, rng=np.random.default_rng(0), weights=None, shape=(4, 5))
        assert abs(box.matrix - same.matrix).max() < 1e-15
    assert abs(lattice((2, 2, 2)).matrix - hypercube(3).matrix).max() < 1e-15
    assert abs(lattice((2, 2, 2), periodic=True).matrix - hypercube(3).matrix).max() < 1e-15
    assert abs(hamming_kernel(2, 5).matrix - hypercube(5).matrix).max() < 1e-15


def test_triangular_lattice_has_six_neighbours_inside() -> None:
    kernel = triangular_lattice(5, 6)
    degree = np.diff(kernel.adjacency.indptr).reshape(5, 6)
    assert np.all(degree[1:-1, 1:-1] == 6)
    assert kernel.coordinates is not None
    gap = kernel.coordinates[kernel.edges.source] - kernel.coordinates[kernel.edges.target]
    np.testing.assert_allclose(np.linalg.norm(gap, axis=1), 1)


@pytest.mark.parametrize(("n_tokens", "length"), [(2, 1), (3, 3), (4, 2), (2, 6)])
def test_hamming_kernel_is_the_mean_of_token_kernels(n_tokens: int, length: int) -> None:
    weights = np.random.default_rng(0).uniform(0.2, 1, (n_tokens, n_tokens))
    token = MarkovKernel.from_weights(weights + weights.T)
    literal = sum(
        reduce(
            np.kron, [token.matrix.toarray() if k == i else np.eye(n_tokens) for k in range(length)]
        )
        for i in range(length)
    )
    kernel = hamming_kernel(n_tokens, length, token)
    np.testing.assert_allclose(kernel.matrix.toarray(), literal / length, atol=1e-14)
    np.testing.assert_allclose(
        kernel.stationary, reduce(np.kron, [token.stationary] * length), atol=1e-15
    )


def test_hamming_kernel_of_many_sequences() -> None:
    kernel = hamming_kernel(10, 4)
    assert kernel.n_states == 10_000
    assert kernel.n_edges == 10_000 * 36 // 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hamming_kernel(50257, 8), "more than 1000000"),
        (lambda: hamming_kernel(3, 10_000), "10\\^4771.2 states, more than 1000000"),
        (lambda: hamming_kernel(1, 8), "n_tokens is 1"),
        (lambda: hamming_kernel(3, 2, path(4)), "token kernel has 4 states"),
        (lambda: hypercube(25), "more than 1000000; choose 19 or less"),
        (lambda: path(1), "2 or more"),
        (lambda: cycle(2), "3 or more"),
        (lambda: star(1), "2 or more"),
        (lambda: lattice((0, 4)), "a side of shape is 0"),
        (lambda: lattice((2.7, 4)), "a side of shape is 2.7; it must be a whole number"),
        (lambda: lattice((1, 1)), "at least two states"),
        (lambda: triangular_lattice(2.5, 3), "n_rows is 2.5; it must be a whole number"),
        (lambda: lattice((2000, 2000)), "more than 1000000"),
        (lambda: triangular_lattice(1, 5), "is a path"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]
