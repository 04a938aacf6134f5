"""Networks: the paper's own method as it stands, and potentials as networks of features."""
