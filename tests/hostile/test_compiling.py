"""Compiled code needs no place to write to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import thalweg

SOURCES = Path(thalweg.__file__).parent

READ_ONLY = """
import numpy as np
import thalweg
from thalweg.mobility import LogMean
assert thalweg.__file__.startswith({folder!r}), thalweg.__file__
print(LogMean()(np.array([1.0, 2.0]), np.array([1.0, 3.0])))
"""


def test_a_read_only_installation_without_a_home(tmp_path):
    """Files in place of every cache folder stop even root, whom permissions do not."""
    copy = tmp_path / "thalweg"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [copy, *(p for p in copy.rglob("*") if p.is_dir())]:
        (folder / "__pycache__").touch()
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("NUMBA_", "XDG_", "PYTHONPYCACHEPREFIX"))
    }
    environment |= {
        "PYTHONPATH": str(tmp_path),
        "HOME": "/dev/null/home",
        "XDG_CACHE_HOME": "/dev/null/cache",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ended = subprocess.run(
        [sys.executable, "-c", READ_ONLY.format(folder=str(copy))],
        capture_output=True, text=True, env=environment, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "[1.         2.46630346]"
    assert not list(copy.rglob("*.nbi"))


def test_every_compiled_function_is_compiled_in_one_place():
    direct = [
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if re.search(r"^\s*(from numba|import numba)", path.read_text(), re.MULTILINE)
    ]
    # `_dense.py` declares a function of LAPACK; it compiles through `_compile.py` too.
    assert sorted(direct) == ["_compile.py", "_dense.py"]
