"""thalweg."""
