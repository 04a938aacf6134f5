"""Likelihood fits for large state spaces: matrix-free, with the prior chosen by evidence."""

from thalweg.learn.fields.fit import fit_likelihood_large
from thalweg.learn.fields.options import LargeFit, LargeOptions

__all__ = ["LargeFit", "LargeOptions", "fit_likelihood_large"]
