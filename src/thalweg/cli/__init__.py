"""The command line: `thalweg demo`, `thalweg fit`, `thalweg bench NAME` and the other commands.

Exit codes: 0 done; 2 the input is wrong, or a file cannot be read or written (one sentence says
how); 3 the computation ended without reaching its tolerance (the results are still written);
130 interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2, never a traceback."""
    import sys

    from thalweg._optional import optional
    from thalweg.errors import ConvergenceError, MissingDependencyError, ThalwegError

    try:
        for package in ("rich", "typer", "pandas"):
            if find_spec(package) is None:
                optional(package, extra="cli", what="the command line")
    except MissingDependencyError as error:
        sys.exit(f"thalweg: {error}")

    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        try:
            _command()(arguments)
        finally:
            sys.stdout.flush()
    except ThalwegError as error:
        console.print(f"thalweg: {error}")
        sys.exit(3 if isinstance(error, ConvergenceError) else 2)
    except KeyboardInterrupt:
        console.print("thalweg: interrupted; nothing half-written was left.")
        sys.exit(130)
    except BrokenPipeError:
        _drop_output()
        sys.exit(0)
    except OSError as error:
        _drop_output()
        console.print(f"thalweg: cannot read or write: {error.strerror or error}.")
        sys.exit(2)
    except MemoryError:
        console.print("thalweg: not enough memory; use fewer states or times.")
        sys.exit(2)


@cache
def _command() -> Callable[..., object]:
    """The commands, built once per process."""
    from typer.main import get_command

    from thalweg.cli.app import app

    return get_command(app)


def _drop_output() -> None:
    """Discard buffered output that has nowhere to go, so that the exit does not fail again."""
    import os
    import sys

    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
