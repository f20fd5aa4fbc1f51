"""Printing of commands: lines as they are, on stdout or stderr."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rich.console import Console


def print_line(line: str, *, error: bool = False) -> None:
    """Print a line as it is: paths are not folded, and brackets in them are not markup."""
    console(error=error).print(line, soft_wrap=True, markup=False, highlight=False)


def console(*, error: bool = False) -> Console:
    """A console that does not fold tables when the output is a file."""
    stream = sys.stderr if error else sys.stdout
    return Console(stderr=error, width=None if stream.isatty() else 140, soft_wrap=False)


def own_command() -> str:
    """How to call this program again, for hints: `bymi` where the shell finds it by that name, else as it was called."""
    called, found = Path(sys.argv[0]), shutil.which("bymi")
    if called.name == "__main__.py":
        return "python -m bymi"
    return "bymi" if found is not None and Path(found).resolve() == called.resolve() else str(called)
