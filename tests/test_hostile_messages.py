"""Messages that are none: NaN, infinity, absurd lengths, wrong shapes, silence. Honest nodes count them and go on."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from bymi import RULES, Detector, Inbox, Round
from bymi.core.topology import ErdosRenyi
from bymi.detection import CENTRES, REASONS, SCALES, Verdict, identify_neighbours
from bymi.experiment import Spec, load
from bymi.runs.metrics import Recorder
from bymi.runs.run_setup import RunSetup, set_up_run
from bymi.runs.simulate import simulate
from bymi.training.state import Snapshot
from tests.commands import TINY
from tests.detection_fixtures import NETWORK_SCALES
from tests.rule_kinds import KINDS

HOSTILE = ("nan", "inf", "huge", "misshapen", "silent")
NOT_HEARD = REASONS.index("not heard")


def spec_of(*words: str) -> Spec:
    return load(None, [*TINY, "steps=10", "warm_up.steps=3", "method=drsgd-bymi", *words])


def follow(spec: Spec, **attack: Any) -> tuple[RunSetup, list[Snapshot], Recorder]:
    """All rounds of a run, with everything that was heard in them, and what the metrics make of it.

    `attack`: parameters of the attack that no spec would allow.
    """
    resolved = spec.resolved
    resolved.values["attack"].update(attack)
    scene = set_up_run(resolved)
    recorder = Recorder(scene.evaluator, scene.graph, scene.byzantine, steps=spec.steps, every=1)
    snapshots = list(simulate(scene.problem, scene.graph, scene.plan, scene.adversary))
    for snapshot in snapshots:
        recorder.see(snapshot)
    return scene, snapshots, recorder


def assert_refused(scene: RunSetup, snapshots: list[Snapshot], recorder: Recorder) -> None:
    """Every hostile message was refused and counted, nobody honest was, and no honest node left the finite numbers."""
    honest, senders = ~scene.byzantine, scene.byzantine.nonzero().flatten().tolist()
    bad_arcs = scene.graph.hears & scene.byzantine
    assert bool(bad_arcs[honest].any()), "somebody honest has a hostile neighbour, or nothing is tested"
    assert [snapshot.phase for snapshot in snapshots] == ["warm-up"] * 3 + ["detection"] + ["optimisation"] * 7
    for snapshot in snapshots:
        assert bool(torch.isfinite(snapshot.theta[honest]).all()), f"step {snapshot.step}, {snapshot.phase}"
        # After the detection nobody honest expects anything from them any more.
        expected = torch.zeros_like(bad_arcs) if snapshot.phase == "optimisation" else bad_arcs
        assert torch.equal(snapshot.inbox.unheard[honest], expected[honest])

    verdict = snapshots[3].verdict
    assert verdict is not None
    assert torch.equal(verdict.reason[honest] == NOT_HEARD, bad_arcs[honest])
    assert bool(verdict.flagged[honest][bad_arcs[honest]].all())
    summary = recorder.summary()
    # Three rounds of warm-up and one detection, in which the two halves of a sender count once.
    assert summary["unheard"] == {"messages": 4 * int(bad_arcs[honest].sum()), "senders": senders}
    assert (summary["pa"], summary["core_byzantine"]) == (1.0, 0)


@pytest.mark.parametrize("attack", HOSTILE)
@pytest.mark.parametrize("rule", KINDS)
def test_hostile_messages_are_refused_and_counted_in_all_phases(rule: str, attack: str) -> None:
    assert_refused(*follow(spec_of(f"warm_up.rule={rule}", f"attack={attack}")))


@pytest.mark.parametrize("scale", NETWORK_SCALES)
@pytest.mark.parametrize("centre", CENTRES)
def test_hostile_halves_are_refused_by_every_detector(centre: str, scale: str) -> None:
    assert_refused(*follow(spec_of("attack=misshapen", f"detection.centre={centre}", f"detection.scale={scale}")))


@pytest.mark.parametrize(("mixing", "pruning"), [("none", "all"), ("rule", "rule"), ("plain", "all")])
def test_what_hostile_nodes_do_with_what_they_hear_does_not_matter(mixing: str, pruning: str) -> None:
    words = ("attack=nan", f"byzantine_mixing={mixing}", f"byzantine_pruning={pruning}")
    assert_refused(*follow(spec_of(*words)))


@pytest.mark.parametrize("rule", KINDS)
def test_hostile_attacks_look_the_same_to_honest_nodes(rule: str) -> None:
    """What is not heard cannot matter: honest nodes end at the same bits, whatever the refused messages held."""
    ends = []
    for attack in ("nan", "huge", "silent"):
        scene, snapshots, _ = follow(spec_of(f"warm_up.rule={rule}", f"attack={attack}"))
        ends.append(snapshots[-1].theta[~scene.byzantine])
    assert all(torch.equal(end, ends[0]) for end in ends[1:])


@pytest.mark.parametrize("attack", HOSTILE)
@pytest.mark.parametrize("method", ["dsgd", "rule"])
def test_baselines_count_every_refused_message(method: str, attack: str) -> None:
    scene, snapshots, recorder = follow(spec_of(f"method={method}", f"attack={attack}"))
    honest = ~scene.byzantine
    arcs = int((scene.graph.hears & scene.byzantine)[honest].sum())
    assert all(bool(torch.isfinite(snapshot.theta[honest]).all()) for snapshot in snapshots)
    senders = scene.byzantine.nonzero().flatten().tolist()
    assert recorder.summary()["unheard"] == {"messages": 10 * arcs, "senders": senders}


def test_nothing_is_refused_among_well_behaved_messages() -> None:
    _, snapshots, recorder = follow(spec_of("attack=parameter"))
    assert all(snapshot.inbox.complete for snapshot in snapshots)
    assert recorder.summary()["unheard"] == {"messages": 0, "senders": []}


# One node of twenty holds something wild and sends it; the others must not notice more than its silence.

WILD = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf, "1e100": 1e100, "1e160": 1e160}


@cache
def round_of(dim: int, shift: float, value: float | None) -> Inbox:
    """A round of 20 nodes in which node 0 holds and sends `value` everywhere, or is silent for None."""
    graph = ErdosRenyi(0.6).draw(20, seed=1)
    vectors = 3 + torch.randn(20, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + shift
    places = torch.arange(20)
    sent: Tensor | list[Tensor | None] = vectors
    if value is None:
        vectors[0] = 0.0
        sent, places = [None, *vectors[1:]], torch.where(places == 0, -1, places)
    else:
        vectors[0] = value
    weights = {"weight": graph.mixing * graph.hears, "self_weight": graph.mixing.diagonal()}
    return Inbox.receive(vectors, sent, expected=graph.hears, own_column=places, **weights)


def distance_to_three(vectors: Tensor, wanted: Tensor) -> Tensor:
    return torch.where(wanted, (vectors - 3).square().sum(1), torch.inf)


@pytest.mark.parametrize("value", WILD)
@pytest.mark.parametrize("dim", [5, 60])
@pytest.mark.parametrize("rule", RULES)
def test_a_node_that_overflows_is_no_more_than_silent_to_a_rule(rule: str, dim: int, value: str) -> None:
    wild, silent = output_of(rule, dim, WILD[value]), output_of(rule, dim, None)
    assert torch.allclose(wild[1:], silent[1:], rtol=0, atol=1e-9)


@cache
def output_of(rule: str, dim: int, value: float | None) -> Tensor:
    return RULES[rule]()(round_of(dim, 0.0, value), Round(0, 1, distance_to_three))


@cache
def verdict_of(centre: str, scale: str, dim: int, value: float | None) -> Verdict:
    first, second = Inbox.align([round_of(dim, shift, value) for shift in (0.0, 0.01)])
    # The solver makes the two largest eigenvalues equal, after which their eigenvectors depend on rounding.
    few = {"rounds": 4} if centre == "spectral-solver" else {}
    return identify_neighbours(first, second, Detector(centre=CENTRES[centre](**few), scale=SCALES[scale]()))


@pytest.mark.parametrize("value", WILD)
@pytest.mark.parametrize("dim", [5, 60])
@pytest.mark.parametrize("how", [f"{centre} {scale}" for centre in CENTRES for scale in NETWORK_SCALES])
def test_a_node_that_overflows_is_no_more_than_silent_to_a_detector(how: str, dim: int, value: str) -> None:
    wild, silent = (verdict_of(*how.split(), dim, held) for held in (WILD[value], None))
    assert torch.equal(wild.flagged[1:], silent.flagged[1:])
    assert torch.allclose(wild.scores[1:], silent.scores[1:], rtol=1e-6, atol=1e-6, equal_nan=True)
    assert bool((wild.reason[1:, 0] == NOT_HEARD)[round_of(dim, 0.0, None).expected[1:, 0]].all())


@pytest.mark.parametrize(
    ("rule", "mixing"), [*[(rule, "plain") for rule in KINDS], ("balance", "none"), ("balance", "rule"), ("ios", "rule")]
)
def test_attackers_whose_own_parameters_are_infinite_harm_nobody(rule: str, mixing: str) -> None:
    # Responses beyond the largest number: the attackers' own gradients and parameters are infinite or NaN from round one.
    words = (f"warm_up.rule={rule}", "attack.share=1.0", f"byzantine_mixing={mixing}")
    scene, snapshots, recorder = follow(spec_of(*words), mu=1e308)
    honest = ~scene.byzantine
    assert not bool(torch.isfinite(snapshots[0].theta[~honest]).all(1).any()), "the attackers did overflow"
    assert all(bool(torch.isfinite(snapshot.theta[honest]).all()) for snapshot in snapshots)
    assert recorder.outcome()[0] != "diverged"
    assert recorder.summary()["pa"] == 1.0
