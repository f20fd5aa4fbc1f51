"""Count the hops of `bymi run`, from its spec to its table: `python benchmarks/hops.py [--list]`.

A hop is a function of the package that is called, during the run, by code of another file of the package: a reader who follows
the run has to open that file and find that function. Each function counts once, however often and from wherever it is called.
Not counted: calls within a file; calls from other packages (pydantic, torch, typer); special methods such as `__post_init__`;
the checks of arguments in core/errors.py; what runs while modules are imported. A comprehension or lambda belongs to the
function around it, and a property is a function.

The run: hardened, linear model, one method, one process, two detections. 0.10.0 has 189 hops through 69 of 161 files, 0.12.0
298 through 96 of 298.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

WORDS = ["nodes=20", "steps=40", "data.dim=5", "data.samples=40", "watch.every=10", "method=drsgd-bymi"]


class Tracer:
    """Collects hops as the profile function of a thread: each function with the file and line that called it first."""

    def __init__(self, package: Path) -> None:
        self._package, self._checks = f"{package}/", f"{package}/core/errors.py"
        self.hops: dict[CodeType, tuple[str, int]] = {}
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code, caller = frame.f_code, frame.f_back
        if event != "call" or code.co_name.startswith(("<", "__")) or not self._counts(code.co_filename):
            return
        while caller is not None and caller.f_code.co_name.startswith("<") and caller.f_code.co_name != "<module>":
            caller = caller.f_back
        if caller is None or caller.f_code.co_name == "<module>":
            return
        source = caller.f_code.co_filename
        if self._counts(source) and source != code.co_filename:
            self.hops.setdefault(code, (source, caller.f_lineno))
            self.files |= {source, code.co_filename}

    def _counts(self, file: str) -> bool:
        return file.startswith(self._package) and file != self._checks


def trace(words: list[str]) -> Tracer:
    """The hops of one run; what it imports is imported before."""
    import bymi.cli
    import bymi.experiment
    import bymi.report.figures
    import bymi.report.tables

    tracer = Tracer(Path(bymi.__file__).parent)
    before = sys.argv
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        sys.argv = ["bymi", "run", *words, "--out", out, "--jobs", "1", "--device", "cpu"]
        sys.setprofile(tracer)
        try:
            bymi.cli.main()
        finally:
            sys.setprofile(None)
            sys.argv = before
    return tracer


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the hops of `bymi run`.")
    parser.add_argument("words", nargs="*", default=WORDS, help="keys of the run")
    parser.add_argument("--list", action="store_true", help="print every hop, in the order of the run")
    given = parser.parse_args()
    tracer = trace(given.words)

    import bymi

    package = Path(bymi.__file__).parent
    if given.list:
        for code, (source, line) in tracer.hops.items():
            to = Path(code.co_filename).relative_to(package)
            print(f"{Path(source).relative_to(package)}:{line} -> {to}: {code.co_qualname}")
    total = sum(1 for _ in package.rglob("*.py"))
    print(f"{len(tracer.hops)} hops through {len(tracer.files)} of {total} files")


if __name__ == "__main__":
    main()
