"""Which methods `bymi run` compares, what each row is called, and that the published one is the published one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bymi import InputError
from bymi.experiment import RECIPES, Spec, load, read_spec, run
from bymi.experiment.spec import Detection
from bymi.runs import run_folder as store
from bymi.training.plan import PROFILES
from tests.commands import bymi, dates_in

SMALL = ("nodes=20", "steps=40", "data.dim=5", "data.samples=40", "graph.p=0.8", "watch.every=10")
FOUR = ["DSGD", "BALANCE", "BALANCE-DRSGD-ByMI", "BALANCE-hardened-ByMI"]


def labels(*words: str) -> list[str]:
    return [spec.label for spec in load(None, words).expand()]


def test_the_published_method_is_a_row_of_its_own() -> None:
    assert labels() == FOUR
    assert labels("profile=paper") == FOUR[:3], "and not twice"
    assert labels("method=published") == FOUR[2:3]
    assert labels("method=['drsgd-bymi', 'published']") == [FOUR[3], FOUR[2]]
    assert labels("method=['published', 'drsgd-bymi']", "profile=paper") == FOUR[2:3]


@pytest.mark.parametrize("recipe", ["scenario-a", "scenario-b", "gradient", "ipm"])
def test_every_linear_recipe_compares_all_four(recipe: str) -> None:
    assert len(RECIPES[recipe]().expand()) == 4


@pytest.mark.parametrize("words", [[], ["nodes=60", "detection.fdr_level=0.1", "warm_up.rule=ios"], ["attack=ipm"]])
def test_it_is_the_run_that_the_profile_makes(words: list[str]) -> None:
    """The same digest, and so the same folder."""
    expected = load(None, ["profile=paper", "method=drsgd-bymi", *words])
    (found,) = [spec for spec in load(None, words).expand() if "DRSGD" in spec.label]
    assert found == expected == load(None, ["method=published", *words])
    assert found.digest == expected.digest == load(None, ["method=['published']", *words]).digest


@pytest.mark.parametrize("word", ["detection.point=sender", "detection.sample=30", "watch.every=100", "panel.strong=9.0"])
def test_what_is_set_of_the_hardened_detection_leaves_it_alone(word: str) -> None:
    whole, _ = load(None, ["method=['published', 'drsgd-bymi']", word]).expand()
    assert whole == load(None, ["profile=paper", "method=drsgd-bymi"])


def test_under_its_own_profile_it_is_as_given() -> None:
    spec = load(None, ["profile=paper", "detection.point=receiver", "method=published"])
    assert (spec.detection.point, spec.method) == ("receiver", "drsgd-bymi")
    assert labels("profile=paper", "detection.point=receiver")[2:] == ["BALANCE-receiver-ByMI"], "not called the published one"


def test_all_that_the_profile_sets_is_as_it_sets_it() -> None:
    values = load(None, ["method=published", "detection.cross_fit=true", "detection.exile=off"]).model_dump(mode="json")
    for section, preset in PROFILES["paper"].items():
        for key, value in (preset or {}).items():
            assert values[section][key] == value
    assert values["panel"] is None
    assert values["watch"] is None
    assert values["detection"]["exile"] is None, "what the profile does not set stays"


def test_sections_made_in_python_keep_what_the_profile_does_not_set() -> None:
    made = Spec(method="published", detection=Detection(fdr_level=0.1, point="receiver"))
    assert made == read_spec({"profile": "paper", "method": "drsgd-bymi", "detection": {"fdr_level": 0.1}})


def test_one_method_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one method a run"):
        run(load(None, SMALL), tmp_path)
    assert run(load(None, [*SMALL, "method=published"]), tmp_path)["method"] == "BALANCE-DRSGD-ByMI"


def test_the_command_prints_four_rows_and_finds_the_published_run_again(tmp_path: Path) -> None:
    answer = bymi("run", *SMALL, "--jobs", 1, "--out", tmp_path)
    rows = [words[0] for words in answer.rows if words[0] in FOUR]
    assert rows == FOUR
    folder = store.folder_of(tmp_path, load(None, [*SMALL[:-1], "profile=paper", "method=drsgd-bymi"]))
    assert folder.name in answer.out
    before = dates_in(folder)
    bymi("run", *SMALL[:-1], "profile=paper", "method=drsgd-bymi", "--out", tmp_path)
    assert dates_in(folder) == before
