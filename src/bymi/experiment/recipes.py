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

    Warm-up by IOS: BALANCE accepts these attackers, and at the point that nodes then agree on, the published score misses many.
    """
    return read_spec({"attack": "covariate", "warm_up": WARM_UPS["IOS"]})


def gradient() -> Spec:
    """Linear model, d = 30; Byzantine nodes use the paper's gradient attack."""
    return read_spec({"attack": "gradient"})


def ipm() -> Spec:
    """Linear model, d = 30; Byzantine nodes use inner product manipulation, early detection as in the paper."""
    return read_spec({"attack": "ipm", "warm_up": {"steps": 30}})


def mnist() -> Spec:
    """LeNet on MNIST, 100 nodes, IPM: minutes on two cores. The paper's settings: `bymi reproduce table-mnist`."""
    return _image_recipe("mnist")


def fashion_mnist() -> Spec:
    """LeNet on Fashion-MNIST, 100 nodes, IPM: minutes on two cores."""
    return _image_recipe("fashion-mnist")


def digits() -> Spec:
    """LeNet on scikit-learn's small digits, 30 nodes, IPM: real data without a download (needs bymi[digits])."""
    return _image_recipe("digits", nodes=30, graph="erdos-renyi:p=0.8", identification=24)


def _image_recipe(data: str, *, identification: int = 20, **changes: object) -> Spec:
    """Fewer nodes, rounds and samples, and smaller batches than the paper's, so that no GPU is needed; four detections."""
    settings: dict[str, object] = {
        "data": {"name": data, "identification": identification},
        "attack": "ipm",
        "method": ["dsgd", "rule", "drsgd-bymi"],
        "nodes": 100,
        "byzantine_mixing": "none",
        "steps": 150,
        "record_every": 75,
        "warm_up": {"rule": "balance", "steps": 30, "step_size": 0.02, "schedule": "constant", "batch": 16},
        "detection": {"sample": "identification"},
        "watch": {"every": 60},
        "optimisation": {
            **{"step_size": 0.15, "schedule": "trapezoid", "batch": 16, "max_local_step": 0.2},
            "order": "adapt-then-combine",
        },
    }
    return read_spec({**settings, **changes})


RECIPES: dict[str, Callable[[], Spec]] = {
    "scenario-a": scenario_a,
    "scenario-b": scenario_b,
    "gradient": gradient,
    "ipm": ipm,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "digits": digits,
}
