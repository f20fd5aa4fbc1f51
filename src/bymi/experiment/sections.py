"""Sections of a spec derived from the dataclasses that they configure, which define types, defaults and bounds."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from bymi.experiment.bounds import Bounded


class Section(Bounded, BaseModel):
    """Strict and frozen: an unknown key or a wrong type is an error, never ignored. Numbers without a bound get one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A field that was derived."""


Made = TypeVar("Made", bound=Section)


def _off(value: Any) -> Any:
    return None if value == "off" else value


Off = BeforeValidator(_off)
"""TOML has no null: "off" switches a part or a test off."""


def derived(kind: type[Any], *, without: Collection[str] = ()) -> Callable[[type[Made]], type[Made]]:
    """Class decorator that adds to a section the fields of a dataclass that it lacks, except those in `without`."""

    def add(section: type[Made]) -> type[Made]:
        hints = get_type_hints(kind)
        missing = [field for field in dataclasses.fields(kind) if field.name not in {*without, *section.model_fields}]
        fields: dict[str, Any] = {
            field.name: (_key(hints[field.name], dict(field.metadata)), _default(field)) for field in missing
        }
        model = create_model(section.__name__, __base__=section, __module__=section.__module__, **fields)
        model.__doc__ = section.__doc__
        return model

    return add


def _default(field: dataclasses.Field[Any]) -> Any:
    return ... if field.default is dataclasses.MISSING else field.default


def _key(hint: Any, bounds: dict[str, Any]) -> Any:
    """The annotation of a key: bounds on the numbers in it, and "off" where None is allowed."""
    if get_origin(hint) not in (Union, types.UnionType):
        return Annotated[hint, Field(**bounds)] if bounds and hint in (int, float) else hint
    options = [_key(option, bounds) for option in get_args(hint) if option is not types.NoneType]
    if types.NoneType not in get_args(hint):
        return Union[tuple(options)]  # noqa: UP007 - built at run time
    return Annotated[Union[(*options, None)], Off]
