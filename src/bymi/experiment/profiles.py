"""Profiles: the keys that each name in `profile` sets. Keys that are given explicitly take precedence."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from bymi.training.plan import PROFILES

Profile = Literal["hardened", "paper"]


def under(values: dict[str, Any], profile: str) -> dict[str, Any]:
    """`values` with the profile's settings for keys that are not given."""
    filled = dict(values)
    for key, preset in PROFILES.get(profile, {}).items():
        given = filled.get(key, {})
        if isinstance(given, BaseModel):  # a section made in Python: the fields that were set
            given = filled[key] = given.model_dump(exclude_unset=True)
        if key not in filled or preset is None:
            filled.setdefault(key, preset)
        elif isinstance(given, dict):
            filled[key] = {**preset, **given}
    return filled


def over(values: dict[str, Any], profile: str) -> dict[str, Any]:
    """`values` with the profile's settings in place of what is given."""
    changed = {**values, "profile": profile}
    for key, preset in PROFILES.get(profile, {}).items():
        given = changed.get(key)
        given = given.model_dump(exclude_unset=True) if isinstance(given, BaseModel) else given
        # A section with settings of the profile keeps its other keys; one that the profile switches on or off is reset.
        changed[key] = {**given, **preset} if preset and isinstance(given, dict) else preset
    return changed


def published(values: dict[str, Any]) -> dict[str, Any]:
    """`values` of the whole method under profile "paper"; what is set beside that profile stays as it is."""
    whole = {**values, "method": "drsgd-bymi"}
    return whole if values.get("profile") == "paper" else over(whole, "paper")
