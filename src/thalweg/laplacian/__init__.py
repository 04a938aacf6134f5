"""Solving `M psi = b` for weighted graph Laplacians: one file a method, one policy that chooses."""

from thalweg.laplacian.refine import balanced
from thalweg.laplacian.solver import Factor, LaplacianSolver, Method, Solution

__all__ = ["Factor", "LaplacianSolver", "Method", "Solution", "balanced"]
