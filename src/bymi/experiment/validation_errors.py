"""From a validation error to one line: the key, what was got, what is allowed, the nearest known key."""

from __future__ import annotations

import re
import types
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from bymi.core.errors import InputError, did_you_mean

Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], values: Any) -> Model:
    """A model from plain values; raises InputError, in one line that names the key."""
    try:
        return model.model_validate(values)
    except ValidationError as problem:
        raise first_mistake(problem, model) from None


def first_mistake(problem: ValidationError, model: type[BaseModel]) -> InputError:
    """The first error in a spec of type `model`, and how many more there are."""
    # Unknown keys first: a missing key is often the same one, misspelt.
    errors = sorted(problem.errors(include_url=False), key=lambda error: error["type"] != "extra_forbidden")
    first = errors[0]
    path, owner = _walk(first["loc"], model)
    key = ".".join(path) or "spec"
    got = _short(first.get("input"))
    kind, context = first["type"], first.get("ctx", {})
    if kind == "extra_forbidden":
        known = sorted(owner.model_fields) if owner else []
        line = f"{key}: unknown key (got {got}){_suggestion(path, known, model)}; allowed: {', '.join(known)}"
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        allowed = context.get("expected_tags", "a name, or a table with `name`").replace("'", "")
        name = str(context.get("tag", got))
        line = f"{key}: got {name!r}{did_you_mean(name, allowed.split(', '))}; allowed: {allowed}"
    elif kind == "value_error":
        line = str(context.get("error", first["msg"]))
        if not line.startswith(key) and key != "spec":
            line = f"{key}: {line}" if line.startswith("got ") else f"{key}.{line}"
    elif kind == "missing":
        line = f"{key}: missing, and it has no default"
    elif kind == "model_type" and (section := _section(owner, path)) is not None:
        off = "off, or " if owner is not None and types.NoneType in _open(owner.model_fields[path[-1]].annotation) else ""
        keys = ", ".join(sorted(section.model_fields))
        line = f"{key}: got {got}, allowed: {off}a table with {keys}{_part_of(section, key, first.get('input'))}"
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        line = f"{key}: got {got}, allowed: a name or a table of keys"
    else:
        together = [error["msg"] for error in errors if _walk(error["loc"], model)[0] == path]
        allowed = " or ".join(dict.fromkeys(message.removeprefix("Input should be ") for message in together))
        allowed = allowed.replace(" or a valid list", ", or a list of these")
        allowed = re.sub("10{20,}", lambda digits: f"1e{len(digits[0]) - 1}", allowed)
        line = f"{key}: got {got}, allowed: {allowed}"
    others = len({tuple(_walk(error["loc"], model)[0]) for error in errors}) - 1
    return InputError(line + (f" (and {others} more mistakes)" if others else ""))


def _section(owner: type[BaseModel] | None, path: list[str]) -> type[BaseModel] | None:
    """The section at a path that ends in a key of `owner`; None if there is something else, such as a named part."""
    field = owner.model_fields.get(path[-1]) if owner is not None and path else None
    sections = [one for one in _models(_open(field.annotation)) if "name" not in one.model_fields] if field is not None else []
    return sections[0] if sections else None


def _part_of(section: type[BaseModel], key: str, given: object) -> str:
    """The end of a message, "; did you mean optimisation.method=frost?", if a key of a section takes a part of that name."""
    name = given.partition(":")[0] if isinstance(given, str) else None
    for inner, field in section.model_fields.items():
        if name is not None and name in map(_tag, _models(_options(field))):
            return f"; did you mean {key}.{inner}={given}?"
    return ""


def _walk(location: tuple[int | str, ...], model: type[BaseModel]) -> tuple[list[str], type[BaseModel] | None]:
    """The keys as a user writes them, without the tags of unions, and the section that they end in."""
    path: list[str] = []
    owner: type[BaseModel] | None = model
    options: list[Any] = [model]
    for step in location:
        sections = _models(options)
        tagged = [section for section in sections if path and _tag(section) == step]
        if tagged:
            options, owner = tagged, tagged[0]
            continue
        if path and isinstance(step, str) and not sections:
            break  # the name of a type inside a union, not a key
        path.append(str(step))
        owner = sections[0] if sections else None
        field = owner.model_fields.get(str(step)) if owner else None
        options = _options(field) if field else []
    return path, owner


def _tag(section: type[BaseModel]) -> str | None:
    field = section.model_fields.get("name")
    return field.default if field is not None else None


def _options(field: FieldInfo) -> list[Any]:
    """The types that a field may have: the entries of its table, or its annotation with unions expanded."""
    for mark in field.metadata:
        if (models := getattr(mark, "models", None)) is not None:  # a PartOf, which imports this module
            return list(models)
    return [option for option in _open(field.annotation) if get_origin(option) is not Literal]


def _models(options: list[Any]) -> list[type[BaseModel]]:
    return [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]


def _open(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [option for part in get_args(annotation) for option in _open(part)]
    return [annotation]


SYNONYMS = {
    "alpha": "fdr_level",
    "level": "fdr_level",
    "fdr": "fdr_level",
    "lr": "step_size",
    "learning_rate": "step_size",
    "batch_size": "batch",
    "rounds": "steps",
    "iterations": "steps",
    "epochs": "steps",
    "workers": "nodes",
    "clients": "nodes",
    "topology": "graph",
    "dataset": "data",
    "aggregator": "rule",
    "aggregation": "rule",
    "ratio": "byzantine_ratio",
    "byzantine": "byzantine_ratio",
}
"""Other names of keys, as users of other libraries write them."""


def _suggestion(path: list[str], known: list[str], model: type[BaseModel]) -> str:
    """The key that was probably meant: by another name, in another section, or spelt alike."""
    word = path[-1]
    meant = SYNONYMS.get(word, word)
    if meant in known and meant != word:
        return f"; did you mean {meant!r}?"
    elsewhere = [key for key in _all_keys(model) if key.rpartition(".")[2] == meant and key != ".".join(path)]
    if elsewhere:
        return f"; did you mean {' or '.join(map(repr, elsewhere[:3]))}?"
    return did_you_mean(word, known)


def _all_keys(model: type[BaseModel], before: str = "") -> list[str]:
    """Dotted keys of all sections."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append(f"{before}{name}")
        for option in _open(field.annotation):
            if isinstance(option, type) and issubclass(option, BaseModel) and not before:
                keys += _all_keys(option, f"{name}.")
    return keys


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
