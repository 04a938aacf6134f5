"""The two-state lemma: along the heat flow the W2 speed diverges, the W_K speed converges."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from scipy.integrate import quad

from thalweg.kernel import MarkovKernel
from thalweg.mobility import LogMean
from thalweg.plots.layout import PALETTE
from thalweg_bench import BenchResult, BenchSettings

__all__ = ["run"]


def run(settings: BenchSettings) -> BenchResult:
    """Distance over time step between `p_t` and `p_{t+h}`, as `h` falls, in both metrics."""
    leave, back = 0.3, 0.6
    kernel = MarkovKernel.from_matrix([[1 - leave, leave], [back, 1 - back]])
    pi = kernel.stationary
    first = np.array([0.9, 0.1])

    def heat(t: float) -> float:
        """Mass in the second state at time `t`."""
        return float(pi[1] + (first[1] - pi[1]) * np.exp(-(leave + back) * t))

    def transport(a: float, b: float) -> float:
        """`W_K`: with `p = (1 - s, s)`, the length `int ds / sqrt(c m(rho))`."""
        conductance = pi[0] * leave

        def speed(s: float) -> float:
            return 1 / np.sqrt(conductance * float(LogMean()((1 - s) / pi[0], s / pi[1])))

        return abs(quad(speed, a, b, epsabs=1e-15, epsrel=1e-12)[0])

    rho = first / pi
    fisher = np.sqrt(pi[0] * leave * float((rho[0] - rho[1]) * np.log(rho[0] / rho[1])))
    rows = []
    for h in 10.0 ** -np.arange(0, 4 if settings.quick else 7):
        a, b = heat(0.0), heat(h)
        rows.append(
            {
                "time step": h,
                # Two states at distance one: W2 is the root of the mass that moves.
                "W2 / step": np.sqrt(abs(b - a)) / h,
                "W_K / step": transport(a, b) / h,
                "root of Fisher information": fisher,
            }
        )
    table = pd.DataFrame(rows)
    steps = np.log(table["time step"].to_numpy()[-3:])
    slope = np.polyfit(steps, np.log(table["W2 / step"].to_numpy()[-3:]), 1)[0]
    figure = go.Figure()
    for color, column in zip(PALETTE, ("W2 / step", "W_K / step"), strict=False):
        figure.add_scatter(
            x=table["time step"], y=table[column], name=column, line={"color": color}
        )
    figure.update_layout(
        template="plotly_white",
        xaxis={"type": "log", "title": "time step"},
        yaxis={"type": "log", "title": "distance / time step"},
    )
    return BenchResult(
        table,
        {"speed": figure},
        (
            f"W2 speed grows like step^{slope:.3f} (the lemma: -1/2); the W_K speed tends to the "
            f"root of the Fisher information, {fisher:.6f}.",
        ),
    )
