"""Python processes without the seconds that it takes to import torch: copies of one that has imported all and computed nothing.

For tests that need a process to kill, to signal or to look at from outside. What such a process imports is not tested by it.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from contextlib import chdir
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Forked:
    """A process under way, with what it has written so far in two files."""

    words: tuple[str, ...]
    process: BaseProcess
    folder: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    def end(self, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """What it has left, once it has ended; killed if it has not in time."""
        self.process.join(timeout)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        assert code is not None, f"it has not ended in {timeout} seconds: {self.err}"
        return subprocess.CompletedProcess(self.words, code, self.out, self.err)


def fork(target: Callable[..., None], *given: object, daemon: bool = False) -> BaseProcess:
    """A process that calls a function."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.forked_imports"])
    with chdir(ROOT):  # where the server finds that module
        multiprocessing.forkserver.ensure_running()
    process = server.Process(target=target, args=given, daemon=daemon)
    process.start()
    return process


def start(*words: str, cwd: Path | str | None = None, env: Mapping[str, str] | None = None) -> Forked:
    """What `python WORDS` would start: -m MODULE, -c PROGRAM or a file, and its arguments."""
    folder = Path(tempfile.mkdtemp())
    for name in ("out", "err"):
        (folder / name).touch()
    process = fork(_work, words, folder, str(cwd or os.getcwd()), dict(env or os.environ))
    started = Forked(words, process, folder)
    weakref.finalize(started, shutil.rmtree, folder)
    return started


def call(
    *words: str, cwd: Path | str | None = None, env: Mapping[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run of `python WORDS`, with its output as text."""
    return start(*words, cwd=cwd, env=env).end(timeout)


def _work(words: tuple[str, ...], folder: Path, cwd: str, env: dict[str, str]) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    how, *rest = words
    if how in ("-m", "-c"):
        sys.path[0] = cwd
        sys.argv = [how, *rest[1:]]
        if how == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.path[0] = str(Path(how).parent)
        sys.argv = [how, *rest]
        runpy.run_path(how, run_name="__main__")
