"""The API pages list every public name, and docstrings become what the site can show."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import thalweg

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "api.md", *sorted((DOCS / "api").glob("*.md"))]
LISTED = set(re.findall(r"^::: (\S+)$", "\n".join(p.read_text() for p in PAGES), re.M))
CONSTANTS = {"GRAPH_FAMILIES", "METHODS"}


def test_every_public_name_is_on_a_page():
    names = {name.rsplit(".", 1)[-1] for name in LISTED}
    assert set(thalweg.__all__) - CONSTANTS <= names


@pytest.mark.parametrize("module", ["diffusion", "dynamics", "graphs", "points"])
def test_every_name_of_a_room_is_on_its_page(module):
    exported = importlib.import_module(f"thalweg.{module}").__all__
    names = {name.rsplit(".", 1)[-1] for name in LISTED}
    assert set(exported) - CONSTANTS <= names


def test_what_is_listed_exists():
    for name in LISTED:
        module, attribute = name.rsplit(".", 1)
        if name == "thalweg.mobility":
            continue
        if module == "thalweg.diffusion" and attribute in ("MLPDenoiser", "TransformerDenoiser"):
            continue  # need torch
        assert hasattr(importlib.import_module(module), attribute), name


def test_parameters_are_followed_by_no_table():
    """The site takes every line of a list of parameters for a parameter."""
    source = Path(thalweg.__file__).parent
    inside = re.compile(r'Parameters\n +-{4,}\n(?:(?!""").)*?\n +\|', re.S)
    wrong = [path for path in source.rglob("*.py") if inside.search(path.read_text())]
    assert not wrong


def test_doctests_are_fenced_and_sentences_leave_the_place_of_types():
    griffe = pytest.importorskip("griffe", reason="the docs extra is not installed")
    assert griffe
    import sys

    sys.path.insert(0, str(DOCS))
    try:
        from doctests import rewritten
    finally:
        sys.path.remove(str(DOCS))
    text = (
        "Title.\n\nParameters\n----------\nseed : Of everything random.\n"
        "size : int\n    How many.\n\n>>> 1 + 1\n2"
    )
    assert "seed :\n    Of everything random.\nsize : int\n    How many." in rewritten(text)
    assert "Examples\n--------\n>>> 1 + 1\n2" in rewritten(text)
    assert rewritten("Title.\n\n>>> 2\n2\n\nMore.").count("```") == 2
