"""Specs: every key is known, typed and bounded; every way to write one means the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bymi import BALANCE, Detector, InputError, Optimisation, Plan, WarmUp, detection
from bymi.aggregation import RULES, SetRule
from bymi.attacks import ATTACKS
from bymi.core.topology import TOPOLOGIES
from bymi.detection import CENTRES, SCALES
from bymi.experiment import RECIPES, Spec, load, read_spec
from bymi.experiment.spec import Alone, Panel, Watch
from bymi.runs.run_setup import set_up_run
from bymi.runs.tasks import TASKS
from tests.detection_fixtures import NETWORK_SCALES


def refusal(*words: str) -> str:
    """The error of a spec that is refused; it has one line."""
    with pytest.raises(InputError) as problem:
        load(None, words)
    line = str(problem.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("word", "key", "nearest"),
    [
        ("nods=20", "nods", "nodes"),
        ("byzantine_ration=0.1", "byzantine_ration", "byzantine_ratio"),
        ("warmup.steps=5", "warmup", "warm_up"),
        ("data.dims=5", "data.dims", "dim"),
        ("data=mnist:partitoin=iid", "data.partitoin", "partition"),
        ("warm_up.stepsize=0.1", "warm_up.stepsize", "step_size"),
        ("detection.fdrlevel=0.1", "detection.fdrlevel", "fdr_level"),
        ("optimisation.max_step=0.1", "optimisation.max_step", "max_local_step"),
        ("attack.shares=0.1", "attack.shares", "share"),
        ("warm_up.rule.gama=0.1", "warm_up.rule.gama", "gamma"),
        ("warm_up.rule=ios:shar=0.1", "warm_up.rule.shar", "share"),
        ("detection.centre.shares=0.1", "detection.centre.shares", "share"),
        ("detection.scale=pca:varience=0.9", "detection.scale.varience", "variance"),
        ("graph=file:path=e,directd=true", "graph.directd", "directed"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(word: str, key: str, nearest: str) -> None:
    line = refusal(word)
    assert line.startswith(f"{key}: unknown key (got ")
    assert f"did you mean {nearest!r}?; allowed: " in line
    assert nearest in line.split("allowed: ")[1].replace(" (and 1 more mistakes)", "").split(", ")


def test_an_unknown_key_that_resembles_nothing_gets_the_list_alone() -> None:
    line = refusal("xyzzy=1")
    assert line == f"xyzzy: unknown key (got 1); allowed: {', '.join(sorted(Spec.model_fields))}"


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("attack=imp", "ipm"),
        ("attack=ipn", "ipm"),  # kin has as many letters of it, and another beginning
        ("warm_up.rule=balanc", "balance"),
        ("detection.centre=medain", "median"),
        ("detection.scale=pac", "pca"),
        ("graph=erdos", "erdos-renyi"),
        ("data=mnits", "mnist"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(word: str, nearest: str) -> None:
    key, name = word.split("=")
    assert refusal(word).startswith(f"{key}: got {name!r}; did you mean {nearest!r}?; allowed: ")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("nodes=20.0", "nodes: got 20.0, allowed: a valid integer"),
        ("nodes='20'", "nodes: got '20', allowed: a valid integer"),
        ("nodes=true", "nodes: got True, allowed: a valid integer"),
        ("byzantine_ratio=a fifth", "byzantine_ratio: got 'a fifth', allowed: a valid number"),
        ("seed=1.5", "seed: got 1.5, allowed: a valid integer"),
        ("attack.share=half", "attack.share: got 'half', allowed: a valid number"),
        ("graph={name='file', path='e', directed=1}", "graph.directed: got 1, allowed: a valid boolean"),
        ("graph=file", "graph.path: missing"),
        ("warm_up.rule=balance:gamma", "warm_up.rule.gamma: got '', allowed: a valid number"),
        ("optimisation.step_size=theorem", "optimisation.step_size: got 'theorem', allowed: with optimisation.convention"),
        ('method=["dsgd", "dsgd"]', "method: got ['dsgd', 'dsgd'], allowed: one or more of dsgd, rule, published, drsgd-"),
        ("optimisation.step_size=theory", "optimisation.step_size: got 'theory', allowed: a valid number or 'theorem'"),
        ("method=sgd", "method: got 'sgd', allowed: 'dsgd', 'rule', 'published' or 'drsgd-bymi'"),
        ("warm_up=5", "warm_up: got 5, allowed: "),
        ("attack=5", "attack: got 5, allowed: "),
        ("nodes.more=5", "nodes.more: 'nodes' is a single value"),
        ("nodes=1", "nodes: got 1, allowed: greater than or equal to 2"),
        ("byzantine_ratio=0.5", "byzantine_ratio: got 0.5, allowed: less than 0.5"),
        ("byzantine_ratio=-0.1", "byzantine_ratio: got -0.1, allowed: greater than or equal to 0"),
        ("byzantine_mixing=loudly", "byzantine_mixing: got 'loudly', allowed: 'plain', 'none' or 'rule'"),
        ("profile=mine", "profile: got 'mine', allowed: 'hardened' or 'paper'"),
        ("alone=all", "alone: got 'all', allowed: off, or a table with batch, schedule, step_size"),
        ("attack=3", "attack: got 3, allowed: a name or a table of keys"),
        (
            "warm_up=krum",
            "warm_up: got 'krum', allowed: a table with batch, cool_down, order, rule, schedule, step_size, steps; ",
        ),
        ("method=drsgd", "method: got 'drsgd', allowed: 'dsgd', 'rule', 'published' or 'drsgd-bymi', or a list of these"),
        ("warm_up.rule=nnm:f=3+mine:Half", "warm_up.rule: got 'nnm:f=3+mine:Half', allowed: nnm+RULE or nnm+module:Name, with"),
        ("warm_up.rule=bucketing", "warm_up.rule: got 'bucketing', allowed: bucketing+RULE"),
        ("alone.rate=0.1", "alone.rate: unknown key (got 0.1)"),
        ("alone.batch=0", "alone.batch: got 0, allowed: greater than or equal to 1"),
        ("steps=1", "steps: got 1, allowed: greater than or equal to 2"),
        ("seed=-1", "seed: got -1, allowed: greater than or equal to 0"),
        ("record_every=0", "record_every: got 0, allowed: greater than or equal to 1"),
        ("method=[]", "method: got an empty list, allowed: one or more of dsgd, rule, published, drsgd-bymi"),
        ("warm_up.steps=3000", "warm_up.steps: got 3000, allowed: 1 to steps - 1 = 2999"),
        ("warm_up.step_size=nan", "warm_up.step_size: got nan, allowed: "),
        ("data.identification=100", "data.identification: got 100, allowed: 2 to data.samples - 1 = 99"),
        ("data.identification=1", "data.identification: got 1, allowed: 2 to data.samples - 1 = 99"),
        ("data=mnist:samples=200", "data.identification: got 200, allowed: 2 to data.samples - 1 = 199"),
        ("data.dim=0", "data.dim: got 0, allowed: 1 or more"),
        ("data.samples=3", "data.samples: got 3, allowed: 4 or more"),
        ("data=mnist:partition=even", "data.partition: got 'even', allowed: stratified, "),
        ("data=5", "data: got 5, allowed: "),
        ("attack=ood", "attack: got 'ood' with data 'linear', allowed: with mnist, fashion-mnist, digits"),
        ("data=mnist", "attack: got 'parameter' with data 'mnist', allowed: with linear"),
        ("detection.point=middle", "detection.point: got 'middle', allowed: 'sender' or 'receiver'"),
        ("detection.cross_fit=1", "detection.cross_fit: got 1, allowed: a valid boolean"),
        ("detection.fdr_level=0", "detection.fdr_level: got 0, allowed: greater than 0"),
        ("detection.fdr_level=1", "detection.fdr_level: got 1, allowed: less than 1"),
        ("detection.offset=2", "detection.offset: got 2, allowed: 0 or 1"),
        ("detection.scale=pca:variance=0", "detection.scale.variance: got 0.0, allowed: 0 < variance <= 1"),
        ("detection.centre.share=0.5", "detection.centre.share: got 0.5, allowed: 0 up to, not including, 0.5"),
        ("attack.share=1.5", "attack.share: got 1.5, allowed: 0 to 1"),
        ("graph=er:p=0", "graph.p: got 0.0, allowed: 0 < p <= 1"),
        ("warm_up.rule=balance:gamma=-1", "warm_up.rule.gamma: got -1.0, allowed: above 0"),
        ("optimisation.min_weight=2", "optimisation.min_weight: got 2, allowed: less than or equal to 1"),
    ],
)
def test_wrong_types_and_impossible_values_name_key_value_and_what_is_allowed(word: str, expected: str) -> None:
    assert refusal(word).startswith(expected)


@pytest.mark.parametrize(
    "word",
    [
        "warm_up.step_size=inf",
        "optimisation.step_size=-1",
        "optimisation.step_size=nan",
        "optimisation.max_local_step=inf",
        "attack.mu=nan",
        "attack=ipm:a=inf",
        "attack=huge:value=inf",
        "detection.offset=true",
    ],
)
def test_numbers_that_cannot_be_written_down_or_make_no_sense_are_refused(word: str) -> None:
    assert refusal(word).startswith(word.split("=")[0])


def test_a_name_in_place_of_a_section_is_pointed_to_the_key_that_takes_it() -> None:
    assert refusal("optimisation=frost").endswith("; did you mean optimisation.method=frost?")
    assert refusal("warm_up=krum:f=2").endswith("; did you mean warm_up.rule=krum:f=2?")
    assert "did you mean" not in refusal("panel=strong")


def test_several_mistakes_are_counted() -> None:
    assert refusal("nodes=1", "steps=1", "seed=-1").endswith(" (and 2 more mistakes)")


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("attack=scenario-a", "attack=parameter"),
        ("attack=scenario-b", "attack=covariate"),
        ("attack=empire", "attack=ipm"),
        ("attack=crash", "attack=silent"),
        ("graph=er", "graph=erdos-renyi"),
        ("warm_up.rule=mozi", "warm_up.rule=ubar"),
        ("warm_up.rule=rfa", "warm_up.rule=geometric-median"),
        ("warm_up.rule=dsgd", "warm_up.rule=average"),
        ("warm_up.rule=trmean", "warm_up.rule=trimmed-mean"),
        ("warm_up.rule=IOS", "warm_up.rule=ios"),
        ("detection.centre=rfa", "detection.centre=geometric-median"),
        ("attack=ipm:a=2.0", "attack={name='ipm', a=2}"),
        ("attack=ipm:a=2.0", "attack={name='empire', a=2.0}"),
        ("warm_up.rule=balance:gamma=0.5,kappa=2", "warm_up.rule={name='balance', gamma=0.5, kappa=2.0}"),
    ],
)
def test_aliases_and_shorthands_are_the_same_spec(alias: str, name: str) -> None:
    alike, same = (load(None, ["panel.edge=off", word]) for word in (alias, name))  # the panel's edge replaces the centre
    assert alike == same
    assert alike.digest == same.digest


def test_data_is_written_like_any_other_part_and_without_a_name_it_is_linear() -> None:
    spec = load(None, ["attack=ood", "data=fashion-mnist:samples=400"])
    for words in (
        ["data.name=fashion-mnist", "data.samples=400"],
        ["data={name='fmnist', samples=400}"],
        ["data=Fashion", "data.samples=400"],
    ):
        assert load(None, ["attack=ood", *words]) == spec
    assert spec.data.build() == TASKS["fashion-mnist"](samples=400)  # type: ignore[call-arg]
    assert read_spec({"data": {"dim": 5}}) == load(None, ["data=linear:dim=5"]) == load(None, ["data.dim=5"])


@pytest.mark.parametrize("centre", CENTRES)
def test_cross_fitting_needs_a_centre_that_is_a_weighted_mean(centre: str) -> None:
    words = [f"detection.centre={centre}", "detection.cross_fit=true", "panel.edge=off"]
    if issubclass(CENTRES[centre], SetRule):
        assert load(None, words).detection.cross_fit
    else:
        assert refusal(*words).startswith("detection.cross_fit: got True, allowed: with a centre that is a weighted mean")


@pytest.mark.parametrize(
    ("word", "same"), [("warm_up.rule=BALANCE", "warm_up.rule=balance"), ("graph=er", "graph=erdos-renyi")]
)
def test_another_spelling_of_the_present_name_keeps_its_parameters(word: str, same: str) -> None:
    assert load(None, ["graph.p=0.9", word]) == load(None, ["graph.p=0.9", same])


@pytest.mark.parametrize("name", ["nan", "inf"])
def test_attacks_that_toml_takes_for_numbers(tmp_path: Path, name: str) -> None:
    (tmp_path / "spec.toml").write_text(f"attack = {name}\n")
    for spec in (load(None, [f"attack={name}"]), load(None, [f'attack="{name}"']), load(str(tmp_path / "spec.toml"))):
        assert spec.attack.model_dump() == {"name": name}
        assert type(spec.attack.build()) is ATTACKS[name]


NAMES = [
    ("warm_up.rule", RULES),
    ("attack", ATTACKS),
    ("data", TASKS),
    ("graph", TOPOLOGIES),
    ("detection.centre", CENTRES),
    ("detection.scale", {name: SCALES[name] for name in NETWORK_SCALES}),
]


# Attacks on data know one kind of it; the default attack is one on the linear problem.
BESIDE = {"ood": ["data=mnist"], "label-flip": ["data=mnist"], **{name: ["attack=ipm"] for name in TASKS if name != "linear"}}
BESIDE["directed"] = ["detection.pruning=directed"]  # mutual pruning needs arcs in both directions


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, table in NAMES for name in table])
def test_every_part_of_the_tables_can_be_written_by_its_name(key: str, name: str) -> None:
    needs = ":path=edges.txt" if name == "file" else ""
    profile = ["profile=paper"] if key.startswith("detection") else []  # a panel needs some kinds of parts
    part: Any = load(None, [*profile, f"{key}={name}{needs}", *BESIDE.get(name, [])])
    for step in key.split("."):
        part = getattr(part, step)
    entry = dict(NAMES)[key][name]
    expected = entry(path="edges.txt") if needs else entry()
    # The default spec has BALANCE with a gamma of its own; naming the rule starts from the defaults of the rule.
    assert part.build() == expected


def test_words_go_on_top_of_recipes_and_files(tmp_path: Path) -> None:
    recipe = load("scenario-b", ["nodes=50", "attack.push=2.0", "warm_up.rule.share=0.2"], seed=3)
    assert (recipe.nodes, recipe.seed, recipe.attack.push, recipe.attack.shift) == (50, 3, 2.0, 1.0)
    assert (recipe.warm_up.rule.name, recipe.warm_up.rule.share, recipe.warm_up.batch) == ("ios", 0.2, 32)
    file = tmp_path / "spec.toml"
    file.write_text('nodes = 60\nattack = "ipm:a=3.0"\n[warm_up]\nbatch = 4\n[graph]\np = 0.7\n')
    spec = load(str(file), ["nodes=70", "attack.a=4.0"])
    assert (spec.nodes, spec.attack.a, spec.warm_up.batch, spec.graph.p) == (70, 4.0, 4, 0.7)
    assert spec.model_copy(update={"nodes": 150}) == load(None, ["attack=ipm:a=4.0", "warm_up.batch=4", "graph.p=0.7"])


def test_a_part_with_another_name_starts_from_its_own_defaults() -> None:
    spec = load(None, ["warm_up.rule.gamma=0.7", "attack.mu=2.0", "warm_up.rule=ubar", "attack=covariate"])
    assert spec.warm_up.rule.build() == RULES["ubar"]()
    assert spec.attack.build() == ATTACKS["covariate"]()
    assert load(None, ["warm_up.rule=ubar", "warm_up.rule.share=0.1"]).warm_up.rule.build() == RULES["ubar"](share=0.1)


PANEL = {
    **{"absurd": 2000.0, "duplicate": 0.01, "high": "off", "low": 7.0, "alike": "off", "edge": 1.3, "most": 0.4},
    **{"strong": 9.0, "weak": 6.0, "direction": "off", "joint": 3.0, "guard": 0.6, "widen": 5.0},
    **{"mixed": 0.3, "far": 13.0, "far_joint": 8.0, "few": 6},
}
WATCH = {
    "every": 100,
    "fuse": "off",
    "fuse_share": 0.3,
    "drift": 6.0,
    "deed": "off",
    "longest": 4,
    "retreat": "off",
    "fade": "off",
    "joint": 4.0,
}
ALONE = {"step_size": 0.1, "schedule": "trapezoid", "batch": 9}
CHANGES = [
    'method="dsgd"',
    "nodes=151",
    "byzantine_ratio=0.25",
    "byzantine_mixing=none",
    "byzantine_pruning=all",
    "attack=ipm byzantine_level=message",
    "attack=ipm byzantine_start=10",
    "attack=ipm byzantine_period=10",
    "attack=ipm byzantine_faces=two",
    "byzantine_placement=high-degree",
    "steps=3001",
    "seed=1",
    "record_every=51",
    "stop.tolerance=0.1",
    "stop.tolerance=0.1 stop.on=movement",
    "stop.tolerance=0.1 stop.patience=51",
    "profile=paper detection.every=10",
    "graph=ring",
    "graph.p=0.6",
    "data.dim=31",
    "data.samples=101",
    "data.identification=40",
    "warm_up.steps=30",
    "warm_up.rule=ios",
    "warm_up.rule.gamma=0.9",
    "warm_up.rule.kappa=0.9",
    "warm_up.rule.self_weight=0.4",
    "warm_up.rule.absolute=0.1",
    "warm_up.step_size=0.06",
    "warm_up.schedule=linear",
    "warm_up.batch=9",
    "alone={}",
    *(f"alone.{key}={value}" for key, value in ALONE.items()),
    "detection.fdr_level=0.1",
    "panel.strong=off detection.offset=1",
    "panel.edge=off detection.centre=mean",
    "panel.edge=off detection.centre.share=0.4",
    "profile=paper",
    "profile=paper detection.scale=pca",
    "detection.point=sender",
    "detection.cross_fit=false",
    "detection.probe=false",
    "detection.sample=50",
    "detection.pruning=directed",
    "detection.exile=off",
    *(f"panel.{key}={value}" for key, value in PANEL.items()),
    *(f"watch.{key}={value}" for key, value in WATCH.items()),
    "optimisation.convention=paper",
    "optimisation.step_size=0.05",
    "optimisation.step_size=0.01",
    "optimisation.schedule=constant",
    "optimisation.batch=33",
    "optimisation.max_local_step=0.2",
    "optimisation.min_weight=0.2",
    "optimisation.premix_rounds=5",
    "optimisation.method=frost",
    "weights=lazy",
    "method=rule redraw_every=5",
    "method=rule redraw_every=5 redraw_graphs=3",
    "attack=ipm",
    "attack.share=0.6",
    "attack.mu=4.0",
]


def test_the_digest_tells_any_two_specs_apart_and_equal_ones_not() -> None:
    specs = [Spec(), *[load(None, change.split()) for change in CHANGES]]
    images = [load(None, ["attack=ipm", f"data={name}"]) for name in TASKS if name != "linear"]
    assert len({spec.digest for spec in [*specs, *images]}) == len(specs) + len(images)
    assert len({spec.digest for spec in specs}) == len(specs) == len(CHANGES) + 1
    for change in CHANGES:
        assert load(None, change.split()).digest == load(None, change.split()).digest
    assert load(None, ["attack.mu=5", "seed=0"]).digest == Spec().digest == read_spec({}).digest
    touched = {word.split("=")[0].split(".")[0] for change in CHANGES for word in change.split()}
    assert touched == set(Spec.model_fields), "a new key belongs in the list of changes"
    assert set(PANEL) == set(Panel.model_fields)
    assert set(WATCH) == set(Watch.model_fields)
    assert set(ALONE) == set(Alone.model_fields)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_survive_json(tmp_path: Path, name: str) -> None:
    for spec in (RECIPES[name](), *RECIPES[name]().expand()):
        file = tmp_path / "spec.json"
        file.write_text(json.dumps(spec.model_dump(mode="json")))
        assert load(str(file)) == spec == Spec.model_validate_json(spec.model_dump_json())
        assert load(str(file)).digest == spec.digest
    assert load(name) == RECIPES[name]()


def test_defaults_are_those_of_the_plan() -> None:
    spec = load(None, ["profile=paper", "method=drsgd-bymi", "nodes=20"])
    # The profile cools down, and its scene needs a wider BALANCE than the default; all else is the same in both places.
    warm_up = replace(WarmUp(), rule=BALANCE(gamma=1.0), cool_down=0.4)
    assert set_up_run(spec.resolved).plan == Plan(3000, 300, warm_up, Detector(), Optimisation(), identification=50, seed=0)
    assert Plan(3000, 300, detector=Detector()) == replace(set_up_run(spec.resolved).plan, warm_up=WarmUp())
    hardened = set_up_run(load(None, ["method=drsgd-bymi", "nodes=20"]).resolved).plan
    assert hardened.detector is not None
    assert hardened.detector.panel == detection.Panel()
    assert hardened.watch == detection.Watch()


def test_a_method_without_detection_has_a_plan_without_detector() -> None:
    plans = [set_up_run(spec.resolved).plan for spec in load(None, ["profile=paper", "nodes=20", "warm_up.rule=ios"]).expand()]
    assert [plan.detector for plan in plans] == [None, None, Detector()]
    assert [plan.warm_up.rule for plan in plans] == [RULES["average"](), RULES["ios"](), RULES["ios"]()]


@pytest.mark.parametrize("words", ["[dsgd, rule]", "[dsgd,rule,]", '["dsgd", "rule"]', "['dsgd','rule']"])
def test_methods_need_no_quotes(words: str) -> None:
    assert load(None, [f"method={words}"]).methods == ["dsgd", "rule"]
