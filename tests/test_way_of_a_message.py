"""docs/architecture.md follows one message through `bymi run`: every function that it names is called in such a run."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from bymi.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
WORDS = ["nodes=20", "steps=20", "data.dim=5", "data.samples=40", "watch.every=8", "method=drsgd-bymi"]


def codes_of(path: str, name: str) -> set[CodeType]:
    """The code of a function or method, or of all methods of a class."""
    thing: Any = import_module("bymi." + path.replace("/", "."))
    for part in name.split("."):
        thing = inspect.getattr_static(thing, part) if inspect.isclass(thing) else getattr(thing, part)
    if inspect.isclass(thing):
        return {method.__code__ for method in vars(thing).values() if inspect.isfunction(method)}
    return {inspect.unwrap(getattr(thing, "__func__", thing)).__code__}


def test_every_function_on_the_way_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = re.findall(r"^\d+\. (.*)", PAGE, re.MULTILINE)
    named = [pair for step in steps for pair in re.findall(r"`([\w/]+)\.py: ([\w.]+)`", step)]
    assert len(named) >= len(steps) >= 15
    wanted = {f"{path}.py: {name}": codes_of(path, name) for path, name in named}
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        called.add(frame.f_code)

    monkeypatch.setattr("bymi.report.figures.save", lambda make, target, name: [target])  # no figure: that takes seconds
    monkeypatch.setattr(sys, "argv", ["bymi", "run", *WORDS, "--out", str(tmp_path), "--jobs", "1", "--device", "cpu"])
    before = sys.getprofile()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        sys.setprofile(note)
        try:
            main()
        finally:
            sys.setprofile(before)
    assert [name for name, codes in wanted.items() if not codes & called] == []
