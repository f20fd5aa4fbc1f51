"""Memory that lies idle goes back to the system, and that in use does not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from bymi import Inbox
from bymi.distributed import keep_freed_memory as memory

PROGRAM = """
import json, torch
from bymi.distributed.keep_freed_memory import keep_memory, let_go

def held():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))

keep_memory()
kept = [torch.ones(1 << 24) for _ in range(4)]  # 64 MB each
lost = [(torch.ones(1 << 24), torch.ones(8)) for _ in range(GONE)]
pins = [small for _, small in lost]  # nothing at the top of the heap is free
full = held()
del lost
before = held()
let_go()
print(json.dumps([full, before, held(), all(bool((part == 1).all()) for part in kept + pins)]))
"""


def seen(gone: int) -> tuple[int, int, int]:
    """Megabytes with all, with some let go, and after a look at what lies idle."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("GONE", str(gone))], capture_output=True, text=True, check=True
    )
    full, before, after, unchanged = json.loads(done.stdout)
    assert unchanged
    return full, before, after


@pytest.mark.skipif(memory._glibc() is None, reason="needs glibc 2.33")
def test_what_lies_idle_is_given_back_if_it_is_more_than_what_is_in_use() -> None:
    full, before, after = seen(gone=12)
    assert before > full - 100, "it stays with the process"
    assert after < full - 600


@pytest.mark.skipif(memory._glibc() is None, reason="needs glibc 2.33")
def test_a_little_stays() -> None:
    full, _, after = seen(gone=3)
    assert after > full - 100


def test_with_another_c_library_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    memory.keep_memory()
    memory.let_go()


def test_an_inbox_without_vectors_knows_who_sits_where() -> None:
    own, everybody = torch.ones(3, 5), torch.ones(3, 3, dtype=torch.bool)
    weight = torch.full((3, 3), 0.25)
    inbox = Inbox.receive(own, [own[0], None, own[2]], expected=everybody, weight=weight, self_weight=weight[0])
    bare = inbox.metadata_only()
    assert torch.equal(bare.unheard, inbox.unheard)
    assert bare.unheard.any()
    assert torch.equal(bare.weight, inbox.weight)
    assert (bare.own.shape, bare.messages.shape) == ((3, 0), (3, 0))
    assert bare.messages.untyped_storage().nbytes() == 0
