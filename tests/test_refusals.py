"""What the system refuses, storage and memory: one line, an exit code of its own, and what is done is kept."""

from __future__ import annotations

import errno
import importlib
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from bymi import BymiError, InputError
from bymi.core.errors import EXIT_CODES, OutOfMemoryError, RankLostError, StorageError, error_of, system_refusal
from bymi.distributed.collectives import Group
from bymi.distributed.device_and_thread_settings import Host
from bymi.experiment import Spec, load, run, run_all
from bymi.runs import memory_estimate as footprint
from bymi.runs import parallel_runs
from bymi.runs import run_folder as store
from bymi.runs import simulate as course
from bymi.runs import single_run as runner
from bymi.runs.observers import RunStatus
from bymi.runs.resolved_spec import write_resolved_specs
from tests.commands import TINY, bymi, only_line
from tests.forked import call

FULL = OSError(errno.ENOSPC, "No space left on device")


def tiny(*words: str, seed: int = 0) -> Spec:
    return load(None, [*TINY, "method=dsgd", *words], seed)


def fail(problem: BaseException) -> Any:
    def call(*words: Any, **more: Any) -> None:
        raise problem

    return call


# Storage


def test_a_full_disk_at_the_end_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, lost = tiny(), tiny(seed=1)
    run(done, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail(FULL))
        results = run_all([done, lost], tmp_path, jobs=1)
    assert isinstance(results[0], dict)
    assert isinstance(results[1], StorageError)
    assert "No space left on device" in str(results[1])
    assert [path.name for path in tmp_path.iterdir()] == [store.folder_of(tmp_path, done).name], "no scratch is left"
    assert run(lost, tmp_path)["steps_done"] == 40


def test_a_full_disk_in_the_middle_of_a_run_keeps_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real limit of the system, reached by the rows of metrics.jsonl: the checkpoint before stays, and serves."""
    spec, host = tiny("record_every=1", "steps=400"), Host(checkpoint_every=20)
    monkeypatch.setattr(runner, "_TELL_EVERY", 0.0)
    with size_limit(20_000), pytest.raises(StorageError) as caught:
        run(spec, tmp_path, host=host)
    assert str(caught.value) == "DSGD, seed 0: File too large; what is complete is kept"
    assert [path.name for path in tmp_path.iterdir()] == [store.checkpoints_of(tmp_path, spec).name]
    told: list[RunStatus] = []
    run(spec, tmp_path, told.append, host)
    assert told[0].rounds > 20, "it did not begin at the start"


@contextmanager
def size_limit(size: int) -> Iterator[None]:
    """No file of this process, nor of those it starts, can be larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_for_one_of_several_processes(tmp_path: Path) -> None:
    """The limit is inherited by the workers. One of three runs writes more than fits; the others are kept."""
    specs = [tiny(), tiny("record_every=1", "steps=400"), tiny(seed=1)]
    with size_limit(30_000):
        results = run_all(specs, tmp_path, jobs=2)
    assert [type(result) for result in results] == [dict, StorageError, dict]
    assert str(results[1]) == "DSGD, seed 0: File too large; what is complete is kept"
    kept = {store.folder_of(tmp_path, spec).name for spec in (specs[0], specs[2])}
    assert {path.name for path in tmp_path.iterdir()} - {store.checkpoints_of(tmp_path, specs[1]).name} == kept


def test_a_folder_that_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_TELL_EVERY", 0.0)
    with pytest.raises(StorageError) as caught:
        run(tiny(), tmp_path / "out", lambda status: shutil.rmtree(tmp_path / "out", ignore_errors=True))
    assert "No such file or directory" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_exit_code_of_storage_is_nine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fail(FULL))
    answer = bymi("run", *TINY, "method=dsgd", "--out", tmp_path)
    assert (answer.code, answer.out) == (9, "")
    assert "No space left on device" in only_line(answer.err)
    assert "storage" in EXIT_CODES[9]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_to(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "touch", fail(OSError(number, os.strerror(number))))
    answer = bymi("run", *TINY, "method=dsgd", "--out", tmp_path)
    assert answer.code == 9
    assert only_line(answer.err) == f"cannot write to the folder {tmp_path}: {os.strerror(number)}"


def test_what_is_complete_is_read_from_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bymi("run", *TINY, "method=dsgd", "--out", tmp_path)
    for name in ("touch", "mkdir", "unlink"):
        monkeypatch.setattr(Path, name, fail(OSError(errno.EROFS, "Read-only file system")))
    monkeypatch.setattr(os, "replace", fail(OSError(errno.EROFS, "Read-only file system")))
    assert bymi("run", *TINY, "method=dsgd", "--out", tmp_path) == before


def test_resolved_specs_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        write_resolved_specs(tmp_path / "nowhere" / "specs.json", [tiny().resolved])
    with pytest.raises(InputError, match="Is a directory"):
        write_resolved_specs(tmp_path, [tiny().resolved])
    monkeypatch.setattr(os, "fsync", fail(FULL))
    with pytest.raises(StorageError, match=r"specs\.json: No space left on device"):
        write_resolved_specs(tmp_path / "specs.json", [tiny().resolved])
    assert list(tmp_path.iterdir()) == []


def test_a_download_to_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("bymi.datasets.download")  # the package has a function of that name
    monkeypatch.setattr(module, "_fetch", lambda *given: b"x")
    monkeypatch.setattr(os, "fsync", fail(FULL))
    file = module.RemoteFile("x", 1, "")
    with pytest.raises(StorageError, match="No space left on device"):
        module.download(module.Source("some-set", ("http://127.0.0.1/", "http://127.0.0.1/other/"), (file,)), tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_table_that_cannot_be_printed() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "bymi", "list"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 9
    assert "No space left on device" in only_line(done.stderr)


# Memory


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is estimated, as where the system does not say how much memory it has."""
    monkeypatch.setattr(footprint, "available", lambda: None)


@pytest.mark.usefixtures("unchecked")
def test_memory_that_torch_does_not_get(tmp_path: Path) -> None:
    """A petabyte, asked for in earnest."""
    answer = bymi("run", "nodes=1000000", "graph=ring", "data.dim=1000000", "method=dsgd", "--out", tmp_path)
    assert (answer.code, answer.out) == (10, "")
    assert only_line(answer.err).startswith("DSGD, seed 0: not enough memory (")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "problem",
    [
        MemoryError(),
        MemoryError("Unable to allocate 3 TiB"),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB\nmore words"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_memory_that_is_not_there_has_an_error_of_its_own(
    problem: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, lost = tiny(), tiny(seed=1)
    run(done, tmp_path)
    monkeypatch.setattr(runner, "_walk", fail(problem))
    results = run_all([done, lost], tmp_path, jobs=1)
    assert [type(result) for result in results] == [dict, OutOfMemoryError]
    assert str(results[1]).startswith("DSGD, seed 1: not enough memory")
    assert "\n" not in str(results[1])


@pytest.mark.parametrize("problem", [RuntimeError("shapes differ"), ConnectionResetError("peer"), ValueError("x"), KeyError(1)])
def test_a_defect_is_not_called_a_refusal(problem: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert system_refusal(problem) is None
    monkeypatch.setattr(runner, "_walk", fail(problem))
    with pytest.raises(type(problem)):
        run(tiny(), tmp_path)


def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    """As the kernel does when memory runs out: no traceback, and what was complete before is kept."""
    specs = [tiny(), tiny("steps=100000", seed=1), tiny("steps=100000", seed=2)]
    run(specs[0], tmp_path)

    def watch(index: int, status: RunStatus) -> None:
        for child in multiprocessing.active_children():
            os.kill(child.pid, signal.SIGKILL)

    results = run_all(specs, tmp_path, jobs=2, watch=watch)
    assert [type(result) for result in results] == [dict, OutOfMemoryError, OutOfMemoryError]
    assert "killed, as happens when memory runs out; try fewer --jobs" in str(results[2])


# The estimate


@pytest.mark.parametrize("words", [["graph=erdos-renyi"], ["graph=ring"], ["graph=regular:degree=20"], ["graph=complete"]])
def test_a_million_nodes_say_what_they_need(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "available", lambda: 8 * 10**9)
    monkeypatch.setattr("bymi.runs.tasks.draw_samples", fail(AssertionError("data were made")))
    answer = bymi("run", "nodes=1000000", *words, "--out", tmp_path)
    assert (answer.code, answer.out) == (10, "")
    line = only_line(answer.err)
    assert line.startswith("DSGD, seed 0: it needs about ")
    assert "data 24.8 GB" in line
    assert "8 GB are available" in line
    assert list(tmp_path.iterdir()) == []


def bytes_of(*words: str) -> dict[str, int]:
    return footprint.needs(load(None, ["method=dsgd", *words]).resolved)


def test_the_estimate_counts_what_it_says() -> None:
    """By hand: rows of 100 samples in 30 dimensions and a target, and a draw of 128 nodes at a time."""
    found = bytes_of("nodes=1000", "graph=complete", "warm_up.batch=8", "optimisation.batch=4")
    assert found["data"] == 8 * 1000 * 100 * 31 + 3 * 8 * 128 * 100 * 30
    assert found["graph"] == 20 * 1000**2 + 100 * 1000 * 999
    assert found["models"] == 4 * 1000 * 30 * 8
    assert found["mini-batches"] == 2 * 8 * 8 * 1000 * 8
    assert bytes_of("nodes=4000", "graph=ring")["graph"] == 100 * 4000 * 2, "lists"
    assert bytes_of("nodes=4000", "graph=er:p=0.01")["graph"] == 100 * 4000 * 40, "lists"
    assert bytes_of("nodes=4000", "graph=er:p=0.5")["graph"] == 20 * 4000**2 + 100 * 4000 * 2000, "matrices"
    images = bytes_of("data=mnist", "attack=ipm", "nodes=100")
    assert images["data"] == 784 * (4 * 70_000 + 60_000)
    assert images["models"] == 4 * 100 * 61_706 * 4
    few = bytes_of("data=mnist:samples=20,identification=8", "attack=ipm", "nodes=100")
    assert few["data"] == 784 * (4 * 12_000 + 2000)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "words",
    [
        ["nodes=1000", "data.dim=2", "data.samples=4", "graph=er:p=0.5"],
        ["nodes=3000", "data.dim=2", "data.samples=4", "graph=regular:degree=20"],
        ["nodes=50", "data.dim=100", "data.samples=3000", "graph=complete"],
        ["nodes=50", "data.dim=2", "data.samples=4", "graph=complete", "warm_up.batch=50000"],
    ],
)
def test_the_estimate_is_no_more_than_what_a_run_takes(words: list[str], tmp_path: Path) -> None:
    """A run that would fit is not refused; nor is the figure so low that nothing ever is."""
    program = (
        "import sys; from pathlib import Path; from bymi.experiment import load; from bymi.runs import run\n"
        "from bymi.runs.memory_estimate import needs\n"
        "def peak(): return int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) * 1024\n"
        "resolved = load(None, sys.argv[2:]).resolved\n"
        "run(load(None, ['nodes=3', 'method=dsgd', 'steps=2', 'warm_up.steps=1']).resolved, Path(sys.argv[1]))  # imports\n"
        "before = peak(); run(resolved, Path(sys.argv[1])); print(peak() - before, sum(needs(resolved).values()))"
    )
    done = call("-c", program, str(tmp_path), "method=dsgd", "steps=8", "warm_up.steps=2", *words)
    assert done.returncode == 0, done.stderr
    taken, told = map(int, done.stdout.split())
    assert told <= 1.3 * taken
    assert told >= 0.25 * taken


@pytest.mark.parametrize("words", [["graph=complete"], ["nodes=1200", "graph=ring"], ["data=mnist", "attack=ipm", "nodes=100"]])
def test_a_run_is_refused_just_when_memory_is_short(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    resolved, host = load(None, ["method=dsgd", *words]).resolved, Host(device="cpu")
    total = sum(footprint.needs(resolved).values())
    for left, refused in ((total, False), (total - 1, True), (None, False)):
        monkeypatch.setattr(footprint, "available", lambda left=left: left)
        if refused:
            with pytest.raises(OutOfMemoryError):
                footprint.check(resolved, host)
        else:
            footprint.check(resolved, host)


def test_ranks_need_their_part_of_data_and_models() -> None:
    resolved = load(None, ["nodes=1000", "graph=ring", "method=dsgd"]).resolved
    whole, part = footprint.needs(resolved), footprint.needs(resolved, ranks=4)
    assert part["models"] == whole["models"] // 4
    assert part["data"] == 8 * 100 * (250 * 31 + 3 * 128 * 30), "a quarter of the rows; as many are drawn at a time"
    assert part["graph"] == whole["graph"]


def test_several_processes_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [tiny(seed=seed).resolved for seed in range(3)]
    total = sum(footprint.needs(specs[0]).values())
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for left, jobs in ((100 * total, 8), (4 * total, 2), (total, 1), (None, 8)):
        monkeypatch.setattr(footprint, "available", lambda left=left: left)
        assert parallel_runs._usual_jobs(specs, Host(device="cpu")) == jobs


def test_one_run_that_is_too_large_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [tiny(), tiny("nodes=100000", "graph=complete"), tiny(seed=1)]
    monkeypatch.setattr(footprint, "available", lambda: 10**9)
    results = run_all(specs, tmp_path, jobs=1)
    assert [type(result) for result in results] == [dict, OutOfMemoryError, dict]


def test_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least of what the kernel has and the limits of the control groups, of either version."""
    told = footprint.available()
    assert told is not None
    assert 0 < told <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    known: dict[str, str] = {}

    def read(path: Path, encoding: str | None = None) -> str:
        if str(path) not in known:
            raise FileNotFoundError
        return known[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(footprint, "_memory_info", lambda: 1000)
    for files, least in (
        ({}, 1000),
        ({"/proc/self/cgroup": "0::/job\n", "/sys/fs/cgroup/job/memory.max": "500\n"}, 500),
        ({"/proc/self/cgroup": "0::/job\n", "/sys/fs/cgroup/job/memory.max": "max\n"}, 1000),
        ({"/proc/self/cgroup": "0::/outside\n", "/sys/fs/cgroup/memory.max": "300\n"}, 300),
        ({"/proc/self/cgroup": "4:memory:/job\n3:cpu:/\n", "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "200\n"}, 200),
        ({"/proc/self/cgroup": "4:memory:/job\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, 1000),
    ):
        known.clear()
        known.update(files)
        assert footprint.available() == least


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 bytes"), (999, "999 bytes"), (24_800_000_000, "24.8 GB"), (10**20, "1e+05 PB")]
)
def test_bytes_for_a_person(count: int, words: str) -> None:
    assert footprint.in_bytes(count) == words


# Ranks


@pytest.mark.parametrize("kind", [InputError, StorageError, OutOfMemoryError, RankLostError])
def test_an_error_of_another_process_keeps_its_code(kind: type[BymiError]) -> None:
    told = error_of(kind.exit_code, "a line")
    assert (type(told), str(told)) == (kind, "a line")


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (OutOfMemoryError("x"), OutOfMemoryError),
        (MemoryError(), OutOfMemoryError),
        (FULL, StorageError),
        (InputError("x"), InputError),
    ],
)
def test_a_rank_that_cannot_build_its_part_stops_all_with_the_code_of_its_error(
    problem: BaseException, kind: type[BymiError]
) -> None:
    with pytest.raises(kind):
        course._by_all(Group(), fail(problem))


def test_whole_runs_on_ranks_keep_the_code_of_their_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Alone(Group):
        """One rank that hands out numbers."""

        handed = 0

        def take(self, name: str) -> int:
            self.handed += 1
            return self.handed - 1

    monkeypatch.setattr(footprint, "available", lambda: 10**9)
    specs = [tiny().resolved, tiny("nodes=100000", "graph=complete").resolved]
    results = parallel_runs.run_all(specs, tmp_path, group=Alone(), apart=True)
    assert [type(result) for result in results] == [dict, OutOfMemoryError]
