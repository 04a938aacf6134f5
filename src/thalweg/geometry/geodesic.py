"""`Geodesic`: a path between two given ends, with its length and everything along it.

`distance_gradient` gives the derivatives of `W_K^2` from the geodesic itself: the action is
stationary along it, so only its data are differentiated (envelope theorem). `d W^2 / dp = -2
psi(0)`, `d W^2 / dq = 2 psi(1)` (up to a constant: mass is fixed), and for the conductance of an
edge, at fixed `pi`, `d W^2 / dc_e = -integral F_e^2 / (c_e^2 m_e) dt`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.mobility import Mobility
from thalweg.paths.choose import Chosen
from thalweg.paths.problem import Path
from thalweg.status import Status

if TYPE_CHECKING:
    import pandas as pd


class GeodesicPoints(NamedTuple):
    """Points of a geodesic, one row per time; `fluxes` per edge of the kernel; `speeds` of W_K."""

    times: Array
    probabilities: Array
    potentials: Array
    fluxes: Array
    speeds: Array


@dataclass(frozen=True, eq=False, repr=False)
class Geodesic(Path):
    """A constant-speed geodesic on [0, 1], known at all times through `at`."""

    mobility: Mobility
    times: Array
    probabilities: Array
    potentials: Array
    tolerance: float
    """The requested relative error of `distance`."""
    method: str

    @classmethod
    def of(cls, chosen: Chosen, mobility: Mobility, n_steps: int) -> Geodesic:
        """The geodesic of a path, listed at `n_steps + 1` times."""
        path, method, tolerance = chosen
        known = {field.name: getattr(path, field.name) for field in fields(path)}
        times = np.linspace(0, 1, n_steps + 1)
        p, psi = path.curve(times)
        return cls(
            **known, mobility=mobility, times=times, probabilities=p, potentials=psi,
            tolerance=tolerance, method=method,
        )  # fmt: skip

    @property
    def kernel(self) -> MarkovKernel:
        return self.problem.kernel

    def __repr__(self) -> str:
        return (
            f"Geodesic(distance={self.distance:.6g} ± {self.error_estimate:.1g}, "
            f"{self.kernel.n_states} states, {self.status.name})"
        )

    def to_frame(self) -> pd.DataFrame:
        """A data frame with one row per time (the index) and one column per state."""
        from thalweg._optional import data_frame

        frame = data_frame(self.probabilities, index=self.times, columns=self.kernel.names)
        return frame.rename_axis("time")

    def _repr_html_(self) -> str:
        from thalweg._sketch import sketch

        return sketch(repr(self), self.times, self.probabilities, self.kernel.names)

    def at(self, times: ArrayLike) -> GeodesicPoints:
        """Probabilities, potentials, fluxes and speeds at any times in [0, 1]."""
        t = np.atleast_1d(_checks.as_array(times, "times"))
        if t.ndim != 1 or np.any((t < 0) | (t > 1)):
            raise InputError("times of a geodesic must be a list of numbers between 0 and 1.")
        p, psi = self.curve(t)
        fluxes = self.problem.mesh.interpolate(*self.problem.mesh.locate(t)) @ self.flux
        speeds = np.sqrt(self.problem.actions(p / self.kernel.stationary, fluxes))
        return GeodesicPoints(t, p, psi, fluxes, speeds)

    @property
    def initial_potential(self) -> Array:
        """`log(p, q)`: the potential with which the geodesic leaves `p`."""
        return self._ends[0]

    @property
    def final_potential(self) -> Array:
        """The potential with which the geodesic arrives at `q`; minus `log(q, p)`."""
        return self._ends[1]

    @cached_property
    def lower_bound(self) -> float:
        """A lower bound on the distance by duality, up to quadrature; 0 if none is found.

        Sharp for near pairs; where densities are rough it is below the distance by more than
        `error_estimate`. Only for concave one-homogeneous means; computed on first use.
        """
        proper = self.mobility.is_concave and self.mobility.is_homogeneous
        if not proper or self.distance == 0.0:
            return 0.0
        from thalweg.paths.lower_bound import dual_bound

        return dual_bound(self)

    @cached_property
    def _ends(self) -> Array:
        return self.curve(np.array([0.0, 1.0]))[1]


class DistanceGradient(NamedTuple):
    """`W_K^2` and its derivatives; those in the end points have mean zero under `pi`."""

    squared_distance: float
    first: Array
    second: Array
    conductance: Array
    """Per edge of the kernel, the stationary distribution held fixed."""
    status: Status


def distance_gradient(geodesic: Geodesic) -> DistanceGradient:
    """The derivatives of the squared length of a geodesic."""
    problem, flux = geodesic.problem, geodesic.flux
    rho = problem.densities(problem.gains(flux))
    weights = problem.weights(np.maximum(rho, 1e-300))
    energy = np.where(flux == 0, 0.0, flux**2 / np.maximum(weights, 1e-300))
    return DistanceGradient(
        geodesic.distance**2,
        -2.0 * geodesic.initial_potential,
        2.0 * geodesic.final_potential,
        -(problem.mesh.weights @ energy) / problem.kernel.edges.conductance,
        geodesic.status,
    )
