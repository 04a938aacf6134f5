"""The page that maps the paper to the library: complete, and every name on it exists."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

from thalweg_bench import BENCHMARKS

PAGE = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
EQUATIONS = PAGE.partition("## Equations")[2].partition("## Algorithms")[0]
NAMES = sorted(set(re.findall(r"`(thalweg(?:\.\w+)+)`", PAGE)))
COMMANDS = sorted(set(re.findall(r"`thalweg bench (\w+)`", PAGE)))
N_EQUATIONS = 73
"""Numbered equations of the paper, appendices included."""


def resolve(name: str) -> object:
    """The object of a dotted name: the longest prefix that is a module, then attributes."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            module = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        found = reduce(lambda value, part: _attribute(value, part), parts[cut:], module)
        return found
    raise AssertionError(name)


def _attribute(value: object, part: str) -> object:
    if part in getattr(value, "__dataclass_fields__", {}):
        return value.__dataclass_fields__[part]  # type: ignore[attr-defined]
    return getattr(value, part)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name: str) -> None:
    assert resolve(name) is not None


@pytest.mark.parametrize("name", COMMANDS)
def test_every_benchmark_exists(name: str) -> None:
    assert name in BENCHMARKS


def test_every_equation_has_one_row() -> None:
    rows = [line.split("|")[1] for line in EQUATIONS.splitlines() if line.startswith("| (")]
    numbers = [int(k) for row in rows for k in re.findall(r"\((\d+)\)", row)]
    assert numbers == list(range(1, N_EQUATIONS + 1))


def test_the_page_names_enough() -> None:
    assert len(NAMES) > 30
    assert {"table1", "samples", "size", "timegrid", "energy", "delaunay"} <= set(COMMANDS)
