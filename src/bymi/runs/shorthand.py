"""Parts written as "name:key=value,key=value"."""

from __future__ import annotations

import tomllib
from typing import Any


def read_shorthand(text: str) -> dict[str, Any]:
    """From "ipm:a=2.0" to {"name": "ipm", "a": 2.0}."""
    name, _, rest = text.partition(":")
    part: dict[str, Any] = {"name": name.strip()}
    for piece in rest.split(",") if rest else []:
        key, _, value = piece.partition("=")
        part[key.strip()] = read_value(value.strip())
    return part


def read_value(text: str) -> Any:
    """A value as TOML writes it; anything that is not TOML, or too long a number for it, is a plain string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
