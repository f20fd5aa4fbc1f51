"""Sections and named parts of a spec, derived from the dataclasses and tables of the library.

Types, defaults and bounds are those of the dataclass that a section configures. A part (rule, attack, graph, ...) is written as
a name, as "name:key=value,key=value", or as a table with `name` and the part's own parameters, which are those of the class in
the table: a new class is configurable by being listed, installed as an entry point, or named as "module:Name".
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    SerializeAsAny,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema

from bymi.core.errors import InputError, shown
from bymi.core.named_parts import Table, full_name, read_shorthand, require_capital
from bymi.experiment.validation_errors import validated
from bymi.runs.resolved_spec import LARGEST_INTEGER, LARGEST_NUMBER


class Bounded:
    """A base of models in which integers and floats without bounds of their own get default ones, upper and lower."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _bound(schema)
        return schema


def _bound(part: Any) -> None:
    """Walk through a schema and set missing bounds, in place."""
    if isinstance(part, dict):
        limit = {"int": LARGEST_INTEGER, "float": LARGEST_NUMBER}.get(str(part.get("type")))
        if limit is not None:
            if not part.keys() & {"le", "lt"}:
                part["le"] = limit
            if not part.keys() & {"ge", "gt"}:
                part["ge"] = -limit
        part = list(part.values())
    for inner in part if isinstance(part, (list, tuple)) else ():
        _bound(inner)


class Section(Bounded, BaseModel):
    """Strict and frozen: an unknown key or a wrong type is an error, never ignored. Numbers without a bound get one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A field that was derived."""


Made = TypeVar("Made", bound=Section)


Off = BeforeValidator(lambda value: None if value == "off" else value)
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


def _key(hint: Any, bounds: dict[str, Any]) -> Any:
    """The annotation of a key: bounds on the numbers in it, and "off" where None is allowed."""
    if get_origin(hint) not in (Union, types.UnionType):
        return Annotated[hint, Field(**bounds)] if bounds and hint in (int, float) else hint
    options = [_key(option, bounds) for option in get_args(hint) if option is not types.NoneType]
    if types.NoneType not in get_args(hint):
        return Union[tuple(options)]  # noqa: UP007 - built at run time
    return Annotated[Union[(*options, None)], Off]


class Part(Bounded, BaseModel):
    """One entry of a table with its parameters, and the object built from them, once, to validate them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    name: str
    _built: Any = PrivateAttr(None)

    def build(self) -> Any:
        return self._built

    @model_validator(mode="after")
    def _build(self) -> Part:
        try:
            self._built = _CLASSES[type(self)](**self.model_dump(exclude={"name"}))
        except InputError as problem:
            raise ValueError(str(problem)) from None
        return self


_CLASSES: dict[type[Part], Any] = {}


class PartOf:
    """Annotation of a field of type Part: one of a table, with its parameters. `Annotated[Part, PartOf(RULES, ALIASES)]`."""

    def __init__(
        self, table: Table[Any], aliases: Mapping[str, str], *, unnamed: str | None = None, wrappers: Collection[str] = ()
    ) -> None:
        self.models = tuple(_model(name, entry) for name, entry in table.items())
        self._listed = set(table)
        self._table, self._aliases = table, aliases
        self._others: dict[Any, type[Part]] = {}  # classes that are not listed
        self._unnamed = unnamed  # the name that is meant by a table of parameters without one
        self._wrappers = tuple(wrappers)  # names that need a part of the table after them: "nnm+krum"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        plainly: Any = cast(Any, SerializeAsAny)()
        tagged: Any = Annotated[Union[self.models], Field(discriminator="name")]  # noqa: UP007 - built at run time
        return handler.generate_schema(Annotated[tagged, plainly, WrapValidator(self._validate)])

    def _validate(self, value: Any, known: Callable[[Any], Any]) -> Any:
        if isinstance(value, Part):
            return value
        given = self._read(value)
        name = given.get("name") if isinstance(given, dict) else None
        try:
            if name in self._wrappers:
                allowed = f"{name}+RULE or {name}+module:Name, with the parameters of all parts at the end: nnm+krum:f=5"
                raise InputError(f"got {shown(value)}, allowed: {allowed}")
            require_capital(value.get("name") if isinstance(value, dict) else value, {**self._table, **self._aliases})
            if not isinstance(name, str) or name in self._listed or name not in self._table:
                return known(given)
            entry: Any = self._table[name]
            return validated(self._others.setdefault(entry, _model(name, entry)), given)  # errors name the keys of its class
        except InputError as problem:
            raise ValueError(str(problem)) from None

    def _read(self, value: Any) -> Any:
        # TOML reads the names `nan` and `inf` as numbers.
        given = read_shorthand(str(value)) if isinstance(value, (str, float)) else value
        if isinstance(given, dict) and self._unnamed is not None:
            given = {"name": self._unnamed, **given}
        if isinstance(given, dict) and isinstance(given.get("name"), str):
            given = {**given, "name": full_name(given["name"], self._aliases)}
        return given


def _default(field: dataclasses.Field[Any]) -> Any:
    return ... if field.default is dataclasses.MISSING else field.default


def _model(name: str, entry: type[Any]) -> type[Part]:
    hints = get_type_hints(entry)
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for field in dataclasses.fields(entry):
        fields[field.name] = (hints[field.name], _default(field))
    model = create_model(entry.__name__, __base__=Part, **fields)
    _CLASSES[model] = entry
    return model
