"""Ready specs by name: functions that return a complete Spec. To add one: write it and list it in RECIPES."""

from __future__ import annotations

from collections.abc import Callable

from bymi.experiment.spec import Spec, read_spec

WARM_UPS: dict[str, dict[str, object]] = {
    "UBAR": {"rule": "ubar", "step_size": 0.1, "batch": 8},
    "IOS": {"rule": "ios", "step_size": 0.2, "batch": 32},
    "BALANCE": {"rule": "balance:gamma=1.0", "step_size": 0.05, "batch": 8},
}
"""The warm-ups of the paper, each with the step size and batch at which honest nodes agree by round 300 (d = 30)."""


def scenario_a() -> Spec:
    """Linear model, d = 30; Byzantine nodes hold data from a wrong parameter (paper, section 5.1). The default."""
    return Spec()


def scenario_b() -> Spec:
    """Linear model, d = 30; Byzantine nodes hold shifted covariates and responses (paper, section 5.1).

    Warm-up by IOS: BALANCE lets these attackers in, and at the point they agree on, the published score misses many.
    """
    return read_spec({"attack": "covariate", "warm_up": WARM_UPS["IOS"]})


def gradient() -> Spec:
    """Linear model, d = 30; Byzantine nodes use the paper's gradient attack."""
    return read_spec({"attack": "gradient"})


def ipm() -> Spec:
    """Linear model, d = 30; Byzantine nodes use inner product manipulation, early detection as in the paper."""
    return read_spec({"attack": "ipm", "warm_up": {"steps": 30}})


RECIPES: dict[str, Callable[[], Spec]] = {
    "scenario-a": scenario_a,
    "scenario-b": scenario_b,
    "gradient": gradient,
    "ipm": ipm,
}
