"""Printing of commands: lines as they are, on stdout or stderr."""

from __future__ import annotations

import sys

from rich.console import Console


def print_line(line: str, *, error: bool = False) -> None:
    """Print a line as it is: paths are not folded, and brackets in them are not markup."""
    console(error=error).print(line, soft_wrap=True, markup=False, highlight=False)


def console(*, error: bool = False) -> Console:
    """A console that does not fold tables when the output is a file."""
    stream = sys.stderr if error else sys.stdout
    return Console(stderr=error, width=None if stream.isatty() else 140, soft_wrap=False)
