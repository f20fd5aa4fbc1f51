"""Checkpoints of a run: a folder a round, in it a file a shard, each with the rows of its nodes by their numbers.

A shard is written whole or not at all, and a round counts when all of its shards are there; so processes that write at the same
time need not wait for each other, and any number of them can read what any other number wrote.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

import bymi
from bymi.core.files import sync_folder
from bymi.distributed.group import Group
from bymi.runs import safetensors_file as tensorfile
from bymi.runs.safetensors_file import TensorFile, UnusableError
from bymi.runs.state_schema import AXES, ShardLayout, StateShape, expected, pack, unpack
from bymi.training.state import State

_KEPT = 2  # whole rounds
_SEEN = 6  # rounds of any kind: where processes see different folders, none is ever whole
_ROUND, _SHARD = re.compile(r"round-(\d{8,})(-judged)?"), re.compile(r"shard-(\d{4,})-of-(\d{4,})\.safetensors")

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Place:
    """What one of `shards` shards holds: nodes, and columns of its inboxes (None: all of the run)."""

    nodes: Tensor  # [B]
    shard: int = 0
    shards: int = 1
    columns: Tensor | None = None  # [J]


@dataclass(frozen=True, eq=False)
class Saved:
    """What was stored of a run: the states of the shards asked for, and what was added to the first of all."""

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
    """Write one shard, with anything that is added to the first of them: bytes written."""
    parts, said = pack(state)
    parts = {"nodes": place.nodes, **{f"state.{name}": tensor for name, tensor in parts.items()}}
    if place.columns is not None:
        parts["columns"] = place.columns
    parts.update({f"run.{name}": tensor for name, tensor in (tensors or {}).items()})
    names = {"digest": digest, "bymi": bymi.__version__, "shard": place.shard, "shards": place.shards}
    there = folder / f"round-{state.step:08d}{'-judged' if state.phase == 'detection' else ''}"
    for linked in (folder, there):
        if linked.is_symlink():
            raise OSError(errno.ELOOP, f"{linked.name} is a symbolic link, which is not followed")
    new = not there.exists()
    there.mkdir(parents=True, exist_ok=True)
    if new:
        sync_folder(folder)
    path = there / f"shard-{place.shard:04d}-of-{place.shards:04d}.safetensors"
    return tensorfile.write(path, parts, {**names, "state": said, "run": dict(words or {})})


def newest(
    folder: Path,
    digest: str,
    frame: StateShape,
    places: Sequence[Place],
    make: Callable[[Saved], Made],
    say: Callable[[str], None],
    group: Group | None = None,
) -> Made | None:
    """What `make` makes of the newest round that is whole and fits, None without any; `say` hears why others are passed over.

    `make` may refuse with a ValueError. A round counts if it does for all processes of the `group`, which must see the same
    folder. Those passed over are removed by the first: the run will write them again.
    """
    group, made = group or Group(), None
    heard = group.tell({"rounds": [path.name for path in _rounds(folder)]})
    names = [name for name in heard[0]["rounds"] if all(name in other["rounds"] for other in heard)]
    refused: dict[str, str] = {}
    for name in names:
        try:
            made = make(_read(folder / name, digest, frame, places))
        except (ValueError, OSError) as problem:
            refused[name] = str(problem)
        if group.agree(made is not None):
            break
        made = None
        refused.setdefault(name, "of no use to another process")
    if refused:
        why = "; ".join(f"checkpoint {name} not used ({reason})" for name, reason in refused.items())
        say(f"{why}; {'starting anew' if made is None else f'going on from {names[len(refused)]}'}")
    for name in refused if group.rank == 0 else []:
        shutil.rmtree(folder / name, ignore_errors=True)
    return made


def _rounds(folder: Path) -> list[Path]:
    """All rounds of which there is something, newest first. Symbolic links are nothing: what they lead to is not ours."""
    entries = [] if folder.is_symlink() else folder.glob("round-*")
    found = [path for path in entries if _ROUND.fullmatch(path.name) and not path.is_symlink()]
    return sorted(found, key=lambda path: path.name, reverse=True)


def _sets(there: Path) -> dict[int, list[Path]]:
    """The files of one round by the number of shards that there should be, in order."""
    found: dict[int, list[Path]] = {}
    for path in sorted(there.glob("*")):  # nothing where another process has just removed it
        name = _SHARD.fullmatch(path.name)
        if name is not None and not path.is_symlink():
            found.setdefault(int(name[2]), []).append(path)
    return found


def forget(folder: Path) -> None:
    """Remove rounds before the newest two of which all shards are there, and before the newest of which some are."""
    whole = 0
    for number, there in enumerate(_rounds(folder)):
        if whole < _KEPT and number < _SEEN:
            whole += any(len(paths) == shards for shards, paths in _sets(there).items())
        else:
            shutil.rmtree(there, ignore_errors=True)


def _read(there: Path, digest: str, frame: StateShape, places: Sequence[Place]) -> Saved:
    sets = _sets(there)
    whole = [paths for count, paths in sorted(sets.items()) if len(paths) == count]
    if not whole:
        missing = ", ".join(f"{len(paths)} of {count} shards are there" for count, paths in sorted(sets.items()))
        raise UnusableError(missing or "it is empty")
    shards = [TensorFile(path) for path in whole[0]]
    first = shards[0].words
    for number, shard in enumerate(shards):
        _check(shard, {**first, "digest": digest, "bymi": bymi.__version__, "shard": number, "shards": len(shards)})
    said = first["state"]
    names = list(expected(frame, said, 0, 0))
    judged = "-judged" if said["phase"] == "detection" else ""
    if there.name != f"round-{said['step']:08d}{judged}":
        raise UnusableError(f"it holds round {said['step']}")
    numbers = {
        "node": [_numbers(shard, "nodes", frame.size) for shard in shards],
        "column": [_numbers(shard, "columns", frame.columns) for shard in shards],
    }
    if not torch.equal(torch.cat(numbers["node"]).sort().values, torch.arange(frame.size)):
        raise UnusableError("its shards do not hold every node once")
    for shard, nodes, columns in zip(shards, numbers["node"], numbers["column"], strict=True):
        _fit(shard, expected(frame, said, len(nodes), len(columns)))
    run = {name.removeprefix("run."): shards[0].read(name) for name in shards[0].names if name.startswith("run.")}
    states = []
    for place in places:
        every = torch.arange(frame.columns) if place.columns is None else place.columns.cpu()
        wanted = {"node": place.nodes.cpu(), "column": every}
        parts = {name: _gather(shards, name, numbers, wanted, frame) for name in names}
        states.append(unpack(parts, said, frame, place.nodes.device))
    return Saved(states, run, first["run"])


def _check(shard: TensorFile, wanted: Mapping[str, Any]) -> None:
    """A shard must be of this run, and all of one round."""
    for key in ("digest", "bymi", "shard", "shards", "state"):
        if shard.words.get(key) != wanted.get(key):
            words = {"digest": "spec", "bymi": "version of bymi"}
            raise UnusableError(f"{shard.path.name}: of another {words.get(key, key)}")
    if not isinstance(shard.words.get("state"), dict) or not isinstance(shard.words.get("run"), dict):
        raise UnusableError(f"{shard.path.name}: says nothing of its round")


def _numbers(shard: TensorFile, name: str, size: int) -> Tensor:
    """The numbers of nodes or columns that a shard has rows of; without them, all columns."""
    if name not in shard and name == "columns":
        return torch.arange(size)
    if name not in shard or shard.dtype(name) != torch.int64 or len(shard.shape(name)) != 1:
        raise UnusableError(f"{shard.path.name}: no numbers of {name}")
    found = shard.read(name)
    if bool(((found < 0) | (found >= size)).any()) or len(found.unique()) != len(found):
        raise UnusableError(f"{shard.path.name}: numbers of {name} beyond 0 to {size - 1}, or twice")
    return found


def _fit(shard: TensorFile, parts: ShardLayout) -> None:
    """A shard must have the tensors that its round needs, no others, each of its type and shape."""
    found = {name.removeprefix("state.") for name in shard.names if name.startswith("state.")}
    if found != set(parts):
        raise UnusableError(f"{shard.path.name}: has {', '.join(sorted(found ^ set(parts)))} too much or too little")
    for name, (dtype, shape) in parts.items():
        at = f"state.{name}"
        if (shard.dtype(at), shard.shape(at)) != (dtype, shape):
            raise UnusableError(f"{shard.path.name}: {name} is {list(shard.shape(at))}, not {list(shape)} of {dtype}")


def _gather(
    shards: Sequence[TensorFile],
    name: str,
    numbers: Mapping[str, Sequence[Tensor]],
    wanted: Mapping[str, Tensor],
    frame: StateShape,
) -> Tensor:
    """The rows wanted, from whichever shards have them."""
    axis, *across = AXES[name]
    size = {"node": frame.size, "column": frame.columns}
    there = torch.zeros(len(wanted[axis]), dtype=torch.bool)
    rows: Tensor | None = None
    for shard, held, columns in zip(shards, numbers[axis], numbers["column"], strict=True):
        at = _places(held, wanted[axis], size[axis])
        mine = at >= 0
        if rows is not None and not bool(mine.any()):
            continue
        found = shard.read(f"state.{name}")
        if across and frame.arcs == frame.size:
            # What a node's own process had no column for never reached that node: zero.
            other = _places(columns, wanted["column"], size["column"])
            found = torch.where(other >= 0, found[:, other.clamp_min(0)], torch.zeros_like(found[:, :1]))
        if rows is None:
            rows = found.new_zeros(len(there), *found.shape[1:])
        rows[mine] = found[at[mine]]
        there |= mine
    if rows is None or not bool(there.all()):
        raise UnusableError(f"no shard has all {axis}s of {name}")
    return rows


def _places(held: Tensor, wanted: Tensor, size: int) -> Tensor:
    """Where in `held` each number wanted stands, -1 for nowhere."""
    places = torch.full((size,), -1, dtype=torch.int64)
    places[held] = torch.arange(len(held))
    return places[wanted]
