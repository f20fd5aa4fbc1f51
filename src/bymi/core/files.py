"""Reading of untrusted input files, and atomic writing of results."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from bymi.core.errors import InputError, StorageError

MEBIBYTE = 1 << 20


@contextmanager
def opened(path: Path, *, limit: int | None, links: bool = True) -> Iterator[BinaryIO]:
    """A regular file of at most `limit` bytes, open for reading.

    Anything else (missing, a FIFO, a device, a directory, too large, with `links` false a symbolic link) raises a one-line
    InputError. The file is opened without blocking, so that a FIFO without a writer does not hang.
    """
    flags = [getattr(os, name, 0) for name in ("O_NONBLOCK", "O_BINARY", "O_CLOEXEC", *(() if links else ("O_NOFOLLOW",)))]
    try:
        if not links and path.is_symlink():
            raise InputError(f"cannot read {path}: a symbolic link, which is not followed here")
        _require_regular(path, os.stat(path))
        descriptor = os.open(path, os.O_RDONLY | sum(flags))
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
        raise InputError(f"cannot read {path}: {getattr(problem, 'strerror', None) or problem}") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _require_regular(path, status)
        if limit is not None and status.st_size > limit:
            raise InputError(f"{path}: got {status.st_size} bytes, allowed: up to {limit}")
        yield file


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = "Is a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise InputError(f"cannot read {path}: {what}")


def read_bytes(path: Path, *, limit: int, links: bool = True) -> bytes:
    """All bytes of a regular file of at most `limit` bytes; a one-line InputError for anything else, see `opened`."""
    with opened(path, limit=limit, links=links) as file:
        try:
            content = file.read(limit + 1)
        except OSError as problem:
            raise InputError(f"cannot read {path}: {problem.strerror or problem}") from None
    if len(content) > limit:
        raise InputError(f"{path}: it grew beyond {limit} bytes while it was read")
    return content


def decode(content: bytes) -> str:
    """Text from UTF-8, with or without a byte order mark; a one-line ValueError for anything else, and for a NUL."""
    text = content.decode("utf-8-sig")
    if "\0" in text:
        raise ValueError(f"it has a NUL at character {text.index(chr(0))}")
    return text


def parse_json(content: bytes) -> Any:
    """Value of a JSON text; a one-line ValueError for anything else, deep nesting and integers of thousands of digits."""
    return _parse(json.loads, content)


def parse_toml(content: bytes) -> dict[str, Any]:
    """Value of a TOML text; a ValueError as for JSON."""
    value: dict[str, Any] = _parse(tomllib.loads, content)
    return value


def _parse(loads: Callable[[str], Any], content: bytes) -> Any:
    try:
        return loads(decode(content))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as problem:
        if type(problem) is ValueError and "digits" in str(problem):  # Python's own limit, whose message addresses programmers
            raise ValueError(f"it has an integer of more than {sys.get_int_max_str_digits()} digits") from None
        raise


def read_json(path: Path, *, limit: int, links: bool = True) -> Any:
    """Value of a JSON file of at most `limit` bytes; a one-line InputError for anything else."""
    content = read_bytes(path, limit=limit, links=links)
    try:
        return parse_json(content)
    except ValueError as problem:
        raise InputError(f"{path} is not valid JSON: {problem}") from None


def refuse_link(path: Path) -> None:
    """Raise an InputError if `path` is a symbolic link."""
    if path.is_symlink():
        raise InputError(f"{path}: got a symbolic link, which is not followed here; allowed: a folder, or nothing yet")


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A file that is written beside `path`, synced to disk, and renamed to it when the block ends without an exception.

    Otherwise nothing is left, and an existing file stays. A symbolic link at `path` is replaced, not followed; a device, a FIFO
    or a folder at `path`, or behind the link, is left alone. OSErrors propagate; `write_bytes` turns them into a StorageError.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "there is something that is not a regular file")
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; a one-line StorageError if that fails."""
    try:
        with writing(path) as file:
            file.write(content)
    except OSError as problem:
        raise StorageError(f"cannot write {path}: {problem.strerror or problem}") from None


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
