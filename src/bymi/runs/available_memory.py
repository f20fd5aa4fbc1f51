"""Memory that this process can allocate, from the kernel and from its control group."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def available() -> int | None:
    """Bytes of memory that this process can allocate; None where the system does not say.

    The kernel's MemAvailable, or the limit of the process's control group (a container, a job) if that is less.
    """
    known = [_memory_info(), *_group_limits()]
    return min((count for count in known if count is not None), default=None)


def _memory_info() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
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
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
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
                    limits.append(int(place.read_text(encoding="ascii")))
    return limits
