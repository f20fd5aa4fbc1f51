"""Checkpoints: what is stored comes back bit by bit, to any number of processes, or is refused in words."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bymi
from bymi import State
from bymi.distributed.collectives import Group
from bymi.runs import checkpoints
from bymi.runs import safetensors_file as tensorfile
from bymi.runs.checkpoints import Place, Saved
from bymi.runs.pack_state import StateShape, pack
from bymi.runs.safetensors_file import TensorFile, UnusableError
from bymi.training.state import KeptStates
from tests.interruption_fixtures import RUNS, assert_same_state, frame_of, state_at, undisturbed

EVERY = torch.arange(16)
WHOLE = Place(EVERY)


def save(folder: Path, state: State, place: Place = WHOLE, **more: Any) -> int:
    size = checkpoints.save(folder, "digest", state, place, **more)
    checkpoints.forget(folder)
    return size


class Reader:
    """Reads what is newest, and remembers what it was told."""

    def __init__(self, folder: Path, name: str = "hardened") -> None:
        self.folder, self.frame, self.said = folder, frame_of(name), list[str]()

    @staticmethod
    def group(place: Place) -> Group:
        """As if each place were held by a process of its own."""
        return Group(rank=place.shard)

    def newest(self, place: Place = WHOLE, make: Callable[[Saved], State] = lambda saved: saved.states[0]) -> State | None:
        return checkpoints.newest(self.folder, "digest", self.frame, [place], make, self.said.append, self.group(place))


def part_of(state: State, place: Place) -> State:
    """What a process of a sharded engine holds: rows of its nodes, and columns of the messages that reach it."""
    nodes = place.nodes
    rows = {key: None if getattr(state, key) is None else getattr(state, key)[nodes] for key in ("flagged", "tracker")}
    kept = KeptStates(state.kept.theta[nodes], state.kept.mean_claim[nodes])
    history = state.history.copy()
    if history.rounds:
        columns = torch.arange(len(history.times)) if place.columns is None else place.columns
        history.messages, history.times = history.messages[columns], history.times[columns]
        history.own, history.refused = history.own[nodes], history.refused[nodes][:, columns]
    record = replace(state.record, **{key: getattr(state.record, key)[nodes] for key in ("left", "strikes", "recent")})
    return replace(state, theta=state.theta[nodes], record=record, history=history, kept=kept, **rows)


def places(numbers: Sequence[Sequence[int]], columns: Sequence[Tensor | None] | None = None) -> list[Place]:
    columns = columns or [None] * len(numbers)
    return [
        Place(torch.tensor(nodes), rank, len(numbers), some)
        for rank, (nodes, some) in enumerate(zip(numbers, columns, strict=True))
    ]


FOUR = places([[0, 5, 10], [15, 1, 6, 11], [2, 7], [12, 3, 8, 13, 4, 9, 14]])
TWO = places([[1, 3, 5, 7, 9, 11, 13, 15], [14, 12, 10, 8, 6, 4, 2, 0]])


@pytest.mark.parametrize("name", RUNS)
def test_every_state_comes_back_bit_by_bit(name: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path, name)
    for _, state in undisturbed(name):
        save(tmp_path, state)
        assert_same_state(reader.newest(), state)
    assert reader.said == []


def test_a_detection_is_newer_than_the_round_before_it(tmp_path: Path) -> None:
    before, after = (state_at("hardened", 16, phase) for phase in ("optimisation", "detection"))
    save(tmp_path, after)
    save(tmp_path, before)
    assert_same_state(Reader(tmp_path).newest(), after)


def test_what_else_is_stored_comes_back(tmp_path: Path) -> None:
    counts, words = torch.tensor([3, 1]), {"last": {"gap": 0.1 + 0.2}, "none": None}
    save(tmp_path, state_at("hardened", 9), tensors={"counts": counts, "nothing": torch.empty(0)}, words=words)
    found: list[Saved] = []
    Reader(tmp_path).newest(make=lambda saved: found.append(saved) or saved.states[0])  # type: ignore[func-returns-value]
    assert found[0].words == words
    assert torch.equal(found[0].tensors["counts"], counts)
    assert found[0].tensors["nothing"].shape == (0,)


def test_only_the_newest_two_whole_rounds_are_kept(tmp_path: Path) -> None:
    one, two = places([range(8), range(8, 16)])
    for step in (7, 8, 9):
        save(tmp_path, part_of(state_at("hardened", step), two), two)
        save(tmp_path, part_of(state_at("hardened", step), one), one)
    save(tmp_path, part_of(state_at("hardened", 10), one), one)  # its other half is still to come
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000008", "round-00000009", "round-00000010"]


# Any number of processes


@pytest.mark.parametrize("step", [4, 12, 29])
@pytest.mark.parametrize("name", ["hardened", "hardened, directed", "hardened, a message for each"])
def test_four_write_and_two_or_one_read(name: str, step: int, tmp_path: Path) -> None:
    state = state_at(name, step)
    for place in FOUR:
        save(tmp_path, part_of(state, place), place)
    for place in (*TWO, WHOLE):
        assert_same_state(Reader(tmp_path, name).newest(place), part_of(state, place))


def test_two_write_and_four_read(tmp_path: Path) -> None:
    state = state_at("hardened", 12)
    for place in TWO:
        save(tmp_path, part_of(state, place), place)
    for place in FOUR:
        assert_same_state(Reader(tmp_path).newest(place), part_of(state, place))


def test_processes_that_hold_some_columns_only(tmp_path: Path) -> None:
    """Each stores the messages that it hears. Who refused a message that never came its way has a count of zero."""
    state = state_at("hardened", 12)
    refused = torch.arange(256, dtype=torch.int32).reshape(16, 16)
    state = replace(state, history=replace(state.history, refused=refused))
    halves = places([range(8), range(8, 16)], [torch.arange(12), torch.tensor([15, 14, 13, 12, 11, 10, 0])])
    for place in halves:
        save(tmp_path, part_of(state, place), place)
    found = Reader(tmp_path).newest()
    known = refused.clone()
    known[:8, 12:], known[8:, 1:10] = 0, 0
    assert torch.equal(found.history.refused, known)
    assert torch.equal(found.history.messages, state.history.messages)
    crossed = Place(torch.tensor([9, 3]), columns=torch.tensor([11, 2, 15]))
    assert Reader(tmp_path).newest(crossed).history.refused.tolist() == [[155, 0, 159], [59, 50, 0]]


def test_lists_of_neighbours_and_entries_of_the_tracker(tmp_path: Path) -> None:
    """On large graphs what is said of arcs has as many places as a node has neighbours, and a tracker one entry a node."""
    state = state_at("hardened, directed", 12)
    history = replace(state.history, refused=state.history.refused[:, :5] + 3)
    record = replace(state.record, **{key: getattr(state.record, key)[:, :5] for key in ("left", "strikes", "recent")})
    entries = torch.linspace(0, 1, 16, dtype=torch.float64)
    state = replace(state, flagged=state.flagged[:, :5], record=record, history=history, tracker=entries, settled=True)
    for rank, nodes in enumerate(place.nodes for place in FOUR):
        part = replace(
            state,
            **{key: getattr(state, key)[nodes] for key in ("theta", "flagged", "tracker")},
            kept=KeptStates(state.kept.theta[nodes], state.kept.mean_claim[nodes]),
            record=replace(record, **{key: getattr(record, key)[nodes] for key in ("left", "strikes", "recent")}),
            history=replace(history, own=history.own[nodes], refused=history.refused[nodes]),
        )
        save(tmp_path, part, Place(nodes, rank, 4))
    reader = Reader(tmp_path, "hardened, directed")
    reader.frame = replace(reader.frame, arcs=5)
    assert_same_state(reader.newest(), state)


@pytest.mark.parametrize("lost", range(4))
def test_a_kill_between_two_writes_costs_that_round_only(lost: int, tmp_path: Path) -> None:
    older, newer = state_at("hardened", 11), state_at("hardened", 12)
    for place in FOUR:
        save(tmp_path, part_of(older, place), place)
        if place.shard != lost:
            save(tmp_path, part_of(newer, place), place)
    reader = Reader(tmp_path)
    others = [reader.newest(place) for place in reversed(TWO)]  # rank 0, which clears up, comes last
    for place, found in zip(reversed(TWO), others, strict=True):
        assert_same_state(found, part_of(older, place))
    line = "checkpoint round-00000012 not used (3 of 4 shards are there); going on from round-00000011"
    assert reader.said == [line, line]
    assert [path.name for path in tmp_path.iterdir()] == ["round-00000011"], "what is passed over is cleared away"


def test_a_round_counts_if_it_does_for_all_processes(tmp_path: Path) -> None:
    """Whatever one process finds fault with the others do not use either: else they would part."""
    for step in (11, 12):
        save(tmp_path, state_at("hardened", step))
    said: list[str] = []
    group, answers = Group(rank=1), iter([False, True])
    group.all_agree = lambda flag: flag and next(answers)  # type: ignore[method-assign]
    found = checkpoints.newest(
        tmp_path, "digest", frame_of("hardened"), [WHOLE], lambda saved: saved.states[0], said.append, group
    )
    assert_same_state(found, state_at("hardened", 11))
    assert "of no use to another process" in said[0]


def test_a_round_that_one_process_does_not_see_is_used_by_none(tmp_path: Path) -> None:
    for step in (11, 12):
        save(tmp_path, state_at("hardened", step))
    group, reader = Group(), Reader(tmp_path)
    group.tell = lambda words: [words, {"rounds": ["round-00000011"]}]  # type: ignore[method-assign]
    reader.group = lambda place: group  # type: ignore[method-assign]
    assert_same_state(reader.newest(), state_at("hardened", 11))


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ([range(8), range(7, 16)], "do not hold every node once"),
        ([range(8), range(9, 16)], "do not hold every node once"),
    ],
)
def test_shards_that_do_not_add_up_are_refused(numbers: list[range], why: str, tmp_path: Path) -> None:
    for place in places(numbers):
        save(tmp_path, part_of(state_at("hardened", 12), place), place)
    reader = Reader(tmp_path)
    assert reader.newest() is None
    assert why in reader.said[0]


def test_shards_of_two_rounds_are_refused(tmp_path: Path) -> None:
    for place, step in zip(TWO, (12, 13), strict=True):
        save(tmp_path, part_of(state_at("hardened", step), place), place)
    shutil.copy(*[tmp_path / f"round-{step:08d}" / "shard-0001-of-0002.safetensors" for step in (13, 12)])
    reader = Reader(tmp_path)
    assert reader.newest() is None
    assert "shard-0001-of-0002.safetensors: of another state" in reader.said[0]


# What happens to files


def two_rounds(folder: Path) -> Path:
    """Rounds 11 and 12; the file of the newer one."""
    for step in (11, 12):
        save(folder, state_at("hardened", step))
    return folder / "round-00000012" / "shard-0000-of-0001.safetensors"


def assert_the_previous_is_used(folder: Path, why: str) -> None:
    reader = Reader(folder)
    assert_same_state(reader.newest(), state_at("hardened", 11))
    (line,) = reader.said
    assert line.startswith("checkpoint round-00000012 not used (")
    assert line.endswith("); going on from round-00000011")
    assert why in line
    assert "\n" not in line


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.3, 0.9, 0.9999])
def test_a_file_that_is_cut_short(share: float, tmp_path: Path) -> None:
    path = two_rounds(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert_the_previous_is_used(tmp_path, "cut short" if share in (0.0, 0.9999) else path.name)


@pytest.mark.parametrize("place", [0, 3, 9, 100, 700, 0.5, 0.7, 0.99, -1])
def test_a_file_in_which_one_bit_fell_over(place: float, tmp_path: Path) -> None:
    path = two_rounds(tmp_path)
    data = bytearray(path.read_bytes())
    data[int(place * len(data)) if isinstance(place, float) else place] ^= 1
    path.write_bytes(data)
    assert_the_previous_is_used(tmp_path, path.name)


def test_every_bit_counts(tmp_path: Path) -> None:
    """Of all bytes of a small file, header and padding included."""
    path = tmp_path / "file"
    tensorfile.write(path, {"x": torch.tensor([1.5, -2.0])}, {"step": 3})
    whole = path.read_bytes()
    assert torch.equal(TensorFile(path).read("x"), torch.tensor([1.5, -2.0]))
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(UnusableError):
            TensorFile(path)


def test_without_any_that_can_be_used_the_run_starts_anew(tmp_path: Path) -> None:
    for path in (two_rounds(tmp_path), tmp_path / "round-00000011" / "shard-0000-of-0001.safetensors"):
        path.write_bytes(b"")
    reader = Reader(tmp_path)
    assert reader.newest() is None
    assert reader.said[0].endswith("starting from the first round")
    assert list(tmp_path.iterdir()) == []
    assert Reader(tmp_path / "nowhere").newest() is None


@pytest.mark.parametrize(("digest", "version", "why"), [("other", None, "spec"), ("digest", "0.0.1", "version of bymi")])
def test_of_another_spec_or_version(
    digest: str, version: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_rounds(tmp_path)
    with monkeypatch.context() as patch:
        if version is not None:
            patch.setattr(bymi, "__version__", version)
        checkpoints.save(tmp_path, digest, state_at("hardened", 12), WHOLE)
    assert_the_previous_is_used(tmp_path, f"of another {why}")


def test_the_file_is_in_the_layout_of_safetensors(tmp_path: Path) -> None:
    """Read back by the published layout alone: 8 bytes little endian, JSON, numbers."""
    path = two_rounds(tmp_path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    entry = json.loads(data[8 : 8 + length])["state.theta"]
    begin, end = (8 + length + offset for offset in entry["data_offsets"])
    theta = np.frombuffer(data[begin:end], "<f8").reshape(entry["shape"])
    assert entry["dtype"] == "F64"
    assert np.array_equal(theta, state_at("hardened", 12).theta.numpy())


# Files made to deceive: everything fits but what is in them


def deviation(path: Path, change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> None:
    """The same checkpoint with something changed and a checksum that is right."""
    file = TensorFile(path)
    tensors, words = {name: file.read(name) for name in file.names}, file.words
    change(tensors, words)
    tensorfile.write(path, tensors, words)


def changed(name: str, to: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    return lambda tensors, words: tensors.update({name: to(tensors[name])})


def said(key: str, value: Any) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    return lambda tensors, words: words["state"].update({key: value})


LIES: dict[str, Callable[[dict[str, Tensor], dict[str, Any]], None]] = {
    "theta too narrow": changed("state.theta", lambda theta: theta[:, :3]),
    "theta of other numbers": changed("state.theta", lambda theta: theta.float()),
    "too few rows": changed("state.theta", lambda theta: theta[:9]),
    "flat flags": changed("state.flagged", lambda flags: flags.flatten()),
    "flags as numbers": changed("state.flagged", lambda flags: flags.to(torch.int64)),
    "negative counts": changed("state.record.strikes", lambda counts: counts - 1),
    "counts that are no numbers": changed("state.history.times", lambda counts: torch.full((16,), torch.nan)),
    "more columns than messages": changed("state.history.refused", lambda counts: counts.repeat(1, 2)),
    "no update history": lambda tensors, words: tensors.pop("state.history.own"),
    "a tracker that is not used": lambda tensors, words: tensors.update({"state.tracker": torch.eye(16)}),
    "no nodes": lambda tensors, words: tensors.pop("nodes"),
    "nodes as fractions": changed("nodes", lambda nodes: nodes.to(torch.float64)),
    "nodes beyond": changed("nodes", lambda nodes: nodes + 1),
    "nodes below": changed("nodes", lambda nodes: nodes - 1),
    "nodes twice": changed("nodes", lambda nodes: nodes // 2),
    "columns beyond": lambda tensors, words: tensors.update(columns=torch.arange(16) + 10**12),
    "another round": said("step", 13),
    "no round": said("step", None),
    "a round in words": said("step", "12"),
    "a round too late": said("step", 10**30),
    "a detection that is not in the plan": said("judged", 5),
    "a phase that is not": said("phase", "party"),
    "a phase as a list": said("phase", [[]]),
    "an update history without end": said("rounds", 10**9),
    "an update history of half rounds": said("rounds", 2.5),
    "steps below zero": said("steps", [-1.0, 1.0]),
    "steps of one kind only": said("steps", [1.0]),
    "weights that are no list": said("weights", 1.0),
    "settled perhaps": said("settled", "perhaps"),
    "a tracker of what": said("entries", None),
    "no words": lambda tensors, words: words.pop("state"),
    "nothing beside": lambda tensors, words: words.update(run=[]),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_made_to_deceive_is_refused(lie: str, tmp_path: Path) -> None:
    deviation(two_rounds(tmp_path), LIES[lie])
    assert_the_previous_is_used(tmp_path, "")


def raw(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> None:
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> bytes:
    part = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    return json.dumps({"__metadata__": {"sha256": "0" * 64, "bymi": "{}"}, "x": part}).encode()


@pytest.mark.parametrize(
    ("header", "length", "why"),
    [
        (b"{}", 1 << 62, "a header of 4611686018427387904 bytes"),
        (b" " * (2 << 20), None, "a header of 2097152 bytes"),
        (b"{}", 0, "a header of 0 bytes"),
        (b"[" * 100_000, None, "nested too deeply"),
        (b"[1, 2]", None, "no JSON object"),
        (b"\xff\xfe{}", None, "no JSON object"),
        (b'{"x": NaN}', None, "no JSON object"),
        (b'{"x": ' + b"9" * 5000 + b"}", None, "no JSON object"),
        (b'{"x": {}}', None, "no checksum"),
        (entry(dtype="O"), None, "of no type"),
        (entry(dtype=["F32"]), None, "of no type"),
        (entry(shape=[-1]), None, "has no shape"),
        (entry(shape=[True]), None, "has no shape"),
        (entry(shape=[1.0]), None, "has no shape"),
        (entry(shape=None), None, "has no shape"),
        (entry(shape=[1 << 40, 1 << 40], offsets=[0, 4 << 80]), None, "cut short"),
        (entry(shape=[2]), None, "does not lie where"),
        (entry(offsets=[4, 8]), None, "does not lie where"),
        (entry(shape=[0], offsets=[0, 0]), None, "longer than its header says"),
        (entry(), None, "checksum differs"),
    ],
)
def test_a_header_made_to_deceive_is_refused(header: bytes, length: int | None, why: str, tmp_path: Path) -> None:
    raw(tmp_path / "file", header, b"1234", length)
    with pytest.raises(UnusableError, match=why):
        TensorFile(tmp_path / "file")


def test_truth_values_that_are_neither_are_refused(tmp_path: Path) -> None:
    path = two_rounds(tmp_path)
    file = TensorFile(path)
    flags = file.read("state.flagged").to(torch.uint8) + 7
    tensors = {name: file.read(name) for name in file.names} | {"state.flagged": flags}
    tensorfile.write(path, tensors, file.words)
    length = int.from_bytes(path.read_bytes()[:8], "little")
    # U8 and BOOL have one size: call the numbers truth values, and make the checksum anew.
    header = json.loads(path.read_bytes()[8 : 8 + length])
    header["state.flagged"]["dtype"], header["__metadata__"]["sha256"] = "BOOL", "0" * 64
    data, text = path.read_bytes()[8 + length :], json.dumps(header).encode()
    right = tensorfile.hashlib.sha256(text + data).hexdigest().encode()
    raw(path, text.replace(b"0" * 64, right, 1), data)
    assert_the_previous_is_used(tmp_path, "truth values that are neither")


def test_the_frame_knows_how_many_messages_there_are() -> None:
    """Of a run in which every receiver is told something else there are more than nodes."""
    name = "hardened, a message for each"
    tensors, _ = pack(state_at(name, 12))
    frame = frame_of(name)
    assert isinstance(frame, StateShape)
    assert frame.columns == len(tensors["history.messages"]) > 16


def test_every_fault_in_the_docs_has_its_test() -> None:
    root = Path(__file__).parents[1]
    rows = [line for line in (root / "docs" / "scale.md").read_text().splitlines() if "::test_" in line]
    assert len(rows) >= 13
    for row in rows:
        for path, name in re.findall(r"`(tests/\w+\.py)::(test_\w+)`", row):
            assert f"def {name}(" in (root / path).read_text(), row
