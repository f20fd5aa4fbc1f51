"""The panel of tests for one receiver, on the vectors themselves: no inner products, no batches, no padding.

`first` and `second` [n, d] are the halves of everybody in the room, `own` the receiver's row, None for a room without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference.detection import threshold

Vector = NDArray[np.float64]
Centre = Callable[[Vector], Vector]

_TINY = float(np.finfo(np.float64).tiny)
_NORMAL = 1.4826
REACH = 1.25  # usual distances that a message may pull


def median(values: list[float]) -> float:
    """The middle value, the mean of the middle two for an even number."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def spread(values: list[float]) -> float:
    middle = median(values)
    return _NORMAL * median([abs(value - middle) for value in values])


def log(value: float) -> float:
    return math.log(max(value, _TINY))


def off(value: float, among: list[float]) -> float:
    """How many spreads a value stands above the median; nowhere (nan) or infinitely far where there is no spread."""
    width, distance = spread(among), value - median(among)
    if width == 0:
        return math.nan if distance == 0 else math.copysign(math.inf, distance)
    return distance / width


def off_above(value: float, among: list[float], usual: list[float], least: float) -> float:
    """The same with the spread of the lower half of the `usual` ones, which is `least` at least."""
    middle = median(usual)
    return (value - median(among)) / max(least, _NORMAL * median([middle - each for each in usual if each <= middle]))


def mean_of(points: Vector, weights: Vector) -> Vector:
    total = np.zeros(points.shape[1])
    for point, weight in zip(points, weights, strict=True):
        total = total + weight * point
    return total


def axes(points: Vector, weights: Vector) -> tuple[Vector, Vector]:
    """Variances, smallest first, and directions (columns) of the weighted covariance."""
    centre = mean_of(points, weights)
    covariance = np.zeros((points.shape[1], points.shape[1]))
    for point, weight in zip(points, weights, strict=True):
        covariance += weight * np.outer(point - centre, point - centre)
    values, vectors = np.linalg.eigh(covariance)
    return values, vectors


def even(count: int) -> Vector:
    return np.full(count, 1 / count)


def absurd(first: Vector, second: Vector, about: Vector) -> list[float]:
    lengths = [float(np.linalg.norm(one - about) + np.linalg.norm(two - about)) for one, two in zip(first, second, strict=True)]
    usual = median(lengths)
    return [length / usual for length in lengths]


def duplicates(first: Vector, own: int | None, closeness: float) -> set[int]:
    """Whoever repeats the own row, or, in a group of five, a neighbour before it, up to `closeness` of the median distance."""
    count = len(first)
    distance = [[float(np.linalg.norm(first[r] - first[s])) for s in range(count)] for r in range(count)]
    pairs = sorted(distance[r][s] for r in range(count) for s in range(count) if r != s)
    usual = pairs[(len(pairs) - 1) // 2] if pairs else 0.0
    found = set()
    for r in range(count):
        same = [s for s in range(count) if s != r and distance[r][s] < closeness * usual]
        if r != own and (own in same or (len(same) >= 4 and min(same) < r)):
            found.add(r)
    return found


def repeated(first: Vector, second: Vector, own: int | None, closeness: float) -> tuple[dict[int, int], set[int]]:
    """Rows that repeat an earlier one in both halves, the own row being the earliest, with that row; and whom to flag for it.

    Flagged are copies of the own row.
    """
    count = len(first)

    def apart(r: int, s: int) -> float:
        return max(float(np.linalg.norm(half[r] - half[s])) for half in (first, second))

    pairs = sorted(apart(r, s) for r in range(count) for s in range(count) if r != s)
    usual = pairs[(len(pairs) - 1) // 2] if pairs else 0.0
    order = sorted(range(count), key=lambda row: (row != own, row))
    copies, flagged = {}, set()
    for r in range(count):
        same = [s for s in order if s != r and apart(r, s) < closeness * usual]
        if r != own and same and order.index(same[0]) < order.index(r):
            copies[r] = same[0]
            flagged |= {r} if own in same else set()
    return copies, flagged


def screen(values: list[float], own: int | None, high: float, low: float) -> set[int]:
    """Three times: whoever is too far above or below those left leaves, if that is by a factor of 2.5."""
    gone: set[int] = set()
    for _ in range(3):
        left = [value for row, value in enumerate(values) if row not in gone]
        usual = median(left)
        found = set()
        for row, value in enumerate(values):
            if row != own and row not in gone:
                above = off(value, left) > high and value > usual + math.log(2.5)
                below = off(value, left) < -low and value < usual - math.log(2.5)
                found |= {row} if above or below else set()
        gone |= found
    return gone


def inconsistent(first: Vector, second: Vector, own: int | None, high: float, low: float) -> set[int]:
    values = [log(float(np.sum((one - two) ** 2))) for one, two in zip(first, second, strict=True)]
    return screen(values, own, high, low)


def too_good(first: Vector, second: Vector, own: int | None, weights: Vector, low: float) -> set[int]:
    c1, c2 = mean_of(first, weights), mean_of(second, weights)
    values = [
        log(min(float(np.sum((one - c1) ** 2)), float(np.sum((two - c2) ** 2)))) for one, two in zip(first, second, strict=True)
    ]
    return screen(values, own, math.inf, low)


def alike(first: Vector, second: Vector, own: int | None, high: float) -> set[int]:
    """Three times: whoever's difference of halves resembles those left too much leaves.

    Nobody counts for more than a half, and too much is 2.5 above the median at least.
    """
    gone: set[int] = set()
    unit = [difference / np.linalg.norm(difference) for difference in first - second]
    for _ in range(3):
        left = [row for row in range(len(first)) if row not in gone]
        kinship = {row: sum(min(0.5, float(unit[row] @ unit[other]) ** 2) for other in left if other != row) for row in left}
        among = list(kinship.values())
        usual = median(among)
        gone |= {row for row in left if row != own and off(kinship[row], among) > high and kinship[row] - usual > 2.5}
    return gone


@dataclass(frozen=True)
class Middle:
    weights: Vector
    taken: float
    noise: float
    stretched: bool


def noise_edge(first: Vector, second: Vector, edge: float, most: float) -> Middle:
    """Take weight from what is far from the median along the widest direction, until that is no wider than noise."""
    count = len(first)
    noise = float(axes(first - second, even(count))[0][-1]) / 2
    kept, stretched = np.ones(count), False
    for turn in range(count):
        share = kept / kept.sum()
        values, vectors = axes(first, share)
        centre = mean_of(first, share)
        along = [float((point - centre) @ vectors[:, -1]) for point in first]
        middle = median([value for value, weight in zip(along, kept, strict=True) if weight > 0])
        away = np.array([(value - middle) ** 2 if weight > 0 else 0.0 for value, weight in zip(along, kept, strict=True)])
        room = kept.sum() - (1 - most) * count
        stretched = stretched or (turn == 0 and values[-1] > edge * noise)
        if values[-1] <= edge * noise or room <= 1e-9 * count:
            break
        loss = kept * away / away.max()
        kept = kept - min(1.0, room / loss.sum()) * loss
        kept[kept <= 1e-9] = 0.0
    return Middle(kept / kept.sum(), 1 - kept.sum() / count, noise, bool(stretched))


def scores(first: Vector, second: Vector, weights: Vector, *, cross_fit: bool) -> list[float]:
    c1 = mean_of(first, weights)
    c2 = mean_of(second, weights) if cross_fit else c1
    return [float((one - c1) @ (two - c2)) for one, two in zip(first, second, strict=True)]


def lengths(first: Vector, second: Vector, weights: Vector) -> list[float]:
    c1, c2 = mean_of(first, weights), mean_of(second, weights)
    return [float(np.linalg.norm(one - c1) * np.linalg.norm(two - c2)) for one, two in zip(first, second, strict=True)]


def outstanding(
    values: dict[int, float], sizes: dict[int, float], level: float, strong: float, weak: float, enough: float = math.inf
) -> tuple[set[int], dict[int, float]]:
    """Scores of `strong` units of noise, or of `weak` ones if the threshold with offset 1 lets them pass.

    And only if the cosine is 2.5 times the usual one and 0.4 at least, or `enough` times the usual one.
    """
    if not any(value < 0 for value in values.values()):
        return set(), dict.fromkeys(values, math.nan)
    cosines = {row: value / sizes[row] for row, value in values.items()}
    limit = threshold(list(values.values()), level, 1)
    units = {row: value / usual_noise(list(values.values())) for row, value in values.items()}
    usual = usual_noise(list(cosines.values()))
    least = min(max(0.4, 2.5 * usual), enough * usual)
    passed = {row for row in values if units[row] >= strong or (units[row] >= weak and values[row] >= limit)}
    return {row for row in passed if cosines[row] >= least}, units


def median_weights(points: Vector) -> Vector:
    """Weights of the geometric median: Weiszfeld's iteration until they stand still."""
    weights = even(len(points))
    for _ in range(100_000):
        centre = mean_of(points, weights)
        pulls = [1 / max(_TINY, float(np.linalg.norm(point - centre))) for point in points]
        moved = np.array(pulls) / sum(pulls)
        done = float(np.abs(moved - weights).max()) <= 1e-12
        weights = moved
        if done:
            break
    return weights


def degree(first: Vector, second: Vector, weights: Vector) -> float:
    """The 30 % quantile of the cosines of both halves about their centres, minus two spreads over the root of their number."""
    sizes = lengths(first, second, weights)
    products = scores(first, second, weights, cross_fit=True)
    cosines = sorted(product / size for product, size in zip(products, sizes, strict=True))
    return cosines[math.floor(0.3 * (len(cosines) - 1))] - 2 * spread(cosines) / math.sqrt(len(cosines))


def crowd(found: set[int], count: int) -> bool:
    return len(found) >= max(4.0, 0.08 * count)


def farther(
    values: dict[int, float], sizes: dict[int, float], alone: float, together: float, share: float
) -> tuple[set[int], float]:
    """Scores of `alone` times the usual one, of `together` times for a crowd, cosines of 0.4; and the usual one.

    That is the median score, or a share of the noise of scores if it is less and some score is negative.
    """
    usual = median(list(values.values()))
    if any(value < 0 for value in values.values()):
        usual = max(usual, share * usual_noise(list(values.values())))
    like = {row for row, value in values.items() if value >= 0.4 * sizes[row]}
    joint = {row for row in like if values[row] >= together * usual}
    found = {row for row in like if values[row] >= alone * usual}
    return (found | joint if crowd(joint, len(values)) else found), usual


def usual_noise(values: list[float]) -> float:
    negative = [-value for value in values if value < 0]
    return _NORMAL * max(median(negative), 0.7 * median([abs(value) for value in values]))


def shifted(
    first: Vector,
    second: Vector,
    own: int | None,
    middle: Middle,
    *,
    edge: float,
    strong: float,
    weak: float,
    level: float,
    out: frozenset[int] | set[int] = frozenset(),
) -> set[int]:
    """Up to three directions of first halves that are wider than noise, each with its most similar one of second halves.

    Rows `out` are in the centres and in nothing else.
    """
    found: set[int] = set()
    if not middle.stretched:
        return found
    c1, c2 = mean_of(first, middle.weights), mean_of(second, middle.weights)
    rows = [row for row in range(len(first)) if row not in out]
    first, second = first[rows], second[rows]
    (values, ones), (_, twos) = axes(first, even(len(rows))), axes(second, even(len(rows)))
    most = min(3, len(values))
    for place in range(1, most + 1):
        if values[-place] <= edge * middle.noise:
            continue
        one = ones[:, -place]
        two = max((twos[:, -other] for other in range(1, most + 1)), key=lambda axis: abs(float(axis @ one)))
        two = two * np.sign(two @ one)
        ahead, back = [float(one @ (x - c2)) for x in second], [float(two @ (x - c1)) for x in first]
        width = spread([(a - b) / 2 for a, b in zip(ahead, back, strict=True)])
        z = [(a + b) / 2 / width for a, b in zip(ahead, back, strict=True)]
        middle_z = median(z)
        apart = [float(np.sum((x1 - x2) ** 2)) for x1, x2 in zip(first, second, strict=True)]
        louder = [math.sqrt(max(1.0, size / median(apart))) for size in apart]
        far = {row: (value - middle_z) / loud for row, value, loud in zip(rows, z, louder, strict=True) if row != own}
        up, down = (sum(1 for value in far.values() if side * value > weak) for side in (1, -1))
        if down > up or (down == up and max(-value for value in far.values()) > max(far.values())):
            far = {row: -value for row, value in far.items()}
        limit = threshold(list(far.values()), level, 1)
        found |= {row for row, value in far.items() if value > strong or (value > weak and value >= limit)}
    return found


def hear(
    first: Vector,
    second: Vector,
    own: int | None,
    about: Vector,
    panel: Any,
    level: float,
    cross_fit: bool,
    *,
    answers_differ: bool = False,
    known_degree: float = -1.0,
) -> list[str]:
    """The reason found for each row, "kept" for none: every test on those whom the ones before it have left.

    `known_degree`: how much data differ as seen at another point.

    If `answers_differ` by receiver, copies and rows alike leave without a reason; a copy gets that of the row it repeats.
    """
    count = len(first)
    neighbours = [row for row in range(count) if row != own]
    why, aside, copies = ["kept"] * count, set[int](), dict[int, int]()

    def still() -> list[int]:
        return [row for row in neighbours if why[row] == "kept" and row not in aside]

    def inherit() -> None:
        for row, original in copies.items():
            why[row] = why[original] if why[row] == "kept" else why[row]

    def widened() -> float:
        """By how much bounds grow with as many neighbours as are left."""
        return 1 + panel.widen * max(0.0, 1 / max(1, len(still())) - 1 / 60)

    def left() -> tuple[list[int], Vector, Vector, int | None]:
        rows = [row for row in range(count) if why[row] == "kept" and row not in aside]
        return rows, first[rows], second[rows], None if own is None else rows.index(own)

    def note(rows: list[int], found: set[int], name: str) -> None:
        for place in found:
            if why[rows[place]] == "kept":
                why[rows[place]] = name

    size = absurd(first, second, about)
    note(list(range(count)), {row for row in neighbours if size[row] > panel.absurd}, "absurd")
    rows, one, two, mine = left()
    if answers_differ:
        found_copies, found = repeated(one, two, mine, panel.duplicate)
        note(rows, found, "duplicate")
        copies = {rows[copy]: rows[original] for copy, original in found_copies.items()}
        aside |= set(copies)
    else:
        note(rows, duplicates(one, mine, panel.duplicate), "duplicate")
    before, wider = still(), widened()
    rows, one, two, mine = left()
    note(rows, inconsistent(one, two, mine, panel.high * wider, panel.low * wider), "inconsistent")
    rows, one, two, mine = left()
    if answers_differ:
        aside |= {rows[place] for place in alike(one, two, mine, panel.alike * wider)}
    else:
        note(rows, alike(one, two, mine, panel.alike * wider), "alike")
    rows, one, two, mine = left()
    middle = noise_edge(one, two, panel.edge, panel.most)
    note(rows, too_good(one, two, mine, middle.weights, panel.low * wider), "too good")
    inherit()
    after, wider = still(), widened()
    rows, one, two, mine = left()
    middle = noise_edge(one, two, panel.edge, panel.most)
    mixed = 0.0
    if panel.mixed is not None:
        typical = median_weights(one)
        mixed = max(known_degree, min(degree(one, two, middle.weights), degree(one, two, typical)))
        if mixed > panel.mixed:
            others = {
                place: score for place, score in enumerate(scores(one, two, typical, cross_fit=cross_fit)) if place != mine
            }
            sizes = dict(enumerate(lengths(one, two, typical)))
            found, usual = farther(others, sizes, panel.far * wider, panel.far_joint * wider, panel.strong / panel.far)
            note(rows, {place for place in found if others[place] >= 3 * panel.far * wider * usual}, "extreme score")
            note(rows, found, "far")
            inherit()
            return guarded(why, before, after, panel.guard)
    stretch = 1 / (1 - max(0.0, mixed) / (panel.mixed or 1.0))
    all_scores = scores(one, two, middle.weights, cross_fit=cross_fit)
    judged = {place: score for place, score in enumerate(all_scores) if place != mine}
    sizes = dict(enumerate(lengths(one, two, middle.weights)))
    enough = panel.weak * wider if panel.dimension_free else math.inf
    found, units = outstanding(judged, sizes, level, panel.strong * wider, panel.weak * wider, enough)
    far = {place for place in found if units[place] >= 3 * panel.strong * wider}
    note(rows, far, "extreme score")
    note(rows, found, "score")
    if panel.dimension_free:
        others = [place for place in range(len(one)) if place not in far]
        edge = float(axes(one[others] - two[others], even(len(others)))[0][-1]) / 2
        middle = Middle(middle.weights, middle.taken, edge, middle.stretched)
    how = {"edge": panel.edge, "level": level / 2}
    how |= {"strong": panel.direction * wider * stretch, "weak": panel.joint * wider * stretch}
    note(rows, shifted(one, two, mine, middle, **how, out=far), "direction")
    inherit()
    return guarded(why, before, after, panel.guard)


def guarded(why: list[str], before: list[int], after: list[int], share: float) -> list[str]:
    screened = guard(why, before, _SCREEN, share)
    if screened != why:  # the screen was a mistake, and with it what was found among those it left
        return ["kept" if word in _SOFT else word for word in screened]
    return guard(why, after, _SOFT, share)


_SCREEN = ("inconsistent", "alike", "too good")
_SOFT = ("extreme score", "score", "direction", "far")


def guard(why: list[str], asked: list[int], names: tuple[str, ...], share: float) -> list[str]:
    """Such reasons against more than a share of those asked: they were a mistake."""
    if sum(1 for row in asked if why[row] in names) <= share * len(asked):
        return why
    return ["kept" if word in names else word for word in why]


def at_both_points(one: list[str], two: list[str], asked: list[int], share: float) -> list[str]:
    """The first reason found counts; if that makes more than a share of those asked, what needs no centre stays."""
    why = [b if a == "kept" else a for a, b in zip(one, two, strict=True)]
    if sum(1 for row in asked if why[row] != "kept") <= share * len(asked):
        return why
    return ["kept" if word in _SOFT else word for word in why]


def drift_test(deeds: Vector, judged: set[int], centre: Centre, bound: float) -> set[int]:
    """Four times: whoever stands too far from the centre of those left leaves."""
    gone: set[int] = set()
    for _ in range(4):
        left = [row for row in range(len(deeds)) if row not in gone]
        middle = centre(deeds[left])
        values = {row: log(float(np.sum((deeds[row] - middle) ** 2))) for row in left}
        gone |= standing_off({row: off(values[row], list(values.values())) for row in left if row in judged}, bound)
    return gone


def standing_off(values: dict[int, float], bound: float) -> set[int]:
    """Whoever is beyond the bound, or beyond 0.65 of it together with a tenth of all, four at least."""
    for limit, most in ((0.65 * bound, max(4.0, 0.1 * len(values))), (bound, 0.0)):
        found = {row for row, value in values.items() if value > limit}
        if len(found) >= most:
            return found
    return set()


def claim_mismatch(
    deeds: Vector,
    claims: Vector,
    noise: Vector,
    judged: set[int],
    weigh: Centre,
    bound: float,
    crowd_bound: float,
    *,
    different: bool = False,
) -> set[int]:
    """The same for q + kappa g about the centres; `weigh` gives the weights of deeds, which the claims' centre has, too.

    Nobody leaves whose residual is less than four times what the noise of its claim makes of it. Before that a crowd leaves
    that is beyond its own bound about the majority, by whose spread it is measured, if more than half of what its members
    are off by is common to all; and one whose members show too little of their claims, where most nodes follow theirs: less
    than 0.7 of the claim, or of one of the usual length if that is shorter. Where data are `different`, nobody has to show
    anything, and half of the bound is enough for a crowd whose deeds are 1.6 times as long as usual.
    """
    lengths: dict[int, float] = {}
    detached: set[int] = set()

    def values_about(left: list[int], weights: Vector, usual: list[int]) -> tuple[dict[int, float], set[int]]:
        q0, g0 = mean_of(deeds[left], weights), mean_of(claims[left], weights)
        best = {row: -float((deeds[row] - q0) @ (claims[row] - g0)) / float(np.sum((claims[row] - g0) ** 2)) for row in left}
        usual_claim = math.sqrt(median([float(np.sum((claims[row] - g0) ** 2)) for row in left]))
        followed = not different and median(list(best.values())) > 0.5
        values, explained = {}, set()
        detached.clear()
        for row in left:
            q, g = deeds[row] - q0, claims[row] - g0
            lengths[row] = float(np.linalg.norm(q))
            least = 0.7 * min(1.0, usual_claim / float(np.linalg.norm(g))) if followed else 0.0
            if followed and best[row] < least:
                detached.add(row)
            kappa = min(2.0, max(least, best[row]))
            residual = float(np.sum((q + kappa * g) ** 2))
            values[row] = log(residual)
            explained |= {row} if residual <= 4 * kappa**2 * float(noise[row]) else set()
        narrow = [values[row] for row in usual]
        off = {row: off_above(values[row], list(values.values()), narrow, 0.35) for row in left if row in judged}
        return off, explained

    everybody = list(range(len(deeds)))
    weights = majority(deeds, claims, weigh)
    off, explained = values_about(everybody, weights, [row for row in everybody if weights[row] > 0])
    crowd = {row for row, value in off.items() if value > crowd_bound} - explained
    gone = crowd & detached if len(crowd & detached) >= max(4.0, 0.1 * len(judged)) else set()
    if len(crowd) >= max(4.0, 0.1 * len(judged)):
        away = (deeds + claims)[sorted(crowd)] - mean_of(deeds + claims, weights)
        if np.sum(np.mean(away, 0) ** 2) > 0.5 * np.mean(np.sum(away**2, 1)):
            gone = crowd
    for _ in range(4):
        left = [row for row in everybody if row not in gone]
        off, explained = values_about(left, weigh(deeds[left]), left)
        usual = math.sqrt(median([lengths[row] ** 2 for row in left]))
        long = {row for row, value in off.items() if value > 0.5 * bound and lengths[row] > 1.6 * usual} - explained
        if not different or len(gone | long) < max(4.0, 0.1 * len(judged)):
            long = set()
        gone |= long | ({row for row, value in off.items() if value > bound} - explained)
    return gone


def majority(deeds: Vector, claims: Vector, weigh: Centre) -> Vector:
    """Weights of the half that is nearest to its own mean, among q or among q + g, whichever lies closer together."""
    count = len(deeds)
    usual = {}
    for name, cloud in (("deeds", deeds), ("residuals", deeds + claims)):
        usual[name] = median([float(np.sum((row - np.mean(cloud, 0)) ** 2)) for row in cloud])
    cloud = deeds + claims if usual["residuals"] < usual["deeds"] else deeds
    weights = weigh(deeds)
    for _ in range(4):
        middle = mean_of(cloud, weights)
        nearest = sorted(range(count), key=lambda row: float(np.sum((cloud[row] - middle) ** 2)))[: count // 2 + 1]
        weights = np.array([1 / len(nearest) if row in nearest else 0.0 for row in range(count)])
    return weights


def joint_test(deeds: Vector, judged: set[int], bound: float, wider: float) -> set[int]:
    """Along each of the three widest directions: whoever is far off alone, or in a crowd on the side that outnumbers the other.

    The coordinate of a row is that along the direction less the row's own part in it.
    """
    found: set[int] = set()
    if len(judged) < 15:
        return found
    count, centre = len(deeds), mean_of(deeds, even(len(deeds)))
    values, vectors = axes(deeds, even(count))
    for place in range(1, min(3, len(values)) + 1):
        # u = sum_r a_r (x_r - centre) with a_r = <u, x_r - centre> / (n variance)
        unit = vectors[:, -place]
        along = [float(unit @ (row - centre)) for row in deeds]
        part = [y / (count * values[-place]) for y in along]
        left = [y - a * float(np.sum((row - centre) ** 2)) for y, a, row in zip(along, part, deeds, strict=True)]
        z = {row: off(left[row], left) for row in judged}
        up, down = (sum(1 for value in z.values() if side * value > 2.5 * wider) for side in (1, -1))
        side = 1 if up >= down else -1
        crowd = [side * value for value in z.values() if side * value > 2.5 * wider]
        crowded = abs(up - down) > 2.5 * math.sqrt(up + down)
        for row, value in z.items():
            member = crowded and side * value > max(2.5 * wider, 0.65 * median(crowd))
            found |= {row} if abs(value) > bound or member else set()
    return found


def shortened(
    own: Vector, heard: dict[int, Vector], weights: dict[int, float], factor: float
) -> tuple[dict[int, float], set[int]]:
    """What is left of each message at one node: none pulls farther than REACH; and which are far beyond that."""
    distances = {sender: float(np.linalg.norm(vector - own)) for sender, vector in heard.items()}
    carrying = sorted(distances[sender] for sender in heard if weights[sender] > 0)
    if not carrying:
        return dict.fromkeys(heard, 1.0), set()
    middle, quarter = carrying[(len(carrying) - 1) // 2], carrying[(len(carrying) - 1) // 4]
    spreads = 5 / 0.6745 * (log(middle) - log(max(quarter, 0.1 * middle)))
    limit = middle * math.exp(min(max(spreads, math.log(factor)), math.log(max(factor, 10.0))))
    reach = REACH * middle
    share = {sender: 1.0 if away <= reach else reach / away for sender, away in distances.items()}
    return share, {sender for sender, away in distances.items() if away > limit}


def fused(own: Vector, heard: dict[int, Vector], weights: dict[int, float], share: dict[int, float]) -> Vector:
    """One node's next vector; the weight of those not heard stays with its own."""
    result = own.copy()
    for sender, vector in heard.items():
        result = result + weights[sender] * share[sender] * (vector - own)
    return result


class Walked:
    """What one neighbour did as far as it was used, with the same words to all who listen."""

    def __init__(self, dim: int) -> None:
        self.total, self.times = np.zeros(dim), 0.0

    def add(
        self,
        sent: Vector,
        rate: float,
        listeners: list[Vector],
        share: list[float],
        heard: int,
        near: list[bool],
        weight: float,
    ) -> None:
        """One round: own vectors of all who expect a message, what each left of it, how many heard it, who is not far off.

        `weight`: what a round of this time counts.
        """
        if rate <= 0 or not listeners or 2 * heard < len(listeners):
            return
        usual = sorted(share)[(len(share) - 1) // 2]
        sane = [vector for vector, close in zip(listeners, near, strict=True) if close]
        middle = mean_of(np.array(sane), even(len(sane)))
        self.total = self.total + weight * (middle + usual * (sent - middle) if usual < 1 else sent)
        self.times += weight


class Served:
    """One neighbour's record at one receiver: a severe flag lasts 4, 8, 16, ... detections, this one included.

    A detection that finds nothing while no time is served takes one strike back. A mild flag lasts one detection; four if there
    was one before and fewer than `longest` such detections since.
    """

    def __init__(self, longest: int) -> None:
        self.longest, self.until, self.strikes, self.now = longest, 0, 0, 0
        self.clean: int | None = None  # detections that found nothing since the last mild flag and its time
        self.hold = 0  # detections that a mild flag still lasts

    def add(self, why: str, severe: tuple[str, ...], mild: tuple[str, ...]) -> str:
        if why == "kept" and self.now >= self.until:
            self.strikes = max(0, self.strikes - 1)
        held = self.hold > 0
        if why == "kept" and self.now >= self.until:
            if held:
                self.hold -= 1
            elif self.clean is not None:
                self.clean += 1
        if why in mild:
            again = self.clean is not None and self.clean < self.longest
            self.clean, self.hold = 0, min(4, self.longest) - 1 if again else 0
        if why in severe:
            self.strikes += 1
            self.until = max(self.until, self.now + min(2 ** (1 + self.strikes), self.longest))
        told = "suspended" if why == "kept" and (held or self.now < self.until) else why
        self.now += 1
        return told
