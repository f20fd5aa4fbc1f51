"""The laws of the code base, read off its syntax trees."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "bymi"
FILES = sorted(SOURCE.rglob("*.py"))

# A room imports rooms of rows before its own, and itself. docs/adr/0001-rooms.md
ROWS = [
    {"errors", "files", "interrupts", "memory", "parts", "streams", "vectors", "lists", "hearing", "crowd", "topic"},
    {"graph", "sparse", "topology", "neighbourhoods", "usage", "inbox", "dense_inbox", "list_inbox", "staying", "datasets"},
    {"faces", "network", "aggregation", "problems"},
    {"detection", "attacks"},
    {"plan", "forge", "state"},
    {"phases", "preflight"},
    {"algorithm"},
    {"engine", "testing"},
    {"runs", "outlook"},
    {"experiment"},
    {"report"},
    {"paper"},
    {"cli"},
]
SIDEWAYS = {
    *{("topology", "graph"), ("topology", "sparse"), ("sparse", "graph")},  # a topology draws a graph of either kind
    ("files", "errors"),  # reading says what is wrong with a file
    *{("parts", "errors"), ("streams", "errors"), ("vectors", "errors")},  # arguments are checked where they are given
    ("hearing", "lists"),  # who is heard is said place by place
    ("lists", "vectors"),  # distances from lists of messages
    *{("inbox", "usage"), ("dense_inbox", "usage"), ("list_inbox", "usage"), ("inbox", "staying")},  # what it finds and takes
    *{("usage", "inbox"), ("usage", "dense_inbox"), ("usage", "list_inbox")},  # types alone
    *{("inbox", "neighbourhoods"), ("dense_inbox", "neighbourhoods"), ("list_inbox", "neighbourhoods")},  # what it hands out
    *{("dense_inbox", "inbox"), ("list_inbox", "inbox"), ("staying", "inbox")},  # they are inboxes
    *{("inbox", "dense_inbox"), ("inbox", "list_inbox")},  # `Inbox.receive` makes one or the other
    ("network", "faces"),  # a network carries messages, and some senders have several
}
NUMERICAL = set().union(*ROWS[:9])
OUTSIDE_OF_THE_CORE = {"pydantic", "typer", "rich", "matplotlib", "jinja2"}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_rows_above_it(path: Path) -> None:
    here = room(path)
    if here in ("__init__", "__main__"):
        return
    for name in imports(path):
        if not name.startswith("bymi."):
            continue
        there = name.split(".")[1]
        if there == here or (here, there) in SIDEWAYS or there not in set().union(*ROWS):
            continue
        assert row_of(there) < row_of(here), f"{path.name} in row {row_of(here)} imports {name} of row {row_of(there)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_numerical_core_runs_on_a_bare_image(path: Path) -> None:
    if room(path) in NUMERICAL | {"__init__"}:
        packages = {name.split(".")[0] for name in imports(path)}
        assert not packages & OUTSIDE_OF_THE_CORE


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_adversary_and_the_metrics_know_the_truth(path: Path) -> None:
    if room(path) in {
        "aggregation",
        "detection",
        "inbox",
        "dense_inbox",
        "list_inbox",
        "neighbourhoods",
        "usage",
        "network",
        "plan",
        "forge",
        "state",
        "phases",
        "algorithm",
        "graph",
        "topology",
    }:
        assert not re.search("byzantine|honest", path.read_text(), re.IGNORECASE)


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


UNAWARE = {"faces", "network", "plan", "forge", "state", "phases", "preflight", "algorithm", "engine"}


@pytest.mark.parametrize(
    "path", [path for path in FILES if room(path) in UNAWARE], ids=lambda path: str(path.relative_to(SOURCE))
)
def test_phases_and_transports_do_not_know_the_adversary(path: Path) -> None:
    """They carry what they are given: SimulatedAdversary is put around a network by runs."""
    assert not [name for name in imports(path) if name.split(".")[:2] == ["bymi", "attacks"]]
    assert not [name for name in names_given(path) if re.search("adversary|attack|byzantine", name, re.IGNORECASE)]


def test_what_the_last_test_looks_for_is_found() -> None:
    assert {"adversary", "Adversary"} <= names_given(SOURCE / "runs" / "simulate.py")
    assert "adversary" in names_given(SOURCE / "runs" / "scene.py")  # a field
    assert "bymi.attacks" in imports(SOURCE / "runs" / "simulate.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_pickle_no_global_seed_no_long_file(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\bimport pickle|allow_pickle=True", text)
    assert all("weights_only=True" in call for call in re.findall(r"torch\.load\(.*", text))
    assert not re.search(r"manual_seed\(|random\.seed\(", text)
    assert len(text.splitlines()) <= 500


def test_every_room_has_a_row() -> None:
    rooms = {room(path) for path in FILES} - {"__init__", "__main__"}
    assert rooms == set().union(*ROWS)


# Whether a round is by matrices, by lists or spread over ranks is known here alone; others use operations of Graph and Inbox.
FORMS = {
    "graph",
    "sparse",
    "lists",
    "hearing",
    "neighbourhoods",
    "usage",
    "inbox",
    "dense_inbox",
    "list_inbox",
    "network",
    "engine",
}
APART = {"attacks/adversary.py"}  # messages made for each receiver, and their columns, are by matrices or by lists still
KINDS = {"Inbox", "DenseInbox", "ListInbox", "SlicedInbox", "StripedInbox", "Lists", "Table", "MatrixGraph", "SparseGraph"}


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
            asked = names if {"SparseGraph"} < names & {"Graph", "MatrixGraph", "SparseGraph"} else set()
        else:
            continue
        found += [f"line {node.lineno}: {ast.unparse(node)}"] if asked else []
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_form_of_a_round_stays_behind_its_operations(path: Path) -> None:
    if room(path) not in FORMS and str(path.relative_to(SOURCE)) not in APART:
        assert forms_asked_for(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(inbox, ListInbox)",
        "isinstance(x.lists, (int, Table))",
        "a = b if graph.lists is None else c",
        "if lists is not None: pass",
        "def f(graph: Graph | SparseGraph) -> None: ...",
        "graph: None | SparseGraph | Graph",
    ],
)
def test_a_test_of_form_is_seen(line: str) -> None:
    assert len(forms_asked_for(ast.parse(line))) >= 1
