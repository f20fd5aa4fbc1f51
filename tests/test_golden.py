"""Golden runs: tiny runs of every kind give the numbers that are stored; `make golden` stores others and says which."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

from tests.golden import checkpoints, stored
from tests.golden.forms import rounds
from tests.golden.record import Record, Tape, join, play, relative_difference
from tests.golden.specs import spec_digests
from tests.golden.streams import draw_others, first_draws, listening
from tests.golden.table import CHECKPOINTS, ON_RANKS, RUNS
from tests.test_same_numbers import launch

SOURCE = Path(__file__).parents[1] / "src" / "bymi"
SIZES = (1, 2, 4)
ENVIRONMENT, STORED = stored.read_runs()
OPENED: set[str] = set()


@cache
def played(name: str) -> Record:
    with listening(OPENED):
        return join([play(RUNS[name])])


def check(name: str, found: Record) -> None:
    """Equal digests or, on another kind of machine, equal values to rounding."""
    what = stored.difference(STORED[name], found)
    if what is None:
        return
    moved = stored.elsewhere(ENVIRONMENT)
    assert moved is not None, f"{name} differs: {what}"
    assert stored.alike(STORED[name], found), f"{name} differs by more than rounding: {what} ({moved})"


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_numbers_that_are_stored(name: str) -> None:
    assert name in STORED, "a new run: make golden"
    check(name, played(name))


def test_no_run_is_stored_that_is_not_run() -> None:
    assert STORED.keys() == RUNS.keys()


@pytest.fixture(scope="module")
def seen_by_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Tape]]]:
    """What each rank of 1, 2 and 4 saw of the runs."""
    out = tmp_path_factory.mktemp("golden")
    done = launch([{"size": size, "golden": ON_RANKS, "out": str(out)} for size in SIZES])
    assert not any(json.loads(line).get("code", 0) for line in done.stdout.splitlines()), done.stderr[-3000:]
    found: dict[int, list[dict[str, Tape]]] = {}
    for size in SIZES:
        files = [json.loads((out / f"golden-{size}-{rank}.json").read_text()) for rank in range(size)]
        found[size] = [{name: Tape(**tape) for name, tape in file.items()} for file in files]
    return found


@pytest.mark.parametrize("name", ON_RANKS)
def test_ranks_give_the_numbers_of_shards_in_one_process(name: str, seen_by_ranks: dict[int, list[dict[str, Tape]]]) -> None:
    records = []
    for size in SIZES:
        tapes = [seen[name] for seen in seen_by_ranks[size]]
        assert sorted(int(shard) for tape in tapes for shard in tape.digests) == [0, 1, 2, 3]
        records.append(join(tapes))
    assert records[0] == records[1] == records[2]
    check(name, records[0])


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_stored_checkpoint_is_taken_up(name: str, tmp_path: Path) -> None:
    resumed = checkpoints.resume(name, tmp_path)
    assert len(resumed.rounds) < len(STORED[name].rounds)
    if stored.elsewhere(ENVIRONMENT) is None:
        assert checkpoints.fits(resumed, STORED[name])
    else:
        assert relative_difference(STORED[name].values, resumed.values) <= stored.TOLERANCE


def test_specs_with_a_name_are_those_that_are_stored() -> None:
    """A recipe or a study that changes makes other runs under its name: `make golden`, and a line in the changelog."""
    digests = spec_digests()
    assert digests == {kind: stored.read_names()[kind] for kind in digests}


def test_names_of_random_streams_stay() -> None:
    for name in RUNS:
        played(name)
    with listening(OPENED):
        draw_others()
    assert first_draws(OPENED) == stored.read_names()["random streams"]


def test_every_stream_of_the_library_is_on_that_list() -> None:
    """Names are strings or start with one; what opens a stream by another kind of name has to be looked at.

    A study that draws arrays of its own is no run: its committed values pin them.
    """
    known = stored.read_names()["random streams"]
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "paper":
            continue
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "stream":
                purpose = call.args[1]
                parts = purpose.values if isinstance(purpose, ast.JoinedStr) else [purpose]
                pattern = "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts)
                if path.name == "base.py" and isinstance(purpose, ast.Name):
                    continue  # a rule's own draws; golden runs of every listed rule open them
                assert pattern != ".+", f"{path.name}: {ast.unparse(call)}"
                assert any(re.fullmatch(pattern, name) for name in known), f"{path.name}: {ast.unparse(call)}"


# That the runs are worth something


def test_every_kind_of_inbox_occurs() -> None:
    """By matrices, by lists, a message for each arc, and rows that stay away in both forms."""
    kinds = set()
    for name in ("paper | ipm | slices", *ON_RANKS, *CHECKPOINTS):
        (first, *_) = next(iter(rounds(RUNS[name].words, RUNS[name].form)))
        inbox = first.snapshot.inbox
        kinds.add((type(inbox).__name__, type(getattr(inbox, "lists", None)).__name__))
    assert kinds >= {("DenseInbox", "NoneType"), ("ListInbox", "NeighbourLists"), ("ListInbox", "PerArcLists")}
    assert {name for name, _ in kinds} == {"DenseInbox", "ListInbox", "ShardedDenseInbox", "ShardedListInbox"}


def test_most_runs_differ_and_many_flag_somebody() -> None:
    """Silence, NaN and wrong shapes are one and the same to a receiver, and little else is."""
    assert len({record.digest for record in STORED.values()}) > 0.95 * len(STORED)
    detecting = [record for record in STORED.values() if record.flags]
    assert sum(any(record.flags) for record in detecting) > 0.5 * len(detecting)


def test_another_machine_may_round_otherwise_and_no_more() -> None:
    name = "paper | ipm | dense"
    record = STORED[name]
    first, *others = record.values["0"]

    def changed(by: float) -> Record:
        values = {**record.values, "0": [(float.fromhex(first) * (1 + by)).hex(), *others]}
        return Record("other", ["other", *record.rounds[1:]], record.flags, values)

    assert stored.difference(record, record) is None
    assert "first in round 1 of 6, values by" in (stored.difference(record, changed(1e-13)) or "")
    assert stored.alike(record, changed(1e-13))
    assert not stored.alike(record, changed(1e-10))
    assert not stored.alike(record, changed(float("nan")))
    assert not stored.alike(record, Record("other", record.rounds, [count + 1 for count in record.flags], record.values))
    assert stored.elsewhere(stored.environment()) is None
    assert stored.elsewhere({**stored.environment(), "torch": "1.0"}) is not None
