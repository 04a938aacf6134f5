"""Wrong arguments raise one sentence, not a traceback from inside the library."""

from __future__ import annotations

import gzip

import numpy as np
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
    gradient_flow,
    jko_step,
    jump_rates,
    make_graph,
    simulate,
)
from thalweg.cli import main

KERNEL = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
ENERGY = FreeEnergy([0.0, 1.0, 2.0], 1.0)
P, Q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
SEEN = Snapshots.from_counts([0, 1, 2], [[50, 30, 20], [40, 35, 25], [30, 40, 30]])
RNG = np.random.default_rng(0)


def weak(**options):
    return FreeEnergyRegressor(method="weak", **options).fit(KERNEL, SEEN)


MOBILITIES = {
    "geometry": lambda m: TransportGeometry(KERNEL, m).distance(P, Q),
    "flow": lambda m: gradient_flow(KERNEL, ENERGY, P, [0, 1], mobility=m),
    "simulate": lambda m: simulate(KERNEL, ENERGY, P, [0, 1], 5, rng=RNG, mobility=m),
    "rates": lambda m: jump_rates(KERNEL, ENERGY, P, mobility=m),
    "jko": lambda m: jko_step(KERNEL, ENERGY, P, 0.1, mobility=m),
    "fit_weak": lambda m: thalweg.fit_weak(
        KERNEL, [0, 1], [P, Q], options=thalweg.WeakOptions(mobility=m)
    ),
    "regressor": lambda m: weak(mobility=m),
}


@pytest.mark.parametrize("mobility", ["logarithmic", LogMean, 3])
@pytest.mark.parametrize("door", MOBILITIES)
def test_a_mobility_is_an_instance(door, mobility):
    with pytest.raises(InputError, match=r"mobility is .*; give a mean such as LogMean\(\)"):
        MOBILITIES[door](mobility)


GENERATORS = {
    "simulate": lambda r: simulate(KERNEL, ENERGY, P, [0, 1], 5, rng=r),
    "make_graph": lambda r: make_graph("grid", 6, rng=r),
    "resample": lambda r: SEEN.resample(rng=r),
    "thin": lambda r: SEEN.thin(0.5, rng=r),
    "from_points": lambda r: Snapshots.from_points([0], [np.eye(20)], rng=r),
    "sample": lambda r: weak().sample([0, 1], 5, rng=r),
    "bootstrap": lambda r: weak().bootstrap(SEEN, 2, rng=r),
}


@pytest.mark.parametrize("door", GENERATORS)
def test_a_generator_is_no_number(door):
    with pytest.raises(InputError, match=r"rng is 0; give a generator"):
        GENERATORS[door](0)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: weak(seed=None), "seed is None; it must be a whole number"),
        (lambda: weak(seed=-1), "seed is -1"),
        (lambda: weak(internal=thalweg.Entropy), "internal is Entropy"),
        (lambda: weak(smoother="x"), "smoother is 'x'"),
        (lambda: weak(time_basis="x"), "time_basis is 'x'"),
        (lambda: weak().bootstrap(SEEN, 2.5), "n_refits is 2.5"),
        (lambda: weak().sample([0, 1], 1.5), "n_samples is 1.5"),
        (lambda: weak().score(None), "give Snapshots"),
        (lambda: TransportGeometry(KERNEL).barycenter(np.zeros((0, 3))), "no distribution"),
        (lambda: TransportGeometry(KERNEL).knn([P, Q, P], k=1.5), "k is 1.5"),
        (lambda: MarkovKernel.from_points(np.eye(9), n_neighbors=1.5), "n_neighbors is 1.5"),
        (lambda: KERNEL.with_labels(names=[["a"], ["b"], ["c"]]), "is a list"),
        (lambda: KERNEL.with_labels(names=3), "names is 3"),
        (lambda: Snapshots.from_counts([0], [[1, 2]], names=[{}, {}]), "is a dict"),
        (lambda: Snapshots.from_samples([0], [[0]], n_states=1.5), "n_states is 1.5"),
        (
            lambda: Snapshots.from_frame({"t": [0], "s": [["a"]]}, time="t", state="s"),
            "a list; name states",
        ),
        (lambda: gradient_flow(None, ENERGY, P, [0, 1]), "kernel is a NoneType"),
        (lambda: gradient_flow(KERNEL, None, P, [0, 1]), "energy is None; it must be a FreeEnergy"),
        (lambda: FreeEnergy([0.0, 1.0], 1.0, internal="entropy"), "internal is 'entropy'"),
    ],
)
def test_wrong_arguments_are_one_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n\n", b" "])
def test_an_empty_packed_table(capsys, tmp_path, content):
    (tmp_path / "s.csv.gz").write_bytes(gzip.compress(content))
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    for arguments in (
        ["check", "s.csv.gz", "--graph", "e.csv"],
        ["check", "e.csv", "--graph", "s.csv.gz"],
        ["distance", "s.csv.gz", "s.csv.gz", "--graph", "e.csv"],
    ):
        with pytest.raises(SystemExit) as end:
            main([str(tmp_path / a) if "." in a else a for a in arguments])
        said = capsys.readouterr().err
        assert end.value.code == 2
        assert said.splitlines()[-1].startswith("thalweg: ")
        assert "Traceback" not in said


@pytest.mark.parametrize("command", ["demo", "fit", "simulate", "interpolate"])
def test_a_negative_seed(capsys, command):
    arguments = {"demo": [], "fit": ["x.csv"], "simulate": ["m", "--times", "1"]}
    with pytest.raises(SystemExit) as end:
        main([command, *arguments.get(command, ["x.csv", "--times", "1"]), "--seed", "-1"])
    assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
