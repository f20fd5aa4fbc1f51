"""Downloads from public mirrors: verified by SHA-256, and never incomplete under a file's name."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bymi.core.errors import InputError, StorageError
from bymi.core.files import write_bytes
from bymi.datasets.data_folders import FILE_NAMES

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes received so far and the bytes in total."""

_BLOCK = 1 << 16


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


def _source(name: str, mirrors: tuple[str, ...], *files: tuple[int, str]) -> Source:
    """A set with the file names of MNIST, given the size and the checksum of each."""
    names = [f"{stem}.gz" for stem in FILE_NAMES]
    return Source(name, mirrors, tuple(RemoteFile(file, *rest) for file, rest in zip(names, files, strict=True)))


SOURCES: dict[str, Source] = {
    "mnist": _source(
        "mnist",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    "fashion-mnist": _source(
        "fashion-mnist",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
}


def download(source: Source, folder: str | Path, progress: Progress | None = None, *, timeout: float = 20.0) -> None:
    """Download the files of a source into a folder; complete ones are not fetched again.

    Several processes may do this at once. `timeout` is the longest wait in seconds for a mirror's response. Raises InputError,
    in one line, when no mirror delivers a file.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        wrong = isinstance(problem, (FileExistsError, NotADirectoryError))  # else it is the disk
        said = f"{folder}: expected a folder to download {source.name} into, found: {_reason(problem)}"
        raise (InputError if wrong else StorageError)(said) from problem
    for file in source.files:
        if not _is_complete(folder / file.name, file):
            write_bytes(folder / file.name, _from_first_mirror(source, file, progress, timeout))


def _is_complete(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size and _sha256(path.read_bytes()) == file.sha256


def _from_first_mirror(source: Source, file: RemoteFile, progress: Progress | None, timeout: float) -> bytes:
    """Content of a file from the first mirror that delivers it."""
    failures = []
    for mirror in source.mirrors:
        try:
            return _fetch(mirror + file.name, file, progress, timeout)
        except (OSError, http.client.HTTPException, ValueError) as problem:
            failures.append(f"{urllib.parse.urlsplit(mirror).netloc}: {_reason(problem)}")
    names = ", ".join(each.name for each in source.files)
    raise InputError(
        f"{source.name}: could not download {file.name} ({'; '.join(failures)}); "
        f"put {names} in a folder and pass --data DIR or set BYMI_DATA"
    )


def _fetch(url: str, file: RemoteFile, progress: Progress | None, timeout: float) -> bytes:
    """Content of a file; ValueError if it is not the one expected."""
    request = urllib.request.Request(url, headers={"User-Agent": "bymi"})
    content = bytearray()
    with urllib.request.urlopen(request, timeout=timeout) as response:
        while block := response.read(min(_BLOCK, file.size + 1 - len(content))):
            content += block
            if len(content) > file.size:
                raise ValueError(f"expected {file.size} bytes, got more")
            if progress is not None:
                progress(file.name, len(content), file.size)
    if len(content) < file.size:
        raise ValueError(f"broke off after {len(content)} of {file.size} bytes")
    if _sha256(content) != file.sha256:
        raise ValueError("wrong checksum")
    return bytes(content)


def _sha256(content: bytes | bytearray) -> str:
    return hashlib.sha256(content).hexdigest()


def _reason(problem: Exception) -> str:
    """An exception on one line, without the type where it says something itself."""
    if isinstance(problem, urllib.error.HTTPError):
        return f"HTTP {problem.code}"
    inner = problem.reason if isinstance(problem, urllib.error.URLError) else problem
    words = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(inner)
    return " ".join(words.split()) or type(inner).__name__
