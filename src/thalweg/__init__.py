"""thalweg: the energy landscape behind a population on a graph, learned from snapshots.

The names below are the public interface. They are imported on first use, so that `import thalweg`
and `thalweg --help` cost nothing.

>>> import thalweg
>>> kernel = thalweg.MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
>>> energy = thalweg.FreeEnergy([0.0, 1.0, -1.0], beta=0.5)
>>> flow = thalweg.gradient_flow(kernel, energy, [0.8, 0.1, 0.1], [0.0, 1.0, 100.0])
>>> flow.probabilities[-1].round(4)
array([0.1155, 0.0313, 0.8533])
>>> energy.equilibrium(kernel).round(4)
array([0.1155, 0.0313, 0.8533])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "thalweg._version": "__version__",
    "thalweg.diffusion": "HammingProcess reverse_rates score_ratios",
    "thalweg.energy": "Entropy FreeEnergy PowerEnergy centred edge_interaction",
    "thalweg.errors": "ConvergenceError InputError MissingDependencyError ThalwegError",
    "thalweg.flow": "JkoResult Trajectory gradient_flow jko_flow jko_step jump_rates simulate",
    "thalweg.geometry": "Geodesic TransportGeometry",
    "thalweg.graphs": "GRAPH_FAMILIES hamming_kernel make_graph",
    "thalweg.kernel": "MarkovKernel",
    "thalweg.laplacian": "LaplacianSolver",
    "thalweg.learn": "BetaVerdict FreeEnergyRegressor TimeBasis WeakOptions cross_validate "
    "fit_weak interpolate load",
    "thalweg.mobility": "ArithmeticMean GeometricMean HarmonicMean LogMean PorousMediumMean "
    "PowerHeatMean PowerProduct",
    "thalweg.points": "PointInterpolator PointLandscape leave_one_time_out",
    "thalweg.snapshots": "Dirichlet HeatKernel Snapshots TimeScale estimate_probabilities "
    "hellinger",
    "thalweg.status": "Status",
}
_MODULES = ("diffusion", "dynamics", "graphs", "pl", "plots", "points", "tl")
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

if TYPE_CHECKING:
    from thalweg._version import __version__ as __version__
    from thalweg.diffusion import HammingProcess, reverse_rates, score_ratios
    from thalweg.energy import Entropy, FreeEnergy, PowerEnergy, centred, edge_interaction
    from thalweg.errors import (
        ConvergenceError,
        InputError,
        MissingDependencyError,
        ThalwegError,
    )
    from thalweg.flow import (
        JkoResult,
        Trajectory,
        gradient_flow,
        jko_flow,
        jko_step,
        jump_rates,
        simulate,
    )
    from thalweg.geometry import Geodesic, TransportGeometry
    from thalweg.graphs import GRAPH_FAMILIES, hamming_kernel, make_graph
    from thalweg.kernel import MarkovKernel
    from thalweg.laplacian import LaplacianSolver
    from thalweg.learn import (
        BetaVerdict,
        FreeEnergyRegressor,
        TimeBasis,
        WeakOptions,
        cross_validate,
        fit_weak,
        interpolate,
        load,
    )
    from thalweg.mobility import (
        ArithmeticMean,
        GeometricMean,
        HarmonicMean,
        LogMean,
        PorousMediumMean,
        PowerHeatMean,
        PowerProduct,
    )
    from thalweg.points import PointInterpolator, PointLandscape, leave_one_time_out
    from thalweg.snapshots import (
        Dirichlet,
        HeatKernel,
        Snapshots,
        TimeScale,
        estimate_probabilities,
        hellinger,
    )
    from thalweg.status import Status

__all__ = [
    "GRAPH_FAMILIES",
    "ArithmeticMean",
    "BetaVerdict",
    "ConvergenceError",
    "Dirichlet",
    "Entropy",
    "FreeEnergy",
    "FreeEnergyRegressor",
    "Geodesic",
    "GeometricMean",
    "HammingProcess",
    "HarmonicMean",
    "HeatKernel",
    "InputError",
    "JkoResult",
    "LaplacianSolver",
    "LogMean",
    "MarkovKernel",
    "MissingDependencyError",
    "PointInterpolator",
    "PointLandscape",
    "PorousMediumMean",
    "PowerEnergy",
    "PowerHeatMean",
    "PowerProduct",
    "Snapshots",
    "Status",
    "ThalwegError",
    "TimeBasis",
    "TimeScale",
    "Trajectory",
    "TransportGeometry",
    "WeakOptions",
    "centred",
    "cross_validate",
    "edge_interaction",
    "estimate_probabilities",
    "fit_weak",
    "gradient_flow",
    "hamming_kernel",
    "hellinger",
    "interpolate",
    "jko_flow",
    "jko_step",
    "jump_rates",
    "leave_one_time_out",
    "load",
    "make_graph",
    "reverse_rates",
    "score_ratios",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"thalweg.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'thalweg' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
