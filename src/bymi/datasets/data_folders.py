"""Where the files of a data set are looked for before anything is downloaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bymi.core.errors import InputError
from bymi.datasets.images import ImageFiles

VARIABLE = "BYMI_DATA"

# In the order of ImageFiles. Each may end in .gz, and may be spelt with a dot (train-images.idx3-ubyte).
FILE_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

# Folders that system packages fill: Debian's dataset-fashion-mnist.
SYSTEM_FOLDERS = {"fashion-mnist": Path("/usr/share/datasets/fashion-mnist")}

_NAMES = ("mnist", "fashion-mnist")


def find_files(name: str, folder: str | Path | None = None) -> ImageFiles | None:
    """The files of a data set on this machine, or None if they have to be downloaded into `cache_folder(name)`.

    Looked for in this order: `folder`, the variable BYMI_DATA, the user's cache, system packages. The first two are explicit:
    if given without the files in them, that is an InputError.
    """
    variable = os.environ.get(VARIABLE)
    if folder is not None:
        return _find_in_given(name, folder, "data")
    if variable:
        return _find_in_given(name, variable, VARIABLE)
    places = [cache_folder(name)]
    if name in SYSTEM_FOLDERS:
        places.append(SYSTEM_FOLDERS[name])
    return next((files for files in map(_files_in, places) if files is not None), None)


def cache_folder(name: str) -> Path:
    """The folder of a data set in the operating system's user cache; it need not exist."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):  # by the XDG standard a relative path is ignored
        return Path(chosen) / "bymi" / name
    try:
        home = Path.home()
    except RuntimeError as problem:
        raise InputError(
            f"data: found no home folder to keep {name} in; set XDG_CACHE_HOME, or {VARIABLE} to a folder"
        ) from problem
    if sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        caches = home / "Library" / "Caches"
    else:
        caches = home / ".cache"
    return caches / "bymi" / name


def _find_in_given(name: str, folder: str | Path, key: str) -> ImageFiles:
    place = Path(os.path.expanduser(folder))
    files = _files_in(place / name)
    # A folder named after another data set is not used for this one: all of them have the same file names.
    if files is None and place.name not in set(_NAMES) - {name}:
        files = _files_in(place)
    if files is None:
        raise InputError(
            f"{key}: got {str(place)!r}, {_what_lacks(place, name)}; allowed: a folder with {', '.join(FILE_NAMES)} "
            f"(each plain or .gz) in it or in {name}/"
        )
    return files


def _what_lacks(place: Path, name: str) -> str:
    if not os.path.isdir(place):
        return "which is no folder"
    looked_in = place / name if os.path.isdir(place / name) else place
    missing = [stem for stem in FILE_NAMES if _spelling_in(looked_in, stem) is None]
    if not missing:
        return f"which by its name holds {place.name}"
    where = f" in {name}/" if looked_in != place else ""
    return f"which has no {', no '.join(missing)}{where}"


def _files_in(folder: Path) -> ImageFiles | None:
    """The four files, or None if one is missing."""
    paths = [_spelling_in(folder, stem) for stem in FILE_NAMES]
    present = [path for path in paths if path is not None]
    return ImageFiles(*present) if len(present) == len(FILE_NAMES) else None


def _spelling_in(folder: Path, stem: str) -> Path | None:
    dotted = stem.replace("-idx", ".idx")
    spellings = (folder / f"{name}{ending}" for name in (stem, dotted) for ending in ("", ".gz"))
    return next((path for path in spellings if os.path.isfile(path)), None)
