"""`bymi reproduce detect-level`: the grid, its data, its files, and what the committed values say."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bymi import identify
from bymi.paper import page_array_detection as report
from bymi.paper import study_array_detection as detect_level
from bymi.paper.study_array_detection import DETECTORS, Setting, cause, draws_of, measure, settings, symmetric
from tests.commands import bymi, mistake
from tests.idx_files import write_image_set
from tests.pages import are_pictures

COMMITTED = Path(__file__).parents[1] / "docs" / "results" / "detection"
SMALL = [
    Setting(sweep, "normal", 8, bad, 50, 2) for sweep, bad in (("dimension", 1), ("machines", 1), ("share", 0), ("clean", 0))
]
SMALL += [Setting("share", "normal", 8, 6, 50, 2), Setting("data", "t3", 8, 6, 50, 2)]


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads((COMMITTED / report.VALUES).read_text())


def rows(values: dict[str, Any], sweep: str) -> list[dict[str, Any]]:
    return [row for row in values["settings"] if row["sweep"] == sweep]


def test_one_factor_is_varied_at_a_time_over_what_was_asked_for() -> None:
    grid: dict[str, list[Setting]] = {}
    for setting in settings():
        grid.setdefault(setting.sweep, []).append(setting)
    assert [each.dim for each in grid["dimension"]] == [10**power for power in range(2, 7)]
    assert all(each.draws >= 50 for each in grid["dimension"] if each.dim <= 10**5)
    assert {(each.machines, each.bad) for each in grid["dimension"]} == {(64, 6)}
    counts = [each.machines for each in grid["machines"]]
    assert (counts[0], counts[-1]) == (5, 500)
    shares = [each.bad / each.machines for each in grid["share"]]
    assert shares[0] == 0
    assert shares[-1] == pytest.approx(0.4, abs=0.01)
    assert {each.data for each in grid["data"]} == {"t3", "lenet"}
    assert {how.get("offset") for how in DETECTORS.values()} == {None, 0, 1}
    assert {how.get("cross_fit", True) for how in DETECTORS.values()} == {True, False}
    assert all(each.draws <= 3 and each.dim <= 10**5 and each.data != "lenet" for each in settings(fast=True))


@pytest.mark.parametrize("data", ["normal", "t3"])
def test_noise_is_as_said(data: str) -> None:
    """Unit variance (the median of its size for t, whose variance converges slowly), independent rows, and a clear shift."""
    setting = Setting("test", data, 20, 4, 4_000, 1)
    ((first, second),) = draws_of(setting)
    assert first.dtype == torch.float32
    honest = torch.cat([first[4:], second[4:]])
    # The median of |t| with 3 degrees of freedom is 0.7649; 128,000 values: six standard errors are 0.02.
    assert float(honest.abs().median()) == pytest.approx(0.6745 if data == "normal" else 0.7649 / 3**0.5, abs=0.02)
    products = (first[:4] * second[:4]).sum(1) / 4_000**0.5
    assert (products - 30).abs().max() < 12
    again = next(iter(draws_of(setting)))
    assert torch.equal(first, again[0])


def test_gradients_of_lenet(tmp_path: Path) -> None:
    """Honest machines share the gradient of the data; those with wrong labels are off by far."""
    write_image_set(tmp_path / "mnist", train=640, test=20)
    detect_level._trained.cache_clear()
    ((first, second),) = draws_of(Setting("data", "lenet", 10, 2, 61_706, 1), tmp_path)
    detect_level._trained.cache_clear()
    assert first.shape == second.shape == (10, 61_706)
    assert not torch.equal(first, second)
    assert bool(torch.isfinite(first).all())
    between = torch.cosine_similarity(first[2:].mean(0), second[2:].mean(0), dim=0)
    assert between > torch.cosine_similarity(first[:2].mean(0), second[2:].mean(0), dim=0)


def test_rates_are_those_of_the_verdicts() -> None:
    setting = Setting("test", "normal", 30, 6, 400, 3)
    found = measure(setting)["detectors"]
    for name, how in DETECTORS.items():
        rates, powers = [], []
        for halves in draws_of(setting):
            flagged = set(identify(*halves, **how).flagged.nonzero().flatten().tolist())
            rates.append(len(flagged - set(range(6))) / max(1, len(flagged)))
            powers.append(len(flagged & set(range(6))) / 6)
        assert found[name]["fdp"] == pytest.approx(sum(rates) / 3, abs=1e-4)
        assert found[name]["power"] == pytest.approx(sum(powers) / 3, abs=1e-4)
        assert found[name]["whole"] == pytest.approx(sum(rate == 0 for rate in rates) / 3, abs=1e-4)


def test_the_mean_of_printed_scores_is_the_predicted_one() -> None:
    """At d = 100 and 1,000 with two draws: 116 scores a group, so six standard errors are 0.6."""
    for row in cause(fast=True):
        for group in ("filter inside", "subset inside", "subset outside", "all inside"):
            assert row[group]["mean"] == pytest.approx(row[f"{group}, predicted"]["mean"], abs=0.7)
        assert row["subset outside, predicted"]["mean"] == pytest.approx(row["dim"] ** 0.5 / 35, abs=1e-3)
        assert row["all inside, predicted"]["mean"] == pytest.approx(0, abs=1e-9)


def test_symmetric_scores() -> None:
    """Knockoff theory bounds offset 1 by the level; 2,000 draws have a standard error of 0.004."""
    found = symmetric(2_000)
    assert 0.1 < found["offset 1"] < 0.2 + 0.02 < found["offset 0"]


def test_the_command_writes_its_files_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "settings", lambda **_: SMALL)
    answer = bymi("reproduce", "detect-level", "--fast", "--out", tmp_path)
    assert answer.code == 0, answer
    folder = tmp_path / "detection"
    assert {path.name for path in folder.iterdir()} == {
        "detect-level.json",
        "detect-level.png",
        "detect-level.svg",
        "README.md",
    }
    are_pictures(folder / "detect-level.png", folder / "detect-level.svg")
    values = json.loads((folder / report.VALUES).read_text())
    assert len(values["settings"]) == len(SMALL)
    monkeypatch.setattr(report, "measure", lambda *_: pytest.fail("measured again"))
    assert bymi("reproduce", "detect-level", "--fast", "--out", tmp_path).code == 0
    assert json.loads((folder / report.VALUES).read_text())["settings"] == values["settings"]


def test_a_damaged_file_of_values_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "settings", lambda **_: SMALL[:1])
    monkeypatch.setattr(report, "cause", lambda **_: [])
    (tmp_path / report.VALUES).write_text('{"settings": [')
    report.run(tmp_path, fast=True)
    assert len(json.loads((tmp_path / report.VALUES).read_text())["settings"]) == 1


def test_unknown_studies_are_told_of_it() -> None:
    assert "detect-level" in mistake("reproduce", "detect-levels")


# What is committed


def test_the_committed_page_is_what_the_values_say(committed: dict[str, Any]) -> None:
    assert (COMMITTED / "README.md").read_text().startswith(report.page(committed))
    changed = copy.deepcopy(committed)
    rows(changed, "dimension")[2]["detectors"]["hardened"]["fdp"] = 0.33
    assert report.page(changed) != report.page(committed)


def test_the_committed_values_are_of_the_whole_grid(committed: dict[str, Any]) -> None:
    assert [
        {key: row[key] for key in ("sweep", "data", "machines", "bad", "dim", "draws")} for row in committed["settings"]
    ] == [
        {key: getattr(setting, key) for key in ("sweep", "data", "machines", "bad", "dim", "draws")} for setting in settings()
    ]


def test_the_level_is_kept_in_any_dimension(committed: dict[str, Any]) -> None:
    found = rows(committed, "dimension")
    for row in found:
        one, zero, hardened = (row["detectors"][name] for name in ("published, offset 1", "published, offset 0", "hardened"))
        assert one["fdp"] <= 0.25
        assert zero["fdp"] <= 0.32
        assert hardened["fdp"] <= 0.05
        assert one["power"] == zero["power"] == hardened["power"] == 1.0
    # Neither grows with d: the last two points are not above the first two by more than their errors.
    for name in ("published, offset 1", "published, offset 0"):
        few, many = found[:2], found[-2:]
        means = [sum(row["detectors"][name]["fdp"] for row in part) / 2 for part in (few, many)]
        assert means[1] - means[0] < 3 * max(row["detectors"][name]["fdp_error"] for row in found)
    printed = [row["detectors"]["without cross-fit, offset 0"]["fdp"] for row in found]
    assert printed == sorted(printed)
    assert printed[-1] > 0.7


def test_clean_sets_of_sixty_stay_whole(committed: dict[str, Any]) -> None:
    normal = [row for row in rows(committed, "clean") if row["data"] == "normal"]
    assert all(row["machines"] == 60 and row["detectors"]["hardened"]["whole"] >= 0.95 for row in normal)


def test_heavy_tails_are_measured_and_the_page_says_what_they_cost(committed: dict[str, Any]) -> None:
    heavy = [row for row in rows(committed, "clean") if row["data"] == "t3"]
    assert [row["dim"] for row in heavy] == [30, 100, 1_000]
    whole = [100 * row["detectors"]["hardened"]["whole"] for row in heavy]
    assert f"{min(whole):.0f} % to {max(whole):.0f} % | " in report.profiles(committed)
    assert f"{min(whole):.0f} % to {max(whole):.0f} % lose nobody" in " ".join(report.page(committed).split())
    assert all(sum(row["detectors"]["hardened"]["false_flags"].values()) > 0 for row in heavy)
