"""The page 'How a geodesic is computed' and CONTRIBUTING name files and limits that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from thalweg.paths import choose

ROOT = Path(__file__).parents[2]
GEODESICS = (ROOT / "docs" / "geodesics.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = sorted(
    set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.py|(?:[\w-]+/)+)`", GEODESICS + CONTRIBUTING))
)


@pytest.mark.parametrize("name", [name for name in FILES if "NAME" not in name])
def test_every_file_named_exists(name: str) -> None:
    places = [ROOT, ROOT / "src" / "thalweg"]
    found = any((place / name).exists() for place in places)
    # A bare name stands for a file of the room that the sentence is about.
    bare = "/" not in name and any((ROOT / "src" / "thalweg").rglob(name))
    assert found or bare, name


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    assert choose.SINGULAR == 1e-3
    assert "all densities above 10⁻³" in GEODESICS
    assert f"up to {choose.DENSE_STATES} states | curves with positive" in GEODESICS
    assert f"a graph of up to {choose.SECOND_CHANCE_STATES} states" in GEODESICS


def test_every_layer_is_in_the_table_of_modules() -> None:
    """Each package of the library has a row under 'How the layers work'."""
    table = CONTRIBUTING.partition("## How the layers work")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", table))
    rooms = {p.parent.name for p in (ROOT / "src" / "thalweg").glob("*/__init__.py")}
    assert rooms - named == set()
