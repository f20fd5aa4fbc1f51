"""The processes of one run: how they find each other, hand rows around, and notice that one of them is gone."""

from __future__ import annotations

import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bymi.core.errors import RankLostError

_PATIENCE = 3.0  # seconds in which those who stop tell each other so
_LOOK_EVERY = 0.05
_STOPPED = "stopped"
_SAY_AGAIN = "start the same command again"


@dataclass
class Traffic:
    """What this rank has sent to others under one name."""

    calls: int = 0
    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0  # in these calls, those included in which it waited for others


@dataclass(eq=False)
class Group:
    """`size` processes, of which this is number `rank`. A group of one sends nothing and needs no torch.distributed."""

    rank: int = 0
    size: int = 1
    store: Any = None  # of torch.distributed, under a name of this attempt
    moment: str = "before the first round"
    traffic: dict[str, Traffic] = field(default_factory=lambda: defaultdict(Traffic))
    stopping: bool = False  # this rank has said that it cannot go on

    def swap(self, rows: Tensor, counts: Sequence[int], coming: Sequence[int], name: str) -> Tensor:
        """Send the first counts[0] rows to rank 0, the next counts[1] to rank 1, ...; what the others send comes back.

        `coming[r]` rows come from rank r, in order of ranks. Everybody calls it, with the same shape of a row.
        """
        if self.size == 1:
            return rows
        rows = rows.contiguous()
        flat = rows.view(torch.uint8) if rows.dtype == torch.bool else rows
        output = flat.new_empty(sum(coming), *flat.shape[1:])
        self._count(name, [count * flat[:1].nbytes for count in counts] if len(flat) else [])
        self._do(lambda: dist.all_to_all_single(output, flat, list(coming), list(counts)), name)
        return output.view(rows.dtype) if rows.dtype == torch.bool else output

    def trade(self, blocks: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], name: str) -> list[Tensor]:
        """Send one block to each rank; what comes from each is of the shape given."""
        if self.size == 1:
            return list(blocks)
        coming = [math.prod(shape) for shape in shapes]
        flat = torch.cat([block.reshape(-1) for block in blocks])
        came = self.swap(flat, [block.numel() for block in blocks], coming, name)
        return [part.view(shape) for part, shape in zip(came.split(coming), shapes, strict=True)]

    def total(self, values: Tensor, name: str) -> Tensor:
        """The sum of what all processes have, in each of them."""
        if self.size == 1:
            return values
        values = values.clone()
        self._count(name, [values.nbytes] * self.size)
        self._do(lambda: dist.all_reduce(values), name)
        return values

    def collect(self, rows: Tensor, counts: Sequence[int], name: str) -> Tensor:
        """The rows of all processes, in order of ranks, of which each has counts[rank]."""
        if self.size == 1:
            return rows
        return self.swap(rows.repeat(self.size, *[1] * (rows.ndim - 1)), [len(rows)] * self.size, counts, name)

    def agree(self, flag: bool, name: str = "agreement") -> bool:
        """Whether the flag holds in every process."""
        if self.size == 1:
            return flag
        votes = torch.tensor([int(flag)], dtype=torch.uint8)
        self._count(name, [1] * self.size)
        self._do(lambda: dist.all_reduce(votes, op=dist.ReduceOp.MIN), name)
        return bool(votes[0])

    def tell(self, words: dict[str, Any]) -> list[dict[str, Any]]:
        """What every process says, in order of ranks. As text: nothing that came over the wire is ever unpickled."""
        if self.size == 1:
            return [words]
        text = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._do(lambda: dist.all_gather(lengths, torch.tensor([len(text)])), "words")
        longest = int(torch.stack(lengths).max())
        padded = torch.nn.functional.pad(text, (0, longest - len(text)))
        heard = [torch.empty_like(padded) for _ in range(self.size)]
        self._count("words", [longest] * self.size)
        self._do(lambda: dist.all_gather(heard, padded), "words")
        return [json.loads(bytes(one[: int(length)].tolist())) for one, length in zip(heard, lengths, strict=True)]

    def say(self, name: str, words: str = "") -> bool:
        """Leave a note for all others; whether this rank is the first that leaves one of this name."""
        if self.store is None:
            return True
        try:
            self.store.set(f"{name} {self.rank}", words)
            return bool(self.store.add(name, 1) == 1)
        except RuntimeError:  # the store went with the rank that kept it
            return False

    def wait(self, name: str, others: Sequence[int]) -> None:
        """Wait for notes of other ranks, however long they take; torchrun ends all ranks when one of them dies."""
        try:
            while self.size > 1 and not self.store.check([f"{name} {rank}" for rank in others]):
                time.sleep(_LOOK_EVERY)
        except RuntimeError as problem:
            raise self.lost(f"{name}: {_short(problem)}") from None

    def take(self, name: str) -> int:
        """0, 1, 2, ...: a number that no other rank gets."""
        return 0 if self.store is None else int(self.store.add(name, 1)) - 1

    def _count(self, name: str, sizes: Sequence[int]) -> None:
        sent = [size for rank, size in enumerate(sizes) if rank != self.rank and size]
        entry = self.traffic[name]
        entry.calls, entry.messages, entry.bytes = entry.calls + 1, entry.messages + len(sent), entry.bytes + sum(sent)

    def _do(self, work: Callable[[], object], name: str) -> None:
        start = time.perf_counter()
        try:
            work()
        except RuntimeError as problem:  # what torch.distributed raises for a lost connection and for one that is silent
            raise self.lost(f"{name}: {_short(problem)}") from None
        self.traffic[name].seconds += time.perf_counter() - start

    def lost(self, why: str) -> RankLostError:
        """The error of a rank that cannot go on: which others have stopped without a word, and what to do."""
        self.stopping = True
        silent = self._silent()
        here = f"rank {self.rank} of {self.size} stopped {self.moment}"
        if not silent:
            return RankLostError(f"{here}: {why}, and so have all other ranks; {_SAY_AGAIN}")
        return RankLostError(
            f"{here}: no word from rank {', '.join(map(str, silent))} ({why}); look at that rank's machine and memory, "
            f"then {_SAY_AGAIN}, with a longer --timeout if it was only slow"
        )

    def leave(self) -> bool:
        """Stop because of a mistake that all ranks make, as a rule; whether this one is to say so.

        Rank 0 may keep the store, so it waits for the others.
        """
        first = self.say("mistake")
        self._silent()
        return first

    def _silent(self) -> list[int]:
        """Ranks that do not say within a few seconds that they have stopped, too."""
        if self.store is None:
            return []
        self.say(_STOPPED, self.moment)
        silent = self.missing(_STOPPED)
        if self.rank == 0:  # the store may go with it, and others still look for its word there
            time.sleep(2 * _LOOK_EVERY)
        return silent

    def missing(self, name: str) -> list[int]:
        """Ranks that have not left such a note, nor do so within a few seconds."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        until = time.monotonic() + _PATIENCE
        try:
            while others and time.monotonic() < until:
                others = [rank for rank in others if not self.store.check([f"{name} {rank}"])]
                time.sleep(_LOOK_EVERY if others else 0)
        except RuntimeError:
            return others
        return others


def _short(problem: Exception) -> str:
    """The first sentence of what torch.distributed says, without the place in its source."""
    first = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
    return re.sub(r"^\[\S+:\d+\] ", "", first).split(". ")[0]
