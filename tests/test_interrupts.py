"""Ctrl-C is one line at any time, from the first import on; and `bymi --help` does not wait for torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bymi as package
from bymi.core import exit_on_ctrl_c as interrupts
from tests.commands import TINY

LONG = ["run", *TINY, "steps=100000", "record_every=1"]


def interrupted(words: list[str], ready: Path | float, prelude: str = "") -> tuple[int, str]:
    """Exit code and stderr of the command when its whole process group gets SIGINT, as from a terminal.

    `ready`: a file that says when, or seconds after the start.
    """
    # A shell starts what it puts in the background with the signal ignored; nobody at a terminal has that.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heed}\n{prelude}\nimport sys; sys.argv[0] = 'bymi'\nfrom bymi.__main__ import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while isinstance(ready, Path) and not ready.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if isinstance(ready, float):
            time.sleep(ready)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, said


IMPORTING = """
import sys, time
from pathlib import Path
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "{name}":
            Path(sys.argv[-1]).touch()
            try:
                time.sleep(30)
            except BaseException:  # as some packages do around what they import
                pass
sys.meta_path.insert(0, Slow())
"""


@pytest.mark.parametrize("name", ["typer", "numpy", "torch", "pydantic", "bymi.experiment", "matplotlib"])
def test_an_interrupt_while_something_is_imported(name: str, tmp_path: Path) -> None:
    """Even where the package that is being imported swallows the exception."""
    ready = tmp_path / "ready"
    code, said = interrupted([*LONG, "--out", str(tmp_path / "out"), str(ready)], ready, IMPORTING.replace("{name}", name))
    assert (code, said) == (130, interrupts.SENTENCE)
    assert not (tmp_path / "out").exists()


def test_an_interrupt_while_workers_are_starting(tmp_path: Path) -> None:
    """The terminal sends it to them, too, while they import torch: none of them says anything."""
    ready = tmp_path / "ready"
    prelude = (
        "from pathlib import Path\nfrom multiprocessing import popen_spawn_posix as spawn\nlaunch = spawn.Popen._launch\n"
        f"def told(self, work):\n    launch(self, work)\n    Path({str(ready)!r}).touch()\n"
        "spawn.Popen._launch = told"
    )
    words = [*LONG, 'method=["dsgd", "rule"]', "--jobs", "2", "--out", str(tmp_path / "out")]
    assert interrupted(words, ready, prelude) == (130, interrupts.SENTENCE)
    assert list((tmp_path / "out").iterdir()) == [], "no scratch is left"


def test_an_interrupt_in_the_middle_of_a_run_stores_it(tmp_path: Path) -> None:
    words = [*LONG, "method=dsgd", "--out", str(tmp_path)]
    ready = tmp_path / "ready"
    prelude = (
        "from pathlib import Path\nfrom bymi.runs.checkpoints import Checkpointer\nwants = Checkpointer.wants\n"
        f"def told(self, *words):\n    Path({str(ready)!r}).touch()\n    return wants(self, *words)\nCheckpointer.wants = told"
    )
    code, said = interrupted(words, ready, prelude)
    assert code == 130
    first, last = said.splitlines()
    assert "; the same command goes on from there" in first
    assert f"{last}\n" == interrupts.SENTENCE


def test_an_interrupt_that_is_ignored_stays_so() -> None:
    """As for a command that a shell has put into the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupts.end_at_once()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupts.end_at_once()
        assert signal.getsignal(signal.SIGINT) is interrupts._end
        interrupts.raise_again()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, print)
        interrupts.raise_again()
        assert signal.getsignal(signal.SIGINT) is print, "somebody else's"
    finally:
        signal.signal(signal.SIGINT, before)


# What is imported when


def imported_by(*words: str) -> set[str]:
    done = subprocess.run([sys.executable, "-X", "importtime", *words], capture_output=True, text=True, check=True)
    return {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "bymi", "--help"],
        ["-m", "bymi", "-h"],
        ["-m", "bymi", "--version"],
        ["-m", "bymi", "run", "-h"],
        ["-m", "bymi", "run", "--help"],
        ["-c", "import bymi; bymi.InputError"],
    ],
)
def test_help_and_errors_do_not_wait_for_torch(words: list[str]) -> None:
    found = imported_by(*words)
    assert "bymi" in found
    assert not found & {"torch", "numpy", "networkx", "matplotlib"}


@pytest.mark.parametrize("word", ["-h", "--help", "--version"])
def test_what_the_short_answers_say(word: str) -> None:
    """In a process that then says whether torch was imported."""
    code = f"import sys; sys.argv = ['bymi', {word!r}]\nfrom bymi.cli import main\ntry:\n    main()\nfinally:\n    "
    code += "print([name for name in ('torch', 'numpy', 'networkx', 'matplotlib') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *_, last = done.stdout.splitlines()
    assert first == f"bymi {package.__version__}" if word == "--version" else first.startswith("Usage: ")
    assert last == "[]"


def test_the_public_names_are_what_they_always_were() -> None:
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        value = getattr(package, name)
        assert getattr(value, "__name__", name) == name, f"{name} is a thing of that name, no module"
        assert value is getattr(package, name)
    namespace: dict[str, object] = {}
    exec("from bymi import *", namespace)
    assert set(package.__all__) <= set(namespace)


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'bymi' has no attribute 'nothing'"):
        package.nothing  # noqa: B018
    assert not hasattr(package, "importing")


def test_rooms_are_attributes_too() -> None:
    program = "import bymi; print(bymi.detection.Panel.__name__, bymi.BALANCE(gamma=2.0).gamma, bymi.__version__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"Panel 2.0 {package.__version__}\n"


def test_packages_that_the_docs_name_are_attributes_after_import_bymi() -> None:
    """In a fresh process, the one that imports most others last; and `import bymi` alone imports none of them."""
    names = ("datasets.Partition", "power_analysis.forecast", "runs.run", "experiment.load")
    program = (
        "import sys, bymi; print([name for name in sys.modules if name in ('torch', 'pydantic') or name[:5] == 'bymi.'])\n"
    )
    program += "".join(f"print(bymi.{name}.__name__)\n" for name in names)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", *(name.rpartition(".")[2] for name in names)]
