"""Paths from or to empty states, and between far end points: positive curves, nested meshes."""
