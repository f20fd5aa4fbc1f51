"""Which golden runs there are: methods, attacks and forms, of whose combinations some are taken so that every pair occurs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from bymi.aggregation import RULES
from bymi.attacks import ATTACKS
from tests.golden.forms import FORMS, Form

Words = tuple[str, ...]

# 13 nodes in 4 shards: one shard has a node more than the others. Two rounds between two detections, and one after the last.
NODES = 13
SHOWN = (0, 7, 12)  # whose values are stored; the second is Byzantine wherever nothing else is said of placement
BASE: Words = (f"nodes={NODES}", "byzantine_ratio=0.25", "steps=5", "warm_up.steps=2", "record_every=5", "data.samples=16")
_RULE: Words = ("method=rule",)
_HARDENED: Words = ("method=drsgd-bymi", "watch.every=2")
_PAPER: Words = ("method=drsgd-bymi", "profile=paper", "detection.fdr_level=0.4")

RULE_METHODS: dict[str, Words] = {rule: (*_RULE, f"warm_up.rule={rule}") for rule in RULES}
MANY_RUNS = ("average", "ubar", "ios", "balance", "mean", "median", "trimmed-mean", "geometric-median", "filtering")
"""Rules of all kinds, with every attack in some form; the others share their code, and have some attacks in some forms."""
PAPER_METHODS: dict[str, Words] = {
    "paper": _PAPER,
    "paper at the receiver": (*_PAPER, "detection.point=receiver"),
    "paper, pca": (*_PAPER, "detection.scale=pca", "detection.cross_fit=true"),
    "paper, median": (*_PAPER, "detection.point=receiver", "detection.centre=median"),
    "paper, geometric median": (*_PAPER, "detection.centre=geometric-median", "detection.offset=1"),
    "paper, adapt first": (
        *(*_PAPER, "detection.centre=trimmed-mean"),
        *("optimisation.order=adapt-then-combine", "optimisation.premix_rounds=2"),
    ),
}
HARDENED_METHODS: dict[str, Words] = {
    "hardened": _HARDENED,
    "hardened at the sender": (*_HARDENED, "detection.point=sender"),
    "hardened, directed": (*_HARDENED, "detection.pruning=directed"),
    "hardened, no fuse": (*_HARDENED, "watch.fuse=off", "detection.pruning=directed", "optimisation.premix_rounds=1"),
}

_MESSAGE = "byzantine_level=message"
ANY_ATTACKS: dict[str, Words] = {
    "ipm": ("attack=ipm:a=2.0",),
    "alie on messages": ("attack=alie", _MESSAGE),
    "gaussian on messages": ("attack=gaussian", _MESSAGE),
    "far messages": ("attack=same-value:value=30.0", _MESSAGE),
    "absurd messages": ("attack=same-value:value={absurd}", _MESSAGE),
    "two faces": ("attack=sign-flip", "byzantine_faces=two"),
    "two faces on messages": ("attack=alie", "byzantine_faces=two", _MESSAGE),
    "two-faced nan": ("attack=nan", "byzantine_faces=two"),
    "two-faced silence": ("attack=silent", "byzantine_faces=two"),
    "dissensus": ("attack=dissensus",),
    "isolation": ("attack=isolation",),
    "silent": ("attack=silent",),
    "misshapen": ("attack=misshapen",),
    "nan": ("attack=nan",),
    "data": ("attack=parameter",),
    "from round 1, by the rule": (
        *("attack=ipm:a=2.0", "byzantine_start=1"),
        *("byzantine_mixing=rule", "byzantine_pruning=rule"),
    ),
    "every other round, own vectors": (
        *("attack=gradient", "byzantine_period=2"),
        *("byzantine_mixing=none", "byzantine_pruning=all"),
    ),
}
DETECTION_ATTACKS: dict[str, Words] = {
    **ANY_ATTACKS,
    "two faces on halves": ("attack=gaussian", "byzantine_faces=two", "byzantine_level=pair"),
    "halves": ("attack=negative-injection",),
    "tracker": ("attack=y-poison", "optimisation.premix_rounds=2", "detection.pruning=directed"),
    "one victim": ("attack=victim",),
    "poison under the fuse": ("attack=poison:how=fuse",),
}
SIMPLE_ATTACKS = [name for name in ATTACKS if name not in ("ood", "label-flip", "silent", "misshapen", "nan", "isolation")]
"""Those without settings of their own above that linear data know."""


@dataclass(frozen=True)
class Run:
    """A spec, as words over the defaults, and the form in which it is computed."""

    words: Words
    form: Form


def _run(method: str, attack: str, form: str) -> tuple[str, Run]:
    how, shape = {**RULE_METHODS, **PAPER_METHODS, **HARDENED_METHODS, **OPTIMISER_METHODS}[method], FORMS[form]
    what = DETECTION_ATTACKS.get(attack, (f"attack={attack}", "optimisation.premix_rounds=2"))
    return f"{method} | {attack} | {form}", Run((*BASE, *how, *(word.format(absurd=shape.absurd) for word in what)), shape)


def _some(methods: Iterable[str], attacks: Iterable[str], every: int) -> Iterator[tuple[str, Run]]:
    """Of all combinations with forms every so many, by a Latin square."""
    for row, method in enumerate(methods):
        for column, attack in enumerate(attacks):
            for number, form in enumerate(FORMS):
                if (row + column + number) % every == 0:
                    yield _run(method, attack, form)


def _each_rule() -> Iterator[tuple[str, Run]]:
    forms, attacks = list(FORMS), list(ANY_ATTACKS)
    for rule in (rule for rule in RULES if rule not in MANY_RUNS):
        number = sum(rule.encode())  # not its place in the table: new rules leave the runs of others alone
        for turn in range(3):
            yield _run(rule, attacks[(number + 6 * turn) % len(attacks)], forms[(number + 2 * turn) % len(forms)])


def _each_attack() -> Iterator[tuple[str, Run]]:
    forms = list(FORMS)
    for number, attack in enumerate(SIMPLE_ATTACKS):
        for method in ("balance", "paper", "hardened"):
            yield _run(method, attack, forms[number % len(forms)])


def _answers() -> Iterator[tuple[str, Run]]:
    """What a node answers to one asker differs from what it sends to all in these only: they are there in every form."""
    for method in ("hardened", "paper at the receiver"):
        for attack in ("two-faced nan", "two-faced silence", "two faces on halves"):
            for form in FORMS:
                yield _run(method, attack, form)


_HALF = {
    "dense": "9.2e5",
    "lists": "9.2e5",
    "dense, sharded": "9.2e5",
    "lists, sharded": "9.2e5",
    "slices": "8e5",
    "strips": "8.4e5",
}


def _heard_by_half() -> Iterator[tuple[str, Run]]:
    """Messages so long that of their receivers exactly half hear some of them, a few more than half others."""
    for form, value in _HALF.items():
        words = (*BASE, *_HARDENED, f"attack=same-value:value={value}", _MESSAGE)
        yield f"hardened | heard by half | {form}", Run(words, FORMS[form])


def _again() -> Iterator[tuple[str, Run]]:
    """The published detection repeated, and a criterion that ends the run."""
    for form in FORMS:
        for method, attack in (("paper", "ipm"), ("paper at the receiver", "two faces on halves")):
            name, run = _run(method, attack, form)
            words = (*run.words, "detection.every=1", "stop.tolerance=1e9", "stop.patience=2")
            yield f"{name} | again", replace(run, words=words)


OPTIMISER_METHODS: dict[str, Words] = {
    **{name: (*_PAPER, f"optimisation.method={name}") for name in ("dsgd", "dgd-rs", "ab")},
    "momentum": (*_PAPER, "optimisation.method=drsgd:momentum=0.9"),
    "frost": (*_PAPER, "optimisation.method=frost:heavy_ball=0.2,spread=0.3", "optimisation.premix_rounds=2"),
    "tracking": (*_HARDENED, "optimisation.method=gradient-tracking", "optimisation.batch=all"),
}
_OPTIMISER_ATTACKS = ("ipm", "two faces on messages", "dissensus", "silent", "every other round, own vectors")


def _optimisers() -> Iterator[tuple[str, Run]]:
    """Each optimiser in three forms, under other attacks."""
    forms = list(FORMS)
    for row, method in enumerate(OPTIMISER_METHODS):
        for column in range(3):
            attack = _OPTIMISER_ATTACKS[(row + column) % len(_OPTIMISER_ATTACKS)]
            yield _run(method, attack, forms[(row + 2 * column) % len(forms)])


def _placed() -> Iterator[tuple[str, Run]]:
    for place in ("high-degree", "neighbourhood"):
        for form in ("dense", "lists, sharded"):
            name, run = _run("paper", "sign-flip", form)
            yield f"{name} | {place}", replace(run, words=(*run.words, f"byzantine_placement={place}"))


_ON_RANKS = [
    ("average", "ipm", "slices"),
    ("median", "silent", "lists, sharded"),
    ("trimmed-mean", "data", "slices"),
    ("ubar", "absurd messages", "strips"),
    ("ios", "gaussian on messages", "strips"),
    ("balance", "alie on messages", "dense, sharded"),
    ("filtering", "two faces on messages", "lists, sharded"),
    ("geometric-median", "dissensus", "dense, sharded"),
    ("paper", "two faces", "dense, sharded"),
    ("paper", "tracker", "lists, sharded"),
    ("paper", "from round 1, by the rule", "slices"),
    ("paper at the receiver", "two-faced nan", "lists, sharded"),
    ("paper at the receiver", "ipm", "slices"),
    ("paper, pca", "misshapen", "strips"),
    ("hardened", "two-faced silence", "dense, sharded"),
    ("hardened", "far messages", "strips"),
    ("hardened", "two faces on halves", "lists, sharded"),
    ("hardened at the sender", "gaussian on messages", "strips"),
    ("hardened, directed", "dissensus", "lists, sharded"),
    ("hardened, no fuse", "every other round, own vectors", "dense, sharded"),
    ("frost", "dissensus", "strips"),
    ("ab", "two faces on messages", "lists, sharded"),
    ("tracking", "ipm", "slices"),
]
_CHECKPOINTS = {("hardened, directed", "dissensus", "dense"): 4, ("hardened", "two-faced nan", "lists"): 3}

RUNS: dict[str, Run] = {
    **dict(_some(MANY_RUNS, ANY_ATTACKS, 4)),
    **dict(_some(PAPER_METHODS, DETECTION_ATTACKS, 4)),
    **dict(_some(HARDENED_METHODS, DETECTION_ATTACKS, 4)),
    **dict(_each_attack()),
    **dict(_each_rule()),
    **dict(_answers()),
    **dict(_heard_by_half()),
    **dict(_placed()),
    **dict(_again()),
    **dict(_optimisers()),
    **dict(_run(*names) for names in (*_ON_RANKS, *_CHECKPOINTS)),
}
ON_RANKS = [_run(*names)[0] for names in _ON_RANKS]
"""Those that ranks compute, too: what they give is what shards give in one process."""
CHECKPOINTS = {_run(*names)[0]: step for names, step in _CHECKPOINTS.items()}
"""Those of which a checkpoint is stored, and after which round."""
