"""A lower bound of W_K from any potentials in time: weak duality of the dynamic problem.

For every curve of potentials `psi` and every path from `p0` to `p1`, half the action is at least

    <psi_1, p1> - <psi_0, p0> - integral of max_p [ <psi', p> + psi^T M(p / pi) psi / 2 ] dt

over probabilities `p`. For a concave, one-homogeneous mean the bracket is concave and
one-homogeneous in `p`, so it lies below its tangent at any positive `rho`, and its maximum is at
most the largest entry of the gradient, `max_x [ psi' + force(rho, psi) / pi ]_x`. Along a geodesic
that gradient vanishes; along a computed one it is the interpolation error of the forces.
"""

from __future__ import annotations

import numpy as np

from thalweg.edges import kinetic
from thalweg.paths.mesh import gauss
from thalweg.paths.problem import Path


def dual_bound(path: Path) -> float:
    """A lower bound on the distance, up to the quadrature in time; 0 if none is found."""
    problem, force, middle = path.problem, path.force, path.middle
    mesh, pi = problem.mesh, problem.kernel.stationary
    nodes = [gauss(2 * int(order) + 2) for order in mesh.orders]
    place = np.concatenate([x for x, _ in nodes])
    weight = np.concatenate([h * w for h, (_, w) in zip(mesh.widths, nodes, strict=True)])
    piece = np.repeat(np.arange(mesh.pieces), [x.size for x, _ in nodes])
    p = problem.masses(piece, place, problem.gains(path.flux))
    low = 0.1 * np.minimum(problem.p0, problem.p1) + 1e-12 * pi
    psi = problem.potentials(piece, place, force, middle)
    rate = -(mesh.interpolate(piece, place) @ force) / pi
    rho = np.maximum(p, low) / pi
    push = kinetic.stage_forces(problem.graph, rho, problem.differences(psi))
    loss = float(weight @ (rate + push / pi).max(axis=1))
    ends = np.array([0, mesh.pieces - 1]), np.array([0.0, 1.0])
    first, last = problem.potentials(*ends, force, middle)
    bound = float(last @ problem.p1 - first @ problem.p0) - loss
    return float(np.sqrt(2 * bound)) if np.isfinite(bound) and bound > 0 else 0.0
