"""What a study shows: its files, and a table for the terminal."""

from __future__ import annotations

from pathlib import Path

from bymi.paper import page_attack_search as frontier
from bymi.paper import page_default_experiment as default
from bymi.paper import page_images as images
from bymi.paper import page_non_iid as non_iid
from bymi.paper import page_red_team as red_team
from bymi.paper import page_rule_tables as grid
from bymi.paper import page_rules_linear as rules_linear
from bymi.paper import page_scenarios_a_b as studies
from bymi.paper import page_step_cap_and_floor as published_step
from bymi.paper import page_theory as theory
from bymi.paper.study_attack_search import Frontier
from bymi.paper.study_default_experiment import DefaultStudy
from bymi.paper.study_images import ImageStudy
from bymi.paper.study_non_iid import NonIidStudy
from bymi.paper.study_red_team import RedTeam
from bymi.paper.study_rule_tables import GridStudy
from bymi.paper.study_rules_linear import RulesStudy
from bymi.paper.study_scenarios_a_b import Study
from bymi.paper.study_step_cap_and_floor import StepStudy
from bymi.paper.study_theory import TheoryStudy

AnyStudy = (
    DefaultStudy | Frontier | Study | ImageStudy | RedTeam | StepStudy | TheoryStudy | NonIidStudy | RulesStudy | GridStudy
)


Shown = tuple[list[str], list[list[str]], str]
"""Headings, rows and title of a table."""


def show(study: AnyStudy, folder: Path, command: str) -> tuple[list[Path], Shown | None]:
    """Draw a study from all of its runs that are there: the files written, and the table if there is one to print."""
    if isinstance(study, DefaultStudy):
        return default.draw(study, folder), None
    if isinstance(study, Frontier):
        return frontier.draw(study, folder, command), None
    if isinstance(study, ImageStudy):
        return images.draw(study, folder, command), None
    if isinstance(study, RedTeam):
        return red_team.draw(study, folder, command), None
    if isinstance(study, StepStudy):
        table = published_step.table(published_step.collect(study, folder, command))
        return published_step.draw(study, folder, command), (*table, "")
    if isinstance(study, RulesStudy):
        found = rules_linear.table(rules_linear.collect(study, folder, command))
        return rules_linear.draw(study, folder, command), (*found, "")
    if isinstance(study, NonIidStudy):
        return non_iid.draw(study, folder, command), None
    if isinstance(study, GridStudy):
        return grid.draw(study, folder, command), (*grid.table(grid.collect(study, folder, command)), "")
    if isinstance(study, TheoryStudy):
        return theory.draw(study, folder, command), None
    paths = studies.draw(study, folder, command)
    return paths, (*studies.medians(study.axis, studies.collect(study, folder)), study.title)
