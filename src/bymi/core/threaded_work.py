"""Work on several threads whose results do not depend on the number of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


def one_torch_thread() -> None:
    """Initialiser of a worker thread: torch computes with one thread in it."""
    torch.set_num_threads(1)
    torch.get_num_threads()  # torch sets a thread's number when it is first read


def in_threads(work: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """`work` of each item, on as many threads as torch uses, for functions of torch that use a single one."""
    threads = min(torch.get_num_threads(), len(items))
    if threads < 2:
        return [work(item) for item in items]
    before = torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=one_torch_thread) as pool:
        results = list(pool.map(work, items))
    torch.set_num_threads(before)  # a new worker thread changes the default for threads that are started later
    return results
