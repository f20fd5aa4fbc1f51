"""The trained models in a run folder: which they are, how they are read back, and by whom."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bymi
from bymi.core.errors import StorageError
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host, KeepModels
from bymi.distributed.gathered_snapshots import Models
from bymi.experiment import Spec, load, run
from bymi.problems import ModuleProblem, Shards, lenet
from bymi.runs import run_folder as store
from bymi.runs import safetensors_file as tensorfile
from bymi.runs import single_run as runner
from bymi.runs.run_setup import set_up_run
from bymi.runs.simulate import ManyProcesses, engine_of
from bymi.runs.trained_models import MODEL, NODES, collect, write_models
from tests.commands import bymi as command
from tests.commands import mistake
from tests.forked import call
from tests.idx_files import write_image_set

SMALL = ("nodes=16", "steps=20", "data.dim=4", "data.samples=40", "record_every=5")
METHODS = {
    "dsgd": ("profile=paper", "method=dsgd"),
    "rule": ("profile=paper", "method=rule"),
    "paper": ("profile=paper", "method=drsgd-bymi"),
    "hardened": ("method=drsgd-bymi", "watch.every=6", "warm_up.steps=4"),
}
IMAGES = ("data=mnist:samples=20,identification=8", "nodes=6", "graph=complete", "steps=4", "warm_up.steps=2", "attack=ipm")
IMAGES = (*IMAGES, "method=drsgd-bymi", "profile=paper", "record_every=2")


def spec_of(*words: str) -> Spec:
    return load(None, [*SMALL, *words])


def safetensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a file, read by the published description of the format and by nothing of ours.

    8 bytes: length n of the header, little endian. n bytes: a JSON object that starts with "{", from names to dtype, shape and
    [begin, end) in what follows, without holes; "__metadata__" maps strings to strings.
    """
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert content[8:9] == b"{"
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    assert all(isinstance(text, str) for text in header.pop("__metadata__").values())
    found, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert set(entry) == {"dtype", "shape", "data_offsets"}
        assert entry["data_offsets"][0] == end
        begin, end = entry["data_offsets"]
        dtype = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "BOOL": "?"}[entry["dtype"]]
        assert end - begin == math.prod(entry["shape"]) * np.dtype(dtype).itemsize
        found[name] = np.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
    assert end == len(data)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_a_folder_keeps_the_mean_and_one_honest_node(name: str, tmp_path: Path) -> None:
    """The mean over the core after a detection and over honest nodes without one, computed here from all rounds again."""
    spec = spec_of(*METHODS[name])
    summary = run(spec, tmp_path)
    folder, scene = store.folder_of(tmp_path, spec), set_up_run(spec.resolved)
    last, members = None, ~scene.byzantine
    for snapshot in bymi.simulate(scene.problem, scene.graph, scene.plan, scene.adversary):
        if snapshot.network is not None:
            members = snapshot.network.graph.core().members  # type: ignore[attr-defined]
        last = snapshot.theta
    assert last is not None
    assert summary["core_size"] == (None if name in ("dsgd", "rule") else int(members.sum()))
    state = bymi.load_model(folder)
    assert set(state) == {"theta"}
    torch.testing.assert_close(state["theta"], last[members].mean(0), rtol=0, atol=1e-14)
    first = int((members & ~scene.byzantine).nonzero()[0])
    assert torch.equal(bymi.load_model(folder, node=first)["theta"], last[first])
    assert summary["model_finite"] is True
    assert summary["model_bytes"] == sum((folder / file).stat().st_size for file in (MODEL, NODES))
    assert safetensors(folder / MODEL)["theta"].tolist() == state["theta"].tolist()
    assert safetensors(folder / NODES)["nodes"].tolist() == [first]


def test_the_mean_is_the_model_that_the_summary_measures(tmp_path: Path) -> None:
    spec = spec_of(*METHODS["paper"])
    summary, scene = run(spec, tmp_path), set_up_run(spec.resolved)
    theta = bymi.load_model(store.folder_of(tmp_path, spec))["theta"]
    honest = (~scene.byzantine).nonzero().flatten()
    assert isinstance(scene.problem, bymi.LinearProblem)
    gap = scene.problem.excess(theta, scene.problem.minimiser(honest), honest)
    assert float(gap) == pytest.approx(summary["gap"], rel=1e-9)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Spec, Host]:
    place = tmp_path_factory.mktemp("images")
    write_image_set(place / "data" / "mnist", train=120, test=50)
    spec, host = load(None, list(IMAGES)), Host(device="cpu", data=place / "data")
    summary = run(spec, place / "runs", host=host)
    return store.folder_of(place / "runs", spec), summary, spec, host


def test_a_network_is_back_in_two_lines(images: tuple[Path, dict[str, Any], Spec, Host]) -> None:
    folder, summary, spec, host = images
    net = lenet()
    net.load_state_dict(bymi.load_model(folder))

    scene = set_up_run(spec.resolved, host)
    *_, last = bymi.simulate(**parts(scene))
    assert isinstance(scene.problem, ModuleProblem)
    core = last_core(scene)
    vector = torch.cat([value.detach().flatten() for value in net.parameters()])
    torch.testing.assert_close(vector, last.theta[core].mean(0), rtol=0, atol=1e-6)
    # It answers as the mean that was measured.
    inputs = scene.evaluator._inputs  # type: ignore[attr-defined]
    labels = scene.evaluator._labels  # type: ignore[attr-defined]
    with torch.no_grad():
        right = float((net(inputs).argmax(1) == labels).double().mean())
    assert right == pytest.approx(summary["acc_scc"])
    assert {name: value.shape for name, value in net.state_dict().items()} == {
        name: value.shape for name, value in safetensors(folder / MODEL).items()
    }
    assert safetensors(folder / MODEL)["0.weight"].dtype == np.float32


def parts(scene: Any) -> dict[str, Any]:
    return {"problem": scene.problem, "graph": scene.graph, "plan": scene.plan, "adversary": scene.adversary}


def last_core(scene: Any) -> Tensor:
    found = ~scene.byzantine
    for snapshot in bymi.simulate(**parts(scene)):
        if snapshot.network is not None:
            found = snapshot.network.graph.core().members  # type: ignore[attr-defined]
    return found


def test_each_nodes_model_is_kept_if_asked_for(tmp_path: Path, images: tuple[Path, dict[str, Any], Spec, Host]) -> None:
    folder, summary, spec, host = images
    everything = run(spec, tmp_path, host=replace(host, keep_models="all"))
    there = store.folder_of(tmp_path, spec)
    assert there.name == folder.name, "what is kept is no part of a spec"
    assert everything["model_bytes"] > 2 * summary["model_bytes"]
    scene = set_up_run(spec.resolved, host)
    *_, last = bymi.simulate(**parts(scene))
    assert isinstance(scene.problem, ModuleProblem)
    for node in range(6):
        state = bymi.load_model(there, node)
        lenet().load_state_dict(state)
        assert all(torch.equal(state[name], value) for name, value in scene.problem.state_dict(last.theta[node]).items())
    assert (there / MODEL).read_bytes() == (folder / MODEL).read_bytes()
    kept = safetensors(folder / NODES)["nodes"].tolist()
    other = next(node for node in range(6) if node not in kept)
    with pytest.raises(bymi.InputError, match=rf"node: got {other}, allowed: a node whose model was kept, one of \[\d\]"):
        bymi.load_model(folder, other)


def test_none_is_kept_if_asked_for(tmp_path: Path) -> None:
    spec = spec_of(*METHODS["dsgd"])
    summary = run(spec, tmp_path, host=Host(keep_models="none"))
    folder = store.folder_of(tmp_path, spec)
    assert (summary["model_bytes"], summary["model_finite"]) == (None, None)
    assert not list(folder.glob("*.safetensors"))
    with pytest.raises(bymi.InputError, match=r"no model\.safetensors there; a run keeps it unless .* --keep-models none"):
        bymi.load_model(folder)


def test_the_models_of_a_run_that_diverged_are_kept(tmp_path: Path) -> None:
    spec = spec_of("profile=paper", "method=dsgd", "alone.step_size=1e3", "alone.schedule=constant")
    summary = run(spec, tmp_path)
    assert summary["outcome"] == "diverged"
    assert summary["model_finite"] is True, "far away, and numbers all the same"
    assert float(bymi.load_model(store.folder_of(tmp_path, spec))["theta"].norm()) > 1e8


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_models_that_are_not_finite_are_kept_as_they_are(number: float, tmp_path: Path) -> None:
    problem = set_up_run(spec_of(*METHODS["dsgd"]).resolved).problem
    theta = torch.ones(3, 4, dtype=torch.float64)
    theta[1, 2] = number
    words = write_models(tmp_path, collect(Models([theta]), torch.arange(3) < 2, torch.arange(3) > 2, "all"), problem, {})
    assert words["model_finite"] is False
    expected = theta[:2].mean(0)
    assert torch.equal(bymi.load_model(tmp_path)["theta"].nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(bymi.load_model(tmp_path, 1)["theta"].nan_to_num(7), theta[1].nan_to_num(7))


def test_a_disk_without_room_for_the_model_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: Any) -> int:
        raise OSError(28, "No space left on device")

    spec = spec_of(*METHODS["dsgd"])
    monkeypatch.setattr(tensorfile, "write", full)
    with pytest.raises(StorageError, match=r"cannot write the trained models to .*: No space left on device"):
        run(spec, tmp_path, host=Host(checkpoint_every=0))
    assert not list(tmp_path.glob("*")), "nothing half done"
    assert run(spec, tmp_path, host=Host(keep_models="none"))["outcome"] == "finished"


@pytest.mark.parametrize("damage", ["cut", "changed", "of nothing", "a folder"])
def test_a_damaged_file_is_one_line(damage: str, tmp_path: Path) -> None:
    problem = set_up_run(spec_of(*METHODS["dsgd"]).resolved).problem
    write_models(tmp_path, collect(Models([torch.ones(4, 4)]), torch.arange(4) < 3, torch.arange(4) < 2, "mean"), problem, {})
    path = tmp_path / MODEL
    content = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    else:
        path.write_bytes({"cut": content[:-3], "changed": content[:-1] + b"\1", "of nothing": b""}[damage])
    with pytest.raises(bymi.InputError) as problem_:
        bymi.load_model(tmp_path)
    assert "model.safetensors" in str(problem_.value)
    assert "\n" not in str(problem_.value)


@pytest.mark.parametrize(("keep", "kept"), [("mean", [1]), ("all", [0, 1, 2, 3])])
def test_which_nodes_are_kept(keep: KeepModels, kept: list[int]) -> None:
    byzantine = torch.tensor([True, False, False, True])
    models = Models([torch.randn(4, 2)])
    assert collect(models, torch.tensor([True, True, True, False]), byzantine, keep).nodes.tolist() == kept
    only_byzantine = collect(models, torch.tensor([True, False, False, True]), byzantine, "mean")
    assert only_byzantine.nodes.tolist() == [1], "an honest node even where the core has none"


class Odd(nn.Module):
    """A buffer, a parameter of two names, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        shifted: Tensor = self.second(self.first(inputs)) * self.scale + self.shift
        return shifted


def test_buffers_and_shared_parameters_are_in_the_state() -> None:
    shards = Shards(torch.randn(2, 4, 3), torch.randn(2, 4, 3))
    problem = ModuleProblem(Odd(), nn.functional.mse_loss, shards)
    theta = torch.arange(problem.dim, dtype=torch.float32)
    net = Odd()
    net.load_state_dict(problem.state_dict(theta))
    assert torch.equal(torch.cat([value.detach().flatten() for value in net.parameters()]), theta)
    assert net.second.weight is net.first.weight
    both = problem.state_dict(torch.stack([theta, -theta]))
    assert torch.equal(both["second.weight"][1], -problem.state_dict(theta)["first.weight"])
    assert both["shift"].shape == (2, 3)


# Over ranks


def test_shards_of_one_process_have_the_models_of_all_nodes() -> None:
    """What a run has that was stopped after its last round: states, and no round to come."""
    spec = spec_of(*METHODS["paper"])
    course = engine_of(spec.resolved, Host(), Group())
    assert isinstance(course, ManyProcesses)
    *_, last = course.rounds(None, lambda step, phase: False)
    members = torch.arange(16) % 3 > 0
    both = (last.models, course.models(last.states))
    from_round, from_states = (collect(some, members, ~members, "all") for some in both)
    assert torch.equal(from_round.mean, from_states.mean)
    assert torch.equal(from_round.models, from_states.models)
    assert from_round.models.shape == (16, 4)


@pytest.mark.parametrize("keep", ["mean", "all"])
def test_ranks_keep_the_same_models_as_one_process(keep: str, tmp_path: Path) -> None:
    words = ["run", *SMALL, *METHODS["hardened"], "--keep-models", keep, "--device", "cpu"]
    jobs = [{"size": size, "words": [*words, "--out", str(tmp_path / str(size))]} for size in (1, 2)]
    done = call("-m", "tests.launcher", json.dumps(jobs), cwd=Path(__file__).parents[1])
    assert done.stdout.count('"code": 0') == 3, done.stderr
    spec = spec_of(*METHODS["hardened"])
    one, two = (store.folder_of(tmp_path / str(size), spec) for size in (1, 2))
    for file in (MODEL, NODES):
        assert (one / file).read_bytes() == (two / file).read_bytes()
    assert len(safetensors(two / NODES)["nodes"]) == (1 if keep == "mean" else 16)
    run(spec, tmp_path / "alone", host=Host(keep_models=keep))  # type: ignore[arg-type]
    alone = store.folder_of(tmp_path / "alone", spec)
    torch.testing.assert_close(bymi.load_model(alone), bymi.load_model(two), rtol=0, atol=1e-12)


# On the command line


def test_the_command_takes_the_word(tmp_path: Path) -> None:
    words = ("run", *SMALL, *METHODS["dsgd"], "--out", tmp_path)
    assert "keep_models: got 'some', allowed: mean, all, none" in mistake(*words, "--keep-models", "some")
    assert command(*words, "--keep-models", "all").code == 0
    folder = store.folder_of(tmp_path, spec_of(*METHODS["dsgd"]))
    assert bymi.load_model(folder, 15)["theta"].shape == (4,)


def test_the_runner_asks_no_models_of_a_run_that_keeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*words: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(runner, "collect", never)
    run(spec_of(*METHODS["dsgd"]), tmp_path, host=Host(keep_models="none"))
