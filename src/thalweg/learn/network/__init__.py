"""Networks: the paper's own method as printed, and potentials as networks of features."""
