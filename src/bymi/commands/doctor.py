"""`bymi doctor`: whether this installation works, and what to do where it does not."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bymi.commands.console_lines import print_line
from bymi.core.errors import UNHEALTHY, BymiError

REQUIRED = ("torch", "numpy", "networkx", "pydantic", "typer", "rich", "matplotlib", "jinja2")
EXTRAS = {
    "digits": "sklearn",
    "node": "grpc",
    "pandas": "pandas",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "flower": "flwr",
}
"""A module that tells whether an extra is installed."""

SELF_TEST = ("nodes=20", "steps=60", "data.dim=5", "data.samples=60", "attack=ipm:a=5.0", "graph=complete")
EXPECTED: dict[str, dict[str, float | str]] = {
    "BALANCE": {"outcome": "finished", "gap": 0.6860777142663681},
    "BALANCE-DRSGD-ByMI": {"outcome": "finished", "gap": 0.27111369726321843, "core_size": 12, "core_byzantine": 0},
}
"""Numbers of the self-test, to be met to `TOLERANCE`."""

TOLERANCE = 1e-6
_OK, _NOTE, _BAD = "ok", "note", "FAILED"


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis; `todo` says what to do about it."""

    state: str
    what: str
    todo: str = ""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False) -> None:
    """Check versions, devices, threads, data sets and folders, and run a self-test against stored numbers (seconds)."""
    findings = []
    for finding in diagnose():
        findings.append(finding)
        if not as_json:
            print_line(f"{finding.state:6} {finding.what}" + (f": {finding.todo}" if finding.todo else ""))
    failed = [finding for finding in findings if finding.state == _BAD]
    if as_json:
        print(json.dumps([vars(finding) for finding in findings]))
    else:
        print_line(f"{len(failed)} of {len(findings)} checks failed." if failed else "All checks passed.")
    raise typer.Exit(UNHEALTHY if failed else 0)


def diagnose() -> Iterator[Finding]:
    """Findings, quick ones first."""
    yield _python()
    yield from _packages()
    if importlib.util.find_spec("torch") is None:
        return
    yield _devices()
    yield _threads()
    yield _folder()
    yield from _data_sets()
    yield from _extras()
    yield self_test()


def _python() -> Finding:
    version = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    fine = sys.version_info >= (3, 11)
    return Finding(_OK if fine else _BAD, version, "" if fine else "install Python 3.11 or newer")


def _packages() -> Iterator[Finding]:
    for name in ("bymi", *REQUIRED):
        try:
            yield Finding(_OK, f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding(_BAD, f"{name} is not installed", f"pip install {name}")


def _devices() -> Finding:
    import torch

    if torch.cuda.is_available():
        names = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
        return Finding(_OK, f"GPUs: {', '.join(names)}")
    return Finding(_OK, "no GPU that torch sees; runs use the CPU")


def _threads() -> Finding:
    import torch

    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    said = f"{cores} cores; torch uses {threads} threads, runs use one each"
    if threads > cores:
        return Finding(_NOTE, said, "more threads than cores slow runs down: set OMP_NUM_THREADS=1")
    return Finding(_OK, said)


def _folder() -> Finding:
    where = Path.cwd()
    try:
        with tempfile.TemporaryDirectory(dir=where):
            return Finding(_OK, f"folders can be written in {where}")
    except OSError as problem:
        return Finding(_NOTE, f"nothing can be written in {where} ({problem.strerror})", "use --out with another folder")


def _data_sets() -> Iterator[Finding]:
    from bymi.datasets.data_folders import VARIABLE, find_files

    for name in ("mnist", "fashion-mnist"):
        try:
            found = find_files(name)
        except BymiError as problem:
            yield Finding(_NOTE, f"{name}: {problem}", f"correct {VARIABLE}, or unset it")
            continue
        missing = f"downloaded at its first use, or set {VARIABLE} to a folder that has it"
        yield Finding(_OK, f"{name} is on this machine") if found else Finding(_NOTE, f"{name} is not on this machine", missing)


def _extras() -> Iterator[Finding]:
    for extra, module in EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            yield Finding(_NOTE, f"extra {extra} is not installed", f"if you need it: pip install 'bymi[{extra}]'")
        else:
            yield Finding(_OK, f"extra {extra}")


def self_test() -> Finding:
    """Run the rule and the published method on 20 nodes, and compare their results with the stored ones."""
    from bymi.experiment import load, run

    start = time.perf_counter()
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for spec in load(None, [*SELF_TEST, 'method=["rule", "published"]']).expand():
            try:
                wrong += differences(spec.label, run(spec, folder))
            except BymiError as problem:
                wrong.append(str(problem))
    seconds = time.perf_counter() - start
    if wrong:
        return Finding(_BAD, f"self-test: {'; '.join(wrong)}", "reinstall bymi and torch; if it stays so, please report it")
    return Finding(_OK, f"self-test: the stored numbers to {TOLERANCE:g}, in {seconds:.1f} s")


def differences(label: str, summary: dict[str, Any]) -> list[str]:
    """Where a summary differs from the stored numbers."""
    found = []
    for key, expected in EXPECTED[label].items():
        got = summary[key]
        same = got == expected
        if isinstance(expected, float) and isinstance(got, (int, float)):
            same = abs(got - expected) <= TOLERANCE * max(1e-3, abs(expected))
        if not same:
            found.append(f"{label} {key} is {got}, stored {expected}")
    return found
