"""Graphs as kernels."""
