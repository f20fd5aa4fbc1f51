"""What can go wrong for a user, and the exit code that each outcome has on the command line."""

from __future__ import annotations

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
        raise InputError(f"{key}: got {got!r}, allowed: {allowed}")
