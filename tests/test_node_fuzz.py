"""Mutated messages, requests, commitments, rosters and node files: one counted reason each, no crash, no hang."""

from __future__ import annotations

import json
import random
import tomllib
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from bymi.core.errors import InputError
from bymi.node.node_file import parse_node_file
from bymi.node.roster import parse_roster
from bymi.node.wire import NONCE, Refused, Tag, commitment, decode, encode, frame, open_commitment, read_frame
from tests.node_fixtures import write_nodes

RUN, TAG = "0" * 64, Tag("first half+second half", 3, 0)
EXPECTED = {"first half": (torch.float64, 7), "second half": (torch.float64, 7)}


def mutate(content: bytes, draws: random.Random) -> bytes:
    """A few bits, bytes or blocks changed, cut out, doubled or put in."""
    mutant = bytearray(content)
    for _ in range(draws.randint(1, 4)):
        place, length = draws.randrange(len(mutant) + 1), draws.choice([1, 1, 2, 8, 40])
        kind = draws.randrange(5)
        if kind == 0 and place < len(mutant):
            mutant[place] ^= 1 << draws.randrange(8)
        elif kind == 1:
            del mutant[place : place + length]
        elif kind == 2:
            mutant[place:place] = draws.randbytes(length)
        elif kind == 3:
            mutant[place:place] = mutant[place : place + length]
        else:
            mutant[place : place + length] = draws.choice([b"\xff", b"0", b"[", b"{", b'"', b"-", b"9", b"\0"]) * length
    return bytes(mutant)


def outcomes(content: bytes, count: int, seed: int, read: Callable[[bytes], object], refusal: type[Exception]) -> Counter[str]:
    """How often mutants were read, and each reason for which one was not. Anything else that is raised fails the test."""
    draws, found = random.Random(seed), Counter[str]()
    for _ in range(count):
        try:
            read(mutate(content, draws))
        except refusal as refused:
            text = str(refused)
            assert "\n" not in text
            assert len(text) < 1000
            found[text.partition(":")[0]] += 1
        else:
            found["read"] += 1
    return found


def test_ten_thousand_messages() -> None:
    body = encode({name: torch.arange(7, dtype=torch.float64) for name in EXPECTED})
    found = outcomes(body, 10_000, 1, lambda mutant: decode(mutant, EXPECTED), Refused)
    assert len(found) >= 5
    assert found["read"] < 5000  # bits of the vectors may change; nothing else may
    requests = outcomes(frame(RUN, TAG), 4000, 2, lambda mutant: read_frame(mutant), Refused)
    assert len(requests) >= 4


def test_a_thousand_commitments() -> None:
    """No mutant of an opening fits its commitment, and no mutant of a commitment fits its opening."""
    opening = bytes(NONCE) + encode({"first half": torch.ones(7, dtype=torch.float64)})
    committed = commitment(RUN, TAG, "a" * 64, opening)
    read = lambda mutant: open_commitment(mutant, committed, RUN, TAG, "a" * 64)  # noqa: E731
    draws = random.Random(3)
    for _ in range(1000):
        mutant, other = mutate(opening, draws), mutate(committed, draws)
        if mutant != opening:
            assert outcomes_of(read, mutant) in ("differs from its commitment", "cut short")
        if other != committed:
            said = outcomes_of(lambda given: open_commitment(opening, given, RUN, TAG, "a" * 64), other)
            assert said == "differs from its commitment"


def outcomes_of(read: Callable[[bytes], object], content: bytes) -> str:
    try:
        read(content)
    except Refused as refused:
        return refused.reason
    return "read"


def test_a_thousand_rosters_and_node_files(tmp_path: Path) -> None:
    (path, *_) = write_nodes(tmp_path, 3, "steps=30")
    original = (tmp_path / "roster.toml").read_bytes()
    run_id = parse_roster(original).run_id
    ids = []

    def read(mutant: bytes) -> None:
        ids.append((mutant, parse_roster(mutant).run_id))

    rosters = outcomes(original, 1000, 4, read, InputError)
    assert rosters["read"] < 500
    assert len(rosters) >= 8
    # A roster that is read in spite of a change, outside of comments and blanks, is another run.
    assert all((one == run_id) == (values_of(mutant) == values_of(original)) for mutant, one in ids)
    files = outcomes(path.read_bytes(), 1000, 5, parse_node_file, InputError)
    assert len(files) >= 4


def values_of(roster: bytes) -> str:
    values = tomllib.loads(roster.decode())
    for node in values["node"]:
        node.pop("fingerprint", None)
        node["certificate"] = b64decode(node["certificate"]).hex()  # the last character has bits that stand for nothing
    return json.dumps(values, sort_keys=True)
