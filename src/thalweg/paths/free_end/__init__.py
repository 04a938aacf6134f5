"""Paths with a free end: the JKO step `argmin_q F(q) + W_K(p, q)^2 / (2 tau)`."""
