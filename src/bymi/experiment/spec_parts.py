"""Named parts of a spec (rule, attack, graph, ...) derived from the tables of the library.

A part is written as a name, as "name:key=value,key=value", or as a table with `name` and the part's own parameters. The
parameters, their types and defaults are those of the class in the table, so that a new class is configurable by being listed,
installed as an entry point, or named as "module:Name".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union, cast, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    SerializeAsAny,
    ValidationError,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema

from bymi.core.errors import InputError
from bymi.core.named_parts import Table, full_name, read_shorthand
from bymi.experiment.bounds import Bounded
from bymi.experiment.validation_errors import first_mistake


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

    def __init__(self, table: Table[Any], aliases: Mapping[str, str], *, unnamed: str | None = None) -> None:
        self.models = tuple(_model(name, entry) for name, entry in table.items())
        self._listed = set(table)
        self._table, self._aliases = table, aliases
        self._others: dict[Any, type[Part]] = {}  # classes that are not listed
        self._unnamed = unnamed  # the name that is meant by a table of parameters without one

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
            if not isinstance(name, str) or name in self._listed or name not in self._table:
                return known(given)
            entry: Any = self._table[name]
            return self._validate_other(self._others.setdefault(entry, _model(name, entry)), given)
        except InputError as problem:
            raise ValueError(str(problem)) from None

    @staticmethod
    def _validate_other(model: type[Part], given: Any) -> Part:
        """A part that is not listed; errors name the keys of its own class."""
        try:
            return model.model_validate(given)
        except ValidationError as problem:
            raise first_mistake(problem, model) from None

    def _read(self, value: Any) -> Any:
        # TOML reads the names `nan` and `inf` as numbers.
        given = read_shorthand(str(value)) if isinstance(value, (str, float)) else value
        if isinstance(given, dict) and self._unnamed is not None:
            given = {"name": self._unnamed, **given}
        if isinstance(given, dict) and isinstance(given.get("name"), str):
            given = {**given, "name": full_name(given["name"], self._aliases)}
        return given


def _model(name: str, entry: type[Any]) -> type[Part]:
    hints = get_type_hints(entry)
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for field in dataclasses.fields(entry):
        fields[field.name] = (hints[field.name], ... if field.default is dataclasses.MISSING else field.default)
    model = create_model(entry.__name__, __base__=Part, **fields)
    _CLASSES[model] = entry
    return model
