"""Settings of glibc's allocator: keep freed memory in the process, since each page returned costs a page fault later."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

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
