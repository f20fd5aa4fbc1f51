"""The command line: all commands, and how they end. Commands parse arguments, call the library and print."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from bymi import __version__
from bymi.commands.detect import detect, plan
from bymi.commands.doctor import doctor
from bymi.commands.init import init
from bymi.commands.listing import list_parts
from bymi.commands.report import report
from bymi.commands.reproduce import reproduce
from bymi.commands.run import run
from bymi.commands.sweep import results, sweep
from bymi.core.errors import BymiError, InputError, StorageError, system_refusal
from bymi.core.exit_on_ctrl_c import INTERRUPTED, SENTENCE
from bymi.distributed.keep_freed_memory import keep_memory
from bymi.node_cli import net_app, node_app

app = typer.Typer(
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Decentralised learning in which some nodes lie: find out who, cut them off, converge.",
)
app.add_typer(node_app, name="node")
app.add_typer(net_app, name="net")
for command in (run, reproduce, detect, plan, report, sweep, results, doctor, init):
    app.command()(command)
app.command("list")(list_parts)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        print(f"bymi {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point: every mistake of a user is one line on stderr and an exit code."""
    try:
        keep_memory()
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()
    except BymiError as problem:
        code = _print_error(problem)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as problem:
        # typer's usage errors, whichever release of it (and of click) is installed
        if hasattr(problem, "format_message"):
            problem = InputError(problem.format_message())
        refused = problem if isinstance(problem, BymiError) else system_refusal(problem)
        if refused is None:
            raise
        code = _print_error(refused)
    if code == INTERRUPTED:  # typer turns the interrupt into this code by itself
        sys.stderr.write(SENTENCE)
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(problem: BymiError) -> int:
    """Print an error in one line on stderr, unless another process has; returns the exit code."""
    if not problem.said:
        sys.stderr.write(f"bymi: {' '.join(str(problem).splitlines())}\n")  # in one write: other ranks may write there, too
    if problem.exit_code == StorageError.exit_code:  # stdout itself may have failed: Python would flush it again and complain
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return problem.exit_code
