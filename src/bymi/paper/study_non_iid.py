"""Images whose distribution differs from node to node: partitions, attacks, and who defends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bymi.core.errors import require
from bymi.experiment.spec import Spec, read_spec
from bymi.paper.study_images import RULES, image_spec

PARTITIONS: dict[str, dict[str, Any]] = {
    "Dirichlet 100": {"partition": "dirichlet:dirichlet_alpha=100"},
    "Dirichlet 10": {"partition": "dirichlet:dirichlet_alpha=10"},
    "Dirichlet 1": {"partition": "dirichlet:dirichlet_alpha=1"},
    "Dirichlet 0.3": {"partition": "dirichlet:dirichlet_alpha=0.3"},
    "Dirichlet 0.1": {"partition": "dirichlet:dirichlet_alpha=0.1"},
    "Dirichlet 0.05": {"partition": "dirichlet:dirichlet_alpha=0.05"},
    "two label shards": {"partition": "label-shards:shards=2"},
    "rotated images": {"feature_shift": "rotated"},
    "inverted images": {"feature_shift": "inverted"},
    "unequal sizes": {"smallest": 0.1},
}
"""How the data of nodes differ."""

ATTACKS: dict[str, dict[str, Any]] = {
    "none": {"attack": "zero", "byzantine_ratio": 0.0},
    "IPM": {"attack": "ipm"},
    "sign flip": {"attack": "sign-flip"},
    "gradient": {"attack": "gradient"},
    "label flip": {"attack": "label-flip"},
}

COLUMNS: dict[str, tuple[str, str]] = {
    "hardened": ("hardened", "balance"),
    "BALANCE": ("alone", "balance"),
    "IOS": ("alone", "ios"),
    "NNM + Krum": ("alone", "nnm+krum:share=0.35"),
    "receiver": ("receiver", "balance"),
    "published": ("published", "balance"),
}
"""Who defends: a column of the image tables, and its rule. "receiver" and "published" detect once, without a panel."""

DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
MAIN = ("Dirichlet 1", "Dirichlet 0.3", "Dirichlet 0.1", "two label shards")
"""Partitions that are run on both data sets and with all seeds; the others on MNIST, with one."""

NON_IID = "non-iid"
NON_IID_STUDIES = {NON_IID: "Images that differ from node to node: partitions, attacks, detection and rules alone."}
_OTHERS = ("receiver", "published")  # columns of one seed: they flag almost everybody
_PARTIAL = ("none", "sign flip")  # attacks on the other partitions, and in these columns


@dataclass(frozen=True)
class Cell:
    """One run: its place in the tables, and its spec."""

    data: str
    partition: str
    attack: str
    column: str
    spec: Spec


@dataclass(frozen=True)
class NonIidStudy:
    """Tables to be. Its runs come in order of how much they are needed."""

    name: str
    cells: list[Cell] = field(repr=False)

    @property
    def folder(self) -> str:
        return "reproduce-non-iid"

    @property
    def specs(self) -> list[Spec]:
        return [cell.spec for cell in self.cells]


def build_non_iid(*, seeds: int = 5, only: Sequence[str] = (), fast: bool = False) -> NonIidStudy:
    """The study. `only` keeps some columns; `fast` keeps one cell of MNIST."""
    for column in only:
        require(column in COLUMNS, "--only", column, ", ".join(COLUMNS))
    main = [
        (data, partition, attack, column, seed)
        for seed in range(1 if fast else seeds)
        for attack in ATTACKS
        for partition in MAIN
        for data in DATA
        for column in COLUMNS
        if column not in _OTHERS
    ]
    others = [
        ("mnist", partition, attack, column, 0)
        for partition in PARTITIONS
        for attack in _PARTIAL
        for column in COLUMNS
        if partition not in MAIN or column in _OTHERS
    ]
    if fast:
        main, others = [row for row in main if row[:3] == ("mnist", "Dirichlet 0.1", "sign flip")], []
    # One seed of everything before further seeds.
    rows = [*(row for row in main if row[-1] == 0), *others, *(row for row in main if row[-1] > 0)]
    cells = [Cell(*row[:4], _spec(*row)) for row in rows if not only or row[3] in only]
    return NonIidStudy(NON_IID + ("-fast" if fast else ""), cells)


def _spec(data: str, partition: str, attack: str, column: str, seed: int) -> Spec:
    kind, rule = COLUMNS[column]
    known = rule if rule in RULES else "balance"
    values = image_spec(data, "ipm" if attack == "IPM" else "gradient", known, 0.2, kind, seed).model_dump(mode="json")
    if known != rule:
        values["warm_up"]["rule"] = rule
    shards = dict(PARTITIONS[partition])
    if "smallest" in shards:
        shards["identification"] = 20  # nodes with few samples have no 200 to set aside
    return read_spec({**values, "record_every": 500, **ATTACKS[attack], "data": {"name": data, **shards}})
