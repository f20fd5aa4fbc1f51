"""Errors that a user can see, the exit code of each, and helpers that check arguments."""

from __future__ import annotations

import difflib
import errno
import math
import numbers
import re
from collections.abc import Iterable, Mapping

EXIT_CODES: dict[int, str] = {
    0: "done; after `bymi run`: every run finished",
    1: "a defect in bymi itself: please report it with the traceback",
    2: "bad input: the one line on stderr names the key or file, what was got and what is allowed",
    3: "a run diverged: lower the step sizes, or look at metrics.jsonl for the round it began",
    4: "a run was fragmented: pruning left no component that holds half of the nodes",
    5: "a run isolated a node: it flagged all of its neighbours and trained alone",
    6: "a rank was lost: the line on stderr names it and the round; start the same command again",
    7: "`bymi detect --fail-if-flagged`: at least one machine was flagged",
    8: "a run was infiltrated: it ended with Byzantine nodes in its core",
    9: "storage: a full disk, or a folder that vanished or cannot be written; what is complete is kept",
    10: "memory: the run needs more than there is; the line on stderr says how much",
    11: "`bymi doctor` found something to mend: its lines say what to do",
    130: "interrupted: complete run folders are kept and skipped next time, others go on from their checkpoint",
}

FLAGGED = 7
"""Exit code of `bymi detect --fail-if-flagged` if a machine is flagged."""

UNHEALTHY = 11
"""Exit code of `bymi doctor` if a check fails."""

_LONGEST = 120  # characters of a value in a message
_LIKE = 0.5  # likeness, 0 to 1, from which a known name is suggested


class BymiError(Exception):
    """Base of all errors that bymi raises on purpose. The message is one line for the user."""

    exit_code = 1
    said = False  # already printed by another process of the same run


class InputError(BymiError):
    """The caller passed an impossible key, value, file or shape."""

    exit_code = 2


class RankLostError(BymiError):
    """Another process of the run died, hangs or has stopped, so this one cannot continue."""

    exit_code = 6


class StorageError(BymiError):
    """Results cannot be written: the disk is full, or the folder has vanished or is read-only."""

    exit_code = 9


class OutOfMemoryError(BymiError):
    """A run needs more memory than the machine has."""

    exit_code = 10


class GraphError(InputError):
    """A graph that cannot be used: wrong shape, self-loops where none belong, or never connected."""


def require(holds: bool, key: str, got: object, allowed: str) -> None:
    """Raise an InputError with the key, the value and what is allowed, unless `holds`."""
    if not holds:
        raise InputError(f"{key}: got {shown(got)}, allowed: {allowed}")


def did_you_mean(word: str, known: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """The end of a message, "; did you mean 'ipm'?", with the known name most like a word; empty if none is like it.

    Of names that are equally like it, the one with the longest common beginning. An alias stands for the name it has there.
    """
    aliases = aliases or {}

    def likeness(name: str) -> tuple[float, int, str]:
        same = [one == other for one, other in zip(name, word, strict=False)]
        return difflib.SequenceMatcher(None, name, word).ratio(), [*same, False].index(False), name

    ratio, _, name = max(map(likeness, [*known, *aliases]), default=(0.0, 0, ""))
    return f"; did you mean {aliases.get(name, name)!r}?" if ratio >= _LIKE else ""


def is_number(value: object) -> bool:
    """Whether a value is a finite real number of Python or numpy; booleans are not."""
    real = is_integer(value) or (isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational))
    try:
        return real and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer beyond all floats
        return False


def is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or numpy; booleans are not."""
    return type(value) is int or (isinstance(value, numbers.Integral) and not isinstance(value, bool))


def shown(value: object) -> str:
    """A value on one line, for a message: classes by name, arrays by shape, anything else by its repr, truncated."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if shape := getattr(value, "shape", None):
        return f"{type(value).__name__} of shape {list(shape)}"
    try:
        text = repr(value)
    except Exception:  # a number of thousands of digits, say
        return f"a {type(value).__name__} that cannot be shown"
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def first_line(problem: BaseException) -> str:
    """The first line of an exception's message, or its type if there is none."""
    return next(iter(str(problem).splitlines()), type(problem).__name__)


def error_of(code: int, message: str) -> BymiError:
    """The error for an exit code reported by another process."""
    kinds = {kind.exit_code: kind for kind in (InputError, RankLostError, StorageError, OutOfMemoryError)}
    return kinds.get(code, BymiError)(message)


_NO_MEMORY = re.compile("allocate memory|out of memory|bad_alloc|size calculation overflowed")
"""Messages of torch's RuntimeErrors that mean MemoryError."""


def system_refusal(problem: BaseException, what: str = "") -> BymiError | None:
    """A one-line StorageError or OutOfMemoryError for a refusal of the system; None for any other exception.

    `what`: name of the run that it ends, the prefix of the message.
    """
    before = f"{what}: " if what else ""
    first = next(iter(str(problem).splitlines()), "")
    starved = isinstance(problem, MemoryError) or getattr(problem, "errno", None) == errno.ENOMEM
    if starved or (isinstance(problem, RuntimeError) and _NO_MEMORY.search(first)):
        return OutOfMemoryError(f"{before}not enough memory ({first or 'MemoryError'}); try fewer nodes, samples or --jobs")
    if isinstance(problem, OSError) and not isinstance(problem, (ConnectionError, TimeoutError)):
        where = f" ({problem.filename})" if problem.filename else ""
        return StorageError(f"{before}{problem.strerror or problem}{where}; what is complete is kept")
    return None
