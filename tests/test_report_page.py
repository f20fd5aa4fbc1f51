"""`bymi report`: what the page says agrees with the run folders, and it works in a browser without asking for anything."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bymi as bymi_package
from bymi.detection import REASONS
from bymi.report import tables
from bymi.report.page_data import halves, phases, run_data, step_factors
from bymi.runs import run_folder as store
from bymi.runs.results_table import find_runs
from bymi.runs.run_folder import DETECTIONS, PER_NODE
from tests.browser import assert_fits, browser, needs_browser, requests_of
from tests.commands import bymi, mistake

SMALL = ("nodes=30", "steps=80", "data.dim=5", "data.samples=60", "watch.every=20", "record_every=10", "attack=ipm:a=5.0")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "runs"
    assert bymi("run", *SMALL, "--jobs", 1, "--out", out).code in (0, 5, 8)
    return out


@pytest.fixture(scope="module")
def page(runs: Path) -> Path:
    path = runs.parent / "report.html"
    assert bymi("report", runs, "-o", path).code == 0
    return path


def data_of(page: Path) -> dict[str, Any]:
    """The data that a page carries."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def hardened(out: Path) -> Path:
    (folder,) = out.glob("*hardened*")
    return folder


def test_every_detection_is_stored_and_the_last_is_the_verdict(runs: Path) -> None:
    folder = hardened(runs)
    lines, verdict = store.read_rows(folder / DETECTIONS), store.read_json(folder / store.VERDICT)
    rows = [row for row in store.read_rows(folder / store.METRICS) if row["phase"] == "detection"]
    assert [line["step"] for line in lines] == [row["step"] for row in rows]
    assert len(lines) > 2
    nodes, arc = store.read_json(folder / PER_NODE), 0
    assert nodes["byzantine"] == verdict["byzantine"]
    for receiver in verdict["receivers"]:
        neighbours = receiver["neighbours"]
        assert nodes["neighbours"][receiver["node"]] == neighbours
        span = slice(arc, arc + len(neighbours))
        flags = [sender for sender, bit in zip(neighbours, lines[-1]["flagged"][span], strict=True) if bit == "1"]
        assert flags == receiver["flagged"]
        for stored, score in zip(lines[-1]["score"][span], receiver["scores"], strict=True):
            assert stored == (None if score is None else pytest.approx(score, rel=1e-3))
        arc += len(neighbours)
    assert arc == len(lines[-1]["flagged"])
    for line, row in zip(lines, rows, strict=True):  # the rates of metrics.jsonl, from the stored flags alone
        bad, arcs = set(nodes["byzantine"]), [(r, s) for r, senders in enumerate(nodes["neighbours"]) for s in senders]
        found = [
            bit == "1"
            for bit, (receiver, sender) in zip(line["flagged"], arcs, strict=True)
            if receiver not in bad and sender in bad
        ]
        assert row["found"] == pytest.approx(sum(found) / len(found))


def test_the_bounds_of_a_detection_are_those_of_the_verdict(runs: Path) -> None:
    line, verdict = store.read_rows(hardened(runs) / DETECTIONS)[-1], store.read_json(hardened(runs) / store.VERDICT)
    bounds = [bound for one in verdict["receivers"] for bound in one["bounds"]]
    flagged = [bound for bound, flag in zip(bounds, line["flagged"], strict=True) if flag == "1"]
    assert line["bound"] == [None if bound is None else pytest.approx(bound, rel=1e-3) for bound in flagged]
    for one, kept_bound in zip(verdict["receivers"], line["kept_bound"], strict=True):
        kept = [b for s, b in zip(one["neighbours"], one["bounds"], strict=True) if s not in one["flagged"] and b is not None]
        assert kept_bound == (pytest.approx(kept[0], rel=1e-3) if kept else None)


def test_the_page_carries_the_detections_it_draws(runs: Path, page: Path) -> None:
    data, lines = data_of(page), store.read_rows(hardened(runs) / DETECTIONS)
    (run,) = [run for run in data["runs"] if "hardened" in run["label"]]
    assert [one["step"] for one in run["detections"]] == [line["step"] for line in lines]
    packed, line = run["detections"][-1], lines[-1]
    bits = np.unpackbits(np.frombuffer(base64.b64decode(packed["flagged"]), np.uint8), bitorder="little")
    assert "".join(map(str, bits[: len(line["flagged"])])) == line["flagged"]
    assert list(base64.b64decode(packed["reason"])) == line["reason"]


def test_halves_keep_three_digits_of_any_size() -> None:
    values = [0.0, 1.0, -2.5, 446.09, 1e-30, 3e37, None, 1e300]
    raw = np.frombuffer(base64.b64decode(halves(values)), "<u2").astype(np.uint32) << 16
    back = raw.view(np.float32)
    for value, stored in zip(values, back, strict=True):
        if value is None:
            assert math.isnan(stored)
        elif value < 1e38:
            assert stored == pytest.approx(value, rel=4e-3)
        else:
            assert stored > 1e38


def test_phases_and_step_factors() -> None:
    steps = [(5, "warm-up"), (6, "detection"), (10, "optimisation"), (12, "detection"), (20, "optimisation")]
    assert phases([{"step": step, "phase": phase} for step, phase in steps]) == [["warm-up", 0, 6], ["optimisation", 6, 20]]
    spec = {"detection": {"pruning": "directed"}, "optimisation": {"min_weight": 0.1}}
    assert step_factors([0.5, 0.25, 0.0, None], spec) == [0.5, 1.0, 10.0, None]


def test_many_detections_are_thinned_and_the_page_says_so(runs: Path) -> None:
    (run,) = find_runs([hardened(runs)])
    data = run_data(run, [], budget=2)
    assert len(data["detections"]) == 2 < data["detections_stored"]
    assert data["detections"][-1]["step"] == data["looks"][-1]["step"]


def test_words_from_a_folder_are_no_markup(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hostile"
    folder.mkdir()
    for path in hardened(runs).glob("*.json*"):
        (folder / path.name).write_bytes(path.read_bytes())
    summary = store.read_json(folder / store.SUMMARY)
    summary.update(method="</script><script>alert(1)</script>", sentence="<img src=x onerror=alert(1)>", outcome="diverged")
    (folder / store.SUMMARY).write_text(json.dumps(summary))
    assert bymi("report", folder, "-o", tmp_path / "page.html").code == 0
    text = (tmp_path / "page.html").read_text()
    assert "alert(1)</script>" not in text
    assert "<img" not in text
    assert text.count("<script") == 2


def test_what_an_own_evaluation_measured_is_in_table_and_results(tmp_path: Path) -> None:
    inputs = torch.arange(240.0).reshape(6, 10, 4).sin()
    run = bymi_package.train(
        *(torch.nn.Linear(4, 1), torch.nn.functional.mse_loss, (inputs, inputs[:, :, :1])),
        **{"graph": "complete", "steps": 12, "out": tmp_path / "own"},
        evaluate=lambda model: {"weight": float(model.weight.norm())},
    )
    assert bymi("report", tmp_path / "own", "-o", tmp_path / "page.html").code == 0
    text = (tmp_path / "page.html").read_text()
    assert f"<b>{run.summary['weight']:.4g}</b><span>weight</span>" in text
    assert f"{run.summary['loss']:.1e}" in text
    assert "own data" in text
    assert {"weight", f"{run.summary['weight']:.3g}"} <= set(bymi("results", tmp_path / "own").words.split())


def test_mistakes_are_one_line(runs: Path, tmp_path: Path) -> None:
    assert "a run folder, or a folder of them" in mistake("report", tmp_path / "nothing")
    assert "with some inside" in mistake("report", tmp_path)
    assert "ends in .html" in mistake("report", runs, "-o", tmp_path / "page.pdf")


def test_figures_come_in_three_formats(runs: Path, tmp_path: Path) -> None:
    assert bymi("report", runs, "-o", tmp_path / "page.html", "--figures", tmp_path / "figures").code == 0
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    for kind, start in starts.items():
        assert (tmp_path / "figures" / f"curve-gap{kind}").read_bytes().startswith(start)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


def column(driver: Any, table: str, index: int) -> list[str]:
    rows = "[...document.getElementById(arguments[0]).tBodies[0].rows].filter(row => !row.hidden)"
    script = f"return {rows}.map(row => row.cells[arguments[1]].textContent)"
    return list(driver.execute_script(script, table, index))


def reason_at(runs: Path, arc: int) -> str:
    """The reason at the last detection; of a suspended neighbour that of the detection that flagged it, with its round."""
    lines = store.read_rows(hardened(runs) / DETECTIONS)
    told = [(line["step"], line["reasons"][line["reason"][arc]]) for line in lines if line["flagged"][arc] == "1"]
    if lines[-1]["reasons"][lines[-1]["reason"][arc]] != "suspended":
        return lines[-1]["reasons"][lines[-1]["reason"][arc]]
    step, reason = [one for one in told if one[1] != "suspended"][-1]
    return f"suspended, for: {reason} at round {step}"


def test_every_reason_has_a_meaning() -> None:
    """But for that of a test that is gone, whose code stays reserved."""
    assert set(tables.REASONS) == set(REASONS) - {"kept", "backward"}


@needs_browser
def test_the_page_works_in_a_browser(driver: Any, runs: Path, page: Path) -> None:
    driver.get("about:blank")  # instead of the browser's own first page
    requests_of(driver)
    driver.get(page.as_uri())
    assert requests_of(driver) == [page.as_uri()], "the page itself and nothing else"
    assert driver.get_log("browser") == [], "no errors or warnings"
    nodes = store.read_json(hardened(runs) / PER_NODE)
    last = store.read_rows(hardened(runs) / DETECTIONS)[-1]

    driver.execute_script(
        "const i = document.querySelector('#state-controls input'); i.value = 7; i.dispatchEvent(new Event('change'))"
    )
    assert column(driver, "neighbours", 0) == [str(sender) for sender in nodes["neighbours"][7]]
    before = sum(map(len, nodes["neighbours"][:7]))
    flags = last["flagged"][before : before + len(nodes["neighbours"][7])]
    assert [verdict.startswith("flagged") for verdict in column(driver, "neighbours", 2)] == [flag == "1" for flag in flags]
    assert column(driver, "neighbours", 3) == [reason_at(runs, arc) for arc in range(before, before + len(flags))]

    head = driver.find_elements("css selector", "#neighbours thead button")[4]
    for reverse in (True, False):
        head.send_keys("\n")  # by keyboard
        numbers = [float(text) for text in column(driver, "neighbours", 4) if text != "-"]
        assert numbers == sorted(numbers, reverse=reverse)
    driver.find_element("css selector", "[data-filter=neighbours]").send_keys("byzantine")
    assert set(column(driver, "neighbours", 1)) == {"Byzantine"}

    row = driver.find_element("css selector", "#node-table tr[data-node='3']")
    driver.execute_script("arguments[0].focus()", row)
    row.send_keys("\n")
    assert "Node 3 is" in driver.find_element("id", "node-note").text
    driver.execute_script("document.querySelector('#looks tbody tr').click()")
    assert f"round {store.read_rows(hardened(runs) / DETECTIONS)[0]['step']}" in driver.find_element("id", "after-caption").text
    assert len(driver.find_elements("css selector", "#graph-after .node")) == 30
    driver.find_element("id", "theme").send_keys("\n")
    assert driver.get_log("browser") == []


@needs_browser
def test_every_statistic_stands_beside_its_bound(driver: Any, runs: Path, page: Path) -> None:
    driver.get(page.as_uri())  # the first honest node is chosen, and the last detection
    columns = [column(driver, "neighbours", index) for index in (3, 5, 6)]
    assert {"kept"} < set(columns[0])
    for reason, statistic, said in zip(*columns, strict=True):
        words = re.fullmatch(r"(above|below) (-?[0-9.]+) (x usual score|x usual length|spreads|of the rounds)", said)
        assert words is not None, (reason, said)
        side, bound = words[1], float(words[2])
        assert side == ("above" if reason != "kept" and bound > 0 else "below"), (reason, said)
        assert (float(statistic) >= bound) == (side == "above"), (statistic, said)


@needs_browser
def test_the_page_fits_a_phone_and_paper(driver: Any, page: Path) -> None:
    driver.get(page.as_uri())
    assert_fits(driver)


def test_two_runs_of_a_changed_script_are_no_sweep(tmp_path: Path) -> None:
    inputs = torch.arange(240.0).reshape(6, 10, 4).sin()
    parts = (torch.nn.Linear(4, 1), torch.nn.functional.mse_loss)
    settings: dict[str, Any] = {"graph": "complete", "steps": 12, "out": tmp_path / "own"}
    first = bymi_package.train(*parts, (inputs, inputs[:, :, 1:2]), **settings)
    second = bymi_package.train(*parts, (inputs, inputs[:, :, :1]), **settings)
    assert bymi("report", tmp_path / "own", "-o", tmp_path / "page.html").code == 0
    text = (tmp_path / "page.html").read_text()
    assert "<h1>6 nodes, no simulated attack, own data; runs differ in model, loss or data</h1>" in text
    assert "data.content (" not in text
    assert 'id="sweep"' not in text
    assert [run["label"][-6:] for run in data_of(tmp_path / "page.html")["runs"]] == [
        run.folder.name[-6:] for run in (first, second)
    ], "the newest last"
    longer = bymi_package.train(*parts, (inputs, inputs[:, :, 2:3]), **{**settings, "steps": 14})
    assert bymi("report", first.folder, longer.folder, "-o", tmp_path / "page.html").code == 0
    text = (tmp_path / "page.html").read_text()
    assert "own data; runs differ in steps</h1>" in text
    lead = text.split('id="outcome">')[1].split("</p>")[0]
    assert len(re.findall(r"steps 1[24]: .*? finished: ", lead)) == 2, "a sentence per run"
    assert "model, loss or data" in " ".join(bymi("results", first.folder, second.folder).words.split())


@needs_browser
def test_the_page_of_real_data_calls_nobody_honest_or_byzantine(driver: Any, tmp_path: Path) -> None:
    inputs = torch.arange(240.0).reshape(6, 10, 4).sin()
    parts = (torch.nn.Linear(4, 1), torch.nn.functional.mse_loss, (inputs, inputs[:, :, :1]))
    bymi_package.train(*parts, graph="complete", steps=12, out=tmp_path / "own")
    assert bymi("report", tmp_path / "own", "-o", tmp_path / "page.html").code == 0
    driver.get((tmp_path / "page.html").as_uri())
    assert driver.get_log("browser") == []
    assert set(column(driver, "neighbours", 1)) == set(column(driver, "node-table", 1)) == {"-"}
    assert all(cell.isdigit() for index in range(2) for cell in column(driver, "looks", index)), "rounds and flags"
    numbers = [text.text for text in driver.find_elements("css selector", "#graph-after text")]
    assert numbers == [str(node) for node in range(6)]
    for name in ("graph-legend", "matrix-legend", "score-legend", "graph-readout"):
        assert not re.search("honest|Byzantine", driver.find_element("id", name).text), name
    assert driver.find_element("id", "node-note").text.startswith("At round"), "nothing on what the node is"
