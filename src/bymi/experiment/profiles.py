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
"""The published method: its detection and the form of each update as printed; and the one that expects to be attacked.

What the paper does not print, and the optimisation needs to converge, is ours in both: the cap on local steps, the floor under
the tracker, the falling step size, and a tracker that starts at its limit. `bymi reproduce published-step` has runs without.
"""


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
        given = given.model_dump(exclude_unset=True) if isinstance(given, BaseModel) else given
        # A section with settings of the profile keeps its other keys; one that the profile switches on or off starts anew.
        changed[key] = {**given, **preset} if preset and isinstance(given, dict) else preset
    return changed


def published(values: dict[str, Any]) -> dict[str, Any]:
    """`values` of the whole method under profile "paper"; what is set beside that profile stays as it is."""
    whole = {**values, "method": "drsgd-bymi"}
    return whole if values.get("profile") == "paper" else over(whole, "paper")
