"""What is stored of a run: a digest of every round, how many neighbours were flagged, and some values of three nodes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bymi import Snapshot, State
from bymi.distributed.collectives import Group
from tests.golden.forms import Part, rounds
from tests.golden.table import SHOWN, Run

_SHORT = 8  # hexadecimal digits stored of a round's digest: enough to say which round differs first


@dataclass(frozen=True)
class Record:
    """`digest`: over all rounds. `rounds`: the beginnings of theirs. `flags`: neighbours flagged in each detection.

    `values`: of three nodes, three coordinates of theta at the end and its length, as float.hex.
    """

    digest: str
    rounds: list[str]
    flags: list[int]
    values: dict[str, list[str]]


@dataclass
class Tape:
    """What one process saw of a run: digests of its shards and flags, round by round, and values of the nodes it holds."""

    digests: dict[int, list[str]] = field(default_factory=dict)
    flags: dict[int, list[int]] = field(default_factory=dict)
    values: dict[str, list[str]] = field(default_factory=dict)

    def see(self, parts: Sequence[Part]) -> None:
        self.values = {}
        for part in parts:
            self.digests.setdefault(part.shard, []).append(_digest(part.snapshot))
            counts = self.flags.setdefault(part.shard, [])
            if part.snapshot.verdict is not None:
                counts.append(int(part.snapshot.verdict.flagged.sum()))
            for place, node in enumerate(part.nodes.tolist()):
                if node in SHOWN:
                    self.values[str(node)] = _values(part.snapshot.theta[place])


def play(run: Run, group: Group | None = None, state: State | None = None) -> Tape:
    """Compute a run, or what is left of it after `state`."""
    tape = Tape()
    for parts in rounds(run.words, run.form, group, state):
        tape.see(parts)
    return tape


def join(tapes: Sequence[Tape]) -> Record:
    """The record of a run from what all of its processes saw."""
    digests = {shard: some for tape in tapes for shard, some in tape.digests.items()}
    flags = [some for tape in tapes for some in tape.flags.values()]
    values = {node: some for tape in tapes for node, some in tape.values.items()}
    by_round = [_hash("".join(parts)) for parts in zip(*(digests[shard] for shard in sorted(digests)), strict=True)]
    counts = [sum(some) for some in zip(*flags, strict=True)]
    ordered = {node: values[node] for node in sorted(values, key=int)}
    return Record(_hash("".join(by_round)), [one[:_SHORT] for one in by_round], counts, ordered)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(snapshot: Snapshot) -> str:
    """Of all numbers of a round: equal numbers give equal digests (-0.0 equals 0.0, and NaN is NaN)."""
    found = hashlib.sha256(f"{snapshot.step} {snapshot.phase}".encode())
    for name, tensor in _tensors(snapshot):
        if tensor is not None:
            values = tensor.detach().cpu()
            if values.is_floating_point():
                values = torch.where(values.isnan(), torch.nan, values) + 0.0
            found.update(f"{name} {list(values.shape)}".encode())
            found.update(values.contiguous().numpy().tobytes())
    return found.hexdigest()


_STORED = {"reason": "why", "statistic": "figure", "filtered_weight": "taken", "guard_acted": "guarded"}  # names in digests


_NOT_IN_DIGESTS = "bound"  # of a statistic: follows from settings and numbers of neighbours, younger than stored digests
_LATER = ("pull", "mean_claim", "by_rule")  # fields of the hardened verdict, younger than stored digests of the published one


def _tensors(snapshot: Snapshot) -> Iterator[tuple[str, Tensor | None]]:
    yield "theta", snapshot.theta
    yield "tracker", snapshot.tracker
    # Of arcs only: what stands where nobody is expected means nothing.
    arcs = snapshot.inbox.expected
    yield "left by clipping", None if snapshot.share is None else snapshot.share[arcs]
    yield "far out", None if snapshot.far_out is None else snapshot.far_out[arcs]
    if snapshot.verdict is not None:
        for name, tensor in vars(snapshot.verdict).items():
            if name == _NOT_IN_DIGESTS or (name in _LATER and not tensor.numel()):
                continue
            yield f"verdict {_STORED.get(name, name)}", tensor
    history = None if snapshot.state is None else snapshot.state.history
    if history is not None:
        yield "update history: steps", torch.tensor([history.rounds, *history.steps, *history.weights], dtype=torch.float64)
        for name in ("messages", "own", "times", "refused"):
            yield f"update history: {name}", getattr(history, name)


def _values(theta: Tensor) -> list[str]:
    some = theta[[0, len(theta) // 2, len(theta) - 1]].tolist()
    return [float(value).hex() for value in (*some, float(torch.linalg.vector_norm(theta)))]


def relative_difference(one: Mapping[str, Sequence[str]], two: Mapping[str, Sequence[str]]) -> float:
    """The largest difference of stored values, each over the length of its node's theta; inf where one is not finite."""
    if one.keys() != two.keys():
        return math.inf
    largest = 0.0
    for node, texts in one.items():
        left, right = ([float.fromhex(text) for text in some] for some in (texts, two[node]))
        scale = max(abs(left[-1]), abs(right[-1]))
        for a, b in zip(left, right, strict=True):
            if a != b and not (math.isnan(a) and math.isnan(b)):
                away = abs(a - b) / scale if math.isfinite(scale) and scale > 0 else math.inf
                largest = max(largest, away if math.isfinite(away) else math.inf)
    return largest
