"""Reading input files and writing results so that neither a hostile file nor a crash does harm."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from bymi.errors import InputError

MEBIBYTE = 1 << 20


def read_bytes(path: Path, *, limit: int) -> bytes:
    """All bytes of a regular file of at most `limit` bytes.

    Anything else (missing, a FIFO, a device, a directory, too large) raises an InputError of one line. The file is opened
    without blocking, so that a FIFO without a writer does not hang.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
        raise InputError(f"cannot read {path}: {getattr(problem, 'strerror', None) or problem}") from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"cannot read {path}: not a regular file")
        if found.st_size > limit:
            raise InputError(f"{path}: got {found.st_size} bytes, allowed: up to {limit}")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{path}: it grew beyond {limit} bytes while it was read")
    return content


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: beside its place, synced to disk, then renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
