"""The exceptions that thalweg raises.

All derive from `ThalwegError`, so one `except` catches them all; those that mean "your input is
wrong" also derive from `ValueError`.
"""

from __future__ import annotations

__all__ = ["ConvergenceError", "InputError", "MissingDependencyError", "ThalwegError"]


class ThalwegError(Exception):
    """Base of all errors raised by thalweg."""


class InputError(ThalwegError, ValueError):
    """The input is wrong; the message, one line, names the number, the place and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class ConvergenceError(ThalwegError, RuntimeError):
    """A computation did not reach its tolerance and the caller asked for an exception."""


class MissingDependencyError(ThalwegError, ImportError):
    """An optional dependency is not installed; the message says how to install it."""
