"""Memory that stays with a process: what goes back to the system comes again as blank pages, and each costs a fault."""

from __future__ import annotations

import ctypes
import sys

# The numbers of glibc's own header, malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_LARGEST = (1 << 31) - 1


def keep_memory() -> None:
    """Have large blocks come from memory that is kept, for the whole process: only for one that is bymi's own.

    Vectors of a round are made and let go many times a second; above 32 MB glibc would ask the system for each of them.
    Where there is no glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        choose = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return
    choose(_MMAP_MAX, 0)
    choose(_TRIM_THRESHOLD, _LARGEST)
