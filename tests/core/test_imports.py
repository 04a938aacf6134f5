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


def test_no_public_name_needs_torch_or_anndata():
    loaded = _loaded_after(
        "import thalweg\nfor name in thalweg.__all__:\n    getattr(thalweg, name)"
    )
    assert not loaded & {"torch", "anndata", "distributed", "plotly", "typer"}


def test_every_public_name_is_there_and_listed():
    assert set(thalweg.__all__) <= set(dir(thalweg))
    for name in thalweg.__all__:
        assert getattr(thalweg, name) is not None
