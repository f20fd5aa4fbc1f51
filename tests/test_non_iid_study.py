"""The study non-iid: which runs it has, and its page from values made up here."""

from __future__ import annotations

from typing import Any

from bymi.paper.page_non_iid import level, page, read_cells
from bymi.paper.study_non_iid import ATTACKS, COLUMNS, MAIN, PARTITIONS, build_non_iid


def run(seed: int, **values: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("fdp", "pa", "honest_edge_loss", "worst_edge_loss", "core_byzantine", "acc_farthest"))
    return {"seed": seed, "outcome": "finished", **empty, **values}


def test_one_seed_of_everything_comes_first() -> None:
    study = build_non_iid(seeds=2)
    seeds = [cell.spec.seed for cell in study.cells]
    assert seeds == sorted(seeds)
    assert len({spec.digest for spec in study.specs}) == len(study.specs)
    first = {(cell.data, cell.partition, cell.attack, cell.column) for cell in study.cells if cell.spec.seed == 0}
    assert {partition for _, partition, _, _ in first} == set(PARTITIONS)
    for data in ("mnist", "fashion-mnist"):
        wanted = {(data, p, a, c) for p in MAIN for a in ATTACKS for c in ("hardened", "BALANCE", "IOS")}
        assert wanted <= first
    assert {column for *_, column in first} == set(COLUMNS)
    by_attack = {cell.attack: cell.spec for cell in study.cells}
    assert by_attack["none"].byzantine_ratio == 0
    assert by_attack["label flip"].attack.name == "label-flip"


def test_level_is_against_the_best_rule_on_common_seeds() -> None:
    ours = [run(0, acc_normal=0.90), run(1, acc_normal=0.80)]
    worse, better = [run(0, acc_normal=0.85)], [run(0, acc_normal=0.901), run(2, acc_normal=0.99)]
    assert level(ours, [worse, better]) == "yes"
    assert level(ours, [worse, [run(0, acc_normal=0.91)]]) == "no, -1.0 points"
    assert level(ours, [[], []]) == "-"


def test_the_page_has_what_its_json_says() -> None:
    hardened = run(0, acc_normal=0.9, pa=1.0, fdp=0.02, honest_edge_loss=0.031, worst_edge_loss=0.05, core_byzantine=0)
    cells = [
        {"data": "mnist", "partition": "Dirichlet 0.1", "attack": "sign flip", "column": column, "runs": [values]}
        for column, values in {
            "hardened": hardened,
            "BALANCE": run(0, acc_normal=0.7),
            "published": run(0, acc_normal=0.1, honest_edge_loss=1.0, outcome="diverged"),
        }.items()
    ]
    values = {"study": "non-iid-fast", "command": "bymi reproduce non-iid", "cells": cells}
    text = page(values)
    assert len(read_cells(values)) == 3
    assert (
        "| Dirichlet 0.1 | sign flip | 1 | 100.0 | 2.0 | 3.1 | 5.0 | 0.0 | 90.0 | 70.0 | - | - | - | - | - | - | yes |" in text
    )
    assert "| mnist | Dirichlet 0.1 | sign flip | published | - | - | 100.0 | 10.0 (1 diverged) |" in text
    assert "Fashion" not in text
    assert "at some detection: none.\n\nNo runs of: MNIST, Dirichlet 0.1, sign flip (IOS, NNM + Krum).\n" in text
    hardened["worst_edge_loss"] = 0.051
    cells[0]["attack"] = "none"
    text = page(values)
    assert "at some detection: MNIST, Dirichlet 0.1, none, seed 0 (5.1 %, at the last detection 3.1 %).\n" in text
    assert "| Dirichlet 0.1 | none | 1 | - | 2.0 |" in text, "no P_a where nobody is Byzantine"
