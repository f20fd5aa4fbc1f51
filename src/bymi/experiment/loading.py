"""From the command line to a Spec: a recipe or a file, then key=value overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bymi.core import files
from bymi.core.errors import InputError, did_you_mean, require
from bymi.core.named_parts import read_shorthand, read_value
from bymi.experiment.recipes import RECIPES
from bymi.experiment.spec import Spec, default_values, over, read_spec
from bymi.runs import run_folder as store
from bymi.runs.foreign_source_digests import refuse_imports

_SPEC_LIMIT = files.MEBIBYTE
_DEFAULT = "scenario-a"
_GIVEN_DATA = "bymi.runs.given_objects:OwnData"  # in the spec of a run of bymi.train


def load(source: str | None, overrides: Sequence[str] = (), seed: int | None = None, *, imports: bool = False) -> Spec:
    """The spec of a recipe name or a .toml/.json file (default: scenario-a), with `key=value` or `section.key=value` set.

    A part written as "module:Name" is imported, which runs the code of that module. The spec.json of a run folder is untrusted:
    it may name such parts only if `imports` are allowed.
    """
    require(source is None or isinstance(source, str), "source", source, "the name of a recipe or file, or None")
    words = isinstance(overrides, (list, tuple)) and all(isinstance(word, str) for word in overrides)
    require(words, "overrides", overrides, 'a list of strings such as "nodes=50"')
    values = with_settings(base_values(source, imports), [_read(override) for override in overrides])
    if seed is not None:
        values["seed"] = seed
    try:
        try:
            return read_spec(values)
        except InputError as problem:
            if not _has_list({**values, "method": None}):
                raise
            raise InputError(f"{problem}; for several values of a key: bymi sweep") from None
    except RecursionError:
        raise InputError(f"{source}: a value is nested too deeply, allowed: numbers, words, and tables of them") from None


def _has_list(value: Any) -> bool:
    """Whether nested values have a list in them, or a word that is meant as one, such as "[ipm, alie]"."""
    if isinstance(value, dict):
        return any(map(_has_list, value.values()))
    return isinstance(value, list) or (isinstance(value, str) and value.startswith("[") and value.endswith("]"))


def _read(override: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise InputError(f"{override!r}: expected key=value, such as nodes=50 or attack.share=0.2")
    key, text = key.strip(), text.strip()
    if key == "method" and text.startswith("[") and text.endswith("]"):  # the one key with a list: quotes may be left out
        return key, [word.strip(" \"'") for word in text[1:-1].split(",") if word.strip()]
    return key, read_value(text)


def base_values(source: str | None, imports: bool = False) -> dict[str, Any]:
    """The values of a recipe or a file, the latter over the defaults, not validated."""
    source = source or _DEFAULT
    if source == _DEFAULT:
        return default_values()
    if source in RECIPES:
        return RECIPES[source]().model_dump(mode="json")
    path = Path(source)
    if path.suffix not in (".toml", ".json"):
        hint = did_you_mean(source.lower(), RECIPES)
        raise InputError(f"{source!r}: neither a recipe ({', '.join(RECIPES)}) nor a .toml or .json file{hint}")
    content = files.read_bytes(path, limit=_SPEC_LIMIT)
    try:
        given: Any = (files.parse_toml if path.suffix == ".toml" else files.parse_json)(content)
    except ValueError as problem:
        raise InputError(f"{path} is not valid {path.suffix[1:].upper()}: {problem}") from None
    if not isinstance(given, dict):
        raise InputError(f"{path}: expected a table of keys, got {type(given).__name__}")
    base = default_values()
    data = given.get("data")
    if isinstance(data, dict) and data.get("name") == _GIVEN_DATA:
        raise InputError(f"{path}: got a run of bymi.train, allowed: the same call of bymi.train, with the same objects")
    if not imports and (path.parent / store.SUMS).exists():
        refuse_imports(given, str(path))
    profile = given.get("profile")
    return _merge(base if profile is None or isinstance(profile, list) else over(base, str(profile)), given)


def _merge(base: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """`given` over `base`, key by key within sections. Naming a part starts from that part's own defaults."""
    merged = dict(base)
    for key, value in given.items():
        old = merged.get(key)
        old = read_shorthand(old) if isinstance(old, str) and isinstance(value, dict) else old
        if isinstance(old, dict) and isinstance(value, dict) and "name" not in value:
            value = _merge(old, value)
        merged[key] = value
    return merged


def with_settings(values: Mapping[str, Any], given: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Nested values with dotted keys set: a profile first, since the other keys override it."""
    changed = dict(values)
    for key, value in given:
        if key == "profile":
            changed = over(changed, str(value))
    for key, value in given:
        if key != "profile":
            _set(changed, key, value)
    return changed


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested values, of which the outermost changes; `attack.name=ipm` is the same as `attack=ipm`."""
    path = key.split(".")
    if len(path) > 1 and path[-1] == "name":
        path = path[:-1]
    for step in path[:-1]:
        inner = {} if values.get(step) is None else values[step]  # switches on a section that was off
        inner = read_shorthand(inner) if isinstance(inner, str) else inner
        if not isinstance(inner, dict):
            raise InputError(f"{'.'.join(path)}: {step!r} is a single value, it has no keys inside")
        values[step] = inner = dict(inner)
        values = inner
    values[path[-1]] = value
