"""What `profile` sets, what can be set beside it, and how parts are switched off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bymi import Plan
from bymi.core.errors import InputError
from bymi.experiment import load
from bymi.experiment.spec import Detection, Panel, Spec, Watch, read_spec
from bymi.runs.run_setup import set_up_run
from bymi.training.plan import PROFILES

SMALL = ("nodes=20", "data.dim=5", "data.samples=40", "steps=40", "method=drsgd-bymi")


def test_the_default_is_hardened() -> None:
    spec = Spec()
    assert spec.profile == "hardened"
    assert spec.detection.point == "receiver"
    assert spec.detection.cross_fit
    assert spec.detection.probe
    assert spec.detection.pruning == "mutual"
    assert spec.panel is not None
    assert spec.watch is not None
    assert spec == read_spec({}) == load(None)


def test_paper_is_what_the_sections_say_without_a_profile() -> None:
    spec = load(None, ["profile=paper"])
    assert spec == read_spec({"profile": "paper"})
    assert spec.panel is None
    assert spec.watch is None
    plan = set_up_run(load(None, [*SMALL, "profile=paper"]).resolved).plan
    assert plan.watch is None
    assert plan.detector is not None
    assert (plan.detector.panel, plan.detector.point, plan.detector.pruning) == (None, "sender", "directed")
    assert plan.detections == [4]
    assert plan.warm_up.cool_down == 0.4
    assert set_up_run(load(None, [*SMALL]).resolved).plan.warm_up.cool_down == 0.0


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_can_be_set_anywhere_on_the_line_in_a_file_and_in_python(name: str, tmp_path: Path) -> None:
    spec = load(None, ["nodes=50", f"profile={name}"])
    assert spec == load(None, [f"profile={name}", "nodes=50"]) == read_spec({"profile": name, "nodes": 50})
    file = tmp_path / "spec.toml"
    file.write_text(f'nodes = 50\nprofile = "{name}"\n')
    assert load(str(file)) == spec
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    assert load(str(tmp_path / "spec.json")) == spec


def test_other_keys_of_a_section_survive_a_change_of_profile() -> None:
    assert load("scenario-b", ["profile=paper", "detection.fdr_level=0.1"]).detection.fdr_level == 0.1
    assert load(None, ["detection.fdr_level=0.1", "profile=paper"]).detection.point == "sender"
    assert load(None, ["profile=paper", "detection.point=receiver"]).detection.point == "receiver"


@pytest.mark.parametrize("word", ["panel.direction=off", "watch.deed=off", "detection.exile=off", "watch.every=off"])
def test_every_piece_is_a_switch(word: str) -> None:
    key = word.split("=")[0].split(".")
    spec = load(None, [*SMALL, word])
    assert getattr(getattr(spec, key[0]), key[1]) is None
    set_up_run(spec.resolved)
    assert load(None, [*SMALL, word]).digest != load(None, SMALL).digest


def test_one_detection_only() -> None:
    plan = set_up_run(load(None, [*SMALL, "watch.every=off"]).resolved).plan
    assert plan.detections == [4]
    assert set_up_run(load(None, [*SMALL, "watch.every=10"]).resolved).plan.detections == [4, 6, 14, 24, 34, 39]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("profile=safe", "profile: got 'safe', allowed: 'hardened' or 'paper'"),
        ("panel=off", "panel: got off, allowed: with watch = off and detection.probe = false only"),
        ("watch=off", "watch: got off, allowed: without a panel"),
        (
            "profile=paper panel.strong=off",
            "watch: got off, allowed: without a panel, which profile = hardened and any key panel.",
        ),
        ("panel.direction=0", "panel.direction: got 0, allowed: greater than 0"),
        ("panel.directions=4", "panel.directions: unknown key (got 4); did you mean 'direction'?"),
        ("watch.fuse_share=2", "watch.fuse_share: got 2, allowed: less than 1"),
        ("detection.sample=some", "detection.sample: got 'some', allowed:"),
        ("detection.scale=pca", "detection.scale: got 'pca', allowed: identity with a panel"),
        ("detection.cross_fit=false detection.centre=median panel.edge=off", "detection.centre: allowed with a panel"),
        ("detection.centre=mean", "detection.centre: got 'mean', allowed: with panel.edge = off"),
        ("detection.centre.share=0.4", "detection.centre: got "),
        ("detection.offset=1", "detection.offset: got 1, allowed: with panel.strong = off"),
        ("watch.window=100", "watch.window: unknown key (got 100)"),
    ],
)
def test_a_mistake_is_one_line(words: str, line: str) -> None:
    with pytest.raises(InputError) as problem:
        load(None, words.split())
    assert str(problem.value).startswith(line)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "words",
    ["detection.centre=mean panel.edge=off", "detection.offset=1 panel.strong=off", "detection.centre=filtering"],
)
def test_what_a_piece_of_the_panel_replaces_can_be_set_without_it(words: str) -> None:
    set_up_run(load(None, [*SMALL, *words.split()]).resolved)
    assert load(None, ["profile=paper", "detection.offset=1", "detection.centre=mean"]).detection.offset == 1


def test_sections_made_in_python_are_filled_like_words() -> None:
    """What was set in a section stays, what was not comes from the profile, whichever that is."""
    made = Spec(detection=Detection(fdr_level=0.1), watch=Watch(every=50), panel=Panel(direction=None))
    assert made == load(None, ["detection.fdr_level=0.1", "watch.every=50", "panel.direction=off"])
    assert made.detection.pruning == "mutual"
    assert Spec(profile="paper", detection=Detection(fdr_level=0.1)) == load(None, ["profile=paper", "detection.fdr_level=0.1"])
    assert Spec(detection=Detection(point="sender")).detection.point == "sender"
    assert Spec(detection=Detection()) == Spec()


def test_mutual_pruning_needs_edges_both_ways(tmp_path: Path) -> None:
    """A graph with arcs is refused before any round, with what can be done."""
    arcs = tmp_path / "arcs.txt"
    size = 20
    lines = [f"{node} {(node + step) % size}" for node in range(size) for step in range(1, 8)]
    arcs.write_text("\n".join(lines) + "\n")
    both = load(None, [*SMALL, f"graph=file:path={arcs}"])
    set_up_run(both.resolved)
    one_way = load(None, [*SMALL, f"graph=file:path={arcs}", "graph.directed=true"])
    with pytest.raises(InputError, match=r"detection\.pruning"):
        set_up_run(one_way.resolved)
    set_up_run(load(None, [*SMALL, f"graph=file:path={arcs}", "graph.directed=true", "detection.pruning=directed"]).resolved)


def test_a_sample_larger_than_there_is_says_so() -> None:
    with pytest.raises(InputError, match=r"detection\.sample: got 80, .* 2 to 40, all that a node has"):
        set_up_run(load(None, [*SMALL, "detection.sample=80"]).resolved)


@pytest.mark.parametrize("profile", ["hardened", "paper"])
def test_plans_of_profiles_are_those_of_specs(profile: str) -> None:
    by_spec = set_up_run(load(None, [f"profile={profile}", "method=drsgd-bymi"]).resolved).plan
    make = {"hardened": Plan.hardened, "paper": Plan.paper}[profile]
    assert make(3000, 300) == by_spec
    changed = make(3000, 300, detection={"fdr_level": 0.1}, seed=3, identification=10)
    assert changed.detector is not None
    assert by_spec.detector is not None
    detector = replace(by_spec.detector, fdr_level=0.1)
    assert changed == replace(by_spec, detector=detector, seed=3, identification=10)


def test_no_plan_without_saying_which_detection() -> None:
    with pytest.raises(InputError, match=r"detector: got 'nothing', allowed: .*Plan.hardened\(...\) and Plan.paper\(...\)"):
        Plan(10, 2)
