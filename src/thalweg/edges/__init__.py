"""Compiled passes over the edges of a graph: plain arrays in, plain arrays out, no checks.

`static` knows the weights alone, `kinetic` the kinetic terms of a path at many times,
`fluxes` the gradient flow, `implicit_euler` one implicit step of it in the log density.
"""
