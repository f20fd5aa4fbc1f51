"""The paper's image experiments: one spec a cell of its tables, and which cells make up a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bymi.core.errors import InputError, require
from bymi.experiment.spec import Spec, read_spec

ATTACKS: dict[str, str] = {"ood": "ood", "gradient": "gradient", "ipm": "ipm"}
RULES = ("ubar", "ios", "balance")
RATIOS = (0.1, 0.2, 0.3)
SCALES = (0.05, 0.07, 0.1, 0.12, 0.15, 0.2)
SEEDS = {0.1: 3, 0.2: 5, 0.3: 3}
COLUMNS = {
    "undefended": "DSGD, no robust rule",
    "alone": "the rule alone, told a bound of 0.35 of each neighbourhood",
    "alone-global": "the rule alone, told the share of Byzantine nodes in the whole network",
    "published": "DRSGD-ByMI: warm-up with cool-down, half gradients at the sender's point, published score and threshold, "
    "Omega = I, combine-then-adapt; Byzantine nodes do not average",
    "published-averaging": "the same; the OOD nodes follow the protocol on bad data and average like everybody",
    "receiver": "DRSGD-ByMI, half gradients at the receiver's point, cross-fitted centre, Omega = I, adapt-then-combine",
    "hardened": "the hardened profile: a panel of tests, mutual pruning, detection again every 200 rounds, adapt-then-combine",
}
"""What is run for a cell."""
PUBLISHED = ("published", "published-averaging")
DETECTING = (*PUBLISHED, "receiver", "hardened")
CURVES = (*DETECTING, "alone")

_STEP = 0.1  # of rules alone
_RECORD_OFTEN = 20  # rounds between rows of the runs that curves are drawn from
_CURVES = "mnist"  # the data set of these runs; how often a run is recorded is part of its digest


@dataclass(frozen=True)
class ImageCell:
    """One run: its place in the tables, and its spec."""

    data: str
    attack: str
    rule: str  # "none" if undefended
    ratio: float
    column: str
    spec: Spec

    @property
    def scale(self) -> float | None:
        """The scale of the OOD noise."""
        value = self.spec.attack.model_dump().get("scale")
        return None if value is None else float(value)


@dataclass(frozen=True)
class ImageStudy:
    """Tables or curves to be. Studies of one data set share their folder, and so the runs that they have in common."""

    name: str
    title: str
    data: str
    kind: str  # "table", "ratios", "curves" or "scale"
    cells: list[ImageCell] = field(repr=False)

    @property
    def folder(self) -> str:
        return f"reproduce-{'ood-scale' if self.kind == 'scale' else self.data}"

    @property
    def specs(self) -> list[Spec]:
        return [cell.spec for cell in self.cells]


def image_spec(data: str, attack: str, rule: str, ratio: float, column: str, seed: int) -> Spec:
    """The spec of a cell. All cells of a column have the same settings but for what their row says."""
    return read_spec(
        {
            "profile": "hardened" if column == "hardened" else "paper",
            "data": data,
            "attack": ATTACKS[attack],
            "method": {"undefended": "dsgd", "alone": "rule", "alone-global": "rule"}.get(column, "drsgd-bymi"),
            "nodes": 150,
            "byzantine_ratio": ratio,
            "byzantine_mixing": "plain" if column == "published-averaging" else "none",
            "steps": 500,
            "seed": seed,
            "record_every": _RECORD_OFTEN if data == _CURVES and ratio == 0.2 else 500,
            "warm_up": _warm_up(attack, rule, ratio, column),
            "alone": {"step_size": _STEP, "schedule": "trapezoid", "batch": 32},
            "detection": _DETECTION.get(column, {}),
            "optimisation": _OPTIMISATION.get(column, _OPTIMISATION["receiver"]),
            **({"watch": _WATCH} if column == "hardened" else {}),
        }
    )


# docs/adr/0007-images.md has how these were found.
_WARM_UP_PATH = {"hardened": 0.6, "receiver": 0.6}  # sum of all steps before detection
_DETECTION: dict[str, dict[str, object]] = {
    # About the median: at ratio 0.3 a fifth of the nodes have more Byzantine neighbours than the mean survives (ADR 0003).
    "receiver": {"point": "receiver", "cross_fit": True, "centre": "filtering:about=median"},
    # So few samples that two detections take a quarter of the time: every neighbour answers everybody.
    "hardened": {"sample": 32},
}
_WATCH = {"every": 200}
_OPTIMISATION: dict[str, dict[str, object]] = {
    column: {"step_size": step, "schedule": "trapezoid", "batch": 32, "max_local_step": cap, "order": order}
    for column, step, cap, order in (
        ("receiver", 0.15, 0.2, "adapt-then-combine"),
        *((column, 0.12, 0.08, "combine-then-adapt") for column in PUBLISHED),
    )
}


def _warm_up(attack: str, rule: str, ratio: float, column: str) -> dict[str, object]:
    shares = {"ubar": "ubar:share={}", "ios": "ios:share={}", "balance": "balance", "none": "balance"}
    share = ratio if column == "alone-global" else 0.35
    # Early for IPM, as in the paper: its message is minus the mean gradient, which fades as training goes on.
    steps = 30 if attack == "ipm" else 100
    common = {"rule": shares[rule].format(share), "batch": 32, "steps": steps}
    if column in PUBLISHED:
        return {**common, "schedule": "constant", "step_size": 0.05, "cool_down": 0.4}
    if column in _WARM_UP_PATH:
        return {**common, "schedule": "constant", "step_size": _WARM_UP_PATH[column] / steps, "cool_down": 0.0}
    return {**common, "schedule": "trapezoid", "step_size": _STEP, "cool_down": 0.0}


def table(data: str, seeds: int) -> list[ImageCell]:
    """All columns at ratio 0.2. Paper: tab:attack-results1, tab:attack-results-fmnist."""
    cells = []
    for seed in range(seeds):
        for attack in ATTACKS:
            cells.append(_cell(data, attack, "none", 0.2, "undefended", seed))
            for rule in RULES:
                columns = ["published", "receiver", "hardened", "alone"]
                columns += ["alone-global"] if rule != "balance" else []
                columns += ["published-averaging"] if attack == "ood" else []
                cells += [_cell(data, attack, rule, 0.2, column, seed) for column in columns]
    return cells


def ratios(data: str, seeds: int) -> list[ImageCell]:
    """Detection and the rule alone at ratios 0.1, 0.2, 0.3. Paper: tab:attack-results2, tab:attack-results3.

    At 0.1 and 0.3 the published method has all seeds, the others three.
    """
    return [
        _cell(data, attack, rule, ratio, column, seed)
        for seed in range(seeds)
        for ratio in RATIOS
        for attack in ATTACKS
        for rule in RULES
        for column in ("published", "published-averaging", "receiver", "hardened", "alone")
        if (seed < SEEDS[ratio] or column in PUBLISHED) and (attack == "ood" or column != "published-averaging")
    ]


def curves(data: str, seeds: int) -> list[ImageCell]:
    """The runs of the table that have curves, recorded often. Paper: fig:comparison1, fig:comparison2, fig:comparison3."""
    return [cell for cell in table(data, seeds) if cell.column in CURVES]


def scale(seeds: int) -> list[ImageCell]:
    """The undefended run over scales of the OOD noise, on both data sets: how strong must it be to count as an attack?"""
    cells = []
    for seed in range(seeds):
        for data in DATA.values():
            base = image_spec(data, "ood", "none", 0.2, "undefended", seed).model_dump(mode="json")
            for value in SCALES:
                spec = read_spec({**base, "record_every": 500, "attack": {"name": "ood", "scale": value}})
                cells.append(ImageCell(data, "ood", "none", 0.2, "undefended", spec))
    return cells


def steps_of(column: str) -> str:
    """The step sizes of a column in words, from its specs; attacks under which they differ are named."""
    words = {attack: _steps(column, attack) for attack in ATTACKS}
    usual = next(iter(words.values()))
    others = (f"; under {attack.upper()} {steps}" for attack, steps in words.items() if steps != usual)
    return usual + "".join(others)


def _steps(column: str, attack: str) -> str:
    spec = image_spec("mnist", attack, "balance", 0.2, column, 0).resolved
    if spec["method"] in ("dsgd", "rule"):
        return f"{spec['alone']['step_size']:g} in all rounds ({spec['alone']['schedule']})"
    first, then = spec["warm_up"], spec["optimisation"]
    cool = f", falling to zero over its last {100 * first['cool_down']:g} %" if first["cool_down"] else ""
    cap = "" if then["max_local_step"] is None else f", local steps capped at {then['max_local_step']:g}"
    before = f"{first['step_size']:g} in the warm-up ({first['schedule']}{cool})"
    return f"{before}, then {then['step_size']:g} ({then['schedule']}{cap})"


def _cell(data: str, attack: str, rule: str, ratio: float, column: str, seed: int) -> ImageCell:
    return ImageCell(data, attack, rule, ratio, column, image_spec(data, attack, rule, ratio, column, seed))


CELLS: dict[str, Callable[[str, int], list[ImageCell]]] = {"table": table, "ratios": ratios, "curves": curves}
"""The cells of each kind of study, by data set and number of seeds."""
DATA = {"mnist": "mnist", "fashion": "fashion-mnist"}
"""Short names of the data sets in names of studies, and their names in a spec."""

IMAGE_STUDIES: dict[str, str] = {
    "ood-scale": "Undefended accuracy over the scale of the OOD noise: how strong an attack must be to count.",
    "table-mnist": "Every attack, rule and detector on MNIST. Paper: tab:attack-results1.",
    "table-fashion": "The same on Fashion-MNIST. Paper: tab:attack-results-fmnist.",
    "ratios-mnist": "Detection on MNIST at ratios 0.1, 0.2 and 0.3. Paper: tab:attack-results2.",
    "ratios-fashion": "The same on Fashion-MNIST. Paper: tab:attack-results3.",
    "curves-mnist": "Gradient norm and accuracy over rounds. Paper: fig:comparison1 to fig:comparison3.",
}
"""Names, and what they show."""


def build_image_study(name: str, *, seeds: int = 5, only: Sequence[str] = (), fast: bool = False) -> ImageStudy:
    """A study by name. `only` keeps some columns; `fast` keeps one seed of one cell."""
    if name not in IMAGE_STUDIES:
        raise InputError(f"{name!r}: unknown study, allowed: {', '.join(IMAGE_STUDIES)}")
    for column in only:
        if column not in COLUMNS:
            raise InputError(f"--only: got {column!r}, allowed: {', '.join(COLUMNS)}")
    if name == "ood-scale":
        require(not only, "--only", list(only), "for tables, ratios and curves: ood-scale has one column")
        some = scale(1 if fast else seeds)
        return ImageStudy(name + ("-fast" if fast else ""), "OOD attack, DSGD", "both", "scale", some[: 2 if fast else None])
    kind, short = name.split("-")
    data = DATA[short]
    title = "ratios 0.1, 0.2, 0.3" if kind == "ratios" else "ratio 0.2"
    chosen = [cell for cell in CELLS[kind](data, 1 if fast else seeds) if not only or cell.column in only]
    if fast:
        chosen = [cell for cell in chosen if cell.attack == "ipm" and cell.rule in ("none", "balance") and cell.ratio == 0.2]
    require(bool(chosen), "--only", list(only), f"columns that {name}{' --fast' if fast else ''} has")
    return ImageStudy(name + ("-fast" if fast else ""), f"{data}, {title}", data, kind, chosen)
