"""Calls of the command line for the tests: inside this process, where the start costs nothing, or as a real process."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import networkx as nx

from bymi.cli import main
from bymi.experiment import load
from bymi.experiment.spec import Spec
from bymi.runs import run_folder as store

TINY = ("profile=paper", "nodes=20", "steps=40", "data.dim=5", "data.samples=40")
"""A spec that runs in a tenth of a second. With the published detection one honest node flags all of its neighbours."""

FINISHES = ("profile=paper", "nodes=40", "steps=60", "data.dim=5", "data.samples=40")
"""A spec that runs as quickly and in which every method ends well."""


MODEL_FILES = {"model.safetensors", "nodes.safetensors"}
GAP_FILES = {
    "spec.json",
    "environment.json",
    "metrics.jsonl",
    "summary.json",
    "SHA256SUMS",
    "per_node.json",
    "figures/gap.png",
    "figures/gap.svg",
    *MODEL_FILES,
}
VERDICT_FILES = {"verdict.json", "detections.jsonl", "figures/scores.png", "figures/scores.svg"}
METHODS = ("dsgd", "rule", "drsgd-bymi")


@dataclass(frozen=True)
class Answer:
    """What a call of the command left behind."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The output with all blank space alike: where a line is folded depends on the length of the paths in it."""
        return " ".join(self.out.split())

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line that has any, without the lines that a table may be drawn with."""
        lines = [line.replace("│", " ").split() for line in self.out.splitlines()]
        return [words for words in lines if words]


def bymi(*words: object) -> Answer:
    """Call the command in this process. Anything but an orderly exit comes through as the exception it is."""
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with (
        mock.patch.object(sys, "argv", ["bymi", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int), "the command must end with an exit code"
    return Answer(code, out.getvalue(), err.getvalue())


def mistake(*words: object) -> str:
    """Call the command with bad input: the one line that it wrote, without its name."""
    answer = bymi(*words)
    assert answer.code == 2, answer
    assert answer.out == ""
    return only_line(answer.err)


def only_line(err: str) -> str:
    """The text of an error that has exactly one line."""
    assert err.startswith("bymi: "), err
    assert err.count("\n") == 1, err
    assert err.endswith("\n")
    return err.removeprefix("bymi: ").rstrip("\n")


def start(*words: object, cwd: Path) -> subprocess.Popen[str]:
    """Start the installed command as a process of its own."""
    command = Path(sys.executable).with_name("bymi")
    return subprocess.Popen(
        [str(command), *map(str, words)], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def files_in(folder: Path) -> set[str]:
    """All files below a folder, by their path in it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def dates_in(folder: Path) -> dict[str, int]:
    """When each file below a folder was last written, in nanoseconds."""
    return {name: (folder / name).stat().st_mtime_ns for name in files_in(folder)}


def only_folder(out: Path) -> Path:
    """The one run folder in `out`."""
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    return folder


def summary_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


class Experiment:
    """Three methods side by side, called once for all tests that look at the result."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.words = ("run", *FINISHES, "record_every=5", "--jobs", 1, "--out", out)
        self.answer: Answer = bymi(*self.words)
        specs = load(None, [*FINISHES, "record_every=5"]).expand()
        self.specs: dict[str, Spec] = dict(zip(METHODS, specs, strict=True))

    def folder(self, method: str) -> Path:
        return store.folder_of(self.out, self.specs[method])


def sentence_of(verdict: dict[str, Any]) -> str:
    """What a verdict leads to, worked out from its file: attackers cut nobody, the others cut those they flagged."""
    kept, alone = nx.DiGraph(), []
    for judge in verdict["receivers"]:
        lost = set() if judge["node"] in verdict["byzantine"] else set(judge["flagged"])
        kept.add_node(judge["node"])
        kept.add_edges_from((sender, judge["node"]) for sender in set(judge["neighbours"]) - lost)
        if lost == set(judge["neighbours"]):
            alone.append(judge["node"])
    largest = max(map(len, nx.strongly_connected_components(kept)))
    size = len(verdict["receivers"])
    return f"holds {largest} of {size} nodes" if 2 * largest <= size else f"trained alone: {alone[:5]}"
