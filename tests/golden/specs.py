"""Digests of all specs that have a name: those of every recipe and of every study."""

from __future__ import annotations

import hashlib

from bymi.experiment.recipes import RECIPES
from bymi.paper.find_study import find_study
from bymi.paper.study_images import IMAGE_STUDIES
from bymi.paper.study_red_team import RED_TEAM_STUDIES
from bymi.paper.study_scenarios_a_b import STUDIES


def spec_digests() -> dict[str, dict[str, str]]:
    """By name: of a recipe the digest of its spec, of a study how many runs it has and one digest over theirs."""
    return {
        "recipes": {name: recipe().digest for name, recipe in RECIPES.items()},
        "studies": {name: _digest_of(name) for name in (*STUDIES, *IMAGE_STUDIES, *RED_TEAM_STUDIES)},
    }


def _digest_of(study: str) -> str:
    digests = [spec.digest for spec in find_study(study).specs]
    return f"{len(digests)} runs {hashlib.sha256(' '.join(digests).encode()).hexdigest()[:16]}"
