"""What follows from a landscape: the walk of one individual, fates, times, routes, control.

| question | functions |
| --- | --- |
| how does one individual move? | `transition_rates`, `relaxation_modes` |
| where does it end up? | `committor`, `fate_probabilities` |
| when? | `mean_first_passage_time`, `passage_quantiles` |
| which sets hold it? | `macrostates`, `basins` |
| which way does it go? | `fluxes`, `reactive_flux`, `coarse_fluxes`, `streams`, `velocity` |
| does it agree with held-out snapshots? | `held_out` |
| what if? | `perturb`, `without` |
| are two landscapes the same? | `compare` |
| how do I get there? | `steer`, `push_few` |
| where will it be, where was it? | `descendants`, `ancestors`, `transition_matrix` |

Each takes a `Landscape` (of a fitted model: `model.landscape_`) and returns values with standard
errors and intervals from the fit's posterior. All are also methods of a fitted model.
"""

from thalweg.dynamics.compare import Comparison, compare, compare_globally
from thalweg.dynamics.control import Intervention, Steering, push_few, steer
from thalweg.dynamics.fates import Fates, committor, fate_probabilities
from thalweg.dynamics.held_out import HeldOut, held_out
from thalweg.dynamics.kinship import (
    Kinship,
    Streams,
    ancestors,
    descendants,
    streams,
    transition_matrix,
    transition_operator,
)
from thalweg.dynamics.landscape import Estimate, Landscape, as_landscape
from thalweg.dynamics.macrostates import Basins, Macrostates, basins, macrostates
from thalweg.dynamics.passage import mean_first_passage_time, passage_quantiles
from thalweg.dynamics.routes import ReactiveFlux, Route, coarse_fluxes, fluxes, reactive_flux
from thalweg.dynamics.velocity import force, velocity
from thalweg.dynamics.walk import Modes, relaxation_modes, transition_rates
from thalweg.dynamics.whatif import perturb, without

__all__ = [
    "Basins",
    "Comparison",
    "Estimate",
    "Fates",
    "HeldOut",
    "Intervention",
    "Kinship",
    "Landscape",
    "Macrostates",
    "Modes",
    "ReactiveFlux",
    "Route",
    "Steering",
    "Streams",
    "ancestors",
    "as_landscape",
    "basins",
    "coarse_fluxes",
    "committor",
    "compare",
    "compare_globally",
    "descendants",
    "fate_probabilities",
    "fluxes",
    "force",
    "held_out",
    "macrostates",
    "mean_first_passage_time",
    "passage_quantiles",
    "perturb",
    "push_few",
    "reactive_flux",
    "relaxation_modes",
    "steer",
    "streams",
    "transition_matrix",
    "transition_operator",
    "transition_rates",
    "velocity",
    "without",
]
