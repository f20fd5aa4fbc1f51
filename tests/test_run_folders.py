"""Run folders: complete or not there, the same bits again, and one bad run does not spoil the others."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from bymi import BymiError
from bymi.experiment import Spec, load, run, run_all
from bymi.runs import parallel_runs
from bymi.runs import run_folder as store
from bymi.runs import single_run as runner
from bymi.runs.observers import RunStatus
from bymi.runs.run_folder import SUMMARY_KEYS
from bymi.runs.run_setup import set_up_run
from tests.commands import TINY, dates_in, start

GAPS = ("gap", "gap_weighted", "gap_true", "gap_population")
IMAGE_KEYS = ("acc_all", "acc_normal", "acc_scc", "acc_farthest", "grad_norm")
DETECTION_KEYS = (
    *("fdp", "pa", "found", "honest_edge_loss", "worst_edge_loss", "core_size", "core_byzantine", "core_closed"),
    *(
        "ever_lost",
        "stuck",
        "stuck_nodes",
        "capped",
        "floored",
        "fused",
        "detections",
        "exiled",
        "guard_acted",
        "detection_seconds",
    ),
)


def tiny(*words: str, seed: int = 0) -> Spec:
    return load(None, [*TINY, "record_every=5", "method=drsgd-bymi", *words], seed)


def verdict_in(out: Path, spec: Spec) -> bytes:
    return (store.folder_of(out, spec) / store.VERDICT).read_bytes()


def metrics_in(out: Path, spec: Spec) -> bytes:
    return (store.folder_of(out, spec) / store.METRICS).read_bytes()


@pytest.mark.parametrize("stop_at", [1, 20, 42])
def test_an_interrupted_run_leaves_nothing_and_can_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    spec, calls = tiny(), 0
    monkeypatch.setattr(runner, "_TELL_EVERY", 0.0)  # a word after every round, so that any round can be interrupted

    def watch(status: RunStatus) -> None:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec, tmp_path, watch)
    # 40 rounds, the detection, and a last word when all files are written but not yet in their place.
    assert calls == stop_at <= 42
    assert list(tmp_path.iterdir()) == []
    assert not store.is_complete(store.folder_of(tmp_path, spec))

    assert run(spec, tmp_path)["steps_done"] == 40
    run(spec, tmp_path / "undisturbed")
    assert verdict_in(tmp_path, spec) == verdict_in(tmp_path / "undisturbed", spec)


def test_a_killed_run_does_not_look_complete_and_can_be_run_again(tmp_path: Path) -> None:
    words = [*TINY, "method=dsgd", "steps=1500", "record_every=1"]
    spec = load(None, words)
    process = start("run", *words, "--out", tmp_path, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not any(path.stat().st_size for path in tmp_path.glob(".*/metrics.jsonl")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -9, "killed in the middle, not after the end"
    assert not store.folder_of(tmp_path, spec).exists()
    assert not any(store.is_complete(path) for path in tmp_path.iterdir())

    assert run(spec, tmp_path)["steps_done"] == 1500
    assert len(store.read_rows(store.folder_of(tmp_path, spec) / store.METRICS)) == 1500


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_summary_is_run_again(tmp_path: Path, share: float) -> None:
    spec = tiny()
    whole = run(spec, tmp_path)
    folder = store.folder_of(tmp_path, spec)
    before, text = verdict_in(tmp_path, spec), (folder / store.SUMMARY).read_text()
    (folder / store.SUMMARY).write_text(text[: int(share * len(text))])
    (folder / store.METRICS).write_text("")
    assert not store.is_complete(folder)
    again = run(spec, tmp_path)
    assert store.is_complete(folder)
    assert verdict_in(tmp_path, spec) == before
    assert [row["step"] for row in store.read_rows(folder / store.METRICS)] == [4, *range(5, 41, 5)]
    times = {key: again[key] for key in ("seconds", "detection_seconds")}
    assert again == {**whole, **{key: pytest.approx(whole[key]) for key in GAPS}, **times}


def test_a_complete_run_is_read_and_not_run_again(tmp_path: Path) -> None:
    spec, told = tiny(), []
    first = run(spec, tmp_path)
    before = dates_in(tmp_path)
    assert run(spec, tmp_path, told.append) == first
    assert told == [], "no step was done"
    assert dates_in(tmp_path) == before


class Sweep:
    """Four specs, the second of which cannot be run, once in this process and once in two others."""

    def __init__(self, out: Path) -> None:
        self.edges = out / "edges.txt"
        self.edges.write_text("0 1\n1 2\n2 0\n")
        self.impossible = tiny(f"graph={{name='file', path='{self.edges}'}}")
        self.specs = [tiny(seed=1), self.impossible, tiny(), tiny("method=rule", "warm_up.rule=ios")]
        self.out = {jobs: out / str(jobs) for jobs in (1, 2)}
        self.told = {jobs: [0] * len(self.specs) for jobs in (1, 2)}
        self.results = {jobs: run_all(self.specs, self.out[jobs], jobs=jobs, watch=self.watcher(jobs)) for jobs in (1, 2)}

    def watcher(self, jobs: int) -> parallel_runs.Watch:
        def watch(index: int, status: RunStatus) -> None:
            self.told[jobs][index] += status.rounds

        return watch


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return Sweep(tmp_path_factory.mktemp("sweep"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_spec_that_cannot_be_run_leaves_its_error_in_its_place(sweep: Sweep, jobs: int) -> None:
    first, error, *others = sweep.results[jobs]
    assert isinstance(error, BymiError)
    assert str(error) == f"nodes: got 20, allowed: 3, the number of nodes in {sweep.edges}"
    assert error.exit_code == 2
    assert not store.folder_of(sweep.out[jobs], sweep.impossible).exists()
    finished = [sweep.specs[place] for place in (0, 2, 3)]
    assert [summary["digest"] for summary in (first, *others)] == [spec.digest for spec in finished]
    assert all(store.is_complete(store.folder_of(sweep.out[jobs], spec)) for spec in finished)
    # The last word of another process may come after its result.
    assert sweep.told[1] == [40, 0, 40, 40]
    assert all(told <= 40 for told in sweep.told[2])


@pytest.mark.parametrize("place", [0, 2])
def test_verdicts_do_not_depend_on_the_number_of_processes(sweep: Sweep, place: int) -> None:
    assert verdict_in(sweep.out[1], sweep.specs[place]) == verdict_in(sweep.out[2], sweep.specs[place])


# The gaps in metrics.jsonl are against a minimiser whose last bits depend on where in memory its workspace lies, so that
# tests which compare gaps bit by bit fail now and then. When the test of the minimiser passes, take both marks away.
@pytest.mark.parametrize("place", [0, 2, 3])
def test_metrics_do_not_depend_on_the_number_of_processes(sweep: Sweep, place: int) -> None:
    assert metrics_in(sweep.out[1], sweep.specs[place]) == metrics_in(sweep.out[2], sweep.specs[place])


def test_the_minimiser_is_the_same_bit_by_bit_wherever_it_lies_in_memory() -> None:
    scene = set_up_run(tiny(seed=1).resolved)
    honest = (~scene.byzantine).nonzero().flatten()
    first, kept = scene.problem.minimiser(honest), []
    for turn in range(300):
        kept.append(torch.zeros(5 * (turn % 17) + 1))  # moves what is allocated next
        assert torch.equal(scene.problem.minimiser(honest), first)


def test_another_seed_gives_other_numbers(tmp_path: Path) -> None:
    specs = [tiny(seed=seed) for seed in range(3)]
    assert len({round(run(spec, tmp_path)["gap"], 9) for spec in specs}) == 3
    assert len({verdict_in(tmp_path, spec) for spec in specs}) == 3


@pytest.mark.parametrize("attack", ["covariate", "gradient", "ipm", "silent", "nan"])
def test_another_attack_leaves_roles_graph_and_honest_data_alone(attack: str) -> None:
    before, after = set_up_run(tiny().resolved), set_up_run(tiny(f"attack={attack}").resolved)
    honest = ~before.byzantine
    assert torch.equal(before.byzantine, after.byzantine)
    assert torch.equal(before.graph.hears, after.graph.hears)
    assert torch.equal(before.graph.mixing, after.graph.mixing)
    assert torch.equal(before.problem.start, after.problem.start)
    assert torch.equal(before.problem.features[honest], after.problem.features[honest])
    assert torch.equal(before.problem.targets[honest], after.problem.targets[honest])
    assert not torch.equal(before.problem.targets[~honest], after.problem.targets[~honest]), "the attack did change"


def test_another_seed_changes_roles_graph_and_data() -> None:
    before, after = set_up_run(tiny().resolved), set_up_run(tiny(seed=1).resolved)
    assert not torch.equal(before.byzantine, after.byzantine)
    assert not torch.equal(before.graph.hears, after.graph.hears)
    assert not torch.equal(before.problem.features, after.problem.features)


@pytest.mark.parametrize("method", ["dsgd", "rule", "drsgd-bymi"])
def test_a_summary_has_every_key_and_null_for_what_does_not_apply(tmp_path: Path, method: str) -> None:
    spec = tiny(f"method={method}")
    run(spec, tmp_path)
    summary = json.loads((store.folder_of(tmp_path, spec) / store.SUMMARY).read_text())
    assert set(summary) == {"method", "seed", "digest", *SUMMARY_KEYS}
    nulls = {key for key, value in summary.items() if value is None}
    without = set() if method == "drsgd-bymi" else {*DETECTION_KEYS, "gap_weighted", "theory"}
    assert nulls == {*IMAGE_KEYS, *without}
    assert summary["unheard"] == {"messages": 0, "senders": []}
    assert (summary["steps_done"], summary["digest"]) == (40, spec.digest)
