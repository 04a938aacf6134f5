"""What importing costs, and what it must never pull in."""

from __future__ import annotations

import subprocess
import sys

import thalweg


def _loaded_after(code: str) -> set[str]:
    ask = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    loaded = _loaded_after("import thalweg")
    assert not loaded & {"numpy", "scipy", "numba", "plotly", "torch", "sklearn"}


def test_a_first_distance_loads_little():
    loaded = _loaded_after(
        "import numpy as np\n"
        "from thalweg.geometry import TransportGeometry\n"
        "from thalweg.kernel import MarkovKernel\n"
        "ring = np.roll(np.eye(6), 1, axis=0)\n"
        "kernel = MarkovKernel.from_weights(ring + ring.T + ring @ ring @ ring)\n"
        "geometry = TransportGeometry(kernel)\n"
        "geometry.distance([0.1, 0.2, 0.2, 0.1, 0.2, 0.2], np.full(6, 1 / 6))\n"
        "geometry.distance(np.eye(6)[0], np.eye(6)[3], tolerance=1e-3)\n"
    )
    own = {name for name in loaded if name == "thalweg" or name.startswith("thalweg.")}
    assert len(own) <= 37, sorted(own)
    assert not {"thalweg.energy", "thalweg.geometry.many", "joblib"} & loaded


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


def test_a_missing_package_is_named_with_its_cure():
    attempts = {
        "from thalweg.plots import landscape": "drawing with thalweg.plots needs plotly",
        "from thalweg.cli import main; main(['--help'])": "the command line needs rich",
    }
    for code, sentence in attempts.items():
        ask = [sys.executable, "-c", _WITHOUT + code]
        done = subprocess.run(ask, capture_output=True, text=True)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert "pip install 'thalweg[cli]'" in done.stderr
