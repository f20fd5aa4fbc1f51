"""Settings of glibc's allocator: keep freed memory in the process, since each page returned costs a page fault later."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

# Constants of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_LARGEST = (1 << 31) - 1
_SPARE = 1 << 29  # bytes that may stay free in any case


def keep_memory() -> None:
    """Serve large allocations from the heap and never trim it, for the whole process: use only in processes that bymi owns.

    Vectors of a round are allocated and freed many times per second; above 32 MB glibc would mmap each of them. No effect
    without glibc.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, _LARGEST)


def let_go() -> None:
    """Call malloc_trim() if free heap exceeds used heap (fragmentation after long rounds)."""
    library = _glibc()
    if library is None:
        return
    info = library.mallinfo2()
    if info.idle > max(_SPARE, info.used):
        library.malloc_trim(0)


class _Figures(ctypes.Structure):
    """The struct of mallinfo2, in bytes; two of its ten numbers are used."""

    _fields_ = [(f"unused{at}", ctypes.c_size_t) for at in range(7)] + [
        ("used", ctypes.c_size_t),
        ("idle", ctypes.c_size_t),
        ("unused9", ctypes.c_size_t),
    ]


@cache
def _glibc() -> ctypes.CDLL | None:
    """glibc of this process, version 2.33 or later; None elsewhere."""
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
    """Bytes of memory that this process can allocate; None where the system does not say.

    The kernel's MemAvailable, or the limit of the process's control group (a container, a job) if that is less.
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
    try:  # total memory, where the kernel does not report what is available
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _group_limits() -> list[int | None]:
    """Limits of the control groups of this process, versions 1 and 2; "max" and unreadable files are skipped."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits: list[int | None] = []
    for line in groups:
        _, kinds, name = line.split(":", 2)
        if kinds in ("", "memory"):
            root, file = Path("/sys/fs/cgroup", kinds), "memory.max" if kinds == "" else "memory.limit_in_bytes"
            # In a container the name may be the host's, and the container's own group is the root.
            for place in (root / name.lstrip("/") / file, root / file):
                with suppress(OSError, ValueError):
                    limits.append(int(place.read_text()))
    return limits
