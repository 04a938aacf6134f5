"""`thalweg bench diffusion`: the noising processes of discrete diffusion models as gradient flows.

Exact reversal, learned denoisers, tilted noise, text, memory, and recovery from snapshots; each row
of the table is one figure with its target. `value` should be at most `target`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from thalweg._types import Array
from thalweg_bench import BenchResult, BenchSettings
from thalweg_bench.diffusion_exact import (
    memory_rows,
    recovery_rows,
    reversal_rows,
    steering,
)
from thalweg_bench.diffusion_learned import learned_rows
from thalweg_bench.diffusion_text import text_rows

__all__ = ["loss_figure", "run", "steering_figure"]


def run(settings: BenchSettings) -> BenchResult:
    """All figures of the bridge to discrete diffusion; about twenty minutes of one core."""
    rows = reversal_rows(settings)
    steered, curves = steering(settings)
    rows += steered
    rows += memory_rows(settings)
    rows += recovery_rows(settings)
    learned = learned_rows(settings)
    text = text_rows(settings)
    table = pd.DataFrame([*rows, *learned.rows, *text.rows])
    notes = (
        *learned.notes,
        *text.notes,
        "Generated text (temperature 0.7), one line each:",
        *(repr(line) for line in text.samples),
        "Filled in between two given ends:",
        *(repr(line) for line in text.filled),
    )
    figures = {
        "losses": loss_figure({**learned.losses, "text, cross-entropy": text.losses}),
        "steering": steering_figure(curves),
    }
    return BenchResult(table, figures, notes)


def loss_figure(losses: dict[str, Array]) -> Any:
    """Loss curves, smoothed over fifty steps."""
    figure = go.Figure()
    for name, values in losses.items():
        width = min(50, values.size)
        smooth = np.convolve(values, np.full(width, 1 / width), mode="valid")
        figure.add_scatter(x=np.arange(smooth.size) + width, y=smooth, name=name, mode="lines")
    figure.update_layout(xaxis_title="training step", yaxis_title="loss", template="simple_white")
    return figure


def steering_figure(curves: dict[str, tuple[Array, Array]]) -> Any:
    """Error of generating from the base, against the clock of the noising process."""
    figure = go.Figure()
    for name, (clocks, errors) in curves.items():
        figure.add_scatter(x=clocks, y=errors, name=name, mode="lines+markers")
    figure.update_layout(
        xaxis_title="clock of the noising process",
        yaxis_title="total variation to p_0, started from the base",
        yaxis_type="log",
        template="simple_white",
    )
    return figure
