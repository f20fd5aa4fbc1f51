"""The adversary's levels and its clock: what is touched where, and that nothing is touched before it wakes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bymi import Outgoing
from bymi.attacks import ATTACKS, Adaptive, Adversary, Attack, DataAttack, Level, PerReceiver, VectorAttack
from bymi.attacks.unusable_messages import put_on_wire
from bymi.core.errors import InputError
from bymi.core.network import LocalNetwork
from bymi.core.performance_thresholds import LIMITS
from bymi.core.random_streams import stream
from bymi.core.topic import FIRST_HALF, GRADIENT, PARAMETERS, PREMIX, SECOND_HALF, TRACKER, Topic
from bymi.core.topology import ErdosRenyi
from bymi.experiment import load
from bymi.runs.run_setup import RunSetup, set_up_run
from bymi.runs.simulate import local_network, simulate
from bymi.training.state import Snapshot

NODES = 12
MEMBERS = torch.tensor([number in (1, 4, 9) for number in range(NODES)])
VECTORS = stream(0, "vectors").normal(NODES, NODES) + 1.0
GRAPH = ErdosRenyi(0.7).draw(NODES, seed=0, must_connect=~MEMBERS)
FORGED = (GRADIENT, FIRST_HALF, SECOND_HALF, FIRST_HALF.to(3), Topic("second half", at_start=True, asker=11))
WIRED = (PARAMETERS, PREMIX, TRACKER, FIRST_HALF, SECOND_HALF)
TOUCHED: dict[Level, tuple[set[Topic], set[Topic]]] = {
    "gradient": (set(FORGED), set()),
    "training": ({GRADIENT}, set()),
    "pair": (set(FORGED) - {GRADIENT}, set()),
    "message": (set(), {PARAMETERS}),
    "tracker": (set(), {PREMIX, TRACKER}),
}
"""Topics of vectors that are replaced before they are used, and of those replaced on the wire."""


def touched(adversary: Adversary, step: int = 0) -> tuple[set[Topic], set[Topic]]:
    """The topics under which an honest node hears something else than the truth of an attacker."""
    forged = set()
    for topic in FORGED:
        vectors = adversary.gradients(VECTORS, torch.arange(NODES), topic, step)
        assert torch.equal(vectors[~MEMBERS], VECTORS[~MEMBERS])
        if not torch.equal(vectors, VECTORS):
            forged.add(topic)
    network = local_network(GRAPH, adversary)
    wired = set()
    for topic in WIRED:
        (inbox,) = network.exchange(step, {topic: VECTORS})
        assert torch.equal(inbox.messages[:NODES][~MEMBERS], VECTORS[~MEMBERS])
        senders = torch.arange(NODES) if inbox.senders is None else inbox.senders
        true = VECTORS[senders]
        if not inbox.complete or not torch.equal(inbox.messages, true):
            wired.add(topic)
    return forged, wired


def vector_attacks() -> list[str]:
    return [name for name, entry in ATTACKS.items() if issubclass(entry, VectorAttack)]


@pytest.mark.parametrize("name", vector_attacks())
def test_every_attack_acts_at_its_level(name: str) -> None:
    attack = ATTACKS[name]()
    assert isinstance(attack, VectorAttack)
    forged, wired = touched(Adversary(MEMBERS, attack))
    if isinstance(attack, Adaptive):  # some of its answers need an asker, or updates
        assert forged <= TOUCHED[attack.level][0]
        assert (forged, wired) != (set(), set()) or attack.reads_updates
    else:
        assert (forged, wired) == TOUCHED[attack.level]


@pytest.mark.parametrize("level", TOUCHED)
@pytest.mark.parametrize("name", ["alie", "sign-flip", "poison", "negative-injection", "deed"])
def test_the_level_can_be_chosen(name: str, level: Level) -> None:
    assert touched(Adversary(MEMBERS, ATTACKS[name](), level=level)) == TOUCHED[level]


@pytest.mark.parametrize("name", ["dissensus", "isolation"])
def test_attacks_by_receiver_touch_parameters_only(name: str) -> None:
    assert touched(Adversary(MEMBERS, ATTACKS[name]())) == (set(), {PARAMETERS})


@pytest.mark.parametrize("name", ["nan", "inf", "huge", "misshapen", "silent"])
def test_attacks_on_the_wire_touch_everything_or_one_level(name: str) -> None:
    assert touched(Adversary(MEMBERS, ATTACKS[name]())) == (set(), set(WIRED))
    for level, topics in {
        "gradient": {FIRST_HALF, SECOND_HALF},
        "pair": {FIRST_HALF, SECOND_HALF},
        "message": {PARAMETERS},
        "tracker": {PREMIX, TRACKER},
    }.items():
        assert touched(Adversary(MEMBERS, ATTACKS[name](), level=level)) == (set(), topics)  # type: ignore[arg-type]


def test_a_message_level_attack_sees_honest_parameters_only() -> None:
    adversary = Adversary(MEMBERS, ATTACKS["alie"](z=1.5), level="message")
    (inbox,) = local_network(GRAPH, adversary).exchange(0, {PARAMETERS: VECTORS})
    honest = VECTORS[~MEMBERS]
    torch.testing.assert_close(inbox.messages[1], honest.mean(0) - 1.5 * honest.std(0, correction=0))
    assert torch.equal(inbox.own, VECTORS)
    assert inbox.own_column.tolist() == [-1 if MEMBERS[node] else node for node in range(NODES)]
    average = inbox.mix(inbox.average())
    torch.testing.assert_close(
        average, GRAPH.mixing.diagonal()[:, None] * VECTORS + (GRAPH.mixing * GRAPH.hears) @ inbox.messages
    )


def test_own_rows_line_up_when_one_topic_of_two_is_touched() -> None:
    adversary = Adversary(MEMBERS, ATTACKS["poison"]())
    inboxes = local_network(GRAPH, adversary).exchange(0, {PARAMETERS: VECTORS, TRACKER: VECTORS})
    assert torch.equal(inboxes[0].own_row, inboxes[1].own_row)
    assert all(inbox.complete for inbox in inboxes)


@pytest.mark.parametrize("name", ["sign-flip", "poison", "y-poison", "nan", "dissensus"])
def test_the_clock(name: str) -> None:
    quiet = (set(), set())
    sleeper = Adversary(MEMBERS, ATTACKS[name](), start=5)
    loud = touched(Adversary(MEMBERS, ATTACKS[name]()))
    assert [touched(sleeper, step) != quiet for step in range(8)] == [False] * 5 + [True] * 3
    now_and_then = Adversary(MEMBERS, ATTACKS[name](), start=2, period=4)
    expected = [False, False, True, True, False, False, True, True, False, False]
    assert [touched(now_and_then, step) == loud for step in range(10)] == expected
    odd = Adversary(MEMBERS, ATTACKS[name](), period=3)
    assert [odd.acts(step) for step in range(6)] == [True, True, False, True, True, False]


def test_before_it_wakes_it_keeps_asks_and_prunes_like_everybody() -> None:
    adversary = Adversary(MEMBERS, ATTACKS["ipm"](), mixing="none", pruning="all", start=5, period=2)
    nodes, flagged = torch.arange(NODES), stream(0, "flags").uniform(NODES, NODES) < 0.3
    (inbox,) = LocalNetwork(GRAPH).exchange(0, {PARAMETERS: VECTORS})
    ruled = torch.zeros_like(VECTORS)
    assert adversary.keep(inbox, ruled, nodes, step=4) is ruled
    assert bool(adversary.asks(nodes, step=4).all())
    assert adversary.prune(flagged, nodes, step=4) is flagged
    for step in (5, 6, None):  # also in a round in which an intermittent attacker rests
        assert torch.equal(adversary.keep(inbox, ruled, nodes, step=step)[MEMBERS], VECTORS[MEMBERS])
        assert torch.equal(adversary.asks(nodes, step=step), ~MEMBERS)
        assert bool(adversary.prune(flagged, nodes, step=step)[MEMBERS].all())


DETECTS = "method=drsgd-bymi warm_up.steps=6 optimisation.premix_rounds=0"


def scene_of(*words: str) -> RunSetup:
    settings = ("nodes=20", "steps=20", "data.dim=5", "data.samples=40", "byzantine_mixing=rule", "byzantine_pruning=rule")
    return set_up_run(load(None, [*settings, *words]).resolved)


def rounds(scene: RunSetup, adversary: Adversary | None) -> list[Snapshot]:
    return list(simulate(scene.problem, scene.graph, scene.plan, adversary))


@pytest.mark.parametrize("words", ["method=rule", "method=dsgd", DETECTS])
@pytest.mark.parametrize("attack", ["sign-flip", "nan", "poison", "gaussian", "negative-injection"])
def test_a_sleeper_is_bitwise_honest_before_it_wakes(attack: str, words: str) -> None:
    scene = scene_of(f"attack={attack}", "byzantine_start=10", *words.split())
    asleep, nobody = rounds(scene, scene.adversary), rounds(scene, None)
    for one, other in zip(asleep, nobody, strict=True):
        early = one.step <= 10
        if early or one.step == 20:
            assert torch.equal(one.theta[~scene.byzantine], other.theta[~scene.byzantine]) == early, one.step
        if early:
            assert torch.equal(one.theta, other.theta)


@pytest.mark.parametrize("attack", ["dissensus", "poison:how=fuse"])
def test_a_sleeper_with_many_faces_is_honest_before_it_wakes(attack: str) -> None:
    scene = scene_of(f"attack={attack}", "byzantine_start=10", "method=rule")
    for one, other in zip(rounds(scene, scene.adversary), rounds(scene, None), strict=True):
        close = torch.allclose(one.theta[~scene.byzantine], other.theta[~scene.byzantine], rtol=1e-10, atol=1e-12)
        assert close == (one.step <= 10) or 10 < one.step < 20


OF_VECTORS = [name for name in ATTACKS if name not in ("ood", "label-flip")]  # those are of images


@pytest.mark.parametrize("name", OF_VECTORS)
def test_every_attack_runs_to_the_end_with_every_method(name: str) -> None:
    for method in ("drsgd-bymi",) if name == "y-poison" else ("dsgd", "rule", "drsgd-bymi"):
        words = ("profile=paper", f"attack={name}", f"method={method}", "detection.point=receiver", "byzantine_pruning=none")
        scene = scene_of(*words)
        last = rounds(scene, scene.adversary)[-1]
        assert last.step == 20
        detected = method == "drsgd-bymi"
        idle = name in ("zero", "mimic", "frame") or (name in ("copies", "kin") and not detected)  # answers in detections alone
        idle = idle or (name in ("retreat", "rotation") and detected)  # a single detection; more teams than attackers
        assert issubclass(ATTACKS[name], DataAttack) or idle or touched_at_all(scene)


@pytest.mark.parametrize("pruning", ["mutual", "directed"])
@pytest.mark.parametrize("name", OF_VECTORS)
def test_every_attack_runs_to_the_end_against_the_hardened_profile(name: str, pruning: str) -> None:
    watch = ("watch.every=5", f"detection.pruning={pruning}")
    scene = scene_of(f"attack={name}", "method=drsgd-bymi", "byzantine_pruning=none", *watch)
    snapshots = rounds(scene, scene.adversary)
    assert snapshots[-1].step == 20
    assert all(bool(torch.isfinite(one.theta[~scene.byzantine]).all()) for one in snapshots)
    assert sum(one.verdict is not None for one in snapshots) == len(scene.plan.detections) == 6


def touched_at_all(scene: RunSetup) -> bool:
    """Whether some honest node ends elsewhere than without the attack."""
    with_it = rounds(scene, scene.adversary)[-1].theta[~scene.byzantine]
    without = rounds(scene, replace(scene.adversary, attack=None))[-1].theta[~scene.byzantine]
    return not torch.equal(with_it, without)


def split(vectors: Tensor, nodes: Tensor, adversary: Adversary, parts: list[Tensor]) -> Tensor:
    """What attackers use when the nodes are handled one group after the other, each with all honest ones."""
    result = vectors.clone()
    for part in parts:
        some = torch.cat([nodes[~MEMBERS], part]).sort().values
        result[some] = adversary.gradients(vectors[some], some, FIRST_HALF, 3)
    return result


@pytest.mark.parametrize("name", vector_attacks())
def test_draws_do_not_depend_on_grouping(name: str) -> None:
    attack: Attack = ATTACKS[name](z=1.0) if name == "alie" else ATTACKS[name]()
    adversary, nodes = Adversary(MEMBERS, attack, level="gradient", seed=1), torch.arange(NODES)
    together = adversary.gradients(VECTORS, nodes, FIRST_HALF, 3)
    apart = split(VECTORS, nodes, adversary, [torch.tensor([1]), torch.tensor([4, 9])])
    torch.testing.assert_close(apart, together, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("attack=parameter byzantine_start=5", "byzantine_start: got 5, allowed: with attacks on vectors or messages"),
        ("attack=covariate byzantine_period=4", "byzantine_period: got 4, allowed: with attacks on vectors or messages"),
        ("attack=parameter byzantine_faces=two", "byzantine_faces: got 'two', allowed: with attacks on vectors or messages"),
        ("attack=response-flip byzantine_level=pair", "byzantine_level: got 'pair', allowed: with attacks on vectors"),
        ("attack=dissensus byzantine_level=tracker", "byzantine_level: got 'tracker', allowed: message for an attack that"),
        ("attack=poison:how=fuse byzantine_level=pair", "byzantine_level: got 'pair', allowed: message for an attack that"),
        ("attack=nan byzantine_level=training", "byzantine_level: got 'training', allowed: gradient, pair, message, tracker"),
        ("attack=ipm byzantine_period=1", "byzantine_period: got 1, allowed: greater than or equal to 2"),
        ("attack=ipm byzantine_start=-1", "byzantine_start: got -1, allowed: greater than or equal to 0"),
        ("attack=ipm byzantine_faces=three", "byzantine_faces: got 'three', allowed: 'one' or 'two'"),
        ("attack=ipm byzantine_placement=middle", "byzantine_placement: got 'middle', allowed: 'random', 'high-degree'"),
        ("attack=shift:size=-1.0", "attack.size: got -1.0, allowed: 0 or above"),
    ],
)
def test_a_spec_says_in_one_line_what_does_not_go_together(words: str, line: str) -> None:
    with pytest.raises(InputError) as problem:
        load(None, words.split())
    assert str(problem.value).startswith(line)
    assert "\n" not in str(problem.value)


def test_the_adversary_checks_its_own_options() -> None:
    for options in ({"start": -1}, {"period": 1}, {"faces": "many"}, {"level": "wire"}):
        with pytest.raises(InputError, match="byzantine_"):
            Adversary(MEMBERS, ATTACKS["ipm"](), **options)  # type: ignore[arg-type]
    assert issubclass(ATTACKS["poison"], PerReceiver)
    Adversary(MEMBERS, ATTACKS["poison"](), level="tracker")  # alike for all receivers with how="large"


@pytest.mark.parametrize("looked_at", [("cpu",), ()])
@pytest.mark.parametrize("attack", ["gradient", "ipm", "alie", "gaussian"])
def test_attackers_see_past_nodes_that_diverged(
    attack: str, looked_at: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For vectors that are not finite: the first that is, or the mean of those that are. Without any they act honestly."""
    monkeypatch.setattr(LIMITS, "looked_at", looked_at)
    adversary, nodes, broken, stand_in = Adversary(MEMBERS, attack), torch.arange(NODES), VECTORS.clone(), VECTORS.clone()
    honest = nodes[~MEMBERS]
    broken[honest[2]], broken[honest[4], 0] = torch.nan, torch.inf
    finite = VECTORS[honest[[0, 1, 3, *range(5, len(honest))]]]
    stand_in[honest[[2, 4]]] = finite.mean(0) if adversary.sees == "mean" else VECTORS[honest[0]]
    seen = adversary.gradients(broken, nodes, GRADIENT, 3)[MEMBERS]
    torch.testing.assert_close(seen, adversary.gradients(stand_in, nodes, GRADIENT, 3)[MEMBERS], rtol=1e-12, atol=1e-12)
    broken[honest] = torch.nan
    assert torch.equal(adversary.gradients(broken, nodes, GRADIENT, 3)[MEMBERS], VECTORS[MEMBERS])


def test_silence_and_wrong_shapes_are_rows_of_nan() -> None:
    own = VECTORS[:4]
    rows, same = put_on_wire(own, {1: None, 2: own[2, :-1], 3: -own[3]})
    assert torch.equal(rows[[0, 3]], torch.stack([own[0], -own[3]]))
    assert bool(rows[[1, 2]].isnan().all())
    assert same is not None
    assert same.tolist() == [True, False, False, False]
    assert not bool(own.isnan().any())
    rows, same = put_on_wire(own, own)
    assert rows is own
    assert same is None
    assert put_on_wire(own, {}) == (own, None)


def test_only_the_topic_that_differs_has_variants() -> None:
    """Senders with several messages under one topic of an exchange send their first one everywhere under the other."""
    network = local_network(GRAPH, Adversary(MEMBERS, ATTACKS["sign-flip"](), faces="two", level="message"))
    parameters, tracker = network.exchange(0, {PARAMETERS: VECTORS, TRACKER: VECTORS + 1})
    assert parameters.expected.shape == tracker.expected.shape == (NODES, NODES + int(MEMBERS.sum()))
    assert torch.equal(parameters.messages[NODES:], -VECTORS[MEMBERS])
    assert torch.equal(tracker.messages[NODES:], VECTORS[MEMBERS] + 1)


def test_what_is_outgoing_already_passes_the_adversary() -> None:
    network = local_network(GRAPH, Adversary(MEMBERS, ATTACKS["silent"]()))
    (inbox,) = network.exchange(0, {PARAMETERS: Outgoing(VECTORS, VECTORS + 1, torch.zeros(NODES, dtype=torch.bool))})
    assert inbox.complete
    assert torch.equal(inbox.messages, VECTORS + 1)
    assert torch.equal(inbox.own, VECTORS)
