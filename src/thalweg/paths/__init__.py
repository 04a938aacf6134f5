"""Curves of probabilities in time: a problem, methods that solve it, one answer.

`problem` says what is asked: two end points, or one and a free `end` chosen by an energy (the JKO
step). `mesh` divides time; `newton` is the one loop for collocation equations. `interior` serves
end points inside the simplex, `boundary` those with empty states or far apart, `free_end` those
without a given end. The public face is `thalweg.geometry` and `thalweg.flow`.
"""
