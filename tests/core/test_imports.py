"""What importing costs, and what it must never pull in."""

from __future__ import annotations

import subprocess
import sys

import pytest

import thalweg


def _loaded_after(code: str) -> set[str]:
    ask = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    loaded = _loaded_after("import thalweg")
    assert not loaded & {"numpy", "scipy", "numba", "plotly", "torch", "sklearn"}


def test_files_are_read_before_the_learner_is_loaded():
    loaded = _loaded_after("import thalweg.cli.problem")
    assert not loaded & {"thalweg.learn", "sklearn", "plotly", "torch"}


_DISTANCE = (
    "import numpy as np\n"
    "from thalweg.geometry import TransportGeometry\n"
    "from thalweg.kernel import MarkovKernel\n"
    "ring = np.roll(np.eye(6), 1, axis=0)\n"
    "kernel = MarkovKernel.from_weights({weights})\n"
    "geometry = TransportGeometry(kernel)\n"
    "geometry.distance([0.1, 0.2, 0.2, 0.1, 0.2, 0.2], np.full(6, 1 / 6))\n"
)


def _own(loaded: set[str]) -> list[str]:
    return sorted(name for name in loaded if name == "thalweg" or name.startswith("thalweg."))


_RING = "ring + ring.T"
_GRAPHS = [_RING, "ring + ring.T + ring @ ring @ ring", "np.eye(6, k=1) + np.eye(6, k=-1)"]


@pytest.mark.parametrize("weights", _GRAPHS, ids=["ring", "chords", "tree"])
def test_a_first_distance_loads_little(weights: str):
    loaded = _loaded_after(_DISTANCE.format(weights=weights))
    assert len(_own(loaded)) <= 30, _own(loaded)
    assert not {"thalweg.energy", "thalweg.geometry.many", "joblib"} & loaded


def test_a_distance_between_point_masses_adds_only_its_own_method():
    inside = _DISTANCE.format(weights=_RING)
    outside = inside + "geometry.distance(np.eye(6)[0], np.eye(6)[3], tolerance=1e-3)\n"
    added = set(_own(_loaded_after(outside))) - set(_own(_loaded_after(inside)))
    assert added
    assert all(name.startswith("thalweg.paths.boundary") for name in added), added


def test_no_public_name_needs_torch_or_anndata():
    loaded = _loaded_after(
        "import thalweg\nfor name in thalweg.__all__:\n    getattr(thalweg, name)"
    )
    assert not loaded & {"torch", "anndata", "distributed", "plotly", "typer"}


def test_every_public_name_is_there_and_listed():
    assert set(thalweg.__all__) <= set(dir(thalweg))
    for name in thalweg.__all__:
        assert getattr(thalweg, name) is not None


_WITHOUT = """
import sys
for package in ("pandas", "plotly", "typer", "rich", "anndata", "ot"):
    sys.modules[package] = None  # an import of it now fails, as where it is not installed
"""


def test_the_mathematics_runs_without_the_command_line_s_packages():
    code = _WITHOUT + (
        "import thalweg\n"
        "for name in thalweg.__all__:\n    getattr(thalweg, name)\n"
        "kernel = thalweg.MarkovKernel.from_weights([[0, 1], [1, 0]])\n"
        "counts = [[90, 10], [70, 30], [60, 40]]\n"
        "snapshots = thalweg.Snapshots.from_counts([0.0, 1.0, 2.0], counts)\n"
        "print(thalweg.FreeEnergyRegressor(method='weak').fit(kernel, snapshots).potential_.size)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "2", done.stderr


_ESTIMATE = (
    "import thalweg\n"
    "kernel = thalweg.MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])\n"
    "energy = thalweg.FreeEnergy([0.0, 0.0, 0.0], beta=1.0)\n"
    "from thalweg.dynamics import Landscape, committor\n"
    "committor(Landscape(kernel, energy), 0, 2)"
)


def test_a_missing_package_is_named_with_its_cure():
    attempts = {
        "from thalweg.plots import landscape": "drawing with thalweg.plots needs plotly",
        "from thalweg.adapters.edges import read_graph": "reading files needs pandas",
        "import thalweg.tl": "reading files needs pandas",
        f"{_ESTIMATE}.to_frame()": "a data frame needs pandas",
        "from thalweg.cli import main; main(['--help'])": "the command line needs rich",
    }
    for code, sentence in attempts.items():
        ask = [sys.executable, "-c", _WITHOUT + code]
        done = subprocess.run(ask, capture_output=True, text=True)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert "pip install 'thalweg[cli]'" in done.stderr
