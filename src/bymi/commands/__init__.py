"""Commands of the command line beyond running: one file each, added to the application by `register`."""

from __future__ import annotations

import typer

from bymi.commands import doctor, init, listing, report, sweep
from bymi.commands.printing import console


def register(app: typer.Typer) -> None:
    """Add all commands to the application."""
    for command in (report, sweep, doctor, init, listing):
        command.register(app)


__all__ = ["console", "register"]
