"""Default bounds for all numbers of a spec, so that no key lacks one."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema

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
