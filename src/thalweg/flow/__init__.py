"""Gradient flows of free energies: integrators, velocities, jump rates, particles."""

from __future__ import annotations

from thalweg.flow.growth import growth_flow
from thalweg.flow.integrate import gradient_flow
from thalweg.flow.jko import JkoResult, jko_flow, jko_step
from thalweg.flow.particles import simulate
from thalweg.flow.rates import jump_rates, velocity
from thalweg.flow.trajectory import Trajectory

__all__ = [
    "JkoResult",
    "Trajectory",
    "gradient_flow",
    "growth_flow",
    "jko_flow",
    "jko_step",
    "jump_rates",
    "simulate",
    "velocity",
]
