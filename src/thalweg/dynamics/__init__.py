"""What follows from a landscape: the walk of one individual, fates, times, routes, control.

| question | functions |
| --- | --- |
| how does one individual move? | `transition_rates`, `relaxation_modes` |
| where does it end? | `committor`, `fate_probabilities` |
| when? | `mean_first_passage_time`, `passage_quantiles` |
| which sets hold it? | `macrostates`, `basins` |
| where will it be, where was it? | `descendants`, `ancestors`, `transition_matrix` |

Each takes a `Landscape` (of a fitted model: `as_landscape(model)`) and gives values with standard
errors and intervals from the fit's posterior.
"""

from thalweg.dynamics.fates import Fates, committor, fate_probabilities
from thalweg.dynamics.kinship import Kinship, ancestors, descendants, transition_matrix
from thalweg.dynamics.landscape import Estimate, Landscape, as_landscape
from thalweg.dynamics.macrostates import Basins, Macrostates, basins, macrostates
from thalweg.dynamics.passage import mean_first_passage_time, passage_quantiles
from thalweg.dynamics.walk import Modes, relaxation_modes, transition_rates

__all__ = [
    "Basins",
    "Estimate",
    "Fates",
    "Kinship",
    "Landscape",
    "Macrostates",
    "Modes",
    "ancestors",
    "as_landscape",
    "basins",
    "committor",
    "descendants",
    "fate_probabilities",
    "macrostates",
    "mean_first_passage_time",
    "passage_quantiles",
    "relaxation_modes",
    "transition_matrix",
    "transition_rates",
]
