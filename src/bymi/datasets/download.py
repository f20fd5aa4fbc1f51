"""Downloads from public mirrors: resumable, verified by SHA-256, and never incomplete under a file's final name."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bymi.core.errors import InputError, StorageError

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes received so far and the bytes in total."""

_BLOCK = 1 << 16
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


@dataclass(frozen=True)
class RemoteFile:
    """A file as its publisher made it: recompressing it changes the checksum, though not the contents."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """The files of a data set, and base addresses (ending in /) that serve them under their names, tried in order."""

    name: str
    mirrors: tuple[str, ...]
    files: tuple[RemoteFile, ...]


SOURCES: dict[str, Source] = {
    "mnist": Source(
        "mnist",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        (
            RemoteFile(
                "train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
            ),
            RemoteFile("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            RemoteFile(
                "t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
            ),
            RemoteFile("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
    ),
    "fashion-mnist": Source(
        "fashion-mnist",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        (
            RemoteFile(
                "train-images-idx3-ubyte.gz", 26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
            ),
            RemoteFile("train-labels-idx1-ubyte.gz", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            RemoteFile(
                "t10k-images-idx3-ubyte.gz", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
            ),
            RemoteFile("t10k-labels-idx1-ubyte.gz", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
    ),
}


class _FailureError(Exception):
    """A mirror did not deliver a file; the text says why."""


def download(source: Source, folder: str | Path, progress: Progress | None = None, *, timeout: float = 20.0) -> None:
    """Download the files of a source into a folder; complete ones are not fetched again.

    A file gets its name once its checksum is right; until then it is NAME.part, from which a later call resumes. Several
    processes may do this at once. `timeout` is the longest wait in seconds for a mirror's response. Raises InputError, in one
    line, when no mirror delivers a file.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in source.files:
            if not _is_whole(folder / file.name, file):
                _download_file(source, file, folder, progress, timeout)
    except OSError as problem:
        wrong = isinstance(problem, (FileExistsError, NotADirectoryError))  # else it is the disk
        said = f"{folder}: expected a folder to download {source.name} into, found: {_in_words(problem)}"
        raise (InputError if wrong else StorageError)(said) from problem


def _download_file(source: Source, file: RemoteFile, folder: Path, progress: Progress | None, timeout: float) -> None:
    part = folder / f"{file.name}.part"
    # A unique name: of several processes one takes over the part, and the others start again.
    own = folder / f"{file.name}.{secrets.token_hex(4)}.part"
    with suppress(FileNotFoundError):
        os.replace(part, own)
    try:
        reasons = [
            f"{urllib.parse.urlsplit(mirror).netloc}: {failure}"
            for mirror, failure in _tries(source, file, own, progress, timeout)
        ]
        if _is_whole(own, file):
            os.replace(own, folder / file.name)
    finally:
        with suppress(FileNotFoundError):
            os.replace(own, part)
    if not _is_whole(folder / file.name, file):
        names = ", ".join(each.name for each in source.files)
        raise InputError(
            f"{source.name}: could not download {file.name} ({'; '.join(reasons)}); "
            f"put {names} in a folder and pass --data DIR or set BYMI_DATA"
        )


def _tries(
    source: Source, file: RemoteFile, part: Path, progress: Progress | None, timeout: float
) -> Iterator[tuple[str, str]]:
    """Try the mirrors in turn until the part is complete; yields those that failed, and why."""
    for mirror in source.mirrors:
        resumed = True
        while resumed:  # once more from the start if a resumed file is wrong: the old bytes may be the bad ones
            try:
                resumed = _fetch(mirror + file.name, file, part, progress, timeout)
                if _is_whole(part, file):
                    return
                part.unlink()
                failure = "wrong checksum"
            except _FailureError as problem:
                resumed, failure = False, str(problem)
            except (OSError, http.client.HTTPException) as problem:
                if getattr(problem, "errno", None) in _NO_ROOM:  # another mirror would not help
                    raise
                resumed, failure = False, _in_words(problem)
        yield mirror, failure


def _fetch(url: str, file: RemoteFile, part: Path, progress: Progress | None, timeout: float) -> bool:
    """Complete the part, from where it ends or from the start; returns whether it contains older bytes."""
    done = part.stat().st_size if part.is_file() else 0
    if done >= file.size:
        return True
    headers = {"User-Agent": "bymi"} | ({"Range": f"bytes={done}-"} if done else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
        if response.status == http.client.PARTIAL_CONTENT:
            answered = response.headers.get("Content-Range", "")
            if not answered.startswith(f"bytes {done}-"):
                part.unlink(missing_ok=True)
                raise _FailureError(f"asked for bytes from {done}, got {answered[:40]!r}")
        else:
            done = 0  # the server does not support ranges and sends the whole file
        start = done
        announced = response.headers.get("Content-Length")
        if announced is not None and announced != str(file.size - done):
            raise _FailureError(f"expected {file.size - done} bytes, got {announced[:20]!r}")
        with part.open("ab" if start else "wb") as out:
            while block := response.read(min(_BLOCK, file.size - done)) if done < file.size else b"":
                out.write(block)
                done += len(block)
                if progress is not None:
                    progress(file.name, done, file.size)
        if done < file.size:
            raise _FailureError(f"broke off after {done} of {file.size} bytes")
        if response.read(1):
            part.unlink(missing_ok=True)
            raise _FailureError(f"expected {file.size} bytes, got more")
    return start > 0


def _is_whole(path: Path, file: RemoteFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256


def _in_words(problem: OSError | http.client.HTTPException) -> str:
    if isinstance(problem, urllib.error.HTTPError):
        return f"HTTP {problem.code}"
    inner = problem.reason if isinstance(problem, urllib.error.URLError) else problem
    words = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(inner)
    return " ".join(words.split()) or type(inner).__name__
