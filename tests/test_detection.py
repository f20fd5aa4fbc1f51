"""Identification on plain arrays and through inboxes: hand-made cases and error rates."""

from __future__ import annotations

import math

import pytest
import torch

from bymi import Complete, Detector, InputError, Mean, Panel, identify
from bymi.core.random_streams import stream
from bymi.core.topic import FIRST_HALF, SECOND_HALF, Topic
from bymi.detection import CENTRES, SCALES, identify_neighbours, threshold
from tests.inbox_fixtures import Tampering


def limit(scores: list[float], *, fdr_level: float = 0.2, offset: int = 0) -> float:
    row = torch.tensor([scores], dtype=torch.float64)
    return float(threshold(row, torch.ones_like(row, dtype=torch.bool), fdr_level=fdr_level, offset=offset))


@pytest.mark.parametrize(
    ("scores", "offset", "expected"),
    [
        ([5, 4, 3, -1, 0.5, -0.2], 0, 3.0),  # ratios at .2, .5, 1, 3: 2/4, 1/4, 1/3, 0
        ([5, 4, 3, -1, 0.5, -0.2], 1, math.inf),  # 1/3 at best
        ([5, 4, 3, 2, 1], 0, 1.0),  # nobody negative: everybody positive is flagged
        ([5, 4, 3, 2, 1], 1, 1.0),  # 1/5 is just allowed
        ([5, 4, 3, 2], 1, math.inf),  # 1/4 is not: fewer than 1 / level can never be flagged
        ([-5, -4], 0, math.inf),  # |S| values qualify nowhere: 1/1 and 2/1
        ([-1, 2], 0, 2.0),
        ([0, 0, 3], 0, 3.0),  # exact zeros are never candidates
        ([0, 0, 0], 0, math.inf),
        ([2, 2, 2, 2, 2, -2], 0, 2.0),  # ties count on both sides: 1/5
    ],
)
def test_threshold_by_hand(scores: list[float], offset: int, expected: float) -> None:
    assert limit(scores, offset=offset) == expected


def test_only_scored_entries_count() -> None:
    scores = torch.tensor([[5.0, 4.0, -9.0]], dtype=torch.float64)
    scored = torch.tensor([[True, True, False]])
    assert threshold(scores, scored, fdr_level=0.2, offset=0).tolist() == [4.0]


def halves(count: int, dim: int, bad: int, shift: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two noise matrices, the first `bad` rows moved by `shift` noise norms along one direction."""
    first, second = (stream(seed, name).normal(count, dim) for name in ("first", "second"))
    move = stream(seed, "direction").normal(dim)
    move = shift * math.sqrt(dim) * move / move.norm()
    first[:bad] += move
    second[:bad] += move
    return first, second


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("centre", CENTRES)
def test_strong_shifts_are_found_by_every_centre_and_scale(centre: str, scale: str) -> None:
    first, second = halves(60, 40, 10, shift=3.0)
    verdict = identify(first, second, profile="published", centre=CENTRES[centre](), scale=SCALES[scale]())
    assert verdict.flagged[:10].all()
    assert torch.equal(verdict.flagged, verdict.scores >= verdict.threshold)
    assert [reason == "score" for reason in verdict.reasons] == verdict.flagged.tolist()


def test_the_filter_keeps_false_discoveries_low_where_the_mean_does_not() -> None:
    """15 of 76 rows shifted, 40 trials: mean FDP 0.25 with the filter, 0.75 with the mean.

    The FDP of one trial has standard deviation 0.15 and 0.03, so the bounds are more than six standard errors away.
    """
    rates: dict[str, list[float]] = {"filtering": [], "mean": []}
    for seed in range(40):
        first, second = halves(76, 30, 15, shift=2.0, seed=seed)
        for name, rate in rates.items():
            flagged = identify(first, second, profile="published", cross_fit=False, centre=CENTRES[name]()).flagged
            rate.append(float(flagged[15:].sum() / flagged.sum().clamp_min(1)))
    assert sum(rates["filtering"]) / 40 < 0.4
    assert sum(rates["mean"]) / 40 > 0.7


@pytest.mark.parametrize("dim", [30, 200])
def test_verdicts_do_not_hang_on_the_last_digit(dim: int) -> None:
    """The filter empties its farthest points exactly: a trace of weight left there would set the scale for all others."""
    for seed in range(10):
        first, second = halves(76, dim, 15, shift=1.5, seed=seed)
        verdict = identify(first, second, profile="published", cross_fit=False)
        noise = 1e-15 * stream(seed, "last digit").normal(76, dim)
        shaken = identify(first * (1 + noise), second, profile="published", cross_fit=False)
        assert torch.equal(verdict.flagged, shaken.flagged)
        assert (verdict.scores - shaken.scores).abs().max() < 1e-8 * verdict.scores.abs().max()


def test_own_row_enters_the_mean_and_is_never_judged() -> None:
    first, second = halves(30, 10, 5, shift=3.0)
    how = {"profile": "published", "cross_fit": False, "centre": Mean()}
    alone = identify(first[1:], second[1:], **how)
    with_own = identify(first, second, **how, own=0)
    assert math.isnan(with_own.scores[0])
    assert not with_own.flagged[0]
    assert not torch.allclose(with_own.scores[1:], alone.scores)  # it moved the mean
    second_changed = second.clone()
    second_changed[0] += 1e3  # its second half plays no part at all
    assert torch.equal(identify(first, second_changed, **how, own=0).scores[1:], with_own.scores[1:])


def test_lists_arrays_and_float32_are_accepted() -> None:
    first, second = halves(25, 8, 4, shift=4.0)
    expected = identify(first, second).flagged
    assert torch.equal(identify(first.tolist(), second.tolist()).flagged, expected)
    assert torch.equal(identify(first.numpy(), second.numpy()).flagged, expected)
    assert torch.equal(identify(first.float(), second.float()).flagged, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fdr_level": 0.0}, "fdr_level: got 0.0, allowed: strictly between 0 and 1"),
        ({"fdr_level": 1.0}, "fdr_level"),
        ({"offset": 2}, "offset: got 2, allowed: 0"),
        ({"own": 9}, "own: got 9"),
        ({"first": [[1.0]], "second": [[1.0]]}, "n >= 3"),
        ({"first": [[1.0], [2.0]], "second": [[1.0], [2.0]]}, "n >= 3"),
        ({"first": [1.0, 2.0]}, "first: got shape"),
        ({"first": [[1.0, 2.0], [3.0, float("nan")], [1.0, 1.0]]}, "got 2 of 3 machines with finite values"),
        ({"profile": "paper"}, "profile: got 'paper', allowed: hardened, published"),
        ({"offset": 1}, "offset: got 1, allowed: with profile published only"),
        ({"cross_fit": False}, "cross_fit: got False, allowed: with profile published only"),
        ({"profile": "published", "panel": Panel()}, "panel: got .* allowed: with profile hardened only"),
        ({"names": ["a", "b"]}, "names: got '2 names', allowed: one for each of 3 machines"),
        ({"names": ["a", "b", "a"]}, r"names: got \['a'\], allowed: a different name for each machine"),
        ({"first": [[1j, 2.0]] * 3}, "first: got numbers of type torch.complex64, allowed: real numbers"),
        ({"second": [[1.0], [2.0], [3.0]]}, "must have one shape"),
        ({"first": [["a", "b"], ["c", "d"]]}, "cannot be read as a matrix"),
    ],
)
def test_mistakes_name_what_is_wrong(change: dict[str, object], message: str) -> None:
    given = {"first": [[1.0, 2.0]] * 3, "second": [[2.0, 1.0]] * 3, **change}
    with pytest.raises(InputError, match=message):
        identify(given.pop("first"), given.pop("second"), **given)  # type: ignore[arg-type]


def test_receivers_judge_what_they_heard_and_flag_what_they_did_not() -> None:
    first, second = halves(20, 6, 4, shift=4.0)

    def silence(vectors: torch.Tensor, senders: torch.Tensor, topic: Topic, step: int) -> dict[int, None]:
        return {19: None} if topic == SECOND_HALF else {}

    network = Tampering(Complete().draw(20), silence)
    verdict = identify_neighbours(*network.exchange(0, {FIRST_HALF: first, SECOND_HALF: second}), Detector())
    receivers = torch.arange(4, 19)
    assert verdict.flagged[receivers][:, :4].all()
    assert verdict.flagged[receivers][:, 19].all()
    assert (verdict.reason[receivers][:, 19] == 2).all()
    assert verdict.scores[receivers][:, 19].isnan().all()
    assert not verdict.flagged.diagonal().any()
    assert verdict.scores.diagonal().isnan().all()


def test_false_discovery_rate_is_controlled_under_symmetry_with_offset_one() -> None:
    """Scores symmetric by construction, 60 clean and 15 far: the mean FDP of 4,000 trials stays below 0.2.

    Knockoff+ theory bounds the true mean by 0.2; the FDP lies in [0, 1] with standard deviation below 0.15 here, so six
    standard errors are 0.015: false alarm below 1e-9.
    """
    trials = 4000
    scores = stream(3, "symmetric scores").normal(trials, 75)
    scores[:, :15] = scores[:, :15].abs() + 8
    everybody = torch.ones_like(scores, dtype=torch.bool)
    flagged = scores >= threshold(scores, everybody, fdr_level=0.2, offset=1)[:, None]
    fdp = flagged[:, 15:].sum(1) / flagged.sum(1).clamp_min(1)
    assert fdp.std() < 0.15
    assert fdp.mean() < 0.2 + 0.015
    assert fdp.mean() > 0.1  # and the level is used, not wasted
    assert flagged[:, :15].all()


def test_a_clean_neighbourhood_still_loses_a_node_or_two_without_the_offset() -> None:
    """75 symmetric scores, 4,000 trials: 1.4 cuts on average without the offset, 0.2 with it (six standard errors)."""
    scores = stream(4, "symmetric scores").normal(4000, 75)
    everybody = torch.ones_like(scores, dtype=torch.bool)
    cuts = [
        (scores >= threshold(scores, everybody, fdr_level=0.2, offset=offset)[:, None]).sum(1).double() for offset in (0, 1)
    ]
    for number, centre, width in ((cuts[0], 1.45, 0.15), (cuts[1], 0.24, 0.15)):
        assert abs(number.mean() - centre) < width + 6 * number.std() / 4000**0.5
    assert (cuts[0] > 0).double().mean() == pytest.approx(0.5, abs=6 * 0.5 / 4000**0.5)
