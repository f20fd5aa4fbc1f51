"""The phases: mixing really mixes, the tracker finds the Perron vector, rescaling finds the unweighted mean."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from bymi import (
    RULES,
    Adversary,
    Average,
    Complete,
    Detector,
    ErdosRenyi,
    Graph,
    LocalNetwork,
    Optimisation,
    Plan,
    Ring,
    StepSize,
    WarmUp,
    drsgd_bymi,
)
from bymi.core.byzantine_hooks import FollowsProtocol
from bymi.core.random_streams import stream
from bymi.core.topic import TRACKER
from bymi.problems import linear_problem, linear_shard
from bymi.training.phases import optimise, premix, warm_up
from bymi.training.plan import theorem_step
from bymi.training.samples import split_samples


class Targets:
    """f_i(theta) = |theta - t_i|^2 / 2: the optimum of the sum is the plain mean of the targets. Samples do not matter."""

    def __init__(self, targets: Tensor, start: Tensor | None = None) -> None:
        self.targets = targets
        self.start = torch.zeros_like(targets) if start is None else start
        self.dim, self.samples = targets.shape[1], 10
        self.asked: list[Tensor] = []

    def initial(self, nodes: Tensor) -> Tensor:
        return self.start[nodes].clone()

    def gradient(self, theta: Tensor, nodes: Tensor, chosen: Tensor) -> Tensor:
        self.asked.append(chosen)
        return theta - self.targets[nodes]

    def losses(self, vectors: Tensor, nodes: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
        distance = (vectors[None] - self.targets[nodes][:, None]).square().sum(2) / 2
        return torch.where(wanted, distance, torch.inf)


def spread(theta: Tensor) -> float:
    return float(torch.cdist(theta, theta).max())


def pruned_graph() -> Graph:
    """A connected graph with some arcs cut one way only, so that its weights are row-stochastic and not symmetric."""
    graph = ErdosRenyi(0.6).draw(12, seed=2)
    pruned = graph.prune(stream(1, "cuts").uniform(12, 12) < 0.25)
    assert bool(pruned.core().members.all())
    return pruned


NOT_EVERY_ROUND = {"balance", "ubar", "drsa", "rsa", "bravo-saga", "bravo-lsvrg", "byrdie"}
"""Two depend on what they accept, four on the step size, and one updates one coordinate per round."""


@pytest.mark.parametrize("name", [name for name in RULES if name not in NOT_EVERY_ROUND])
@pytest.mark.parametrize("topology", [Complete(), ErdosRenyi(0.7)], ids=["complete", "erdos-renyi"])
def test_without_gradients_nodes_draw_together_every_round(name: str, topology: Complete | ErdosRenyi) -> None:
    """Learning rate zero on a connected graph: the largest distance between nodes shrinks in every round."""
    start = stream(1, "start").normal(10, 4)
    problem = Targets(torch.zeros(10, 4, dtype=torch.float64), start)
    settings = {"share": 0.2} if name == "bridge-t" else {}  # with 0.35 of six neighbours it trims all
    plan = Plan(20, 10, WarmUp(RULES[name](**settings), StepSize(0.0), 2), detector=Detector())
    network = LocalNetwork(topology.draw(10, seed=0))
    pool = torch.arange(10).expand(10, -1)
    distances = [spread(start)]
    for snapshot in warm_up(problem, network, plan, pool, FollowsProtocol(), rounds=8):
        distances.append(spread(snapshot.theta))
        if distances[-1] < 1e-12:
            break
    assert all(after < before for before, after in pairwise(distances))


@pytest.mark.parametrize("rule", [RULES["balance"](gamma=5.0), RULES["ubar"](share=0.0)], ids=["balance", "ubar"])  # type: ignore[call-arg]
def test_self_centred_rules_draw_together_when_they_accept(rule: object) -> None:
    """BALANCE with a wide bound; UBAR where all losses are equal, so that everybody passes its second stage."""

    class Flat(Targets):
        def losses(self, vectors: Tensor, nodes: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
            return torch.where(wanted, 1.0, torch.inf)

    start = stream(1, "start").normal(10, 4)
    problem = Flat(torch.zeros(10, 4, dtype=torch.float64), start)
    plan = Plan(20, 10, WarmUp(rule, StepSize(0.0), 2), detector=Detector())  # type: ignore[arg-type]
    pool = torch.arange(10).expand(10, -1)
    network = LocalNetwork(Complete().draw(10))
    rounds = warm_up(problem, network, plan, pool, FollowsProtocol(), rounds=8)
    distances = [spread(start), *[spread(snapshot.theta) for snapshot in rounds]]
    assert all(after < before for before, after in pairwise(distances))


@pytest.mark.parametrize("order", ["average", "ios"])
def test_order_of_gradient_and_mixing(order: str) -> None:
    """One round by hand: average subtracts the gradient after mixing, IOS with share 0 mixes the half steps."""
    graph = Ring().draw(5)
    targets, start = stream(0, "targets").normal(5, 2), stream(1, "start").normal(5, 2)
    rule = Average() if order == "average" else RULES["ios"](share=0.0)  # type: ignore[call-arg]
    plan = Plan(10, 5, WarmUp(rule, StepSize(0.3), 1), detector=Detector())
    pool = torch.arange(10).expand(5, -1)
    (snapshot,) = warm_up(Targets(targets, start), LocalNetwork(graph), plan, pool, FollowsProtocol(), rounds=1)
    step = 0.3 * (start - targets)
    expected = graph.mixing @ start - step if order == "average" else graph.mixing @ (start - step)
    assert torch.allclose(snapshot.theta, expected, atol=1e-12)


def test_premixing_finds_the_perron_vector() -> None:
    graph = pruned_graph()
    core = graph.core()
    tracker, settled = premix(LocalNetwork(graph), Optimisation())
    assert settled
    assert torch.allclose(tracker, core.perron.expand(12, -1), atol=1e-10)
    rounds, _ = premix(LocalNetwork(graph), Optimisation(premix_rounds=3))
    assert torch.allclose(rounds, torch.linalg.matrix_power(graph.mixing, 3), atol=1e-12)


def test_a_common_tracker_start_would_never_change() -> None:
    """Why Algorithm 1's printed start cannot be meant: row-stochastic mixing leaves equal rows as they are."""
    common = stream(0, "y").uniform(12).expand(12, -1)
    (inbox,) = LocalNetwork(pruned_graph()).exchange(0, {TRACKER: common})
    assert torch.allclose(inbox.mix(inbox.average()), common, atol=1e-14)


def run_optimise(graph: Graph, problem: Targets, how: Optimisation, rounds: int) -> Tensor:
    plan = Plan(rounds + 1, 1, detector=Detector(), optimisation=how)
    *_, last = optimise(problem, LocalNetwork(graph), plan, problem.initial(torch.arange(graph.size)), FollowsProtocol())
    return last.theta


def test_rescaling_finds_the_plain_mean_and_without_it_the_perron_weighted_one() -> None:
    """6,000 rounds at a step falling to zero: each ends within 4e-3 of its own limit, and the limits are 0.05 apart."""
    graph = pruned_graph()
    targets = stream(3, "targets").normal(12, 3)
    how = Optimisation(StepSize(0.02, "linear"), 1, "mean", max_local_step=1.0, min_weight=1e-6)
    rescaled = run_optimise(graph, Targets(targets), how, rounds=6000)
    assert (rescaled - targets.mean(0)).abs().max() < 4e-3

    weighted = graph.core().perron @ targets
    plan = Plan(6001, 1, WarmUp(Average(), StepSize(0.02, "linear"), 1), detector=Detector())
    pool = torch.arange(10).expand(12, -1)
    *_, plain = warm_up(Targets(targets), LocalNetwork(graph), plan, pool, FollowsProtocol(), rounds=6000)
    assert (plain.theta - weighted).abs().max() < 4e-3
    assert (weighted - targets.mean(0)).abs().max() > 0.05


def test_tracking_every_round_and_a_settled_tracker_agree() -> None:
    """Literal eq:eupdate in every round after 60 rounds of premixing, against y kept at its limit."""
    targets = stream(3, "targets").normal(12, 3)
    how = Optimisation(StepSize(0.05, "linear"), 1)
    literal = run_optimise(pruned_graph(), Targets(targets), replace(how, premix_rounds=60), rounds=200)
    assert torch.allclose(literal, run_optimise(pruned_graph(), Targets(targets), how, rounds=200), atol=1e-9)


def test_conventions_differ_by_the_number_of_nodes() -> None:
    targets = stream(3, "targets").normal(12, 3)
    mean = run_optimise(pruned_graph(), Targets(targets), Optimisation(StepSize(0.06), 1, "mean", 9.0), rounds=20)
    paper = run_optimise(pruned_graph(), Targets(targets), Optimisation(StepSize(0.06 / 12), 1, "paper", 9.0), rounds=20)
    assert torch.allclose(mean, paper, atol=1e-12)
    assert theorem_step(120, 2700) == pytest.approx(1 / (120 * 2700) ** 0.5)


def test_schedules() -> None:
    assert [StepSize(0.8, "constant").at(k, 4) for k in range(3)] == [0.8, 0.8, 0.8]
    assert [StepSize(0.8, "sqrt").at(k, 4) for k in (0, 3)] == [0.8, 0.4]
    assert [StepSize(0.8, "linear").at(k, 4) for k in (0, 1, 3)] == pytest.approx([0.8, 0.6, 0.2])


def test_a_trapezoid_rises_stays_and_falls() -> None:
    """Of 20 rounds the first tenth, 2, rises to the full step and the last fifth, 4, falls as if to reach zero in round 20."""
    steps = [StepSize(0.8, "trapezoid").at(k, 20) for k in range(20)]
    assert steps == pytest.approx([0.4, *[0.8] * 16, 0.6, 0.4, 0.2])
    assert [StepSize(0.8, "trapezoid").at(k, 1000) for k in (0, 24, 99, 799, 800, 900, 999)] == pytest.approx(
        [0.008, 0.2, 0.8, 0.8, 0.8, 0.4, 0.004]
    )
    # So few rounds that the slopes hold none between their ends.
    assert [StepSize(0.8, "trapezoid").at(k, 2) for k in range(2)] == [0.8, 0.8]


@pytest.mark.parametrize("schedule", ["constant", "sqrt", "linear", "trapezoid"])
@pytest.mark.parametrize("steps", [1, 2, 7, 500])
def test_a_step_is_never_negative_nor_above_its_value(schedule: Any, steps: int) -> None:
    assert all(0 < StepSize(0.3, schedule).at(k, steps) <= 0.3 for k in range(steps))


def test_a_cool_down_falls_to_zero_and_stays_there_for_three_rounds() -> None:
    """Of 20 rounds the last 40 %, 8, cool down: five falling, three at zero. Without one the step is left as it is."""
    cooling = [WarmUp(cool_down=0.4).cooling(k, 20) for k in range(20)]
    assert cooling == pytest.approx([*[1.0] * 13, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0, 0.0])
    assert [WarmUp(cool_down=0.0).cooling(k, 20) for k in range(20)] == [1.0] * 20
    assert [WarmUp(cool_down=1.0).cooling(k, 2) for k in range(2)] == [0.0, 0.0]


def test_after_a_cool_down_honest_nodes_agree() -> None:
    """Nodes with different optima: gradient steps hold them apart, mixing without steps brings them together. asp:warm_up."""
    targets = stream(0, "targets").normal(12, 3)
    network = LocalNetwork(Complete().draw(12, seed=0))

    def apart(cool_down: float, **phases: Any) -> float:
        how = WarmUp(Average(), StepSize(0.3), batch=1, cool_down=cool_down)
        plan = Plan(40, 20, how, **{"detector": Detector(), "identification": 4, **phases})
        rounds = [shot.theta for shot in drsgd_bymi(Targets(targets), network, plan) if shot.step == 20]
        return spread(rounds[0])

    assert apart(0.0) > 0.1
    assert apart(0.4) < 1e-12
    # A rule alone has no detection to cool down for.
    assert apart(0.4, detector=None) == apart(0.0, detector=None)


def test_adapt_then_combine_is_one_round_of_half_steps_averaged() -> None:
    """By hand: each node steps by eta / (m v_i) times its gradient, then everybody averages where the steps led."""
    graph = pruned_graph()
    targets, start = stream(3, "targets").normal(12, 3), stream(4, "start").normal(12, 3)
    how = Optimisation(StepSize(0.05), 1, "mean", max_local_step=9.0, min_weight=1e-6)
    local = (0.05 / (12 * graph.core().perron))[:, None] * (start - targets)
    published = run_optimise(graph, Targets(targets, start), how, rounds=1)
    assert torch.allclose(published, graph.mixing @ start - local, atol=1e-10)
    turned = run_optimise(graph, Targets(targets, start), replace(how, order="adapt-then-combine"), rounds=1)
    assert torch.allclose(turned, graph.mixing @ (start - local), atol=1e-10)


def test_both_orders_reach_the_optimum_of_the_linear_problem() -> None:
    """1,500 rounds of mini-batches on a graph with one-way cuts: the mean model ends in the same place, 1,000 times nearer."""
    nodes, graph = torch.arange(12), pruned_graph()
    problem = linear_problem(linear_shard(nodes, dim=6, samples=40, seed=1), seed=1)
    best, start = problem.minimiser(nodes), problem.initial(nodes)
    gaps = []
    for order in ("combine-then-adapt", "adapt-then-combine"):
        how = Optimisation(StepSize(0.05, "linear"), 16, max_local_step=1.0, order=order)  # type: ignore[arg-type]
        *_, last = optimise(
            problem, LocalNetwork(graph), Plan(1501, 1, detector=Detector(), optimisation=how), start, FollowsProtocol()
        )
        gaps.append(float(problem.excess(last.theta.mean(0), best, nodes)))
        assert spread(last.theta) < 0.02
    before = float(problem.excess(start.mean(0), best, nodes))
    assert max(gaps) < 1e-3 * before
    assert gaps[1] < 1.5 * gaps[0]


def test_a_node_that_nobody_hears_is_floored_and_capped_and_counted() -> None:
    """Node 0 listens but is heard by nobody: its tracker entry decays to zero and its step would explode."""
    graph = Complete().draw(6)
    deaf = torch.zeros(6, 6, dtype=torch.bool)
    deaf[1:, 0] = True
    problem = Targets(stream(3, "targets").normal(6, 2))
    plan = Plan(
        101, 1, detector=Detector(), optimisation=Optimisation(StepSize(0.05), 1, "mean", max_local_step=0.1, min_weight=0.1)
    )
    rounds = list(optimise(problem, LocalNetwork(graph.prune(deaf)), plan, problem.initial(torch.arange(6)), FollowsProtocol()))
    for snapshot in rounds:
        assert snapshot.floored is not None
        assert snapshot.capped is not None
        assert snapshot.floored.tolist() == [True] + [False] * 5
        assert snapshot.capped.tolist() == [True] + [False] * 5
    assert rounds[-1].theta.abs().max() < 10


def test_each_phase_uses_its_own_samples() -> None:
    nodes = torch.arange(12)
    problem = Targets(stream(3, "targets").normal(12, 3))
    plan = Plan(30, 10, WarmUp(Average(), StepSize(0.1), 4), detector=Detector(), identification=6, seed=5)
    list(drsgd_bymi(problem, LocalNetwork(pruned_graph()), plan))
    split = split_samples(nodes, samples=10, identification=6, seed=5)
    warm, first, second, rest = problem.asked[:10], problem.asked[10], problem.asked[11], problem.asked[12:]
    assert torch.equal(first, split.first)
    assert torch.equal(second, split.second)
    for node in range(12):
        warm_set = set(torch.cat(warm, 1)[node].tolist())
        parts = [set(part[node].tolist()) for part in (split.warm_up, split.first, split.second)]
        assert warm_set <= parts[0]
        assert sorted(len(part) for part in parts) == [3, 3, 4]
        assert set.union(*parts) == set(range(10))
    assert set(torch.cat(rest, 1).flatten().tolist()) == set(range(10))
    assert len(rest) == 20


def test_linear_gradients_and_losses_by_hand() -> None:
    problem = linear_problem(linear_shard(torch.arange(3), dim=7, samples=9, seed=1), seed=1)
    nodes, chosen = torch.tensor([2, 0]), torch.tensor([[1, 1, 4], [0, 3, 8]])
    theta = stream(0, "theta").normal(2, 7)
    for row, node in enumerate(nodes.tolist()):
        x, y = problem.features[node, chosen[row]], problem.targets[node, chosen[row]]
        assert torch.allclose(problem.gradient(theta, nodes, chosen)[row], x.T @ (x @ theta[row] - y) / 3)
        wanted = torch.tensor([[True, False], [True, True]])
        losses = problem.losses(theta, nodes, chosen, wanted)
        assert torch.allclose(losses[row, 0], (x @ theta[0] - y).square().mean() / 2)
    assert torch.isinf(problem.losses(theta, nodes, chosen, wanted)[0, 1])


def test_the_minimiser_has_no_gradient_and_excess_is_the_difference_of_risks() -> None:
    problem = linear_problem(linear_shard(torch.arange(5), dim=6, samples=30, seed=1), seed=1)
    some = torch.tensor([0, 2, 4])
    best = problem.minimiser(some)
    everything = torch.arange(30).expand(3, -1)
    assert problem.gradient(best.expand(3, -1), some, everything).mean(0).abs().max() < 1e-12
    theta = stream(0, "theta").normal(6)
    assert problem.excess(theta, best, some) == pytest.approx(float(problem.risk(theta, some) - problem.risk(best, some)))


def test_an_adversary_without_members_changes_nothing() -> None:
    problem = linear_problem(linear_shard(torch.arange(10), dim=4, samples=20, seed=1), seed=1)
    plan = Plan(12, 4, WarmUp(Average(), StepSize(0.1), 4), detector=Detector(), identification=10)
    network = LocalNetwork(Complete().draw(10))
    nobody = Adversary(torch.zeros(10, dtype=torch.bool), None)
    *_, with_forge = drsgd_bymi(problem, network, plan, nobody)
    *_, without = drsgd_bymi(problem, network, plan)
    assert torch.equal(with_forge.theta, without.theta)
