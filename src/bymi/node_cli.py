"""The commands `bymi node` and `bymi net`: real nodes. What they need is imported when they are called."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from bymi.core.errors import InputError, require

_PACKAGES = ("grpc", "cryptography", "safetensors")
_OPTIONS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "rich_markup_mode": None,
    "no_args_is_help": True,
}
node_app = typer.Typer(help="One real node: its keys, its run, and what it does. Needs bymi[node].", **_OPTIONS)
net_app = typer.Typer(help="A network of real nodes: its roster, and a demonstration on this machine.", **_OPTIONS)

_HERE = Path("node.toml")
Neighbour = Annotated[str, typer.Argument(metavar="NAME", help="A neighbour.")]
NodeFile = Annotated[Path, typer.Argument(metavar="NODE.toml", help="The node's own settings: docs/deploy.md.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[str | None, typer.Option("--url", help="Address of the node's status page; default: from NODE.toml's state.")]


@node_app.callback()
@net_app.callback()
def _need_extra() -> None:
    for name in _PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise InputError(f"bymi node and bymi net need {name}, which is not installed: pip install 'bymi[node]'")


@node_app.command()
def keygen(out: Annotated[Path, typer.Option("--out", help="Folder for key.pem and certificate.pem.")]) -> None:
    """Make a P-256 key and a self-signed certificate, and print its fingerprint: the identity of a node."""
    from bymi.node.identity import CERTIFICATE, write_identity

    made = write_identity(out)
    print(f"fingerprint {made.fingerprint}")
    print(f"Send {out / CERTIFICATE} to the owner that writes the roster, and read them the fingerprint. The key stays here.")


@node_app.command("run")
def run_node(path: NodeFile = _HERE) -> None:
    """Take part in a run until it ends; continues after a crash or a stop. SIGTERM stops it with a checkpoint."""
    from bymi.node.run_node import NodeRun

    run = NodeRun(path)
    print(f"{run.name}: run {run.roster.run_id[:16]}, node {run.node} of {run.roster.size}", flush=True)
    done = run.run(lambda text: print(f"{run.name}: {text}", flush=True))
    print(f"{run.name}: {'run ended' if done else 'stopped'} after round {run.progress.step}", flush=True)


@node_app.command()
def status(path: NodeFile = _HERE, url: Url = None, as_json: AsJson = False) -> None:
    """Print what a running node does: round, phase, loss, and each neighbour's state and verdict."""
    found = json.loads(_call(path, url, "/status.json"))
    if as_json:
        print(json.dumps(found))
        return
    loss = "" if found["loss"] is None else f", own loss {found['loss']:.4g}"
    print(f"{found['name']}: round {found['round']} of {found['rounds']}, {found['phase']}{loss}")
    for peer in found["peers"]:
        verdict = "kept" if peer["flagged"] is None else f"flagged: {peer['flagged']['reason']}"
        counts = ", ".join(f"{count} {event}" for event, count in peer["counts"].items())
        print(f"  {peer['name']}: {peer['state']}, {verdict} ({counts})")


@node_app.command()
def export(
    out: Annotated[Path, typer.Option("--out", help="The file to write, in safetensors.")],
    path: NodeFile = _HERE,
    url: Url = None,
) -> None:
    """Write the model of a node, by parameter name: of one that runs, or the last one of a run that has ended."""
    from bymi.core.files import write_bytes
    from bymi.node.run_node import MODEL

    try:
        model = _call(path, url, "/model.safetensors")
    except InputError:
        if url is not None or not (stored := _state(path) / MODEL).is_file():
            raise
        model = stored.read_bytes()
    write_bytes(out, model)
    print(f"Wrote {out}")


@node_app.command()
def pardon(path: NodeFile, name: Neighbour, url: Url = None) -> None:
    """Take the flag and the ban off a neighbour; the next detection judges it again. Audited."""
    print(_order(path, url, "pardon", name))


@node_app.command()
def ban(path: NodeFile, name: Neighbour, url: Url = None) -> None:
    """Neither hear nor answer a neighbour from the next round on. Audited."""
    print(_order(path, url, "ban", name))


@node_app.command()
def audit(path: Annotated[Path, typer.Argument(help="An audit.jsonl.")]) -> None:
    """Check that no line of an audit log was changed, removed or inserted."""
    from bymi.node.event_log import verify_audit

    count, broken = verify_audit(path)
    if broken is not None:
        raise InputError(f"{path}: line {broken} was changed, or one before it is missing")
    print(f"{count} lines, chain intact")


@net_app.command()
def init(
    roster: Annotated[Path, typer.Argument(metavar="ROSTER.toml", help="The file to write.")],
    members: Annotated[Path, typer.Option("--members", help="A line per node: NAME HOST:PORT CERTIFICATE-FILE.")],
    spec: Annotated[str, typer.Option("--spec", help="Recipe or .toml file with method, rounds and graph.")],
    model: Annotated[str, typer.Option("--model", help="lenet, linear:inputs=30,outputs=1, or module:object.")],
    samples: Annotated[int, typer.Option("--samples", min=4, help="Samples of the node that has fewest.")],
    edges: Annotated[Path | None, typer.Option("--edges", help="Edge file in place of the spec's graph.")] = None,
    deadline: Annotated[float, typer.Option("--deadline", help="Seconds to wait for a message of a round.")] = 10.0,
    start_wait: Annotated[float, typer.Option("--start-wait", help="Seconds to wait for all before the first round.")] = 600.0,
) -> None:
    """Write the roster that all owners agree on, and print the run id."""
    from bymi.experiment import load
    from bymi.node.own_data import load_model, signature_of
    from bymi.node.roster import Limits, make_roster, read_members, roster_toml

    sys.path.append(str(Path.cwd()))
    found = read_members(members)
    specs = load(spec, [f"nodes={len(found)}"]).expand()
    require(len(specs) == 1, "--spec", f"{len(specs)} methods", "one, such as method = 'drsgd-bymi'")
    limits = Limits(deadline=deadline, start_wait=start_wait)
    made = make_roster(found, specs[0].resolved, signature_of(load_model(model)), samples=samples, limits=limits, edges=edges)
    roster.write_text(roster_toml(made), encoding="utf-8")
    print(f"run id {made.run_id}")
    print(f"{made.size} nodes, {len(made.edges)} edges, {made.model.dim} parameters. Every owner needs this file, unchanged.")


@net_app.command()
def demo(
    nodes: Annotated[int, typer.Option("--nodes", help="Processes to start.")] = 6,
    byzantine: Annotated[int, typer.Option("--byzantine", help="Of these, nodes that train against the others.")] = 1,
    steps: Annotated[int, typer.Option("--steps", help="Rounds.")] = 60,
    seed: Annotated[int, typer.Option("--seed", help="Seed of start and mini-batches.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for keys, logs and models. Default: removed at the end.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run real nodes on this machine: keys, roster, a process each, mutual TLS on loopback, and a table at the end."""
    from bymi.netdemo.demo import prepare, run_demo

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if out is None else out
        found = run_demo(prepare(folder, nodes=nodes, byzantine=byzantine, steps=steps, seed=seed))
    if as_json:
        print(json.dumps(found))
        return
    print(f"{found['nodes']} nodes, {len(found['byzantine'])} Byzantine, {found['steps']} rounds, {found['seconds']} s")
    for row in found["rows"]:
        flagged = ", ".join(f"{name} ({reason})" for name, reason in row["flagged"].items()) or "nobody"
        accuracy = "-" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f} %"
        print(f"  {row['node']}: accuracy {accuracy}, flagged {flagged}")


def _state(path: Path) -> Path:
    """The state folder of a node file."""
    from bymi.node.node_file import read_node_file

    return path.parent / read_node_file(path).state


def _call(path: Path, url: str | None, request: str, body: bytes | None = None) -> bytes:
    """The answer of a node's status port."""
    import urllib.error
    import urllib.request

    from bymi.node.status_server import read_token

    if url is None:
        state = _state(path)
        try:
            url = (state / "status-url").read_text(encoding="utf-8").strip()
        except OSError:
            raise InputError(f"{path}: no node runs with it ({state} has no status-url)") from None
    require(url.startswith("http://"), "--url", url, "http://127.0.0.1:PORT")
    headers = {} if body is None else {"X-Bymi-Token": read_token(_state(path))}
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(url.rstrip("/") + request, body, headers), timeout=10) as answer:
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as problem:
        raise InputError(problem.read().decode("utf-8", "replace").strip()) from None
    except (OSError, ValueError) as problem:
        raise InputError(f"{url}: no answer ({problem}); does the node run?") from None


def _order(path: Path, url: str | None, what: str, name: str) -> str:
    return f"{name}: {_call(path, url, f'/{what}', name.encode()).decode().strip()}"
