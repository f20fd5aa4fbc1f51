"""Logs of a node: JSON lines of all events, and an audit log whose lines are chained by hashes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bymi.core.files import opened

LOG, AUDIT = "log.jsonl", "audit.jsonl"
OTHERS = frozenset(
    {"refused connection", "refused call", "refused message", "reused message", "missing message", "suspected", "readmitted"}
)
"""Events that others can cause at will."""

AUDITED = OTHERS | {"start", "end", "stopped", "verdict", "ban", "pardon", "behind", "checkpoint failed", "restored"}
"""Events that the audit log has as well."""

_LINES = 20  # per event of others, neighbour and reason, in a window of time
_WINDOW, _LONGEST = 10.0, 3600.0  # seconds of the first window; each one that was full doubles the next
_FIRST = "0" * 64
_TEXT = 300  # characters of a text in a line
_LINE = 1 << 16  # bytes of a line that is read


class Journal:
    """Writes events to both logs. It never raises: a full disk must not end a run, and is counted.

    Events that others can cause are limited in number, else they could fill the disk. The next line of the kind, and the last
    one of the run, say how many were left out.
    """

    def __init__(self, folder: Path, node: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.failures = 0
        self.counts: Counter[str] = Counter()
        self._log, self._audit, self._node = folder / LOG, folder / AUDIT, node
        self._lock = threading.Lock()
        self._lost: Counter[Path] = Counter()
        self._windows: dict[tuple[object, ...], _Window] = {}
        for path in (self._log, self._audit):
            _cut_unfinished_line(path)
        self._previous = _last_hash(self._audit)

    def tell(self, event: str, **fields: Any) -> None:
        """Write one event, with its fields that are not None."""
        fields = {key: value[:_TEXT] if isinstance(value, str) else value for key, value in fields.items() if value is not None}
        with self._lock:
            self.counts[event] += 1
            if event in OTHERS:
                window = self._windows.setdefault((event, fields.get("peer"), fields.get("reason")), _Window())
                if not window.admit(time.monotonic()):
                    return
                if window.left_out:
                    fields["left_out_before"], window.left_out = window.left_out, 0
            if event in ("end", "stopped"):
                fields["left_out"] = sum(window.left_out for window in self._windows.values())
            entry = {"time": round(time.time(), 3), "node": self._node, "event": event, **fields}
            self._append(self._log, json.dumps({**entry, **self._lost_before(self._log)}))
            if event in AUDITED:
                entry |= {**self._lost_before(self._audit), "previous": self._previous}
                digest = _digest(entry)
                if self._append(self._audit, json.dumps({**entry, "hash": digest})):
                    self._previous = digest

    def _lost_before(self, path: Path) -> dict[str, int]:
        """Number of lines since the last one that could not be written."""
        return {"lost_before": self._lost[path]} if self._lost[path] else {}

    def _append(self, path: Path, line: str) -> bool:
        """Write a line whole, or not at all; returns whether it was written."""
        content, written = line.encode() + b"\n", 0
        with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
            length = file.seek(0, os.SEEK_END)
            try:
                written = file.write(content)
            finally:
                if written != len(content):  # the disk is full
                    file.truncate(length)
        whole = written == len(content)
        self.failures += not whole
        self._lost[path] = 0 if whole else self._lost[path] + 1
        return whole


@dataclass(eq=False)
class _Window:
    """Lines of one kind that were written and left out lately."""

    start: float = -math.inf
    seconds: float = _WINDOW
    lines: int = 0
    left_out: int = 0

    def admit(self, now: float) -> bool:
        """Whether one more line is written."""
        if now - self.start > self.seconds:
            full = self.lines >= _LINES
            self.seconds = min(2 * self.seconds, _LONGEST) if full else _WINDOW
            self.start, self.lines = now, 0
        if self.lines >= _LINES:
            self.left_out += 1
            return False
        self.lines += 1
        return True


def _cut_unfinished_line(path: Path) -> None:
    """Remove what follows the last line end of a log: a line that a crash of the machine has cut short."""
    if path.exists():
        with path.open("rb+") as file:
            end = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, end - _LINE))
            file.truncate(start + file.read().rfind(b"\n") + 1)


def _last_hash(path: Path) -> str:
    """Hash in the last line of an audit log, which a new line continues; of none, zeros."""
    last = deque(_entries(path) if path.exists() else (), maxlen=1)
    entry = last[0][1] if last else None
    said = entry.get("hash") if isinstance(entry, dict) else None
    return said if isinstance(said, str) else _FIRST


def verify_audit(path: Path) -> tuple[int, int | None]:
    """Number of lines, and the first line (from 1) that does not continue the chain; None: the log is as it was written.

    A changed, missing or inserted line breaks the chain. Lines cut off at the end do not: note the last hash elsewhere.
    """
    previous, count = _FIRST, 0
    for count, entry in _entries(path):
        said = entry.pop("hash", None) if isinstance(entry, dict) else None
        if said is None or entry.get("previous") != previous or _digest(entry) != said:
            return count, count
        previous = said
    return count, None


def _digest(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


def _entries(path: Path) -> Iterator[tuple[int, Any]]:
    """Number and value of each line, None for one that is not JSON."""
    with opened(path, limit=None) as file:
        for number, line in enumerate(iter(lambda: file.readline(_LINE), b""), start=1):
            try:
                yield number, json.loads(line)
            except ValueError:
                yield number, None
