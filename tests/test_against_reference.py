"""Batched rules and graphs equal the literal transcriptions, node by node."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from bymi import BALANCE, IOS, RULES, UBAR, Complete, Graph, LocalNetwork, Round, TrMean
from bymi.core.topic import PARAMETERS
from tests.inbox_fixtures import network_of, quadratic
from tests.reference import graphs, rules
from tests.reference.peer_rules import ALL_TRANSCRIPTIONS
from tests.reference.scenes import RunSetup, draw_scene

SCENES = [
    pytest.param({"nodes": nodes, "dim": dim, "directed": directed, "losses": losses, "seed": seed}, id=f"{nodes}-{dim}-{seed}")
    for seed, (nodes, dim, directed, losses) in enumerate(
        [
            (12, 3, False, False),
            (16, 40, True, False),
            (25, 3, True, True),
            (14, 40, False, True),
            (25, 40, False, False),
            (20, 3, False, True),
            (13, 40, True, True),
        ]
    )
]

# Run until it stands still, as its transcription does; how soon it stops by default is a matter of its own.
PATIENT = {"iterations": 3000, "tolerance": 1e-15}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "ubar": [{}, {"share": 0.2, "self_weight": 0.25}, {"share": 0.95}, {"f": 3}],
    "ios": [{}, {"share": 0.0}, {"share": 0.15}, {"share": 0.95}, {"f": 2}],
    "balance": [{}, {"gamma": 0.22, "kappa": 0.0, "self_weight": 0.125}, {"gamma": 0.1, "kappa": 3.0, "absolute": 1.1}],
    "trimmed-mean": [{}, {"share": 0.0}, {"share": 0.2}, {"share": 0.49}, {"f": 2}],
    "geometric-median": [PATIENT],
    "filtering": [{}, {"share": 0.0}, {"share": 0.2}, {"about": "median"}, {"share": 0.3, "about": "median"}],
    "scclip": [{}, {"share": 0.0}, {"share": 0.1}, {"tau": 1.0}, {"tau": 0.0}],
    "rtc": [{}, {"share": 0.0}, {"share": 0.1}, {"clip_power": 2}],
    "drsa": [{}, {"penalty": 0.5}],
    "byrdie": [{}, {"inner": 3}],
    **{
        name: [{}, {"share": 0.0}, {"f": 2}]
        for name in ("bridge-t", "bridge-b", "faba", "monna", "meamed", "krum", "multi-krum", "bulyan", "cge", "caf")
    },
    "mda": [{"share": 0.0}, {"f": 2}],
    "centered-clipping": [{}, {"tau": 1.0, "iterations": 3}, {"iterations": 2}],
}
CASES = [(name, settings) for name in RULES for settings in SETTINGS.get(name, [{}])]


def test_every_rule_has_a_transcription() -> None:
    assert set(ALL_TRANSCRIPTIONS) == set(RULES)


def by_transcription(name: str, rule: object, scene: RunSetup, *, step: int, steps: int) -> np.ndarray:
    transcription = ALL_TRANSCRIPTIONS[name]
    nodes = [scene.node(receiver, step=step, steps=steps) for receiver in range(scene.size)]
    return np.array([transcription(node, **asdict(rule)) for node in nodes])  # type: ignore[call-overload]


@pytest.mark.parametrize("drawn", SCENES)
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_rules(name: str, settings: dict[str, Any], drawn: dict[str, Any]) -> None:
    scene = draw_scene(**drawn)
    (inbox,) = network_of(scene).exchange(0, {PARAMETERS: torch.from_numpy(scene.vectors)})
    rule = RULES[name](**settings)
    output = rule(inbox, Round(2, 5, quadratic(torch.from_numpy(scene.targets))))
    expected = by_transcription(name, rule, scene, step=2, steps=5)
    np.testing.assert_allclose(output.numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("drawn", SCENES[1:3])
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_rules_in_single_precision(name: str, settings: dict[str, Any], drawn: dict[str, Any]) -> None:
    """The same decisions from vectors rounded to float32; only the last mixing rounds, to a few 1e-7 of sizes up to 10."""
    drawn_scene = draw_scene(**drawn)
    vectors = drawn_scene.vectors.astype(np.float32)
    scene = RunSetup(drawn_scene.hears, vectors.astype(np.float64), drawn_scene.second, drawn_scene.targets, drawn_scene.lost)
    (inbox,) = network_of(scene).exchange(0, {PARAMETERS: torch.from_numpy(vectors)})
    rule = RULES[name](**settings)
    output = rule(inbox, Round(2, 5, quadratic(torch.from_numpy(scene.targets))))
    assert output.dtype == torch.float32
    np.testing.assert_allclose(output.numpy(), by_transcription(name, rule, scene, step=2, steps=5), rtol=0, atol=1e-5)


@pytest.mark.parametrize("drawn", SCENES)
@pytest.mark.parametrize("settings", SETTINGS["balance"])
def test_balance_is_put_to_the_test(settings: dict[str, Any], drawn: dict[str, Any]) -> None:
    """The scenes make BALANCE accept some and refuse some, so that agreement above says something."""
    scene = draw_scene(**drawn)
    (inbox,) = network_of(scene).exchange(0, {PARAMETERS: torch.from_numpy(scene.vectors)})
    accepted = RULES["balance"](**settings).weigh(inbox, Round(2, 5)).weight > 0  # type: ignore[attr-defined]
    assert 0.1 < accepted.sum() / inbox.heard.sum() < 0.9


@pytest.mark.parametrize("rule", [UBAR(share=0.0, self_weight=0.3), BALANCE(gamma=9.0, self_weight=0.3)])
def test_the_own_weight_is_the_one_that_was_asked_for(rule: UBAR | BALANCE) -> None:
    vectors = torch.ones(4, 2, dtype=torch.float64)
    (inbox,) = LocalNetwork(Complete().draw(4)).exchange(0, {PARAMETERS: vectors})
    assert rule.weigh(inbox, Round(losses=quadratic(vectors))).own.tolist() == [0.3] * 4


@pytest.mark.parametrize(
    ("rule", "neighbours", "kept"),
    [
        (IOS(share=0.3), 50, 35),
        (IOS(share=0.15), 100, 85),
        (IOS(share=0.07), 100, 93),
        (UBAR(share=0.8), 10, 2),
        (UBAR(share=0.16), 75, 63),
        (UBAR(share=0.35), 180, 117),
    ],
)
def test_a_share_of_a_large_neighbourhood_is_a_whole_number(rule: IOS | UBAR, neighbours: int, kept: int) -> None:
    """Shares that come out even: one neighbour more or less would be a rounding error of the share."""
    random = np.random.default_rng(0)
    vectors = torch.from_numpy(random.standard_normal((neighbours + 1, 2)))
    (inbox,) = LocalNetwork(Complete().draw(neighbours + 1)).exchange(0, {PARAMETERS: vectors})
    # Everybody's loss is the same, so that UBAR averages all that it finds near.
    weight = rule.weigh(inbox, Round(losses=lambda rows, wanted: torch.zeros(wanted.shape, dtype=torch.float64))).weight
    assert ((weight > 0).sum(1) == kept).all()


def test_a_geometric_median_that_is_one_of_the_points() -> None:
    """Some medians of this scene sit on a point, up to the smoothing, so that the smoothing is seen in the result."""
    scene = draw_scene(nodes=25, dim=3, directed=True, losses=True, seed=27)
    (inbox,) = network_of(scene).exchange(0, {PARAMETERS: torch.from_numpy(scene.vectors)})
    rule = RULES["geometric-median"](**PATIENT)
    expected = by_transcription("geometric-median", rule, scene, step=0, steps=1)
    on_a_point = [min(np.linalg.norm(scene.vectors - expected[i], axis=1)) < 1e-5 for i in range(scene.size)]
    assert 0 < sum(on_a_point) < scene.size
    np.testing.assert_allclose(rule(inbox, Round()).numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("near", [0, 1, 2])
def test_ubar_where_no_loss_of_a_near_neighbour_is_a_number(near: int) -> None:
    """A NaN counts as infinite, and of infinite losses the first is as small as any: wherever the near one stands."""
    vectors = torch.full((4, 1), 9.0, dtype=torch.float64)
    vectors[3], vectors[near] = 0.0, 1.0
    (inbox,) = LocalNetwork(Complete().draw(4)).exchange(0, {PARAMETERS: vectors})

    def losses(rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return torch.where(rows[:, 0] == 0, 1.0, torch.nan).double().expand(wanted.shape)

    node = rules.Node(np.zeros(1), list(vectors[:3].numpy()), [0.25] * 3, 0.25, lambda v: 1.0 if v[0] == 0 else np.nan, 0, 1)
    output = UBAR(share=0.5)(inbox, Round(losses=losses))[3]
    assert output.tolist() == rules.ubar(node, share=0.5, self_weight=0.5).tolist() == [0.5]


def test_a_trimmed_share_of_a_large_neighbourhood_is_a_whole_number() -> None:
    """0.42 of 150 is 63: of the values 0 to 149 with squares in place of the upper half, 63 to 86 are averaged."""
    values = torch.arange(150, dtype=torch.float64)
    values = torch.where(values < 80, values, values**2)
    (inbox,) = LocalNetwork(Complete().draw(150)).exchange(0, {PARAMETERS: values[:, None]})
    output = TrMean(share=0.42)(inbox, Round())
    assert output[:, 0].tolist() == pytest.approx([float(values[63:87].mean())] * 150)


def random_arcs(nodes: int, density: float, seed: int) -> np.ndarray:
    hears = np.random.default_rng(seed).random((nodes, nodes)) < density
    np.fill_diagonal(hears, False)
    return hears


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_metropolis_weights_and_pruning(directed: bool, seed: int) -> None:
    hears = random_arcs(12 + 4 * seed, 0.3, seed)
    hears = hears if directed else hears | hears.T
    graph = Graph.from_hears(torch.from_numpy(hears))
    expected = graphs.metropolis(hears)
    np.testing.assert_allclose(graph.mixing.numpy(), expected, rtol=0, atol=1e-12)
    flagged = random_arcs(len(hears), 0.4, 100 + seed)  # also flags nodes that are not heard: that changes nothing
    pruned = graph.prune(torch.from_numpy(flagged))
    np.testing.assert_allclose(pruned.mixing.numpy(), graphs.prune(expected, flagged), rtol=0, atol=1e-12)
    assert np.array_equal(pruned.hears.numpy(), hears & ~flagged)


SPARSE = [(nodes, density, seed) for nodes, density in ((12, 0.12), (20, 0.08), (25, 0.15)) for seed in range(4)]


@pytest.mark.parametrize(("nodes", "density", "seed"), SPARSE)
def test_the_core(nodes: int, density: float, seed: int) -> None:
    hears = random_arcs(nodes, density, seed)
    component = graphs.largest_component(hears)
    core = Graph.from_hears(torch.from_numpy(hears)).core()
    assert set(core.members.nonzero().flatten().tolist()) == component
    assert core.closed == graphs.is_closed(hears, component)
    np.testing.assert_allclose(core.perron.numpy(), graphs.perron(graphs.metropolis(hears), component), rtol=0, atol=1e-9)


def test_the_sparse_graphs_have_cores_of_every_kind() -> None:
    """Some are the whole graph and some are not, some hear outsiders and some do not."""
    kinds = set()
    for nodes, density, seed in SPARSE:
        hears = random_arcs(nodes, density, seed)
        component = graphs.largest_component(hears)
        kinds.add((len(component) == nodes, graphs.is_closed(hears, component)))
    assert kinds == {(True, True), (False, True), (False, False)}
