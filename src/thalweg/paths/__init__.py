"""Curves of probabilities in time: the problem, its methods, and bounds on the answer.

`interior` serves end points inside the simplex, `boundary` end points with empty states or far
apart, `free_end` paths whose end is chosen by an energy (the JKO step). The public face is
`thalweg.geometry` and `thalweg.flow`.
"""
