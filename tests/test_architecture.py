"""The laws of the code base, read off its syntax trees."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "bymi"
FILES = sorted(SOURCE.rglob("*.py"))

# A package imports packages of rows before its own, and itself: docs/architecture.md
ROWS = [
    {"core"},
    {"aggregation", "problems", "datasets"},
    {"detection", "attacks"},
    {"training"},
    {"distributed", "network_conformance"},
    {"runs", "power_analysis"},
    {"experiment", "report", "node", "flower"},
    {"paper", "netdemo"},
    {"node_cli", "commands"},
    {"cli"},
]
SIDEWAYS = {("problems", "datasets")}
NUMERICAL = set().union(*ROWS[:6])
OUTSIDE_OF_THE_CORE = {"pydantic", "typer", "rich", "matplotlib", "jinja2"}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" if node.module == "bymi" else node.module for alias in node.names]
    return found


def row_of(name: str) -> int:
    return next(index for index, rooms in enumerate(ROWS) if name in rooms)


def test_a_package_imports_only_rows_above_it() -> None:
    for path in FILES:
        here = room(path)
        if here in ("__init__", "__main__"):
            continue
        for name in imports(path):
            there = name.split(".")[1] if name.startswith("bymi.") else here
            if there == here or (here, there) in SIDEWAYS or there not in set().union(*ROWS):
                continue
            assert row_of(there) < row_of(here), f"{name_of(path)} in row {row_of(here)} imports {name} of row {row_of(there)}"


def test_the_numerical_part_runs_on_a_bare_image() -> None:
    for path in FILES:
        if room(path) in NUMERICAL | {"__init__"}:
            packages = {name.split(".")[0] for name in imports(path)}
            assert not packages & OUTSIDE_OF_THE_CORE, name_of(path)


def names_given(path: Path) -> set[str]:
    """Names of all parameters and annotated fields in a file, and of all types that they are annotated with."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.arg):
            found.add(node.arg)
        if isinstance(node, ast.AnnAssign):
            found.add(ast.unparse(node.target))
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            found |= set(re.findall(r"\w+", ast.unparse(node.annotation)))
    return found


UNAWARE = {"core", "aggregation", "detection", "training", "distributed", "node"}


@pytest.mark.parametrize("package", sorted(UNAWARE))
def test_only_the_adversary_and_the_metrics_know_the_truth(package: str) -> None:
    """The method and the transports have no parameter or field about it. Runs put a SimulatedAdversary around a network."""
    for path in (SOURCE / package).rglob("*.py"):
        assert not [name for name in imports(path) if name.split(".")[:2] == ["bymi", "attacks"]], name_of(path)
        found = [name for name in names_given(path) if re.search("adversary|attack|byzantine|honest", name, re.IGNORECASE)]
        assert not found, name_of(path)


def test_what_the_last_test_looks_for_is_found() -> None:
    assert {"adversary", "Adversary"} <= names_given(SOURCE / "runs" / "simulate.py")
    assert "adversary" in names_given(SOURCE / "runs" / "run_setup.py")  # a field
    assert "bymi.attacks" in imports(SOURCE / "runs" / "simulate.py")


def test_no_pickle_no_global_seed_no_long_file() -> None:
    for path in FILES:
        text = path.read_text()
        assert not re.search(r"\bimport pickle|allow_pickle=True", text), name_of(path)
        assert all("weights_only=True" in call for call in re.findall(r"torch\.load\(.*", text)), name_of(path)
        assert not re.search(r"manual_seed\(|random\.seed\(", text), name_of(path)
        assert len(text.splitlines()) <= 500, name_of(path)


def test_every_package_has_a_row() -> None:
    rooms = {room(path) for path in FILES} - {"__init__", "__main__"}
    assert rooms == set().union(*ROWS)


# Whether a round is by matrices, by lists or sharded over ranks is known here alone; others use operations of Graph and Inbox.
FORMS = {"core", "distributed"}
APART = {
    "attacks/simulated_adversary.py"
}  # messages per receiver are computed by matrices or by lists, and so are their columns
KINDS = {
    *("Inbox", "DenseInbox", "ListInbox", "ShardedDenseInbox", "ShardedListInbox"),
    *("NeighbourLists", "PerArcLists", "MatrixGraph", "ListGraph"),
}


def forms_asked_for(tree: ast.AST) -> list[str]:
    """Places that ask in which form messages or arcs are kept: isinstance, `lists is None`, unions of both graphs."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)} & KINDS
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            asked = {side.attr for side in sides if isinstance(side, ast.Attribute) and side.attr == "lists"}
            asked |= {side.id for side in sides if isinstance(side, ast.Name) and side.id == "lists"}
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            asked = names if {"ListGraph"} < names & {"Graph", "MatrixGraph", "ListGraph"} else set()
        else:
            continue
        found += [f"line {node.lineno}: {ast.unparse(node)}"] if asked else []
    return found


def test_the_form_of_a_round_stays_behind_its_operations() -> None:
    for path in FILES:
        if room(path) not in FORMS and name_of(path) not in APART:
            assert forms_asked_for(ast.parse(path.read_text())) == [], name_of(path)


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(inbox, ListInbox)",
        "isinstance(x.lists, (int, PerArcLists))",
        "a = b if graph.lists is None else c",
        "if lists is not None: pass",
        "def f(graph: Graph | ListGraph) -> None: ...",
        "graph: None | ListGraph | Graph",
    ],
)
def test_a_test_of_form_is_seen(line: str) -> None:
    assert len(forms_asked_for(ast.parse(line))) >= 1
