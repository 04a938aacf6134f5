"""Remedies that nobody asked for do not end a fit; those asked for say why they failed."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from thalweg.cli.fit import _try_remedies
from thalweg.errors import InputError


class _Late:
    """A model whose remedies run out of time."""

    def set_params(self, **_: Any) -> _Late:
        return self

    def remedies(self, max_seconds: float | None) -> None:
        raise InputError("the time was up")


def test_unasked_remedies_may_fail() -> None:
    console = Console(record=True, width=100)
    _try_remedies(_Late(), console, asked=False)  # type: ignore[arg-type]
    assert "remedies were not compared: the time was up" in console.export_text()


def test_asked_remedies_may_not() -> None:
    with pytest.raises(InputError, match="the time was up"):
        _try_remedies(_Late(), Console(quiet=True), asked=True)  # type: ignore[arg-type]
