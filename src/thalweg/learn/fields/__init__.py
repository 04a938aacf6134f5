"""Likelihood fits for large state spaces: matrix-free, with the prior chosen by evidence."""

from thalweg.learn.fields.fit import LargeFit, LargeOptions, fit_likelihood_large

__all__ = ["LargeFit", "LargeOptions", "fit_likelihood_large"]
