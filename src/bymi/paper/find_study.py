"""All studies of the paper by name, whatever they are made of."""

from __future__ import annotations

from collections.abc import Sequence

from bymi.core.errors import InputError, did_you_mean, require
from bymi.paper.computed_studies import COMPUTED
from bymi.paper.study_array_detection import NAME as DETECT_LEVEL
from bymi.paper.study_attack_search import FRONTIER_STUDIES, Frontier, build_frontier
from bymi.paper.study_default_experiment import DefaultStudy, build_default
from bymi.paper.study_images import IMAGE_STUDIES, ImageStudy, build_image_study
from bymi.paper.study_non_iid import NON_IID_STUDIES, NonIidStudy, build_non_iid
from bymi.paper.study_red_team import RED_TEAM_STUDIES, RedTeam, build_red_team
from bymi.paper.study_rule_tables import GRID_STUDIES, GridStudy, build_grid
from bymi.paper.study_rules_linear import RULES_LINEAR, RulesStudy, build_rules_linear
from bymi.paper.study_scenarios_a_b import STUDIES, Study, build_study
from bymi.paper.study_step_cap_and_floor import STEP_STUDIES, StepStudy, build_step_study
from bymi.paper.study_theory import THEORY_STUDIES, TheoryStudy, build_theory

_TABLES: tuple[dict[str, str], ...] = (
    *(STEP_STUDIES, RULES_LINEAR, IMAGE_STUDIES, RED_TEAM_STUDIES, FRONTIER_STUDIES, THEORY_STUDIES, NON_IID_STUDIES),
    GRID_STUDIES,
)


def find_study(
    name: str, *, seeds: int = 5, mu: float = 5.0, dims: Sequence[int] = (), only: Sequence[str] = (), fast: bool = False
) -> DefaultStudy | Frontier | Study | ImageStudy | RedTeam | StepStudy | TheoryStudy | NonIidStudy | RulesStudy | GridStudy:
    """A study by name. `mu` and `dims` belong to the paper's linear studies, `only` (columns) to the others."""
    known = (*STUDIES, *(each for table in _TABLES for each in table), "default")
    if name not in known:
        all_names = (*known, DETECT_LEVEL, *COMPUTED, "pages")
        raise InputError(f"{name!r}: unknown study{did_you_mean(name, all_names)}; allowed: {', '.join(all_names)}")
    if name == "default":
        require(not only and mu == 5.0 and not dims, "--only, --mu or --dim", [*only, mu, *dims], "for other studies")
        return build_default(fast=fast)
    if name in STUDIES:
        require(not only, "--only", list(only), "for studies on images and red-team")
        return build_study(name, seeds=seeds, mu=mu, dims=dims, fast=fast)
    require(mu == 5.0 and not dims, "--mu or --dim", [mu, *dims], "for scenario-a and scenario-b")
    if name in STEP_STUDIES:
        require(not only, "--only", list(only), "for studies on images and red-team")
        return build_step_study(seeds=seeds, fast=fast)
    if name in RULES_LINEAR:
        require(not only, "--only", list(only), "for studies on images and red-team")
        return build_rules_linear(seeds=seeds, fast=fast)
    if name in RED_TEAM_STUDIES:
        return build_red_team(name, seeds=seeds, only=only, fast=fast)
    if name in FRONTIER_STUDIES:
        return build_frontier(only=only, fast=fast)
    if name in THEORY_STUDIES:
        return build_theory(name, seeds=seeds, only=only, fast=fast)
    if name in NON_IID_STUDIES:
        return build_non_iid(seeds=seeds, only=only, fast=fast)
    if name in GRID_STUDIES:
        return build_grid(name, seeds=seeds, only=only, fast=fast)
    return build_image_study(name, seeds=seeds, only=only, fast=fast)


def study_rows() -> list[tuple[str, str, str]]:
    """Rows (name, "", what it shows) of all studies, for `bymi list`."""
    first = ("default", "What `bymi run` runs without arguments, seed 0: the table and the figure of the README.")
    scenarios = [(name, (study.__doc__ or "").strip().splitlines()[0]) for name, study in STUDIES.items()]
    others = [entry for table in _TABLES for entry in table.items()]
    others += [(name, study.shows) for name, study in COMPUTED.items()]
    level = (DETECT_LEVEL, "False discovery rate and power of `bymi detect` on arrays with known attackers.")
    return [(name, "", shown) for name, shown in (first, *scenarios, *others, level)]
