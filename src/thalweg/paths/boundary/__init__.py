"""Paths from or to empty states, and between end points far apart: staggered meshes, barriers."""
