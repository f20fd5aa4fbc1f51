"""Checkpoints of a run: a folder per round with a file per shard, each with the rows of its nodes and their numbers.

`Checkpointer` decides when they are made: every so many rounds or seconds, and when a run receives a signal to stop.

A shard is written whole or not at all, and a round counts once all of its shards are there. So processes that write at the same
time need not wait for each other, and any number of them can read what any other number wrote.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor

import bymi
from bymi.core.files import sync_folder
from bymi.distributed.collectives import Group
from bymi.runs import safetensors_file as tensorfile
from bymi.runs.pack_state import AXES, FORMER_NAMES, StateShape, TensorShapes, expected, pack, unpack
from bymi.runs.safetensors_file import TensorFile, UnusableError
from bymi.training.state import State

_SECONDS = 30.0  # between two checkpoints, unless rounds are counted
_TIMES = 20  # times the duration of a checkpoint must pass before the next, so that they take at most 1/20 of the run
_KEPT = 2  # complete rounds
_SEEN = 6  # rounds of any kind: where processes see different folders, none is ever complete
_ROUND, _SHARD = re.compile(r"round-(\d{8,})(-judged)?"), re.compile(r"shard-(\d{4,})-of-(\d{4,})\.safetensors")

Made = TypeVar("Made")
Beside = Callable[[], tuple[Mapping[str, Tensor], Mapping[str, Any]]]
"""What the process that writes the run folder stores beside the states."""

_log = logging.getLogger("bymi")


@dataclass(frozen=True, eq=False)
class Place:
    """What one of `shards` shards holds: nodes, and columns of its inboxes (None: all columns of the run)."""

    nodes: Tensor  # [B]
    shard: int = 0
    shards: int = 1
    columns: Tensor | None = None  # [J]


@dataclass(frozen=True, eq=False)
class Saved:
    """A stored round: the states of the requested shards, and what was stored with the first shard."""

    states: list[State]
    tensors: dict[str, Tensor]
    words: dict[str, Any]


def save(
    folder: Path,
    digest: str,
    state: State,
    place: Place,
    tensors: Mapping[str, Tensor] | None = None,
    words: Mapping[str, Any] | None = None,
) -> int:
    """Write one shard of a round, with what is stored beside the first; returns the number of bytes."""
    parts, state_words = pack(state)
    parts = {"nodes": place.nodes, **{f"state.{name}": tensor for name, tensor in parts.items()}}
    if place.columns is not None:
        parts["columns"] = place.columns
    parts.update({f"run.{name}": tensor for name, tensor in (tensors or {}).items()})
    names = {"digest": digest, "bymi": bymi.__version__, "shard": place.shard, "shards": place.shards}
    round_folder = folder / f"round-{state.step:08d}{'-judged' if state.phase == 'detection' else ''}"
    for linked in (folder, round_folder):
        if linked.is_symlink():
            raise OSError(errno.ELOOP, f"{linked.name} is a symbolic link, which is not followed")
    new = not round_folder.exists()
    round_folder.mkdir(parents=True, exist_ok=True)
    if new:
        sync_folder(folder)
    path = round_folder / f"shard-{place.shard:04d}-of-{place.shards:04d}.safetensors"
    return tensorfile.write(path, parts, {**names, "state": state_words, "run": dict(words or {})})


def newest(
    folder: Path,
    digest: str,
    frame: StateShape,
    places: Sequence[Place],
    make: Callable[[Saved], Made],
    say: Callable[[str], None],
    group: Group | None = None,
) -> Made | None:
    """What `make` returns for the newest round that is complete and fits, or None; `say` is told why others are not used.

    `make` may refuse with a ValueError. A round counts if all processes of the `group`, which must see the same folder, can use
    it. Rank 0 removes newer rounds that are not used: the run will write them again. Collective.
    """
    group, result = group or Group(), None
    by_rank = group.tell({"rounds": [path.name for path in _rounds(folder)]})
    names = [name for name in by_rank[0]["rounds"] if all(name in other["rounds"] for other in by_rank)]
    refused: dict[str, str] = {}
    for name in names:
        try:
            result = make(_read(folder / name, digest, frame, places))
        except (ValueError, OSError) as problem:
            refused[name] = str(problem)
        if group.all_agree(result is not None):
            break
        result = None
        refused.setdefault(name, "of no use to another process")
    if refused:
        why = "; ".join(f"checkpoint {name} not used ({reason})" for name, reason in refused.items())
        say(f"{why}; {'starting from the first round' if result is None else f'going on from {names[len(refused)]}'}")
    for name in refused if group.rank == 0 else []:
        shutil.rmtree(folder / name, ignore_errors=True)
    return result


def _rounds(folder: Path) -> list[Path]:
    """All rounds with at least a folder, newest first. Symbolic links are ignored: their targets are not ours."""
    entries = [] if folder.is_symlink() else folder.glob("round-*")
    rounds = [path for path in entries if _ROUND.fullmatch(path.name) and not path.is_symlink()]
    return sorted(rounds, key=lambda path: path.name, reverse=True)


def _sets(round_folder: Path) -> dict[int, list[Path]]:
    """The files of one round by the number of shards that it should have, in shard order."""
    sets: dict[int, list[Path]] = {}
    for path in sorted(round_folder.glob("*")):  # empty if another process has just removed it
        name = _SHARD.fullmatch(path.name)
        if name is not None and not path.is_symlink():
            sets.setdefault(int(name[2]), []).append(path)
    return sets


def forget(folder: Path) -> None:
    """Remove rounds older than the newest two complete ones, or than the newest six of any kind."""
    whole = 0
    for number, round_folder in enumerate(_rounds(folder)):
        if whole < _KEPT and number < _SEEN:
            whole += any(len(paths) == shards for shards, paths in _sets(round_folder).items())
        else:
            shutil.rmtree(round_folder, ignore_errors=True)


def _read(there: Path, digest: str, frame: StateShape, places: Sequence[Place]) -> Saved:
    sets = _sets(there)
    whole = [paths for count, paths in sorted(sets.items()) if len(paths) == count]
    if not whole:
        missing = ", ".join(f"{len(paths)} of {count} shards are there" for count, paths in sorted(sets.items()))
        raise UnusableError(missing or "it is empty")
    shards = [TensorFile(path, FORMER_NAMES) for path in whole[0]]
    first = shards[0].words
    for number, shard in enumerate(shards):
        _check(shard, {**first, "digest": digest, "bymi": bymi.__version__, "shard": number, "shards": len(shards)})
    state_words = first["state"]
    names = list(expected(frame, state_words, 0, 0))
    judged = "-judged" if state_words["phase"] == "detection" else ""
    if there.name != f"round-{state_words['step']:08d}{judged}":
        raise UnusableError(f"it holds round {state_words['step']}")
    numbers = {
        "node": [_numbers(shard, "nodes", frame.size) for shard in shards],
        "column": [_numbers(shard, "columns", frame.columns) for shard in shards],
    }
    if not torch.equal(torch.cat(numbers["node"]).sort().values, torch.arange(frame.size)):
        raise UnusableError("its shards do not hold every node once")
    for shard, nodes, columns in zip(shards, numbers["node"], numbers["column"], strict=True):
        _fit(shard, expected(frame, state_words, len(nodes), len(columns)))
    run = {name.removeprefix("run."): shards[0].read(name) for name in shards[0].names if name.startswith("run.")}
    states = []
    for place in places:
        every = torch.arange(frame.columns) if place.columns is None else place.columns.cpu()
        wanted = {"node": place.nodes.cpu(), "column": every}
        parts = {name: _gather(shards, name, numbers, wanted, frame) for name in names}
        states.append(unpack(parts, state_words, frame, place.nodes.device))
    return Saved(states, run, first["run"])


def _check(shard: TensorFile, wanted: Mapping[str, Any]) -> None:
    """Raise unless a shard belongs to this run and to the same round as the others."""
    for key in ("digest", "bymi", "shard", "shards", "state"):
        if shard.words.get(key) != wanted.get(key):
            words = {"digest": "spec", "bymi": "version of bymi"}
            raise UnusableError(f"{shard.path.name}: of another {words.get(key, key)}")
    if not isinstance(shard.words.get("state"), dict) or not isinstance(shard.words.get("run"), dict):
        raise UnusableError(f"{shard.path.name}: says nothing of its round")


def _numbers(shard: TensorFile, name: str, size: int) -> Tensor:
    """Node or column numbers of the rows in a shard; all columns if it has none stored."""
    if name not in shard and name == "columns":
        return torch.arange(size)
    if name not in shard or shard.dtype(name) != torch.int64 or len(shard.shape(name)) != 1:
        raise UnusableError(f"{shard.path.name}: no numbers of {name}")
    numbers = shard.read(name)
    if bool(((numbers < 0) | (numbers >= size)).any()) or len(numbers.unique()) != len(numbers):
        raise UnusableError(f"{shard.path.name}: numbers of {name} beyond 0 to {size - 1}, or twice")
    return numbers


def _fit(shard: TensorFile, parts: TensorShapes) -> None:
    """Raise unless a shard has exactly the tensors that its round needs, each of the right type and shape."""
    stored = {name.removeprefix("state.") for name in shard.names if name.startswith("state.")}
    if stored != set(parts):
        raise UnusableError(f"{shard.path.name}: has {', '.join(sorted(stored ^ set(parts)))} too much or too little")
    for name, (dtype, shape) in parts.items():
        key = f"state.{name}"
        if (shard.dtype(key), shard.shape(key)) != (dtype, shape):
            raise UnusableError(f"{shard.path.name}: {name} is {list(shard.shape(key))}, not {list(shape)} of {dtype}")


def _gather(
    shards: Sequence[TensorFile],
    name: str,
    numbers: Mapping[str, Sequence[Tensor]],
    wanted: Mapping[str, Tensor],
    frame: StateShape,
) -> Tensor:
    """The wanted rows of a tensor, read from whichever shards hold them."""
    axis, *across = AXES.get(name, AXES["theta"])  # memory is as theta
    size = {"node": frame.size, "column": frame.columns}
    present = torch.zeros(len(wanted[axis]), dtype=torch.bool)
    rows: Tensor | None = None
    for shard, held, columns in zip(shards, numbers[axis], numbers["column"], strict=True):
        places = _places(held, wanted[axis], size[axis])
        own = places >= 0
        if rows is not None and not bool(own.any()):
            continue
        stored = shard.read(f"state.{name}")
        if across and frame.arcs == frame.size:
            # A column that the node's own process did not have never reached that node: zero.
            other = _places(columns, wanted["column"], size["column"])
            stored = torch.where(other >= 0, stored[:, other.clamp_min(0)], torch.zeros_like(stored[:, :1]))
        if rows is None:
            rows = stored.new_zeros(len(present), *stored.shape[1:])
        rows[own] = stored[places[own]]
        present |= own
    if rows is None or not bool(present.all()):
        raise UnusableError(f"no shard has all {axis}s of {name}")
    return rows


def _places(held: Tensor, wanted: Tensor, size: int) -> Tensor:
    """Position in `held` of each wanted number, -1 if it is not there."""
    places = torch.full((size,), -1, dtype=torch.int64)
    places[held] = torch.arange(len(held))
    return places[wanted]


class Checkpointer:
    """Checkpoints a run in a folder. As a context manager it defers SIGTERM and SIGINT until the round is finished and stored.

    A second signal of the same kind acts at once. `every`: rounds between two checkpoints; 0: none, and signals are left alone;
    None: by the clock. `places`: the shards of this process; all processes of a `group` store the same rounds.
    """

    def __init__(
        self,
        folder: Path,
        digest: str,
        every: int | None,
        frame: StateShape,
        places: Sequence[Place],
        group: Group | None = None,
    ) -> None:
        self._folder, self._digest, self._every = folder, digest, every
        self._frame, self._places, self._group = frame, places, group or Group()
        self._before: dict[int, Any] = {}
        self._asked: int | None = None
        self._next, self._failed = time.monotonic() + _SECONDS, False

    def __enter__(self) -> Checkpointer:
        if self._every != 0 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def newest(self, make: Callable[[Saved], Made]) -> Made | None:
        """What `make` returns for the newest usable round, or None; it may refuse a round with a ValueError. Collective."""
        if self._every == 0:
            return None
        return newest(self._folder, self._digest, self._frame, self._places, make, self._say, self._group)

    def wants(self, step: int, phase: str) -> bool:
        """Whether this process would store such a round: if any process would, all do."""
        if self._every == 0:
            return False
        return self._asked is not None or self._is_due(step, phase)

    def turn(self, states: Sequence[State], beside: Beside) -> None:
        """Store a round that some process wants stored, and stop if one of them was told to. Collective."""
        stored = self._save(states, beside)
        if not self._group.all_agree(self._asked is None):
            if stored and self._group.rank == 0:
                self._say(f"stopped after round {states[0].step}; the same command goes on from there")
            self._act(self._asked or signal.SIGTERM)  # if the signal reached another process only

    def _is_due(self, step: int, phase: str) -> bool:
        if step >= self._frame.plan.steps:
            return False
        if self._every is None:
            return time.monotonic() >= self._next
        return phase != "detection" and step % self._every == 0

    def _save(self, states: Sequence[State], beside: Beside) -> bool:
        start, step = time.monotonic(), states[0].step
        try:
            for state, place in zip(states, self._places, strict=True):
                tensors, words = beside() if place.shard == 0 else ({}, {})
                save(self._folder, self._digest, state, place, tensors, words)
            forget(self._folder)
        except OSError as problem:
            if not self._failed:  # reported once: a full disk stays full
                self._say(f"no checkpoint of round {step}: {problem.strerror or problem}; the run goes on without")
            self._failed = True
        else:
            self._failed = False
        end = time.monotonic()
        self._next = end + max(_SECONDS, _TIMES * (end - start))
        return not self._failed

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == self._asked:
            self._act(number)
            return
        # Ctrl-C signals the whole process group, whose first process then terminates the others: the second signal counts.
        self._asked = signal.SIGTERM if self._asked is not None else number

    def _act(self, number: int) -> None:
        """Do what the signal would have done; if its handler lets the run continue, later signals are handled there, too."""
        self._asked = None
        self.__exit__(None, None, None)
        signal.raise_signal(number)

    def _say(self, line: str) -> None:
        _log.warning("bymi: %s: %s", self._folder.name.removesuffix(".checkpoints").removeprefix("."), line)
