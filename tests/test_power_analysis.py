"""What `bymi plan` foresees: counts of Byzantine nodes, ideal neighbourhoods and the command."""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from bymi import power_analysis as power
from bymi.core.errors import InputError
from bymi.detection import Panel
from bymi.power_analysis import Forecast, Setting
from bymi.power_analysis.forecast import SHIFTS, forecast
from bymi.power_analysis.ideal_neighbourhoods import DIMENSIONS, JUDGES, LARGEST, IdealNeighbourhoods, Judge, draw, found, rates
from bymi.report.power_analysis import advice, outlook_cells
from tests.commands import bymi, mistake

PAGE = (Path(__file__).parents[1] / "docs" / "plan.md").read_text()
SMALL = Setting(30, 8, 0.2, 0.2)
RULES = [judge.name for judge in JUDGES]
once = functools.cache(forecast)


@pytest.fixture(scope="module")
def outlooks() -> dict[int, Forecast]:
    return {degree: once(Setting(150, degree)) for degree in (10, 20, 75)}


@pytest.fixture
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command makes forecasts that were made before but once."""
    monkeypatch.setattr(power, "forecast", once)


# How Byzantine nodes fall into neighbourhoods


@pytest.mark.parametrize(
    ("nodes", "degree", "ratio"), [(150, 75, 0.2), (150, 10, 0.4), (12, 11, 0.4), (9, 1, 0.3), (40, 39, 0.0)]
)
def test_odds_are_hypergeometric(nodes: int, degree: int, ratio: float) -> None:
    question = Setting(nodes, degree, ratio)
    byzantine, others = math.floor(ratio * nodes + 1e-9), nodes - 1
    exact = [
        math.comb(byzantine, k) * math.comb(others - byzantine, degree - k) / math.comb(others, degree)
        for k in range(degree + 1)
    ]
    torch.testing.assert_close(question.odds(), torch.tensor(exact, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    assert question.outnumbered() == pytest.approx(sum(p for k, p in enumerate(exact) if 2 * k > degree), abs=1e-12)
    assert question.overwhelmed() == pytest.approx(sum(p for k, p in enumerate(exact) if k > 0.49 * (degree + 1)), abs=1e-12)


def test_everybody_hears_everybody_leaves_nothing_to_chance() -> None:
    question = Setting(20, 19, 0.4)
    assert question.odds()[8] == pytest.approx(1)
    assert (question.outnumbered(), question.anywhere(0.0), question.anywhere(1.0)) == (0.0, 0.0, 1.0)


def test_more_neighbours_and_fewer_byzantine_nodes_are_outnumbered_less() -> None:
    """Odd degrees: with even ones a tie is no majority, so that one neighbour more may be worse."""
    by_degree = [Setting(200, degree, 0.3).outnumbered() for degree in range(3, 120, 2)]
    assert by_degree == sorted(by_degree, reverse=True)
    by_ratio = [Setting(200, 21, ratio / 100).outnumbered() for ratio in range(50)]
    assert by_ratio == sorted(by_ratio)


# Ideal neighbourhoods


def test_a_scene_has_the_byzantine_nodes_that_the_odds_say() -> None:
    """4000 neighbourhoods: the mean count within six standard errors, false alarm below 1e-8; likewise the scores below.

    An honest ideal score is a sum of 30 products of normal variables of variance 2: mean 0, variance 30 * 4. A Byzantine node
    off by s has mean s^2 and variance 30 * 4 + 4 s^2.
    """
    question, shift = Setting(60, 12, 0.3), 7.0
    scene = draw(question, 4000, shift, ways="apart", seed=3)
    share = 18 / 59
    error = math.sqrt(12 * share * (1 - share) * (59 - 12) / 58 / 4000)
    assert float(scene.lies.sum(1, dtype=torch.float64).mean()) == pytest.approx(12 * share, abs=6 * error)
    assert not bool(scene.lies[:, -1].any())
    scores, honest = scene.scores(), scene.judged & ~scene.lies
    for mean, variance, who in ((0.0, 4 * DIMENSIONS, honest), (shift**2, 4 * DIMENSIONS + 4 * shift**2, scene.lies)):
        some = scores[who]
        assert float(some.mean()) == pytest.approx(mean, abs=6 * math.sqrt(variance / len(some)))
        assert float(some.var()) == pytest.approx(variance, rel=0.1)


def test_the_same_seed_has_the_same_noise_for_every_shift_and_way() -> None:
    near, far = draw(SMALL, 20, 0.0, seed=5), draw(SMALL, 20, 9.0, ways="apart", seed=5)
    assert torch.equal(near.lies, far.lies)
    assert torch.equal(near.first[~near.lies], far.first[~far.lies])
    off = (far.first - near.first)[far.lies]
    torch.testing.assert_close(off.norm(dim=1), torch.full((len(off),), 9.0, dtype=torch.float64))
    assert not torch.equal(near.first, draw(SMALL, 20, 0.0, seed=6).first)


def test_many_neighbours_are_simulated_as_fewer_with_as_many_byzantine_nodes_among_them() -> None:
    scene = draw(Setting(2000, 1999, 0.25), 5, 1.0)
    assert scene.lies.shape == (5, LARGEST + 1)
    assert scene.lies.sum(1).tolist() == [LARGEST // 4] * 5


def literal(scores: list[float], lengths: list[float], level: float, rule: str) -> list[bool]:
    """The rules on ideal scores, once more, by hand."""

    def limit(offset: int) -> float:
        for r in sorted(abs(score) for score in scores):
            if (offset + sum(score <= -r for score in scores)) / max(1, sum(score >= r for score in scores)) <= level:
                return r
        return math.inf

    if rule.startswith("paper"):
        return [score >= limit(int(rule[-1])) for score in scores]
    if not any(score < 0 for score in scores):
        return [False] * len(scores)

    def noise(values: list[float]) -> float:
        below, sizes = sorted(-value for value in values if value < 0), sorted(abs(value) for value in values)
        middle, usual = ((some[(len(some) - 1) // 2] + some[len(some) // 2]) / 2 for some in (below, sizes))
        return 1.4826 * max(middle, 0.7 * usual)

    unit, wider, weak = noise(scores), 1 + 10 * max(0.0, 1 / len(scores) - 1 / 60), limit(1)
    cosines = [score / length for score, length in zip(scores, lengths, strict=True)]
    bold = [cosine >= max(0.4, 2.5 * noise(cosines)) for cosine in cosines]
    passed = [score >= 8 * wider * unit or (score >= 5 * wider * unit and score >= weak) for score in scores]
    return [both[0] and both[1] for both in zip(passed, bold, strict=True)]


@pytest.mark.parametrize("judge", JUDGES[:3], ids=RULES[:3])
def test_rules_on_ideal_scores_agree_with_a_literal_loop(judge: Judge) -> None:
    question = Setting(60, 14, 0.3, 0.25)
    scene = draw(question, 80, 12.0, seed=1)
    flagged = judge.flag(scene, question.fdr_level)
    wrong, honest, fdp, sure = 0, 0, 0.0, 0
    lengths = (scene.first.norm(dim=2) * scene.second.norm(dim=2)).tolist()
    for scores, sizes, lies, marks in zip(scene.scores().tolist(), lengths, scene.lies.tolist(), flagged.tolist(), strict=True):
        assert marks[-1] is False
        expected = literal(scores[:-1], sizes[:-1], question.fdr_level, judge.name)
        assert marks[:-1] == expected
        false = sum(mark and not lie for mark, lie in zip(expected, lies, strict=False))
        wrong, honest = wrong + false, honest + lies[:-1].count(False)
        fdp += false / max(1, sum(expected))
        sure += all(mark for mark, lie in zip(expected, lies, strict=False) if lie)
    assert rates(scene, flagged) == pytest.approx((wrong / honest, fdp / 80, sure / 80), abs=1e-12)


def test_rates_by_hand() -> None:
    """Two receivers of three neighbours and themselves: one finds one of two Byzantine nodes, one has none and errs."""
    nothing = torch.zeros(2, 4, 1, dtype=torch.float64)
    scene = IdealNeighbourhoods(nothing, nothing, torch.tensor([[True, True, False, False], [False] * 4]))
    flagged = torch.tensor([[True, False, True, False], [True, False, False, False]])
    assert rates(scene, flagged) == (2 / 4, (1 / 2 + 1) / 2, 1 / 2)
    assert found(scene, flagged, 2).tolist() == [0.5, 0.0]


# The forecast


def test_without_byzantine_nodes_every_node_that_flags_is_wrong_and_none_misses_anybody(outlooks: dict[int, Forecast]) -> None:
    """FDP without Byzantine nodes is the share of nodes that flag anybody, whatever the ratio asked for."""
    calm = forecast(Setting(150, 20, 0.0))
    for row, beside in zip(calm.rows, outlooks[20].rows, strict=True):
        assert (row.lost, row.fdp, row.sure) == (row.lost_without, row.fdp_without, 1.0)
        assert (row.lost_without, row.fdp_without) == (beside.lost_without, beside.fdp_without)
        assert row.alone is row.together is None
    assert (calm.outnumbered, calm.overwhelmed, calm.anywhere) == (0.0, 0.0, 0.0)
    scene = draw(Setting(150, 20, 0.0), 400, 0.0)
    flagged = JUDGES[0].flag(scene, 0.2)
    assert calm.rows[0].fdp_without == pytest.approx(float(flagged.any(1).double().mean()))


def test_offset_0_flags_somebody_in_half_of_the_clean_neighbourhoods_and_offset_1_within_the_level() -> None:
    """The largest |score| is positive in half of them, and then qualifies; smaller ones may, too. With offset 1 the FDP is
    at most the level. 4000 neighbourhoods: five standard errors are 0.04 and 0.032, false alarm below 1e-6.
    """
    scene = draw(Setting(150, 20, 0.0), 4000, 0.0, seed=11)
    _, zero, _ = rates(scene, JUDGES[0].flag(scene, 0.2))
    _, one, _ = rates(scene, JUDGES[1].flag(scene, 0.2))
    assert zero > 0.5 - 0.04
    assert one < 0.2 + 0.032


def test_offset_1_finds_nobody_with_few_neighbours() -> None:
    """1 / 0.2 = 5 have to be flagged at once; there are four neighbours."""
    row = forecast(Setting(30, 4, 0.2)).rows[1]
    assert (row.lost, row.fdp, row.lost_without) == (0.0, 0.0, 0.0)
    assert row.sure < 1
    assert row.alone is row.together is None


def test_more_neighbours_are_not_worse(outlooks: dict[int, Forecast]) -> None:
    """Hardened, degrees 10, 20, 75, with the noise of 120 to 400 neighbourhoods: edges lost within 2 points."""
    rows = [outlooks[degree].hardened for degree in (10, 20, 75)]
    for fewer, more in pairwise(rows):
        assert more.lost_without <= fewer.lost_without + 0.02
        assert more.lost <= fewer.lost + 0.02
        assert more.sure >= fewer.sure - 0.02
        for less, least in ((more.alone, fewer.alone), (more.together, fewer.together)):
            assert (less or math.inf) <= (least or math.inf) + 1
        assert more.rule == fewer.rule == "hardened"
    assert outlooks[75].bearable > outlooks[20].bearable > outlooks[10].bearable


def test_what_is_known_of_the_usual_network(outlooks: dict[int, Forecast]) -> None:
    """Degree 75, a fifth lie: all far Byzantine nodes are found, hardly anybody is lost, and a common shift shows earlier."""
    outlook = outlooks[75]
    row = outlook.hardened
    assert outlook.does
    assert row.sure == 1.0
    assert row.lost_without <= 0.01
    assert row.alone is not None
    assert row.together is not None
    assert row.together < row.alone
    assert outlook.enough is not None
    assert outlook.enough < 75
    assert [each.rule for each in outlook.rows] == RULES


def test_a_higher_degree_is_advised_where_this_one_does_not_do() -> None:
    outlook = forecast(Setting(150, 5, 0.3))
    assert not outlook.does
    assert outlook.enough is not None
    assert outlook.enough > 5
    assert forecast(Setting(150, outlook.enough, 0.3)).does
    assert forecast(Setting(9, 4, 0.45)).enough is None


def test_a_forecast_depends_on_its_seed_alone() -> None:
    threads = torch.get_num_threads()
    assert forecast(SMALL, seed=4) == forecast(SMALL, seed=4) != forecast(SMALL, seed=5)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("question", [Setting(2, 1, 0.0), Setting(3, 2, 0.4), Setting(10, 1, 0.4), Setting(5, 4, 0.4, 0.9)])
def test_the_smallest_networks_get_an_answer(question: Setting) -> None:
    outlook = forecast(question)
    for row in outlook.rows:
        assert all(0 <= share <= 1 for share in (row.lost_without, row.fdp_without, row.lost, row.fdp, row.sure))
        assert row.alone is None or row.alone in SHIFTS
    assert json.loads(json.dumps(asdict(outlook), allow_nan=False))
    assert advice(outlook)


@pytest.mark.parametrize(
    "changes", [{"nodes": 1}, {"degree": 30}, {"degree": 0}, {"ratio": 0.5}, {"ratio": -0.1}, {"fdr_level": 0.0}]
)
def test_impossible_questions_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"got .* allowed: "):
        replace(SMALL, **changes)  # type: ignore[arg-type]


# The command


@pytest.mark.usefixtures("_once")
def test_the_command_prints_the_table_and_the_advice() -> None:
    answer = bymi("plan", "--nodes", 150, "--degree", 10, "--ratio", 0.4)
    assert (answer.code, answer.err) == (0, "")
    outlook = once(Setting(150, 10, 0.4))
    for cells in outlook_cells(outlook):
        assert " ".join(cells).split() in answer.rows
    for line in advice(outlook):
        assert f"* {line}\n" in answer.out
    said = " ".join(advice(outlook))
    assert f"raise the degree to about {outlook.enough}" in said
    assert f"more than the 49% that the filter may take in {outlook.overwhelmed:.2%}" in said
    assert "1/fdr_level = 5 neighbours or nobody" in said
    wider = float(Panel().wider(torch.tensor(10.0)))
    assert f"{wider:.2f} times as wide" in said


@pytest.mark.usefixtures("_once")
def test_json_is_strict_and_complete() -> None:
    answer = bymi("plan", "--nodes", 30, "--degree", 8, "--json")
    told = json.loads(answer.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    outlook = once(SMALL)
    assert told.pop("advice") == advice(outlook)
    assert told.pop("does") == outlook.does
    assert told == json.loads(json.dumps(asdict(outlook)))


@pytest.mark.usefixtures("_once")
def test_without_byzantine_nodes_there_is_nothing_said_of_them() -> None:
    answer = bymi("plan", "--nodes", 30, "--degree", 20, "--ratio", 0)
    assert answer.code == 0
    assert "P_a >=" not in answer.out
    assert next(words for words in answer.rows if words[0] == "hardened")[-5:] == ["-"] * 5


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--nodes", 1], "nodes: got 1, allowed: 2 to 100000"),
        (["--nodes", 100_001], "nodes: got 100001, allowed: 2 to 100000"),
        (["--nodes", 10.5], "Invalid value for '--nodes'"),
        (["--degree", 30], "degree: got 30, allowed: 1 to nodes - 1 = 29"),
        (["--degree", 0], "degree: got 0, allowed: 1 to nodes - 1 = 29"),
        (["--ratio", 0.5], "ratio: got 0.5, allowed: 0 <= ratio < 0.5"),
        (["--ratio", -0.1], "ratio: got -0.1, allowed: 0 <= ratio < 0.5"),
        (["--ratio", "nan"], "ratio: got nan, allowed: 0 <= ratio < 0.5"),
        (["--fdr-level", 0], "fdr_level: got 0.0, allowed: strictly between 0 and 1"),
        (["--fdr-level", "inf"], "fdr_level: got inf, allowed: strictly between 0 and 1"),
        (["--fdr-level", "1e-320"], "fdr_level: got 1e-320, allowed: 1e-06 or above"),
        (["--alfa", 0.1], "No such option: --alfa"),
    ],
)
def test_wrong_words_are_one_line(words: list[object], expected: str) -> None:
    assert mistake("plan", "--nodes", 30, "--degree", 8, *words).startswith(expected)


def test_nodes_are_needed_and_a_graph_is_complete_unless_a_degree_is_given() -> None:
    assert mistake("plan", "--degree", 8).startswith("Missing option '--nodes'")
    answer = bymi("plan", "--nodes", 12)
    assert answer.out.startswith("12 nodes, 2 of them Byzantine; 11 neighbours each (complete graph); ")
    assert answer.out == bymi("plan", "--nodes", 12, "--degree", 11).out
    assert "complete" not in bymi("plan", "--nodes", 12, "--degree", 10).out


@pytest.mark.parametrize(("degree", "enough", "said"), [(14, None, True), (15, None, False), (75, 10, True), (75, 15, False)])
def test_where_neighbours_are_few_the_rule_goes_on(degree: int, enough: int | None, said: bool) -> None:
    outlook = replace(once(SMALL), question=Setting(150, degree), enough=enough)
    told = "fewer than 15 neighbours (panel.few) mixes by the warm-up rule to the end" in " ".join(advice(outlook))
    assert told == said


@pytest.mark.usefixtures("_once")
def test_the_page_shows_what_the_command_prints() -> None:
    shown = re.findall(r"```sh\nbymi (plan [^\n]*)\n```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 3
    for words, text in shown:
        answer = bymi(*words.split())
        assert answer.code == 0
        assert [line.split() for line in text.splitlines() if line.strip()] == answer.rows
