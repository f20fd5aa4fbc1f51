"""Profiles: what the names in `profile` set. Any of these keys can be set otherwise beside it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

Profile = Literal["hardened", "paper"]

PROFILES: dict[str, dict[str, Any]] = {
    "paper": {
        "warm_up": {"cool_down": 0.4},
        "detection": {
            "point": "sender",
            "cross_fit": False,
            "probe": False,
            "sample": "identification",
            "pruning": "directed",
        },
        "panel": None,
        "watch": None,
    },
    "hardened": {
        "warm_up": {"cool_down": 0.0},
        "detection": {
            "point": "receiver",
            "cross_fit": True,
            "probe": True,
            "sample": "all",
            "pruning": "mutual",
            "every": None,
        },
        "panel": {},
        "watch": {},
    },
}
"""The published detection, bit for bit; and the one that expects to be attacked."""


def under(values: dict[str, Any], profile: str) -> dict[str, Any]:
    """`values` with the profile's settings where they say nothing."""
    filled = dict(values)
    for key, preset in PROFILES.get(profile, {}).items():
        given = filled.get(key, {})
        if isinstance(given, BaseModel):  # a section made in Python: what was set in it
            given = filled[key] = given.model_dump(exclude_unset=True)
        if key not in filled or preset is None:
            filled.setdefault(key, preset)
        elif isinstance(given, dict):
            filled[key] = {**preset, **given}
    return filled


def over(values: dict[str, Any], profile: str) -> dict[str, Any]:
    """`values` with the profile's settings in place of what they say."""
    changed = {**values, "profile": profile}
    for key, preset in PROFILES.get(profile, {}).items():
        given = changed.get(key)
        # A section with settings of the profile keeps its other keys; one that the profile switches on or off starts anew.
        changed[key] = {**given, **preset} if preset and isinstance(given, dict) else preset
    return changed
