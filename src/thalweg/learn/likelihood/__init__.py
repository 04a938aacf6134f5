"""Maximum likelihood of snapshot counts under the gradient flow, for up to a few hundred states."""
