"""Fits from few individuals: averages over the prior, and verdicts on what the data leave open."""
