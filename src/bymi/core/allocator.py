"""Memory that stays with a process: what goes back to the system comes again as blank pages, and each costs a fault."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

# The numbers of glibc's own header, malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_LARGEST = (1 << 31) - 1
_SPARE = 1 << 29  # bytes that may lie idle, however little is in use


def keep_memory() -> None:
    """Have large blocks come from memory that is kept, for the whole process: only for one that is bymi's own.

    Vectors of a round are made and let go many times a second; above 32 MB glibc would ask the system for each of them.
    Where there is no glibc nothing happens.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, _LARGEST)


def let_go() -> None:
    """Give back what lies idle, if that is more than what is in use: pieces of odd sizes between which nothing large fits."""
    library = _glibc()
    if library is None:
        return
    found = library.mallinfo2()
    if found.idle > max(_SPARE, found.used):
        library.malloc_trim(0)


class _Figures(ctypes.Structure):
    """What mallinfo2 tells, in bytes; of its ten numbers two matter."""

    _fields_ = [(f"unused{at}", ctypes.c_size_t) for at in range(7)] + [
        ("used", ctypes.c_size_t),
        ("idle", ctypes.c_size_t),
        ("unused9", ctypes.c_size_t),
    ]


@cache
def _glibc() -> ctypes.CDLL | None:
    """glibc of this process, from 2.33 on; None elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = _Figures
        library.mallopt, library.malloc_trim  # noqa: B018
    except (AttributeError, OSError):  # another C library
        return None
    return library


def available() -> int | None:
    """Bytes of memory that this process can get without others losing theirs; None where the system does not say.

    What the kernel calls available, or the limit of this process's control group (a container, a job) if that is less.
    """
    known = [_memory_info(), *_group_limits()]
    return min((count for count in known if count is not None), default=None)


def _memory_info() -> int | None:
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, LookupError):
        pass
    try:  # all there is, where the kernel does not tell what is free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _group_limits() -> list[int | None]:
    """Limits of the control groups that this process is in, of both versions; "max" and what cannot be read are none."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[int | None] = []
    for line in groups:
        _, kinds, name = line.split(":", 2)
        if kinds in ("", "memory"):
            root, file = Path("/sys/fs/cgroup", kinds), "memory.max" if kinds == "" else "memory.limit_in_bytes"
            # In a container the name may be that of the machine outside, and its own group is the root.
            for place in (root / name.lstrip("/") / file, root / file):
                with suppress(OSError, ValueError):
                    found.append(int(place.read_text()))
    return found
