"""Solving `M psi = b` for weighted graph Laplacians: one file per method, one policy to choose."""

from thalweg.laplacian.krylov import balanced
from thalweg.laplacian.policy import Method
from thalweg.laplacian.solver import Factor, LaplacianSolver, Solution

__all__ = ["Factor", "LaplacianSolver", "Method", "Solution", "balanced"]
