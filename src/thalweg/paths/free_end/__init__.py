"""Paths with a free end: `step` chooses and refines, `equations` are those of collocation."""
