"""The study of all rules on the linear model: what it runs, and what its page says of the values it is given."""

from __future__ import annotations

from typing import Any

from bymi import RULES
from bymi.paper import page_rules_linear
from bymi.paper.find_study import find_study
from bymi.paper.study_rules_linear import CHAINS, RulesStudy


def test_every_rule_runs_alone_and_as_warm_up() -> None:
    study = find_study("rules-linear", seeds=1)
    assert isinstance(study, RulesStudy)
    found = {(rule, attack, role) for rule, attack, role, _ in study.trials}
    assert found == {(r, a, w) for r in (*RULES, *CHAINS) for a in ("ipm", "gaussian") for w in ("alone", "warm-up")}
    assert len({spec.digest for spec in study.specs}) == len(study.specs)
    roles = {role: {spec.methods[0] for *_, kind, spec in study.trials if kind == role} for role in ("alone", "warm-up")}
    assert roles == {"alone": {"rule"}, "warm-up": {"drsgd-bymi"}}
    assert {spec.profile for spec in study.specs} == {"hardened"}


def cell(role: str, gap: float | None, inside: int | None, outcome: str = "finished") -> dict[str, Any]:
    run = {"seed": 0, "outcome": outcome, "gap": gap, "core_byzantine": inside, "seconds": 60.0}
    return {"rule": "krum", "attack": "ipm", "role": role, "runs": [run]}


def test_the_page_counts_byzantine_nodes_in_the_core() -> None:
    clean = {"study": "s", "command": "c", "cells": [cell("alone", 0.25, None), cell("warm-up", 1e-5, 0)]}
    assert "Of 1 runs in which a rule is the warm-up, 0 end with a Byzantine node in the core." in page_rules_linear.page(clean)
    assert page_rules_linear.table(clean)[1] == [["krum", "2.5e-01", "1.0e-05", "0", "-", "-", "-"]]
    broken = {**clean, "cells": [cell("alone", None, None, "diverged"), cell("warm-up", 1.0, 2, "infiltrated")]}
    assert ", 1 end with a Byzantine node in the core." in page_rules_linear.page(broken)
    (row,) = page_rules_linear.table(broken)[1]
    assert "diverged" in row[1]
    assert row[3] == "2"
