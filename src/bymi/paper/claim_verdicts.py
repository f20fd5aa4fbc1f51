"""What the committed JSON says about each claim of the paper: a sentence with our numbers, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import mean, median

from bymi.paper.committed_results import (
    NOT_MEASURED,
    Results,
    Run,
    average,
    ended_badly,
    mean_or_infinite,
    middle,
    numbers,
    of,
    percent,
    small,
    span,
)
from bymi.paper.page_red_team import on_common_seeds
from bymi.paper.published_tables import RULES_ALONE, WITH_DETECTION
from bymi.paper.study_images import DATA
from bymi.paper.study_red_team import PAPERS
from bymi.paper.summary_blocks import GAP, LEVEL, image_cells, published_column
from bymi.report.tables import endings

CONFIRMED, PARTLY, NOT_CONFIRMED = "confirmed", "partly", "**not confirmed**"
NOTHING = (NOT_MEASURED, NOT_MEASURED)

Finding = tuple[str, str]  # our numbers, verdict

RATIOS = (0.1, 0.2, 0.3)
_SURE = 0.99
_WORST_FDP = 0.4  # the largest at ratio 0.2 in the paper's tables, rounded
_POINTS = 0.5  # of accuracy, below the paper's
_TIMES = 10  # by which the gap of a rule alone must be larger
_FAR = 0.2  # s_r from which on the attack of Scenario A counts as away from 0.1


def verdict(flags: Iterable[bool], confirmed: float = 1.0, partly: float = 0.5) -> str:
    """Confirmed or partly, by the share that holds: all, and half."""
    found = list(flags)
    if not found:
        return NOT_MEASURED
    share = sum(found) / len(found)
    return CONFIRMED if share >= confirmed else PARTLY if share >= partly else NOT_CONFIRMED


# Synthetic data


def fdp_in_a(results: Results) -> Finding:
    settings = results.linear("scenario-a").values()
    below = [run["fdp"] is not None and run["fdp"] < _WORST_FDP for runs in settings for run in runs]
    if not below:
        return NOTHING
    medians = [middle(runs, "fdp") for runs in settings]
    ends = CONFIRMED if all(below) else PARTLY if max(medians) < _WORST_FDP else NOT_CONFIRMED
    return f"{of(below)} runs below 40 %; medians {span(medians)}", ends


def pa_in_a(results: Results) -> Finding:
    lowest = [min(run["pa"] or 0.0 for run in runs) for key, runs in results.linear("scenario-a").items() if key[2] >= _FAR]
    return (f"lowest run of each setting: {span(lowest)}", verdict(value >= _SURE for value in lowest)) if lowest else NOTHING


def gap_in_a(results: Results) -> Finding:
    medians = [middle(runs, "gap") for key, runs in results.linear("scenario-a").items() if key[2] >= _FAR]
    below = [value < GAP for value in medians]
    return (f"{of(below)} settings; medians {span(medians, small)}", verdict(below)) if medians else NOTHING


def dip_in_a(results: Results) -> Finding:
    parts, dips = [], []
    for name, mu in (("scenario-a", 5), ("scenario-a-mu1", 1)):
        settings = results.linear(name)
        at = [run for key, runs in settings.items() if key[2] == 0.1 for run in runs]
        far = [run for key, runs in settings.items() if key[2] >= 0.4 for run in runs]
        if at and far:
            pa = [mean(run["pa"] or 0.0 for run in runs) for runs in (at, far)]
            gap = [middle(runs, "gap") for runs in (at, far)]
            both = f"P_a {percent(pa[0])} and {percent(pa[1])}, median gap {small(gap[0])} and {small(gap[1])}"
            parts.append(f"mu_c = {mu}: {both} at 0.1 and far from it")
            dips.append(pa[0] < pa[1] - 0.01 or gap[0] > 2 * gap[1])
    return ("; ".join(parts), verdict(dips)) if dips else NOTHING


def b_below(results: Results) -> Finding:
    low = {key: runs for key, runs in results.linear("scenario-b").items() if key[2] < 0.3}
    if not low:
        return NOTHING
    few, more = (span(middle(runs, "fdp") for key, runs in low.items() if (key[2] <= 0.1) == side) for side in (True, False))
    found = ", ".join(
        f"{rule} {of(run['pa'] == 1 for key, runs in low.items() if key[1] == rule for run in runs)}"
        for rule in dict.fromkeys(key[1] for key in low)
    )
    good = [middle(runs, "fdp") <= _WORST_FDP and median(run["pa"] or 0.0 for run in runs) >= _SURE for runs in low.values()]
    return f"median FDP {few} at ratios up to 0.1, {more} above; runs with P_a of 100 %: {found}", verdict(good)


def b_dimension(results: Results) -> Finding:
    settings, dims = results.linear("scenario-b"), (30, 80)
    medians = [[middle(runs, "fdp") for key, runs in settings.items() if key[0] == dim and key[2] < 0.3] for dim in dims]
    if not all(medians):
        return NOTHING
    parts = []
    for dim, values in zip(dims, medians, strict=True):
        missed = [
            key[2]
            for key, runs in settings.items()
            if key[0] == dim and key[1] != "BALANCE" and any(run["pa"] != 1 for run in runs)
        ]
        first = f"{min(missed):g}" if missed else "none"
        parts.append(f"d = {dim}: {percent(mean(values))}, first ratio at which UBAR or IOS misses somebody {first}")
    higher = mean(medians[1]) - mean(medians[0])
    return "; ".join(parts), CONFIRMED if 0 < higher <= 0.1 else NOT_CONFIRMED


def b_above(results: Results) -> Finding:
    high = [run for key, runs in results.linear("scenario-b").items() if key[2] >= 0.3 for run in runs]
    missed = [run["pa"] != 1 for run in high]
    gaps = span(numbers(high, "gap"), small)
    return (f"P_a below 100 % in {of(missed)} runs; gaps {gaps}", verdict([any(missed)])) if high else NOTHING


def level(results: Results) -> Finding:
    values = numbers((run for key, runs in results.linear("scenario-a").items() if key[2] > 0.02 for run in runs), "fdp")
    if not values:
        return NOTHING
    clean = average(results.red_team().get(("no attackers", published_in_red_team(results)), []), "fdp")
    rest = "" if clean is None else f"; {percent(clean)} without any attacker, where every flag is false"
    ends = CONFIRMED if mean(values) <= LEVEL else PARTLY if mean(values) <= 2 * LEVEL else NOT_CONFIRMED
    return f"mean FDP {percent(mean(values))} in Scenario A{rest}", ends


def component(results: Results) -> Finding:
    runs = [run for found in results.linear("scenario-a").values() for run in found if run["core_size"] is not None]
    if not runs:
        return NOTHING
    honest = max(run["core_size"] - run["core_byzantine"] for run in runs)
    closed = [run for run in runs if run["core_closed"] and not run["core_byzantine"]]
    whole = [run in closed and run["core_size"] == honest for run in runs]
    sizes = span(run["core_size"] / honest for run in closed)
    text = f"exactly the {honest} honest nodes in {of(whole)} runs; closed and without Byzantine nodes in {len(closed)}"
    return f"{text}, with {sizes} of the honest nodes", verdict(whole)


def published_in_red_team(results: Results) -> str:
    """What the published method is called in the red team."""
    return published_column({column for _, column in results.red_team()})


def signals(results: Results) -> Finding:
    runs, name = results.red_team(), published_in_red_team(results)
    rows = ("wrong parameter, trained alone", "Gaussian", "ALIE", "mimic")
    pa = {row: worst_mean(runs[row, name], "pa") for row in rows if (row, name) in runs}
    return (
        ("P_a: " + "; ".join(f"{row} {percent(value)}" for row, value in pa.items()), verdict(v < _SURE for v in pa.values()))
        if pa
        else NOTHING
    )


def exact(results: Results) -> Finding:
    """The gap of BALANCE alone over that of the published method, under the paper's attacks; counts of the other studies."""
    runs, name = on_common_seeds(results.red_team()), published_in_red_team(results)
    gaps = {
        row: [mean_or_infinite(runs[row, column], "gap") for column in ("BALANCE", name)]
        for row in dict.fromkeys(row for row, _ in runs)
        if (row, "BALANCE") in runs and (row, name) in runs and row != "no attackers"
    }
    removed = {row: alone >= _TIMES * ours for row, (alone, ours) in gaps.items()}
    papers = {row: removed[row] for row in PAPERS if row in removed}
    if not papers:
        return NOTHING
    each = "; ".join(f"{row}: {small(gaps[row][0])} and {small(gaps[row][1])}" for row in papers)
    text = f"gap of BALANCE alone and of BALANCE-DRSGD-ByMI: {each}"
    text += f"; ten times as large in {of(removed.values())} attacks of the red team"
    cells = (results.json("rules-linear/rules-linear.json") or {}).get("cells", [])
    pairs: dict[tuple[str, str], dict[str, float]] = {(cell["rule"], cell["attack"]): {} for cell in cells}
    for cell in cells:
        pairs[cell["rule"], cell["attack"]][cell["role"]] = mean_or_infinite(cell["runs"], "gap")
    both = [pair["alone"] >= _TIMES * pair["warm-up"] for pair in pairs.values() if len(pair) == 2]
    rest = f"; of rules alone against the hardened method in {of(both)} pairs of rule and attack" if both else ""
    return text + rest, verdict(papers.values())


def step(results: Results) -> Finding:
    values = results.json("published-step/published-step.json") or {}
    parts, held = [], []
    for entry in values.get("settings", []):
        if entry["changes"].get("step_size") == "theorem":
            lost = [run["outcome"] == "diverged" for run in entry["runs"]]
            gaps = [run["gap"] for run in entry["runs"] if run["outcome"] != "diverged"]
            rest = f"; gap {span(gaps, small)}" if gaps else ""
            parts.append(f"{entry['setting']}: {of(lost)} diverged{rest}")
            held += [not any(lost)] if "max_local_step" in entry["changes"] else []
    return ("; ".join(parts), verdict(held)) if held else NOTHING


# Images


Cell = tuple[str, str, str, float]  # data, attack, rule, ratio


def cells(results: Results, *, ratios: Iterable[float] = (0.2,), column: str = "", data: str = "") -> dict[Cell, list[Run]]:
    """The runs of the published method, or of another column, by data, attack, rule and ratio.

    OOD nodes that average like everybody are taken where the paper's numbers can only be had so: under UBAR and IOS.
    """
    found: dict[Cell, list[Run]] = {}
    for short, name in DATA.items():
        runs = image_cells(results, short) if data in ("", name) else {}
        chosen = column or published_column({key[3] for key in runs})
        for (attack, rule, ratio, where), some in runs.items():
            averaging = (attack, rule, ratio, f"{chosen}-averaging")
            if where == chosen and ratio in ratios:
                found[name, attack, rule, ratio] = runs.get(averaging, some) if rule in ("ubar", "ios") else some
    return found


def worst_mean(runs: list[Run], key: str) -> float:
    """The mean of a key; a run without a value counts as bad as can be."""
    lost = {"fdp": 1.0, "grad_norm": float("inf")}.get(key, 0.0)
    return mean(lost if run[key] is None else run[key] for run in runs)


def means(some: dict[Cell, list[Run]], key: str) -> list[float]:
    return [worst_mean(runs, key) for runs in some.values()]


def at_one_ratio(results: Results) -> Finding:
    some = cells(results)
    good = [fdp < LEVEL and pa >= _SURE for fdp, pa in zip(means(some, "fdp"), means(some, "pa"), strict=True)]
    own = of(cell[0.2].fdp < 100 * LEVEL for cell in WITH_DETECTION.values())
    text = f"FDP {span(means(some, 'fdp'))}, P_a {span(means(some, 'pa'))}; both in {of(good)} cells"
    return (f"{text} (FDP in the paper's own tables: {own})", verdict(good)) if some else NOTHING


def tables(results: Results) -> Finding:
    """How many cells hold by their means, and how many of these have no run that ended badly."""
    parts, spoilt = [], []
    everything: list[bool] = []
    for data in DATA.values():
        some = cells(results, data=data)
        good = {
            key: worst_mean(runs, "pa") >= _SURE
            and worst_mean(runs, "fdp") <= _WORST_FDP
            and 100 * worst_mean(runs, "acc_scc") >= WITH_DETECTION[key[:3]][0.2].acc_scc - _POINTS
            for key, runs in some.items()
        }
        everything += good.values()
        clean = [holds and not any(map(ended_badly, some[key])) for key, holds in good.items()]
        spoilt += [
            f"{data}, {key[1]}, {key[2].upper()}: {endings(some[key])}"
            for key, holds in good.items()
            if holds and any(map(ended_badly, some[key]))
        ]
        counts = f"{of(good.values())} cells by their means, {of(clean)} without a run that ended badly"
        parts.append(f"{data} {counts}, accuracy {span(means(some, 'acc_scc'))}")
    if not everything:
        return NOTHING
    rest = f"; hold by their means with bad endings: {'; '.join(spoilt)}" if spoilt else ""
    return "; ".join(parts) + rest, verdict(everything)


def papers_accuracy() -> str:
    """The range of the paper's accuracies at ratio 0.2."""
    return "; ".join(
        f"{data} {span(cell[0.2].acc_scc / 100 for key, cell in WITH_DETECTION.items() if key[0] == data)}"
        for data in DATA.values()
    )


def against_alone(column: str) -> Callable[[Results], Finding]:
    """The published method against a rule alone on MNIST."""

    def find(results: Results) -> Finding:
        ours, alone = cells(results, data="mnist"), cells(results, data="mnist", column=column)
        gains = [
            100 * (worst_mean(ours[key], "acc_scc") - worst_mean(alone[key], "acc_normal")) for key in ours if key in alone
        ]
        higher = [gain > 0 for gain in gains]
        return (f"higher in {of(higher)} cells, {span(gains, points)}", verdict(higher)) if gains else NOTHING

    return find


def papers_gain() -> str:
    """The paper's gain in accuracy over rules alone on MNIST."""
    gains = [cell[0.2].acc_scc - RULES_ALONE[key].acc_normal for key, cell in WITH_DETECTION.items() if key[0] == "mnist"]
    return span(gains, points)


def points(value: float) -> str:
    return f"{value:+.1f} points"


def norm_after(results: Results) -> Finding:
    norms = means(cells(results, data="mnist"), "grad_norm")
    return (f"{span(norms, norm)}", verdict(value <= 0.1 for value in norms)) if norms else NOTHING


def norm(value: float) -> str:
    return "diverged" if value == float("inf") else f"{value:.2g}"


def norm_alone(results: Results) -> Finding:
    parts, everything = [], []
    for column, told in (("alone", "told a bound of 0.35"), ("alone-global", "told the global share")):
        norms = means(cells(results, data="mnist", column=column), "grad_norm")
        if norms:
            large = [value >= 1 for value in norms]
            rest = span((value for value in norms if value < 1), norm)
            parts.append(f"{told}: {of(large)} cells at 1 or more, or diverged; the others {rest}")
            everything += large
    return ("; ".join(parts), verdict(everything)) if everything else NOTHING


def prior(results: Results) -> Finding:
    bound, share = cells(results, column="alone"), cells(results, column="alone-global")
    losses = [
        100 * (worst_mean(share[key], "acc_normal") - worst_mean(bound[key], "acc_normal")) for key in share if key in bound
    ]
    large = [loss <= -10 for loss in losses]
    return (f"{span(losses, points)}; 10 or more lost in {of(large)} cells", verdict(large)) if losses else NOTHING


def over_ratios(results: Results) -> Finding:
    some = cells(results, ratios=RATIOS)
    if len({key[3] for key in some}) < 2:
        return NOTHING
    sure = [value >= _SURE for value in means(some, "pa")]
    spread = []
    for where in dict.fromkeys(key[:3] for key in some):
        values = [100 * worst_mean(runs, "acc_scc") for key, runs in some.items() if key[:3] == where]
        spread.append(max(values) - min(values))
    text = f"P_a of 99 % or more in {of(sure)} cells; accuracy varies over the ratios by {span(spread, points)}"
    return text, verdict(sure, 0.9)


def fdp_over_ratios(results: Results) -> Finding:
    some = cells(results, ratios=RATIOS)
    if len({key[3] for key in some}) < 2:
        return NOTHING
    good = [value < 0.3 for value in means(some, "fdp")]
    own = of(cell[ratio].fdp < 30 for cell in WITH_DETECTION.values() for ratio in RATIOS)
    return f"{of(good)} cells, {span(means(some, 'fdp'))} (the paper's own tables: {own})", verdict(good, 0.9)


def missed_costs(results: Results) -> Finding:
    parts, lower = [], []
    for data in DATA.values():
        runs = [run for cell in cells(results, ratios=RATIOS, data=data).values() for run in cell if run["pa"] is not None]
        missed, found = ([run["acc_scc"] or 0.0 for run in runs if (run["pa"] < 1) == bad] for bad in (True, False))
        if missed and found:
            parts.append(f"{data}: median {percent(median(missed))} of {len(missed)} runs, else {percent(median(found))}")
            lower.append(median(missed) < median(found) - 0.05)
    return ("; ".join(parts), verdict(lower)) if lower else NOTHING


def papers_missed() -> str:
    """The paper's accuracies where its P_a is below 100 %."""
    return span(cell[ratio].acc_scc / 100 for cell in WITH_DETECTION.values() for ratio in RATIOS if cell[ratio].pa < 100)


def papers_pa() -> str:
    """The paper's P_a over all ratios."""
    return span(cell[ratio].pa / 100 for cell in WITH_DETECTION.values() for ratio in RATIOS)


def undefended(results: Results) -> Finding:
    some = cells(results, column="undefended")
    if not some:
        return NOTHING
    accuracy = {(key[0], key[1]): 100 * worst_mean(runs, "acc_all") for key, runs in some.items()}
    low = [round(value, 1) <= RULES_ALONE[data, attack, "none"].acc_all for (data, attack), value in accuracy.items()]
    each = ", ".join(f"{data} {attack} {value:.1f} %" for (data, attack), value in accuracy.items())
    return f"{each}; as low as the paper's in {of(low)} cells", verdict(low)


def papers_undefended() -> str:
    """The paper's accuracies without a robust rule."""
    return ", ".join(f"{key[0]} {key[1]} {value.acc_all} %" for key, value in RULES_ALONE.items() if key[2] == "none")
