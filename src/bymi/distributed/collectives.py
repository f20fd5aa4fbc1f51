"""The process group of one run: collectives, counts of traffic, and detection of lost ranks."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from bymi.core.errors import RankLostError

_PATIENCE = 3.0  # seconds to wait for other ranks to report that they have stopped
_HANGS = 10.0  # seconds beyond all waiting after which a store that does not answer hangs
_LOOK_EVERY = 0.05
_STOPPED, _SEEN = "stopped", "seen"  # notes: this rank cannot continue; it has looked who else cannot
_SAY_AGAIN = "start the same command again"
_TOLD = "told to stop by the launcher"

Result = TypeVar("Result")


@dataclass
class Traffic:
    """What this rank has sent to other ranks under one name."""

    calls: int = 0
    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0  # spent in these calls, waiting included


@dataclass(eq=False)
class Group:
    """Process group of `size` ranks, of which this is `rank`. A group of one needs no torch.distributed.

    Collective: all ranks must call swap, trade, total, collect, all_agree and tell in the same order.
    """

    rank: int = 0
    size: int = 1
    store: Any = None  # torch.distributed store, prefixed per attempt
    moment: str = "before the first round"
    traffic: dict[str, Traffic] = field(default_factory=lambda: defaultdict(Traffic))
    stopping: bool = False  # this rank has reported that it cannot continue
    told: bool = False  # the launcher has told this rank to stop
    in_collective: bool = False
    ended: RankLostError | None = None  # why this rank left: its connections are closed

    def swap(self, rows: Tensor, counts: Sequence[int], coming: Sequence[int], name: str) -> Tensor:
        """Rows received from all ranks, after sending counts[0] rows to rank 0, the next counts[1] to rank 1, and so on.

        `coming[r]` rows come from rank r, in rank order. Collective: all ranks must call it, with rows of the same shape.
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
        """Blocks received from all ranks, of the given shapes, after sending one block to each. Collective."""
        if self.size == 1:
            return list(blocks)
        coming = [math.prod(shape) for shape in shapes]
        flat = torch.cat([block.reshape(-1) for block in blocks])
        received = self.swap(flat, [block.numel() for block in blocks], coming, name)
        return [part.view(shape) for part, shape in zip(received.split(coming), shapes, strict=True)]

    def total(self, values: Tensor, name: str) -> Tensor:
        """Sum of `values` over all ranks. Collective."""
        if self.size == 1:
            return values
        values = values.clone()
        self._count(name, [values.nbytes] * self.size)
        self._do(lambda: dist.all_reduce(values), name)
        return values

    def collect(self, rows: Tensor, counts: Sequence[int], name: str) -> Tensor:
        """Rows of all ranks in rank order, counts[rank] from each. Collective."""
        if self.size == 1:
            return rows
        return self.swap(rows.repeat(self.size, *[1] * (rows.ndim - 1)), [len(rows)] * self.size, counts, name)

    def all_agree(self, flag: bool, name: str = "agreement") -> bool:
        """Whether the flag holds on every rank. Collective."""
        if self.size == 1:
            return flag
        votes = torch.tensor([int(flag)], dtype=torch.uint8)
        self._count(name, [1] * self.size)
        self._do(lambda: dist.all_reduce(votes, op=dist.ReduceOp.MIN), name)
        return bool(votes[0])

    def tell(self, words: dict[str, Any]) -> list[dict[str, Any]]:
        """One JSON object per rank, in rank order. Collective. Sent as text: nothing received is ever unpickled."""
        if self.size == 1:
            return [words]
        text = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._do(lambda: dist.all_gather(lengths, torch.tensor([len(text)])), "words")
        longest = int(torch.stack(lengths).max())
        padded = torch.nn.functional.pad(text, (0, longest - len(text)))
        received = [torch.empty_like(padded) for _ in range(self.size)]
        self._count("words", [longest] * self.size)
        self._do(lambda: dist.all_gather(received, padded), "words")
        return [json.loads(bytes(one[: int(length)].tolist())) for one, length in zip(received, lengths, strict=True)]

    def say(self, name: str, words: str = "") -> None:
        """Write a note to the store for the other ranks, without waiting for an answer."""
        if self.store is not None:
            with suppress(RuntimeError):  # the store ended with the rank that hosted it
                self.store.set(f"{name} {self.rank}", words)

    def wait(self, name: str, others: Sequence[int]) -> None:
        """Block until the given ranks have written a note, without a timeout; torchrun ends all ranks when one of them dies."""
        try:
            while self.size > 1 and not self.store.check([f"{name} {rank}" for rank in others]):
                time.sleep(_LOOK_EVERY)
        except RuntimeError as problem:
            raise self.lost(f"{name}: {_short(problem)}") from None

    def take(self, name: str) -> int:
        """A number 0, 1, 2, ... that no other rank gets."""
        return 0 if self.store is None else int(self.store.add(name, 1)) - 1

    def _count(self, name: str, sizes: Sequence[int]) -> None:
        sent = [size for rank, size in enumerate(sizes) if rank != self.rank and size]
        entry = self.traffic[name]
        entry.calls, entry.messages, entry.bytes = entry.calls + 1, entry.messages + len(sent), entry.bytes + sum(sent)

    def _do(self, work: Callable[[], object], name: str) -> None:
        if self.ended is not None:
            raise self.ended
        start = time.perf_counter()
        failed: str | None = None
        self.in_collective = True
        try:
            work()
        except RuntimeError as problem:  # raised by torch.distributed for lost and for silent connections
            failed = f"{name}: {_short(problem)}"
        finally:
            self.in_collective = False
        if self.told and failed is None:
            failed = _TOLD
        if failed is not None:  # outside of the handler: the exception refers to the process group, and `lost` closes it
            raise self.lost(failed)
        self.traffic[name].seconds += time.perf_counter() - start

    def stop(self) -> None:
        """Raise the error of a rank that was told to stop; within a collective, whose frames hold the group, after it."""
        self.told = True
        if not (self.in_collective or self.stopping):
            raise self.lost(_TOLD)

    def lost(self, why: str) -> RankLostError:
        """The error of a rank that cannot continue: which ranks stopped without a note, and what to do."""
        self.stopping = True
        self.say(_STOPPED, self.moment)
        self._hang_up()
        silent = self._in_time(self._silent, [0])
        here = f"rank {self.rank} of {self.size} stopped {self.moment}"
        if silent:
            said = (
                f"{here}: no word from rank {', '.join(map(str, silent))} ({why}); look at that rank's machine and memory, "
                f"then {_SAY_AGAIN}, with a longer --timeout if it was only slow"
            )
        else:
            said = f"{here}: {why}, and so have all other ranks; {_SAY_AGAIN}"
        self.ended = RankLostError(said)
        return self.ended

    def leave(self) -> bool:
        """Stop because of an error that is no lost rank's; returns whether this rank should print it.

        Either all ranks have it and report, or this one alone: then the others wait for it until it closes its connections.
        """
        self.stopping = True
        return self._in_time(self._leave, True)

    def _leave(self) -> bool:
        first = self.take("mistake") == 0
        self.say(_STOPPED, self.moment)
        if self._silent():
            self._hang_up()
            self._silent()
        return first

    def _hang_up(self) -> None:
        """Close the connections, so that ranks that wait for this one learn of it now and can report in time.

        They close only if no frame or exception holds the process group. With gloo only: to destroy a process group of NCCL may
        wait for work on the GPU that never ends.
        """
        if dist.is_initialized() and dist.get_backend() == "gloo":
            dist.destroy_process_group()

    def _silent(self) -> list[int]:
        """Ranks that do not report within a few seconds that they have stopped."""
        if self.store is None:
            return []
        others = [rank for rank in range(self.size) if rank != self.rank]
        silent = self._missing(_STOPPED, others)
        self.say(_SEEN)
        if self.rank == 0:  # the store may end with rank 0: the others look first
            self._missing(_SEEN, [rank for rank in others if rank not in silent])
        return silent

    def _missing(self, name: str, ranks: list[int]) -> list[int]:
        """Those of the ranks that have not written this note, after waiting a few seconds."""
        until = time.monotonic() + _PATIENCE
        try:
            while ranks and time.monotonic() < until:
                ranks = [rank for rank in ranks if not self.store.check([f"{name} {rank}"])]
                time.sleep(_LOOK_EVERY if ranks else 0)
        except RuntimeError:  # the store is gone: rank 0 hosts it, and leaves last
            return [0] if 0 in ranks else ranks
        return ranks

    def _in_time(self, talk: Callable[[], Result], otherwise: Result) -> Result:
        """What `talk` returns, which asks the store; `otherwise` if the store is gone, or hangs with the rank that hosts it.

        Its calls have no timeout, so a thread makes them, which is left behind.
        """
        results: list[Result] = []

        def work() -> None:
            with suppress(RuntimeError):
                results.append(talk())

        thread = threading.Thread(target=work, name="store", daemon=True)
        thread.start()
        thread.join(_HANGS + 4 * _PATIENCE)
        return results[0] if results else otherwise


def _short(problem: Exception) -> str:
    """First sentence of a torch.distributed error, without its source location."""
    text = re.sub(r"^\s*\[\S+:\d+\]", "", str(problem)).strip()
    return text.splitlines()[0].split(". ")[0] if text else type(problem).__name__
