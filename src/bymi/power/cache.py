"""Cache of forecasts in the user's cache folder: one small JSON file per setting."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import bymi
from bymi.core.errors import InputError
from bymi.core.files import MEBIBYTE, read_json
from bymi.datasets import cache_folder
from bymi.power.forecast import Forecast, forecast
from bymi.power.setting import Setting


def recall(question: Setting) -> Forecast:
    """The forecast from the cache, or a new one, which is stored there. An unusable file is replaced."""
    place = _place(question)
    known = None if place is None else _read(place, question)
    if known is not None:
        return known
    fresh = forecast(question)
    if place is not None:
        _write(place, fresh)
    return fresh


def _place(question: Setting) -> Path | None:
    try:
        folder = cache_folder("plan")
    except InputError:  # no home folder: nothing is cached
        return None
    return folder / f"{_digest([asdict(question), torch.__version__, _code()])}.json"


def _code() -> str:
    """Digest of this package: other code may give another forecast."""
    digest = hashlib.blake2b(digest_size=12)
    for path in sorted(Path(bymi.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(place: Path, question: Setting) -> Forecast | None:
    try:
        stored = read_json(place, limit=MEBIBYTE)
        cached = Forecast.read(stored["outlook"]) if stored["digest"] == _digest(stored["outlook"]) else None
    except (InputError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return cached if cached is not None and cached.question == question else None


def _write(place: Path, outlook: Forecast) -> None:
    plain = outlook.plain()
    own = place.with_name(f"{place.name}.{secrets.token_hex(4)}.part")
    with suppress(OSError):  # a cache that cannot be written to is ignored
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            own.write_text(json.dumps({"outlook": plain, "digest": _digest(plain)}), encoding="utf-8")
            os.replace(own, place)
        finally:
            own.unlink(missing_ok=True)


def _digest(values: Any) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=12).hexdigest()
