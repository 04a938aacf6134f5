"""An argument whose type is not that of the signature is rejected in one sentence."""

from __future__ import annotations

import inspect

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import thalweg
from thalweg import (
    FreeEnergy,
    FreeEnergyRegressor,
    InputError,
    LogMean,
    MarkovKernel,
    Snapshots,
    TransportGeometry,
)
from thalweg.errors import ThalwegError

KERNEL = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
ENERGY = FreeEnergy([0.0, 1.0, 2.0], 1.0)
P, Q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
SEEN = Snapshots.from_counts([0, 1, 2], [[50, 30, 20], [40, 35, 25], [30, 40, 30]])
GEOMETRY = TransportGeometry(KERNEL)
RNG = np.random.default_rng(0)
STRANGE = (
    None, 2.5, -1, float("nan"), "x", object(), LogMean, LogMean(), [], {}, [None], [[1], [1, 2]],
    np.zeros(0), np.zeros((0, 0)), lambda: 0, KERNEL, SEEN, ENERGY, 10**30, 1j, nx.DiGraph(),
    pd.DataFrame(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: MarkovKernel.from_networkx(3), "graph is 3; it must be a networkx graph"),
        (lambda: FreeEnergyRegressor(interactions=5).fit(KERNEL, SEEN), "interactions is 5"),
        (lambda: FreeEnergyRegressor(epochs="two").fit(KERNEL, SEEN), "epochs is 'two'"),
        (lambda: thalweg.load(None), "path is None; it must be text"),
        (
            lambda: FreeEnergyRegressor().fit(KERNEL, SEEN).forecast(None, [3.0]),
            "times is None; it must be an array of numbers",
        ),
        (lambda: GEOMETRY.exp(P, [0, 0.1, 0], tolerance=float("nan")), "tolerance is nan"),
        (lambda: GEOMETRY.tangent(P, [0.1, 0, -0.1], tolerance=None), "tolerance is None"),
        (lambda: GEOMETRY.geodesic(P, Q, tolerance=10**30), "tolerance is 1e"),
        (lambda: GEOMETRY.knn([P, Q, P], k=1, progress=3), "progress is 3; it must be a function"),
        (lambda: thalweg.jko_flow(KERNEL, None, P, 0.1, 2), "energy is "),
    ],
)
def test_a_wrong_kind_is_named(call, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


DOORS = {
    "from_weights": (MarkovKernel.from_weights, {"weights": [[0, 1.0], [1, 0]]}),
    "from_matrix": (MarkovKernel.from_matrix, {"matrix": [[0.5, 0.5], [0.5, 0.5]]}),
    "from_networkx": (MarkovKernel.from_networkx, {"graph": nx.path_graph(3)}),
    "tangent": (GEOMETRY.tangent, {"p": P, "p_dot": [0.1, -0.1, 0]}),
    "distance": (GEOMETRY.distance, {"p": P, "q": Q}),
    "exp": (GEOMETRY.exp, {"p": P, "psi": [0, 0.1, 0]}),
    "gradient_flow": (
        thalweg.gradient_flow,
        {"kernel": KERNEL, "energy": ENERGY, "p0": P, "times": [0, 1]},
    ),
    "jko_step": (thalweg.jko_step, {"kernel": KERNEL, "energy": ENERGY, "p": P, "tau": 0.1}),
    "simulate": (
        thalweg.simulate,
        {
            "kernel": KERNEL, "energy": ENERGY, "p0": P, "times": [0, 1], "n_particles": 5,
            "rng": RNG,
        },
    ),
    "jump_rates": (thalweg.jump_rates, {"kernel": KERNEL, "energy": ENERGY, "p": P}),
    "from_counts": (Snapshots.from_counts, {"times": [0, 1], "counts": [[1, 2], [2, 1]]}),
    "from_samples": (Snapshots.from_samples, {"times": [0], "samples": [[0, 1]], "n_states": 2}),
    "thin": (SEEN.thin, {"fraction": 0.5, "rng": RNG}),
    "fit_weak": (thalweg.fit_weak, {"kernel": KERNEL, "times": [0, 1], "probabilities": [P, Q]}),
    "make_graph": (thalweg.make_graph, {"family": "grid", "n": 9, "rng": RNG}),
    "hellinger": (thalweg.hellinger, {"p": P, "q": Q}),
    "load": (thalweg.load, {"path": "nowhere"}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", DOORS)
def test_every_argument_in_turn(door):
    """Strange values in each place: an answer, or one sentence, never another exception."""
    function, sound = DOORS[door]
    wrong = []
    for name in inspect.signature(function).parameters:
        for value in STRANGE:
            try:
                function(**{**sound, name: value})
            except ThalwegError as error:
                if "\n" in str(error):
                    wrong.append(f"{name}={value!r:.40}: {error}")
            except Exception as error:
                wrong.append(f"{name}={value!r:.40}: {type(error).__name__}: {error}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)
