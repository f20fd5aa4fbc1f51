"""Logs of a node: JSON lines of all events, and an audit log whose lines are chained by hashes."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bymi.core.errors import InputError
from bymi.core.files import opened

LOG, AUDIT = "log.jsonl", "audit.jsonl"
AUDITED = frozenset(
    {"start", "end", "stopped", "verdict", "refused call", "refused message", "reused message", "missing message"}
    | {"suspected", "readmitted", "ban", "pardon", "behind", "checkpoint", "checkpoint failed", "restored"}
)
"""Events that the audit log has as well."""

_WINDOW, _LINES = 10.0, 20  # seconds, and lines per event, neighbour and reason in these
_FIRST = "0" * 64
_TEXT = 300  # characters of a text in a line
_LINE = 1 << 16  # bytes of a line that is read


class Journal:
    """Writes events to both logs. It never raises: a full disk must not end a run, and is counted.

    A neighbour can cause events at will, so equal ones are limited in number; the next line says how many were left out.
    """

    def __init__(self, folder: Path, node: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.failures = 0
        self.counts: Counter[str] = Counter()
        self._log, self._audit, self._node = folder / LOG, folder / AUDIT, node
        self._lock = threading.Lock()
        self._window = time.monotonic()
        self._lines: Counter[tuple[object, ...]] = Counter()
        self._left_out: Counter[tuple[object, ...]] = Counter()
        self._previous = _last_hash(self._audit)

    def tell(self, event: str, **fields: Any) -> None:
        """Write one event, with its fields that are not None."""
        fields = {key: _short(value) for key, value in fields.items() if value is not None}
        key = (event, fields.get("peer"), fields.get("reason"))
        with self._lock:
            self.counts[event] += 1
            if time.monotonic() - self._window > _WINDOW:
                self._window, self._lines = time.monotonic(), Counter()
            self._lines[key] += 1
            if self._lines[key] > _LINES:
                self._left_out[key] += 1
                return
            if more := self._left_out.pop(key, 0):
                fields["left_out_before"] = more
            entry = {"time": round(time.time(), 3), "node": self._node, "event": event, **fields}
            self._append(self._log, json.dumps(entry))
            if event in AUDITED:
                text = json.dumps({**entry, "previous": self._previous}, sort_keys=True)
                digest = hashlib.sha256(text.encode()).hexdigest()
                if self._append(self._audit, json.dumps({**entry, "previous": self._previous, "hash": digest})):
                    self._previous = digest

    def _append(self, path: Path, line: str) -> bool:
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError:
            self.failures += 1
            return False
        return True


def _short(value: Any) -> Any:
    return value[:_TEXT] if isinstance(value, str) else value


def _last_hash(path: Path) -> str:
    """Hash in the last line of an audit log, which a new line continues; of none, zeros."""
    last = _FIRST
    if path.exists():
        for _, entry in _entries(path):
            last = entry.get("hash", _FIRST) if isinstance(entry, dict) else _FIRST
    return last if isinstance(last, str) else _FIRST


def verify_audit(path: Path) -> tuple[int, int | None]:
    """Number of lines, and the first line (from 1) that does not continue the chain; None: the log is as it was written.

    A changed, missing or inserted line breaks the chain. Lines cut off at the end do not: note the last hash elsewhere.
    """
    previous, count = _FIRST, 0
    for count, entry in _entries(path):
        if not isinstance(entry, dict) or entry.get("previous") != previous:
            return count, count
        said = entry.pop("hash", None)
        text = json.dumps(entry, sort_keys=True)
        if hashlib.sha256(text.encode()).hexdigest() != said:
            return count, count
        previous = said
    return count, None


def _entries(path: Path) -> Any:
    with opened(path, limit=None) as file:
        for number, line in enumerate(iter(lambda: file.readline(_LINE), b""), start=1):
            try:
                yield number, json.loads(line)
            except ValueError:
                yield number, None


def require_intact(path: Path) -> int:
    """Number of lines of an audit log; raises an InputError that names the first line that was changed."""
    count, broken = verify_audit(path)
    if broken is not None:
        raise InputError(f"{path}: line {broken} was changed, or one before it is missing")
    return count
