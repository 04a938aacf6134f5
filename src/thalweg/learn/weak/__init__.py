"""The weak form: landscape and beta from snapshot probabilities by two Laplacian solves."""
