"""The command line: `thalweg demo`, `thalweg bench NAME`, and what comes with them."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2, never a traceback."""
    import sys

    from rich.console import Console

    from thalweg.cli.app import app
    from thalweg.errors import ThalwegError

    try:
        app()
    except ThalwegError as error:
        Console(stderr=True).print(
            f"[bold red]thalweg:[/] {error}", soft_wrap=True, highlight=False
        )
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("thalweg: interrupted; nothing half-written was left.")
        sys.exit(130)
