"""Catalogue for `bymi list`: every named part with its parameters and the first line of its docstring, and exit codes."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bymi import aggregation, attacks, datasets, detection
from bymi.core import topology
from bymi.core.errors import EXIT_CODES, InputError
from bymi.core.mixing_weights import WEIGHTS, figures_of
from bymi.core.named_parts import Table
from bymi.experiment.derived_spec_sections import Part
from bymi.experiment.recipes import RECIPES
from bymi.experiment.spec import Spec
from bymi.runs import tasks
from bymi.training import decentralised_optimisers, plan

Row = tuple[str, str, str]


def catalogue() -> dict[str, list[Row]]:
    """Heading -> rows of (name, parameters or default, description)."""
    return {
        "key": _keys(Spec()),
        "recipe": [
            (name, f"warm_up.rule={_written(make().warm_up.rule)}", _first_line(make)) for name, make in RECIPES.items()
        ],
        "graph": _rows(topology.TOPOLOGIES),
        "weights": [(name, "", said) for name, said in WEIGHTS.items()],
        "warm_up.rule": _rows(aggregation.RULES),
        "wrapper": [(f"{name}+RULE", _parameters(entry), _first_line(entry)) for name, entry in aggregation.WRAPPERS.items()],
        "attack": _rows(attacks.ATTACKS),
        "data": _rows(tasks.TASKS),
        "data.partition": _rows(datasets.PARTITIONS),
        "detection.centre": _rows(detection.CENTRES),
        "detection.scale": _rows(detection.SCALES),
        "optimisation.method": _rows(decentralised_optimisers.OPTIMISERS),
        "detection.threshold": _rows(detection.THRESHOLDS),
        "exit code": [(str(code), "", meaning) for code, meaning in EXIT_CODES.items()],
    }


def rule_note() -> str:
    """Which parameters rules have that a spec leaves out, or names without parameters."""
    default, bare = _written(Spec().warm_up.rule), aggregation.BALANCE()
    return (
        f"Without warm_up.rule it is {default}; a name alone means the parameters above, so balance is gamma={bare.gamma}. "
        "`bymi list recipes` has the rule of each recipe."
    )


def topology_rows(nodes: int) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: degrees, spectral gap of Metropolis weights and diameter of every topology with `nodes` nodes."""
    rows = []
    for name, entry in topology.TOPOLOGIES.items():
        if name == "file":
            continue
        try:
            found = figures_of(entry().draw(nodes))
        except InputError as problem:
            rows.append([name, "-", "-", "-", str(problem)])
            continue
        low, high = found.least_degree, found.largest_degree
        degree = str(low) if low == high else f"{low} to {high}, mean {found.mean_degree:.1f}"
        numbers = ["-" if found.spectral_gap is None else f"{found.spectral_gap:.2g}", str(found.diameter or "-")]
        rows.append([name, degree, *numbers, _first_line(entry)])
    return [f"graph of {nodes} nodes", "degree", "spectral gap", "diameter", "what it is"], rows


def _keys(section: BaseModel, before: str = "") -> list[Row]:
    """Every key of a section with its default and description, the first with that of the section; parts have own tables."""
    rows: list[Row] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        inner = next((one for one in get_args(field.annotation) if isinstance(one, type) and issubclass(one, BaseModel)), None)
        if value is None and inner is not None:
            rows.append((f"{before}{name}", '"off"', _first_line(inner)))
            rows += [
                (f"{before}{name}.{key}", _default(one), _said(f"{name}.{key}")) for key, one in inner.model_fields.items()
            ]
        elif isinstance(value, BaseModel) and not isinstance(value, Part):
            rows += _keys(value, f"{before}{name}.")
        else:
            shown = _written(value) if isinstance(value, Part) else json.dumps(value)
            rows.append((f"{before}{name}", shown, _said(f"{before}{name}") if rows else _first_line(type(section))))
    return rows


_DOCUMENTED = {
    **{"panel.": detection.Panel, "watch.": detection.Watch, "detection.": detection.Detector, "warm_up.": plan.WarmUp},
    **{"optimisation.": plan.Optimisation, "stop.": plan.Stop, "byzantine_": attacks.Adversary, "": Spec},
}
"""Beginnings of keys, and the classes whose docstrings describe the keys: "`low`, `high`: what they are; what else"."""


def _said(key: str) -> str:
    """What a docstring says of a key, up to the first full stop or semicolon; empty if nothing."""
    before = next(before for before in _DOCUMENTED if key.startswith(before))
    text = " ".join((_DOCUMENTED[before].__doc__ or "").split())
    said = re.finditer(r"((?:`\w+`, )*`\w+`): (.*?)(?:[;.] |[;.]?$)", text)
    return next((found[2] for found in said if f"`{key.removeprefix(before)}`" in found[1]), "")


def _written(part: Part) -> str:
    """A part as a spec names it, with the parameters that are not its defaults: "balance:gamma=1.0"."""
    fields = type(part).model_fields
    changed = [f"{key}={value}" for key, value in part.model_dump(exclude={"name"}).items() if value != fields[key].default]
    return f"{part.name}:{','.join(changed)}" if changed else part.name


def _default(field: FieldInfo) -> str:
    return "must be set" if field.is_required() else json.dumps(field.default)


def _rows(table: Table[Any]) -> list[Row]:
    listed = [(name, _parameters(entry), _first_line(entry)) for name, entry in table.items()]
    return listed + [(name, "", "from an installed package") for name in table.installed() if name not in set(table)]


def _parameters(entry: type[Any]) -> str:
    fields = dataclasses.fields(entry)
    return ", ".join(f.name if f.default is dataclasses.MISSING else f"{f.name}={f.default}" for f in fields)


def _first_line(entry: Any) -> str:
    return (entry.__doc__ or "").strip().splitlines()[0]
