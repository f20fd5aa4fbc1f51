"""What can go wrong for a user, and the exit code that each outcome has on the command line."""

from __future__ import annotations

import errno
import math
import numbers
import re

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
    130: "interrupted: complete run folders are kept and skipped next time, others go on from their checkpoint",
}

FLAGGED = 7
"""The exit code of `bymi detect --fail-if-flagged` where a machine is flagged."""

_LONGEST = 120  # characters of a value in a message


class BymiError(Exception):
    """Base of all errors that bymi raises on purpose. Its message is one line for a person."""

    exit_code = 1
    said = False  # by another process of the same run: once is enough


class InputError(BymiError):
    """The caller asked for something impossible: a wrong key, value, file or shape."""

    exit_code = 2


class RankLostError(BymiError):
    """Another process of the run died, hangs or has stopped: this one cannot go on."""

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
    """Raise an InputError that names the key, what was got and what is allowed, unless the condition holds."""
    if not holds:
        raise InputError(f"{key}: got {shown(got)}, allowed: {allowed}")


def is_number(value: object) -> bool:
    """Whether a value is a finite real number of Python or numpy; True and False are none."""
    real = is_integer(value) or (isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational))
    try:
        return real and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer beyond all floats
        return False


def is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or numpy; True and False are none."""
    return type(value) is int or (isinstance(value, numbers.Integral) and not isinstance(value, bool))


def shown(value: object) -> str:
    """A value on one line, for a message: classes and arrays by what they are, anything else by its repr, cut if long."""
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


def error_of(code: int, message: str) -> BymiError:
    """The error of an exit code, as another process has told of it."""
    kinds = {kind.exit_code: kind for kind in (InputError, RankLostError, StorageError, OutOfMemoryError)}
    return kinds.get(code, BymiError)(message)


_NO_MEMORY = re.compile("allocate memory|out of memory|bad_alloc|size calculation overflowed")
"""What torch says where Python has MemoryError."""


def system_refusal(problem: BaseException, what: str = "") -> BymiError | None:
    """The error of one line for what the system refused, storage or memory; None for anything else.

    `what`: the run that it ends.
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
