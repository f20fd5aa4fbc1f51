"""What `bymi run` says below its table, and how bad endings of several runs are counted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import bymi as package
from bymi.experiment import load
from bymi.report.tables import COLUMNS, endings, remarks, terminal_table
from tests.commands import FINISHES, bymi


def summary(**changes: Any) -> dict[str, Any]:
    whole = {"method": "BALANCE-hardened-ByMI", "outcome": "finished", "sentence": "all rounds done"}
    rates = {"fdp": 0.05, "pa": 1.0, "honest_edge_loss": 0.05, "core_size": 119, "core_byzantine": 0, "gap": 1e-5}
    none = {"unheard": {"messages": 0, "senders": []}, "capped": 0.0, "floored": 0.0, "acc_scc": None, "seconds": 21.4}
    return {**whole, **rates, **none, **changes}


def test_a_good_run_needs_no_words() -> None:
    assert remarks(summary()) == []
    assert remarks(summary(honest_edge_loss=None)) == []
    assert remarks(summary(honest_edge_loss=0.2)) == []


def test_honest_edges_lost_are_said_loudly_above_a_fifth() -> None:
    (line,) = remarks(summary(honest_edge_loss=0.213))
    assert line.startswith("WARNING: BALANCE-hardened-ByMI: 21.3% of the edges between honest nodes were cut, more than 20%")


def test_a_bad_ending_comes_first() -> None:
    lines = remarks(summary(outcome="infiltrated", sentence="3 of the 122 nodes in the core are Byzantine", capped=0.04))
    assert lines[0] == "BALANCE-hardened-ByMI: infiltrated, 3 of the 122 nodes in the core are Byzantine"
    assert len(lines) == 2


def test_a_run_that_ended_farther_off_than_it_began_says_so(tmp_path: Path) -> None:
    words = ("nodes=12", "steps=40", "data.dim=4", "data.samples=40", "method=[dsgd,drsgd-bymi]", "attack=ipm:a=20")
    answer = bymi("run", *words, "--jobs", 1, "--out", tmp_path / "runs")
    assert "DSGD: all rounds done, but it ended farther from the optimum than it began: gap" in answer.words
    assert answer.words.count("farther from the optimum") == 1


def test_accuracy_of_the_core_says_over_whom_it_is_taken() -> None:
    (line,) = remarks(summary(acc_scc=0.098, gap=None, core_size=150, core_byzantine=30, outcome="finished"))
    assert line.endswith("Acc (scc) is of the mean model of the 150 nodes in the core, 30 of them Byzantine")


def test_every_bad_ending_is_counted_the_worst_first() -> None:
    runs = [
        summary(outcome=outcome) for outcome in ("fragmented", "diverged", "finished", "diverged", "fragmented", "diverged")
    ]
    assert endings(runs) == "3 diverged, 2 fragmented"
    assert endings([summary()]) == ""
    assert endings([summary(core_byzantine=2), summary(outcome="infiltrated")]) == "2 infiltrated", "older files say finished"
    assert endings([summary(outcome="isolated", core_byzantine=2)]) == "1 isolated"


def test_the_table_fits_a_terminal_with_the_longest_ending() -> None:
    out = io.StringIO()
    Console(width=80, file=out).print(terminal_table([summary(outcome="infiltrated"), summary(fdp=1.0)], title="t"))
    text = out.getvalue()
    assert "…" not in text
    assert "infiltrated" in text
    assert {key for _, key in COLUMNS} >= {"core_byzantine", "outcome"}


ABOVE = "optimisation.step_size 0.3 is above optimisation.max_local_step 0.08"


def test_a_step_size_above_its_cap_is_remarked_on_the_command_line(tmp_path: Path) -> None:
    words = (*FINISHES, "method=drsgd-bymi", "--jobs", 1, "--out", tmp_path / "runs")
    assert ABOVE in " ".join(bymi("run", *words, "optimisation.step_size=0.3").words.split())
    assert "max_local_step" not in bymi("run", *words, "optimisation.step_size=0.08").words


def test_a_step_size_above_its_cap_is_a_warning_in_a_program(tmp_path: Path) -> None:
    inputs = torch.arange(240.0).reshape(6, 10, 4).sin()
    parts = (torch.nn.Linear(4, 1), torch.nn.functional.mse_loss, (inputs, inputs[:, :, :1]))
    settings: dict[str, Any] = {"graph": "complete", "steps": 4, "out": tmp_path}
    with pytest.warns(UserWarning, match=ABOVE) as caught:
        package.train(*parts, **settings, optimisation={"step_size": 0.3})
    assert caught[0].filename == __file__, "the line of the call"
    package.train(*parts, **settings, optimisation={"step_size": 0.3, "max_local_step": 0.3})  # a warning would be an error


def test_a_rule_alone_has_no_cap_to_remark_on() -> None:
    specs = [spec.resolved for spec in load(None, ["optimisation.step_size=0.3", "method=[dsgd,rule]"]).expand()]
    assert [spec.remark for spec in specs] == [None, None]
