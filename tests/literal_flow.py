"""The gradient flow by a stiff integrator, written out: an oracle that shares no code with ours."""

from __future__ import annotations

import numpy as np
from scipy.integrate import solve_ivp

from thalweg.kernel import MarkovKernel
from thalweg.mobility import LogMean, Mobility

LOG = LogMean()


def random_kernel(rng: np.random.Generator, n: int) -> MarkovKernel:
    w = rng.uniform(0.2, 1.0, (n, n)) * (rng.random((n, n)) < 0.6)
    w = np.triu(w, 1) + np.diag(rng.uniform(0.2, 1, n - 1), 1)
    return MarkovKernel.from_weights(w + w.T)


def flow(kernel, rate, p0, times):
    """`p' = -M(rho) f(t, p)` by a stiff integrator; `rate(t, p)` gives `f`, the mean is given."""
    source, target, c = kernel.edges

    def right(t, p):
        f, m = rate(t, p)
        flux = c * m * (f[source] - f[target])
        out = np.zeros(p.size)
        np.add.at(out, source, -flux)
        np.add.at(out, target, flux)
        return out

    return solve_ivp(
        right, (times[0], times[-1]), p0, t_eval=times, rtol=1e-10, atol=1e-12, method="LSODA"
    ).y.T


def gradient_flow(kernel, v, beta, p0, times, mobility: Mobility = LOG):
    source, target, _ = kernel.edges

    def rate(t, p):
        rho = p / kernel.stationary
        potential = v(t) if callable(v) else v
        return potential + beta * np.log(rho), mobility(rho[source], rho[target])

    return flow(kernel, rate, p0, times)
